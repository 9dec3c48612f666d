"""The plan of a build: which sample goes where. It is made before anything is written and depends on inputs only."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.media import content_hash
from mmrl.shards.writer import dumps
from mmrl_prep.rng import rank
from mmrl_prep.scan import Facts
from mmrl_prep.sources import Medium, Question, Rejected

SPLITS = ("train", "heldout")


@dataclass(frozen=True, slots=True)
class Job:
    """One sample to be made. A puzzle has one medium, and a `time` in seconds where that is a clip."""

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


def plan_puzzles(
    task: str, media: Sequence[Medium], facts: Mapping[Path, Facts], *, per_image: int, heldout: float, seed: int
) -> Plan:
    """`per_image` puzzles from every picture and every chosen frame of a clip; byte-identical files count once."""
    plan = Plan()
    used: dict[str, tuple[Medium, Facts]] = {}
    for medium in media:
        fact = facts[medium.path]
        problem = (fact.code, fact.message)
        if not fact.code and (fact.info.get("flat") or (medium.kind == "video" and not fact.times)):
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
        for time in fact.times if medium.kind == "video" else (None,):
            stamp = "" if time is None else f"-t{round(time * 1000):07d}"
            for number in range(per_image):
                key = f"{task}-{fact.hash[:20]}{stamp}-{number:03d}"
                jobs.append(Job(key, groups[fact.hash], ((medium, fact),), time))
    split(plan, jobs, heldout, seed)
    return plan


def plan_questions(
    task: str, questions: Sequence[Question], facts: Mapping[Path, Facts], *, heldout: float, seed: int
) -> Plan:
    """One sample from every row whose media are good; equal rows count once."""
    plan = Plan()
    good: dict[str, tuple[Question, list[Facts]]] = {}
    for question in questions:
        seen = [facts[m.path] for m in question.media]
        bad = next(((m, f) for m, f in zip(question.media, seen, strict=True) if f.code), None)
        if bad:
            plan.rejected.append(Rejected(bad[1].code, bad[0].file, question.row, bad[1].message))
            continue
        # a changed picture or wording is another sample; the row's place in the file is not part of it
        identity = [question.text, question.options, question.answer, question.id, [f.hash for f in seen]]
        key = f"{task}-{content_hash(dumps(identity))[:20]}"
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
