"""Looking at every medium once: decode it fully, measure it, hash it. A journal keeps what was seen."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageFile

from mmrl.images import ORIENTATION, jpeg_pixels
from mmrl.media import MediaError, content_hash, media_facts, normalise_image, probe_video, read_times
from mmrl_prep.places import Medium
from mmrl_prep.progress import progress
from mmrl_prep.puzzles.puzzle import MIN_SPREAD
from mmrl_prep.similar import fingerprint
from mmrl_prep.workers import Crew

MIN_SIDE = 16  # pixels; a smaller picture shows nothing
MAX_LOST = 0.05  # share of a clip's frames that may be missing or damaged
STRIDE = 16  # frames decoded at a time: memory stays bounded for long clips
SMALL = 64  # side of the gray picture that is measured


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a medium. `code` says why it cannot be used."""

    hash: str = ""  # xxh3-128 of the bytes
    likeness: str = ""  # equal for copies in other sizes and formats; empty where there is too little to see
    width: int = 0  # upright
    height: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, ...] = ()  # clips: seconds of the frames that make puzzles
    code: str = ""
    message: str = ""


FIELDS = tuple(Facts.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Look:
    """How media are looked at."""

    every: float = 0.0  # seconds between the frames of clips that may become puzzles; 0 where clips stay clips
    min_side: int = MIN_SIDE
    allow_truncated: bool = False  # keep what is left of cut pictures, marked


def scan(media: Sequence[Medium], journal: Path, *, look: Look, crew: Crew) -> Scan:
    """Facts of each medium, from the journal where its file has not changed since."""
    known = _read_journal(journal)
    places = {m.place: m for m in media}
    marks = {p: _mark(m, look) for p, m in places.items()}
    todo = [m for p, m in places.items() if marks[p] not in known]
    with journal.open("a") as file:
        found = crew.map(partial(see, look=look), todo, len(todo))
        for medium, facts in zip(todo, progress(found, len(todo), "scan"), strict=True):
            mark = marks[medium.place]
            known[mark] = facts
            file.write(json.dumps([mark, {name: getattr(facts, name) for name in FIELDS}]) + "\n")
            file.flush()
    return Scan({p: known[mark] for p, mark in marks.items()})


@dataclass(frozen=True, slots=True)
class Scan:
    """Facts by medium."""

    facts: dict[Any, Facts]

    def __getitem__(self, medium: Medium) -> Facts:
        return self.facts[medium.place]


def see(medium: Medium, *, look: Look) -> Facts:
    """Facts of one medium; never raises for what is in it."""
    try:
        return _see_image(medium, look) if medium.kind == "image" else _see_video(medium, look)
    except MediaError as error:
        return Facts(code=error.code, message=error.message)


def gray(reduced: np.ndarray) -> np.ndarray:
    """[64, 64] uint8: the brightness of what `small` left of a picture."""
    return np.asarray(cv2.cvtColor(reduced, cv2.COLOR_RGB2GRAY))


def small(pixels: np.ndarray) -> np.ndarray:
    """[64, 64, 3] uint8: what is left of a picture for measuring, each value the mean of its part. Of big pictures not
    every pixel is looked at."""
    stride = max(1, min(pixels.shape[:2]) // (2 * SMALL))
    sampled = np.ascontiguousarray(pixels[::stride, ::stride])
    return np.asarray(cv2.resize(sampled, (SMALL, SMALL), interpolation=cv2.INTER_AREA))


def likeness(cells: np.ndarray) -> str:
    """Difference hash of `gray`: whether each of 8x8 places is brighter than its right neighbour, 16 hex digits."""
    grid = cv2.resize(cells, (9, 8), interpolation=cv2.INTER_AREA).astype(np.int16)
    bits = (grid[:, :-1] > grid[:, 1:]).flatten()
    return np.packbits(bits).tobytes().hex() if cells.std() >= MIN_SPREAD else ""


def tint(reduced: np.ndarray) -> list[float]:
    """Mean red, green and blue."""
    return [float(v) for v in cv2.mean(reduced)[:3]]


def is_flat(cells: np.ndarray) -> bool:
    return bool(cells.std() < MIN_SPREAD)


def measures(pixels: np.ndarray, cells: np.ndarray) -> dict[str, float]:
    """Numbers to filter by: `sharpness` (variance of the Laplacian of the middle 256 pixels at full size) and
    `entropy` (bits of the gray levels of `cells`)."""
    top, left = (max(0, side // 2 - 128) for side in pixels.shape[:2])
    middle = cv2.cvtColor(np.ascontiguousarray(pixels[top : top + 256, left : left + 256]), cv2.COLOR_RGB2GRAY)
    _, deviation = cv2.meanStdDev(cv2.Laplacian(middle, cv2.CV_16S))
    shares = np.bincount(cells.ravel(), minlength=256) / cells.size
    shares = shares[shares > 0]
    entropy = -(shares * np.log2(shares)).sum()
    return {"sharpness": round(float(deviation[0, 0]) ** 2, 2), "entropy": round(float(entropy), 3)}


def salvage(data: bytes) -> Image.Image:
    """What is left of a cut picture, the rest of it gray. Raises MediaError."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with Image.open(io.BytesIO(data)) as image:
            return normalise_image(image)[0]
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _see_image(medium: Medium, look: Look) -> Facts:
    data = medium.read()
    pixels, flags = _pixels(data, look)
    height, width = pixels.shape[:2]
    if min(width, height) < look.min_side:
        raise MediaError("tiny", f"{width}x{height} pixels: a side is under {look.min_side}")
    reduced = small(pixels)
    cells = gray(reduced)
    info = header(data) | measures(pixels, cells)
    if flags is None:  # a plain JPEG: all that may be done to it is to turn it
        flags = ["rotated"] if "orientation" in info else []
    if flags:
        info["flags"] = flags
    info["print"] = fingerprint(cells, tint(reduced))
    if is_flat(cells):
        info["flat"] = True
    return Facts(content_hash(data), likeness(cells), width, height, info)


def _pixels(data: bytes, look: Look) -> tuple[np.ndarray, list[str] | None]:
    """Upright pixels [H, W, 3], and flags of what was done; None for a plain JPEG, whose orientation tells."""
    pixels = jpeg_pixels(data)
    if pixels is not None:
        return pixels, None
    try:
        picture, flags = normalise_image(data)
    except MediaError as error:
        if error.code != "truncated" or not look.allow_truncated:
            raise
        return np.array(salvage(data)), ["truncated"]
    return np.array(picture), list(flags)


def header(data: bytes) -> dict[str, Any]:
    """The true `format` and `mode` of a picture's bytes, and where they are stored turned, `stored` size and EXIF
    `orientation`."""
    with Image.open(io.BytesIO(data)) as image:
        out: dict[str, Any] = {"format": image.format, "mode": image.mode}
        try:
            orientation = image.getexif().get(ORIENTATION, 1)
        except Exception:  # a broken text block counts as upright, as everywhere
            orientation = 1
        if orientation in range(2, 9):
            out |= {"orientation": int(orientation), "stored": list(image.size)}
    return out


def _see_video(medium: Medium, look: Look) -> Facts:
    source = medium.source()
    video = probe_video(source)
    if min(video.width, video.height) < look.min_side:
        raise MediaError("tiny", f"{video.width}x{video.height} pixels: a side is under {look.min_side}")
    if video.missing > MAX_LOST:
        raise MediaError("truncated", f"{video.frames} of {video.announced} announced frames are there")
    if video.bad_packets > MAX_LOST * video.frames:
        raise MediaError("broken", f"{video.bad_packets} packets do not decode beside {video.frames} frames that do")
    info = media_facts(video)
    eighths = read_times(source, [video.times[-1] * n / 8 for n in (1, 3, 5, 7)]).frames
    info["print"] = [fingerprint(gray(f), tint(f)) for f in map(small, eighths)]
    times: list[float] = []
    if look.every:
        for wanted in _strides(np.arange(0, video.times[-1] + look.every * 1e-6, look.every).tolist()):
            clip = read_times(source, wanted)
            times += [t for t, f in zip(clip.times, clip.frames, strict=True) if not is_flat(gray(small(f)))]
    stamps = tuple(sorted({round(t, 6) for t in times}))
    middle = likeness(gray(small(read_times(source, [video.times[-1] / 2]).frames[0])))
    return Facts(medium.hash(), middle, video.width, video.height, info, stamps)


def _strides(times: list[float]) -> Iterator[list[float]]:
    for start in range(0, len(times), STRIDE):
        yield times[start : start + STRIDE]


def _mark(medium: Medium, look: Look) -> str:
    """Changes when the file does, or what is asked of it."""
    try:
        stat = medium.path.stat()
    except OSError:
        return f"{medium.place} missing"
    asked = f"{look.every if medium.kind == 'video' else 0} {look.min_side} {look.allow_truncated}"
    path = medium.path.absolute()
    changed = getattr(stat, "st_mtime_ns", 0)
    return f"{path} {medium.stretch} {medium.cell} {medium.kind} {stat.st_size} {changed} {asked}"


def _read_journal(path: Path) -> dict[str, Facts]:
    known: dict[str, Facts] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            mark, facts = json.loads(line)
            known[mark] = Facts(**{**facts, "times": tuple(facts["times"])})
        except (ValueError, TypeError, KeyError):  # the line that was being written when a run was killed
            continue
    return {mark: facts for mark, facts in known.items() if not mark.endswith(" missing")}
