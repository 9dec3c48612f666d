"""Making the samples of one shard. What is written depends on the jobs, the sources and the seed only."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.media import content_hash, normalise_image, read_times
from mmrl.shards import Record, ShardFile
from mmrl.shards.writer import index_path
from mmrl_prep.plan import Job
from mmrl_prep.puzzles import PUZZLES
from mmrl_prep.puzzles.puzzle import lettered
from mmrl_prep.rng import generator
from mmrl_prep.scan import STRIDE, Facts
from mmrl_prep.sources import Medium, PrepError

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
    size: int


def make_shard(work: ShardJob) -> None:
    """Write the shard and its index. Raises PrepError where a source changed since it was scanned."""
    file = ShardFile(work.path)
    try:
        for record, members in samples(work):
            file.add(record, members)
    except BaseException:
        file.abort()
        raise
    # an older index must not vouch for the new shard
    index_path(work.path).unlink(missing_ok=True)
    file.commit()


def samples(work: ShardJob) -> Iterator[Sample]:
    """Samples in the order of the jobs; each source is read and decoded once for a run of jobs."""
    if work.task not in PUZZLES:
        for job in work.jobs:
            yield _question(job, work.task)
        return
    for run in _runs(work.jobs):
        pictures = _pictures(run)
        for job in run:
            yield _puzzle(job, pictures[job.time], work)


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


def _pictures(run: Sequence[Job]) -> dict[float | None, Image.Image]:
    medium, facts = run[0].media[0]
    data = _read(medium, facts)
    if medium.kind == "image":
        return {None: normalise_image(data)[0]}
    times = sorted({job.time for job in run if job.time is not None})
    clip = read_times(data, times)
    return {t: Image.fromarray(frame) for t, frame in zip(times, clip.frames, strict=True)}


def _read(medium: Medium, facts: Facts) -> bytes:
    try:
        data = medium.path.read_bytes()
    except OSError as error:
        raise PrepError(f"{medium.path}: went away during the build ({error.strerror}): run the build again") from error
    if content_hash(data) != facts.hash:
        raise PrepError(f"{medium.path}: changed during the build: run the build again")
    return data


def _puzzle(job: Job, picture: Image.Image, work: ShardJob) -> Sample:
    puzzle = PUZZLES[work.task](picture, generator(work.seed, job.key), work.size)
    (medium, facts), media, members = job.media[0], [], {}
    for number, image in enumerate(puzzle.images):
        suffix, data = _encode(image)
        name = f"{number:03d}.{suffix}"
        members[name] = data
        media.append(_entry(f"img_{number + 1}", "image", name, image.width, image.height))
    meta = {**puzzle.meta, "source": job.source, "picture": facts.hash, "file": medium.file}
    if job.time is not None:
        meta["time"] = job.time
    options = list(puzzle.answer.options)
    answer = {"kind": puzzle.answer.kind, "value": puzzle.answer.value, "options": options}
    return _record(job.key, work.task, media, puzzle.question, answer, meta), members


def _question(job: Job, task: str) -> Sample:
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
    meta = {"source": job.source, "files": [m.file for m, _ in job.media], "row": question.row}
    if question.id:
        meta["id"] = question.id
    answer = {"kind": "choice", "value": question.answer, "options": list(question.options)}
    return _record(job.key, task, media, lettered(question.text, question.options), answer, meta), members


def _entry(id: str, kind: str, name: str, width: int, height: int) -> dict[str, Any]:
    return {"id": id, "kind": kind, "name": name, "width": width, "height": height}


def _record(
    key: str, task: str, media: list[dict[str, Any]], text: str, answer: dict[str, Any], meta: dict[str, Any]
) -> dict[str, Any]:
    """The media in order, then the words, in one user message."""
    content = [{"type": m["kind"], "id": m["id"]} for m in media] + [{"type": "text", "text": text}]
    return {
        "version": Record.model_fields["version"].default,
        "key": key,
        "task": task,
        "media": media,
        "messages": [{"role": "user", "content": content}],
        "answer": answer,
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
        suffix = medium.path.suffix.lower().lstrip(".")
        return suffix if suffix.isalnum() else "mp4", data
    with Image.open(io.BytesIO(data)) as image:
        kind = image.format or ""
    if kind in COPIED and not facts.info.get("flags"):
        return COPIED[kind], data
    buffer = io.BytesIO()
    normalise_image(data)[0].save(buffer, "PNG")
    return "png", buffer.getvalue()
