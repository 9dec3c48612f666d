"""Copies within a data set, and samples that it shares with benchmarks: reports first, nothing goes without a list."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.shards import ShardSet
from mmrl.types import MediaRef, Sample
from mmrl_prep.places import Medium
from mmrl_prep.rewrite import question, stem
from mmrl_prep.scan import Look, Scan, see
from mmrl_prep.similar import LIMIT, Match, Print, groups, matches, print_of
from mmrl_prep.workers import Crew

Data = ShardSet | Sequence[Sample]
GRAM = 8  # words of a run that two questions share
COMMON = 0.01  # share of one's own samples that a run of words may stand in before it counts as a phrase of the task


@dataclass(frozen=True, slots=True)
class Pair:
    """Evidence that two samples share something. `distance` is of bits of 64; `overlap` the share of word runs."""

    ours: str
    theirs: str
    media: str = ""  # exact, similar, or nothing
    distance: float | None = None
    ours_medium: str = ""
    theirs_medium: str = ""
    text: str = ""  # the longest run of words that both have
    overlap: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v not in ("", None)}


def prints(data: Data, *, workers: int = 1) -> list[list[tuple[str, Print]]]:
    """For each sample, (content hash, fingerprint) of each medium: from its record, else by decoding it."""
    missing: dict[str, MediaRef] = {}
    for sample in data:
        for ref in sample.media:
            if print_of(dict(ref.info)) is None:
                missing.setdefault(ref.hash, ref)
    media = [Medium(Path(r.path), r.kind, r.name, None, (r.offset, r.size or 0)) for r in missing.values()]
    with Crew(workers) as crew:
        seen = crew.map(partial(see, look=Look(min_side=1)), media, len(media))
        made = {hash: print_of(facts.info) for hash, facts in zip(missing, seen, strict=True)}
    out = []
    for sample in data:
        own = [(ref.hash, print_of(dict(ref.info)) or made.get(ref.hash)) for ref in sample.media]
        out.append([(hash, p) for hash, p in own if p is not None])
    return out


def media_groups(media: Sequence[Medium], facts: Scan, *, limit: int = LIMIT) -> list[list[tuple[Medium, float]]]:
    """Media that are copies of one another, exact (distance 0) or alike, each with its distance from the first."""
    good = [(m, facts[m], print_of(facts[m].info)) for m in media if not facts[m].code]
    items = [(f.hash, p) for _, f, p in good if p is not None]
    found = list(matches(items, limit=limit))
    away = {(m.first, m.second): m.distance for m in found}
    out = []
    for group in groups(len(items), ((m.first, m.second) for m in found)):
        first = group[0]
        out.append([(good[n][0], 0.0 if n == first else away.get((first, n), float("nan"))) for n in group])
    return out


def sample_copies(data: Data, *, limit: int = LIMIT, workers: int = 1) -> list[list[int]]:
    """Numbers of samples that ask the same about the same media: equal words, and media that are copies in order."""
    seen = prints(data, workers=workers)
    flat = [(n, k, item) for n, row in enumerate(seen) for k, item in enumerate(row)]
    found = matches([item for _, _, item in flat], limit=limit)
    parent = {n: n for n in range(len(flat))}
    for group in groups(len(flat), ((m.first, m.second) for m in found)):
        for n in group:
            parent[n] = group[0]
    media: dict[int, list[int]] = {}
    for place, (n, _, _) in enumerate(flat):
        media.setdefault(n, []).append(parent[place])
    keys: dict[Any, list[int]] = {}
    for n, sample in enumerate(data):
        key = (" ".join(words(question(sample))), str(sample.answer.value), tuple(media.get(n, ())))
        keys.setdefault(key, []).append(n)
    return [group for group in keys.values() if len(group) > 1]


def contamination(
    ours: Data,
    theirs: Data,
    *,
    limit: int = LIMIT,
    gram: int = GRAM,
    min_overlap: float = 0.5,
    workers: int = 1,
) -> list[Pair]:
    """Pairs of a sample of ours and one of a benchmark that share a picture or clip, or their words.

    Words count where at least `min_overlap` of the benchmark question's runs of `gram` words stand in ours too
    (questions with fewer words must be equal); runs that more than 1 % of our samples have are phrases of a task and
    count for nothing.
    """
    shared = _shared_media(ours, theirs, limit, workers)
    texts = _shared_words(ours, theirs, gram, min_overlap)
    out = []
    for place in sorted({*shared, *texts}):
        a, b = ours[place[0]], theirs[place[1]]
        match, run = shared.get(place), texts.get(place)
        pair = Pair(a.key, b.key)
        if match:
            kind = "exact" if match[0].exact else "similar"
            pair = Pair(a.key, b.key, kind, match[0].distance, match[1], match[2])
        if run:
            pair = Pair(**{**asdict(pair), "text": run[1], "overlap": round(run[0], 3)})
        out.append(pair)
    return out


def _shared_media(ours: Data, theirs: Data, limit: int, workers: int) -> dict[tuple[int, int], tuple[Match, str, str]]:
    sides = []
    for data in (ours, theirs):
        rows = prints(data, workers=workers)
        sides.append([(n, data[n].media[k].name, item) for n, row in enumerate(rows) for k, item in enumerate(row)])
    left, right = sides
    best: dict[tuple[int, int], tuple[Match, str, str]] = {}
    for match in matches([i for *_, i in left], [i for *_, i in right], limit=limit):
        (a, ours_name, _), (b, theirs_name, _) = left[match.first], right[match.second]
        if (a, b) not in best or match.distance < best[a, b][0].distance:
            best[a, b] = (match, ours_name, theirs_name)
    return best


def words(text: str) -> list[str]:
    """Words and numbers without case and punctuation."""
    return re.findall(r"\w+", text.casefold())


def grams(text: list[str], size: int) -> Iterator[tuple[str, ...]]:
    """Runs of `size` words; a shorter text is one run."""
    if len(text) <= size:
        yield tuple(text)
    else:
        for n in range(len(text) - size + 1):
            yield tuple(text[n : n + size])


def _shared_words(ours: Data, theirs: Data, gram: int, min_overlap: float) -> dict[tuple[int, int], tuple[float, str]]:
    index: dict[tuple[str, ...], list[int]] = {}
    for n, sample in enumerate(ours):
        for run in set(grams(words(stem(sample)), gram)):
            index.setdefault(run, []).append(n)
    most = max(10, round(COMMON * len(ours)))
    found: dict[tuple[int, int], tuple[float, str]] = {}
    for m, sample in enumerate(theirs):
        runs = [r for r in dict.fromkeys(grams(words(stem(sample)), gram)) if r]
        hits = Counter[int]()
        example: dict[int, str] = {}
        for run in runs:
            holders = index.get(run, [])
            for n in holders if len(holders) <= most else []:
                hits[n] += 1
                example.setdefault(n, " ".join(run))
        for n, count in hits.items():
            if count / len(runs) >= min_overlap:
                found[n, m] = (count / len(runs), example[n])
    return found
