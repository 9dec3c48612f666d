"""Looking at every medium once: decode it fully, measure it, hash it. A journal keeps what was seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.media import MediaError, content_hash, normalise_image, probe_video, read_times
from mmrl.types import MediaKind
from mmrl_prep.progress import progress
from mmrl_prep.puzzles.puzzle import MIN_SPREAD, spread
from mmrl_prep.sources import Medium
from mmrl_prep.workers import ordered_map, useful

MIN_SIDE = 16  # pixels; a smaller picture shows nothing
MAX_LOST = 0.05  # share of a clip's frames that may be missing or damaged
STRIDE = 16  # frames decoded at a time: memory stays bounded for long clips


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file. `code` says why it cannot be used."""

    hash: str = ""  # xxh3-128 of the file
    likeness: str = ""  # equal for copies in other sizes and formats; empty where there is too little to see
    width: int = 0
    height: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, ...] = ()  # clips: seconds of the frames that make puzzles
    code: str = ""
    message: str = ""


def scan(media: Sequence[Medium], journal: Path, *, every: float, workers: int) -> dict[Path, Facts]:
    """Facts of each file, from the journal where it has not changed since.

    `every`: seconds between the frames of clips that may become puzzles; 0 where the clips stay clips.
    """
    known = _read_journal(journal)
    kinds = {m.path: m.kind for m in media}
    marks = {path: _mark(path, kind, every) for path, kind in kinds.items()}
    todo = [(path, kind) for path, kind in kinds.items() if marks[path] not in known]
    with journal.open("a") as file:
        found = ordered_map(partial(look, every=every), todo, useful(workers, len(todo)))
        for (path, _), facts in zip(todo, progress(found, len(todo), "scan"), strict=True):
            known[marks[path]] = facts
            file.write(json.dumps([marks[path], asdict(facts)]) + "\n")
            file.flush()
    return {path: known[mark] for path, mark in marks.items()}


def look(item: tuple[Path, MediaKind], *, every: float) -> Facts:
    """Facts of one file; never raises for what is in it."""
    path, kind = item
    try:
        return (_look_at_image if kind == "image" else partial(_look_at_video, every=every))(path)
    except MediaError as error:
        return Facts(code=error.code, message=error.message)


def likeness(picture: Image.Image) -> str:
    """Difference hash: whether each of 8x8 places is brighter than its right neighbour, 16 hex digits."""
    gray = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = (gray[:, :-1] > gray[:, 1:]).flatten()
    return np.packbits(bits).tobytes().hex() if spread(picture) >= MIN_SPREAD else ""


def is_flat(picture: Image.Image) -> bool:
    return spread(picture) < MIN_SPREAD


def _look_at_image(path: Path) -> Facts:
    data = _bytes(path)
    picture, flags = normalise_image(data)
    if min(picture.size) < MIN_SIDE:
        raise MediaError("tiny", f"{picture.width}x{picture.height} pixels: a side is under {MIN_SIDE}")
    info: dict[str, Any] = {"flags": list(flags)} if flags else {}
    if is_flat(picture):
        info["flat"] = True
    return Facts(content_hash(data), likeness(picture), picture.width, picture.height, info)


def _look_at_video(path: Path, *, every: float) -> Facts:
    data = _bytes(path)
    video = probe_video(data)
    if min(video.width, video.height) < MIN_SIDE:
        raise MediaError("tiny", f"{video.width}x{video.height} pixels: a side is under {MIN_SIDE}")
    if video.missing > MAX_LOST:
        raise MediaError("truncated", f"{video.frames} of {video.announced} announced frames are there")
    if video.bad_packets > MAX_LOST * video.frames:
        raise MediaError("broken", f"{video.bad_packets} packets do not decode beside {video.frames} frames that do")
    info = {"frames": video.frames, "fps": round(video.fps, 6), "duration": round(video.duration, 6)}
    info |= {k: v for k, v in (("rotation", video.rotation), ("bad_packets", video.bad_packets)) if v}
    middle = Image.fromarray(read_times(data, [video.times[-1] / 2]).frames[0])
    times: list[float] = []
    if every:
        wanted = np.arange(0, video.times[-1] + every * 1e-6, every).tolist()
        for start in range(0, len(wanted), STRIDE):
            clip = read_times(data, wanted[start : start + STRIDE])
            times += [t for t, f in zip(clip.times, clip.frames, strict=True) if not is_flat(Image.fromarray(f))]
    stamps = tuple(sorted({round(t, 6) for t in times}))
    return Facts(content_hash(data), likeness(middle), video.width, video.height, info, stamps)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MediaError("missing", f"cannot read it: {error.strerror}") from error


def _mark(path: Path, kind: MediaKind, every: float) -> str:
    """Changes when the file does, or what is asked of it."""
    try:
        stat = path.stat()
    except OSError:
        return f"{path} missing"
    return f"{path.absolute()} {kind} {stat.st_size} {stat.st_mtime_ns} {every if kind == 'video' else 0}"


def _read_journal(path: Path) -> dict[str, Facts]:
    known: dict[str, Facts] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            mark, facts = json.loads(line)
            known[mark] = Facts(**{**facts, "times": tuple(facts["times"])})
        except (ValueError, TypeError, KeyError):  # the line that was being written when a run was killed
            continue
    return {mark: facts for mark, facts in known.items() if not mark.endswith(" missing")}
