"""The plan of a build: which sample goes where. It is made before anything is written and depends on inputs only."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from mmrl.media import content_hash
from mmrl.shards.writer import dumps
from mmrl_prep.answers import move, upright
from mmrl_prep.mappings import RowError
from mmrl_prep.places import Medium
from mmrl_prep.puzzles import PUZZLES
from mmrl_prep.rng import rank
from mmrl_prep.scan import Facts, Scan
from mmrl_prep.sources import Question, Rejected

SPLITS = ("train", "heldout")


@dataclass(frozen=True, slots=True)
class Job:
    """One sample to be made. A puzzle has one medium, and a `time` in seconds where it shows one frame of a clip."""

    key: str
    source: str  # the group of pictures that count as one in the split
    media: tuple[tuple[Medium, Facts], ...]
    time: float | None = None
    question: Question | None = None


@dataclass(slots=True)
class Plan:
    jobs: dict[str, list[Job]] = field(default_factory=dict)  # by split, in the order of the shards
    rejected: list[Rejected] = field(default_factory=list)
    duplicates: int = 0  # inputs that are there already
    sources: dict[str, int] = field(default_factory=dict)  # groups of each split
    inputs: int = 0  # that can be used


def plan_puzzles(task: str, media: Sequence[Medium], facts: Scan, *, per_image: int, heldout: float, seed: int) -> Plan:
    """`per_image` puzzles from every picture and every chosen frame of a clip, or from every clip where the puzzle is
    made of whole clips; byte-identical files count once."""
    plan = Plan()
    used: dict[str, tuple[Medium, Facts]] = {}
    whole_clips = PUZZLES[task].needs == "video"
    for medium in media:
        fact = facts[medium]
        problem = (fact.code, fact.message)
        if not fact.code and whole_clips and medium.kind == "image":
            problem = ("not_a_clip", f"the puzzle {task} is made of clips")
        elif not fact.code and (fact.info.get("flat") or (medium.kind == "video" and not fact.times)):
            problem = ("blank", "nearly one colour: there is nothing to puzzle with")
        if problem[0]:
            plan.rejected.append(Rejected(problem[0], medium.file, medium.row, problem[1]))
        elif fact.hash in used:
            plan.duplicates += 1
        else:
            used[fact.hash] = (medium, fact)
    groups = group([[fact] for _, fact in used.values()])
    jobs = []
    for medium, fact in used.values():
        for time in fact.times if medium.kind == "video" and not whole_clips else (None,):
            stamp = "" if time is None else f"-t{round(time * 1000):07d}"
            for number in range(per_image):
                key = f"{task}-{fact.hash[:20]}{stamp}-{number:03d}"
                jobs.append(Job(key, groups[fact.hash], ((medium, fact),), time))
    split(plan, jobs, heldout, seed)
    return plan


def plan_questions(questions: Sequence[Question], facts: Scan, *, heldout: float, seed: int) -> Plan:
    """One sample from every row whose media are good; equal rows count once."""
    plan = Plan()
    good: dict[str, tuple[Question, list[Facts]]] = {}
    for question in questions:
        seen = [facts[m] for m in question.media]
        bad = next(((m, f) for m, f in zip(question.media, seen, strict=True) if f.code), None)
        if bad:
            plan.rejected.append(Rejected(bad[1].code, bad[0].file, question.row, bad[1].message))
            continue
        try:
            question = placed(question, seen)
        except RowError as error:
            plan.rejected.append(Rejected(error.code, question.file, question.row, str(error)))
            continue
        # a changed picture or wording is another sample; the row's place in the file is not part of it
        answer = question.answer
        identity = [question.text, answer.options, answer.value, question.id, [f.hash for f in seen]]
        key = f"{question.task}-{content_hash(dumps(identity))[:20]}"
        if key in good:
            plan.duplicates += 1
        else:
            good[key] = (question, seen)
    groups = group([seen for _, seen in good.values()])
    jobs = [
        Job(key, groups[seen[0].hash], tuple(zip(question.media, seen, strict=True)), question=question)
        for key, (question, seen) in good.items()
    ]
    split(plan, jobs, heldout, seed)
    return plan


def placed(question: Question, seen: Sequence[Facts]) -> Question:
    """The question with its boxes and points in pixels of its first picture as it is stored. Raises RowError."""
    boxes = question.meta.get("boxes")
    if question.answer.kind not in ("box", "boxes", "point") and not boxes:
        return question
    number = next((n for n, m in enumerate(question.media) if m.kind == "image"), None)
    if number is None:
        raise RowError("bad_box", "answer", "boxes need a picture; this row has clips only")
    fact = seen[number]
    stored = fact.info.get("stored") or (fact.width, fact.height)
    size, orientation = (int(stored[0]), int(stored[1])), int(fact.info.get("orientation", 1))
    meta = question.meta
    if boxes:
        try:
            moved = [move([float(v) for v in box], question.frame, size, orientation) for box in boxes]
        except (TypeError, ValueError) as error:
            raise RowError("bad_box", "boxes", str(error)) from error
        meta = {**meta, "boxes": moved}
    return replace(question, answer=upright(question.answer, question.frame, size, orientation), meta=meta)


def split(plan: Plan, jobs: Sequence[Job], heldout: float, seed: int) -> None:
    """Share the jobs out by source. The same sources and seed give the same split for every task."""
    sources = sorted({job.source for job in jobs}, key=lambda s: rank(seed, s))
    count = round(heldout * len(sources))
    if 0 < heldout < 1 and len(sources) > 1:
        count = min(max(count, 1), len(sources) - 1)
    away = set(sources[:count])
    for name, members in (("train", set(sources) - away), ("heldout", away)):
        if members:
            plan.jobs[name] = [job for job in jobs if job.source in members]
            plan.sources[name] = len(members)


def group(together: Iterable[Sequence[Facts]]) -> dict[str, str]:
    """Content hash -> name of its group: media of one row, and media that look alike, belong together."""
    parent: dict[Hashable, Hashable] = {}

    def root(node: Hashable) -> Hashable:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    hashes: set[str] = set()
    for row in together:
        for fact in row:
            hashes.add(fact.hash)
            parent[root(fact.hash)] = root(row[0].hash)
            if fact.likeness:
                parent[root(("looks", fact.likeness))] = root(fact.hash)
    least: dict[Hashable, str] = {}
    for name in sorted(hashes):
        least.setdefault(root(name), name)
    return {name: least[root(name)] for name in hashes}


def shards(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Jobs of each shard: runs of at most `size`, as equal as they can be."""
    count = math.ceil(len(jobs) / size)
    return [list(jobs[len(jobs) * n // count : len(jobs) * (n + 1) // count]) for n in range(count)]
