"""Making the samples of one shard. What is written depends on the jobs, the sources and the seed only."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.media import MediaError, content_hash, media_info, normalise_image, read_times
from mmrl.shards import Record, ShardFile
from mmrl.shards.writer import index_path
from mmrl.types import Answer
from mmrl_prep.places import Medium, PrepError, move_up
from mmrl_prep.plan import Job
from mmrl_prep.puzzles import PUZZLES, Puzzle, PuzzleOptions
from mmrl_prep.puzzles.depth import DepthPicture, read_depth
from mmrl_prep.puzzles.puzzle import Unpuzzling, lettered
from mmrl_prep.rng import generator
from mmrl_prep.scan import STRIDE, Facts, salvage

Sample = tuple[dict[str, Any], dict[str, bytes]]  # record and members
PNG_LIMIT = 128  # pixels; larger puzzles are JPEG: a third of the bytes, and nothing to be seen of it
COPIED = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard: the unit of work, and what a killed build does again."""

    path: Path
    jobs: tuple[Job, ...]
    task: str
    seed: int
    options: PuzzleOptions
    upload: Path | None = None  # a folder behind a URL that the shard is then moved to


def make_shard(work: ShardJob) -> list[tuple[str, str, str]]:
    """Write the shard and its index. Returns (key, code, message) of the jobs of which no sample can be made.

    Raises PrepError where a source changed since it was scanned.
    """
    file = ShardFile(work.path)
    failed: list[tuple[str, str, str]] = []
    try:
        for record, members in samples(work, failed):
            file.add(record, members)
    except BaseException:
        file.abort()
        raise
    # an older index must not vouch for the new shard
    index_path(work.path).unlink(missing_ok=True)
    file.commit()
    if work.upload is not None:
        move_up(work.path, work.upload)
        move_up(index_path(work.path), work.upload)
    return failed


def samples(work: ShardJob, failed: list[tuple[str, str, str]]) -> Iterator[Sample]:
    """Samples in the order of the jobs; each source is read and decoded once for a run of jobs."""
    if work.task not in PUZZLES:
        for job in work.jobs:
            yield _question(job)
        return
    for run in _runs(work.jobs):
        try:
            sources = _sources(run, PUZZLES[work.task].needs)
        except (Unpuzzling, MediaError) as error:
            failed += [(job.key, error.code, error.message) for job in run]
            continue
        for job in run:
            try:
                yield _puzzle(job, sources[job.time], work)
            except (Unpuzzling, MediaError) as error:
                failed.append((job.key, error.code, error.message))


def _runs(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Jobs of the same source, and of at most STRIDE frames of it, together."""
    run: list[Job] = []
    for job in jobs:
        if run and (job.media != run[0].media or len({j.time for j in run} | {job.time}) > STRIDE):
            yield run
            run = []
        run.append(job)
    if run:
        yield run


def _sources(run: Sequence[Job], needs: str) -> dict[float | None, Any]:
    """What the puzzles of a run are made of, by time."""
    medium, facts = run[0].media[0]
    data = _read(medium, facts)
    if needs == "video":
        return {None: data}
    if medium.kind == "image":
        picture = _normalised(data, facts)
        return {None: DepthPicture(picture, _depth(medium)) if needs == "depth" else picture}
    times = sorted({job.time for job in run if job.time is not None})
    clip = read_times(data, times)
    return {t: Image.fromarray(frame) for t, frame in zip(times, clip.frames, strict=True)}


def _depth(medium: Medium) -> np.ndarray:
    """The depth map that a row or a file beside the picture gives. Raises MediaError."""
    path = dict(medium.options).get("depth")
    if path is None:
        raise MediaError("no_depth", "no depth map: name one in the column depth, or put NAME.depth.png beside it")
    try:
        return read_depth(Path(path))
    except OSError as error:
        raise MediaError("no_depth", f"{path}: {error.strerror}") from error


def _read(medium: Medium, facts: Facts) -> bytes:
    try:
        data = medium.read()
    except MediaError as error:
        raise PrepError(f"{medium.path}: went away during the build ({error}): run the build again") from error
    if content_hash(data) != facts.hash:
        raise PrepError(f"{medium.path}: changed during the build: run the build again")
    return data


def _normalised(data: bytes, facts: Facts) -> Image.Image:
    return salvage(data) if "truncated" in facts.info.get("flags", ()) else normalise_image(data)[0]


def _puzzle(job: Job, source: Any, work: ShardJob) -> Sample:
    (medium, facts), media, members = job.media[0], [], {}
    own = {k: v for k, v in medium.options if k != "depth"}
    options = replace(work.options, **own) if own else work.options
    maker = PUZZLES[work.task]
    puzzle: Puzzle = maker.make(source, generator(work.seed, job.key), options)
    if not maker.check(puzzle, source):
        raise Unpuzzling("unsolvable", "the stored answer does not lead back to the source")
    for number, data in enumerate(puzzle.clips):
        name = f"{number:03d}.mp4"
        members[name] = data
        width, height, info = media_info(data, "video")
        media.append({**_entry(f"vid_{number + 1}", "video", name, width, height), "info": info})
    for number, image in enumerate(puzzle.images):
        suffix, data = _encode(image)
        name = f"{len(puzzle.clips) + number:03d}.{suffix}"
        members[name] = data
        media.append(_entry(f"img_{number + 1}", "image", name, image.width, image.height))
    meta = {**puzzle.meta, "source": job.source, "picture": facts.hash, "file": medium.file}
    if job.time is not None:
        meta["time"] = job.time
    return _record(job.key, work.task, media, _content(media, puzzle.question), puzzle.answer, meta), members


def _question(job: Job) -> Sample:
    question = job.question
    assert question is not None
    media, members, counts = [], {}, {"image": 0, "video": 0}
    for number, (medium, facts) in enumerate(job.media):
        counts[medium.kind] += 1
        suffix, data = _stored(medium, facts)
        name = f"{number:03d}.{suffix}"
        members[name] = data
        id = f"{'img' if medium.kind == 'image' else 'vid'}_{counts[medium.kind]}"
        media.append({**_entry(id, medium.kind, name, facts.width, facts.height), "info": facts.info})
    meta = {**question.meta, "source": job.source, "files": [m.file for m, _ in job.media], "row": question.row}
    if question.id:
        meta["id"] = question.id
    text = lettered(question.text, question.answer.options)
    content = _inline(media, text) if question.inline else _content(media, text)
    return _record(job.key, question.task, media, content, question.answer, meta), members


def _content(media: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The media in order, then the words."""
    return [*({"type": m["kind"], "id": m["id"]} for m in media), {"type": "text", "text": text}]


def _inline(media: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Words and media as the placeholders of the text say; the media stand for them in order."""
    left = list(media)
    parts: list[dict[str, Any]] = []
    for piece in re.split(r"(<image>|<video>)", text):
        if piece in ("<image>", "<video>"):
            medium = left.pop(0)
            parts.append({"type": medium["kind"], "id": medium["id"]})
        elif piece.strip():
            parts.append({"type": "text", "text": piece.strip("\n")})
    return parts


def _entry(id: str, kind: str, name: str, width: int, height: int) -> dict[str, Any]:
    return {"id": id, "kind": kind, "name": name, "width": width, "height": height}


def _record(
    key: str, task: str, media: list[dict[str, Any]], content: list[dict[str, Any]], answer: Answer, meta: Any
) -> dict[str, Any]:
    """A sample of one user message."""
    return {
        "version": Record.model_fields["version"].default,
        "key": key,
        "task": task,
        "media": media,
        "messages": [{"role": "user", "content": content}],
        "answer": {"kind": answer.kind, "value": answer.value, "options": list(answer.options)},
        "meta": meta,
    }


def _encode(image: Image.Image) -> tuple[str, bytes]:
    """(suffix, bytes) of a puzzle picture, encoded once and whole: tiles carry no block grid of their own."""
    buffer = io.BytesIO()
    if max(image.size) <= PNG_LIMIT:
        image.save(buffer, "PNG")
        return "png", buffer.getvalue()
    image.save(buffer, "JPEG", quality=92, subsampling=0)
    return "jpg", buffer.getvalue()


def _stored(medium: Medium, facts: Facts) -> tuple[str, bytes]:
    """Clips and pictures that need no change keep their bytes; other pictures are normalised, without loss."""
    data = _read(medium, facts)
    if medium.kind == "video":
        suffix = medium.file.rsplit(".", 1)[-1].lower() if "." in medium.file else ""
        return suffix if suffix.isalnum() and len(suffix) <= 5 else "mp4", data
    kind = facts.info.get("format", "")
    if kind in COPIED and not facts.info.get("flags"):
        return COPIED[kind], data
    buffer = io.BytesIO()
    _normalised(data, facts).save(buffer, "PNG", compress_level=1)
    return "png", buffer.getvalue()
