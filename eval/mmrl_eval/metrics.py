"""Numbers from records: accuracy with its interval, consistency, tool use and length.

A record is asked once and counts once: failed, cut and unparsed ones stay in every denominator that names them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def wilson(successes: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927). `n` may be an effective size. (0, 1) when n is 0."""
    if n <= 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_size(scores: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """How many independent records these scores are worth, when records of one cluster go right or wrong together.

    n / design effect (Kish 1965), with the cluster-robust variance of the mean over the variance of independent
    records, and at least 1 as design effect. Scores that are all equal tell nothing of how they hang together: then
    each cluster counts once.
    """
    n, mean = len(scores), sum(scores) / max(1, len(scores))
    residual: dict[Hashable, float] = defaultdict(float)
    for score, cluster in zip(scores, clusters, strict=True):
        residual[cluster] += score - mean
    groups = len(residual)
    if groups == n:
        return float(n)
    independent = sum((s - mean) ** 2 for s in scores) / n**2
    if independent == 0 or groups < 2:
        return float(groups)
    clustered = groups / (groups - 1) * sum(r * r for r in residual.values()) / n**2
    return n / max(1.0, clustered / independent)


def interval(scores: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, float]:
    """95 % interval of the mean of scores in [0, 1]: Wilson's at the effective size, which is n when no two records
    share a cluster."""
    n = effective_size(scores, clusters)
    mean = sum(scores) / max(1, len(scores))
    return wilson(mean * n, n)


@dataclass(frozen=True)
class Distribution:
    """Of a count over records."""

    mean: float
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Nearest-rank p95. All zero for no values."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        return cls(
            statistics.fmean(ordered),
            statistics.median(ordered),
            ordered[math.ceil(0.95 * len(ordered)) - 1],
            ordered[-1],
        )


@dataclass(frozen=True)
class Score:
    """What the records of one task, or of all, come to. Rates are shares of `records` unless said otherwise."""

    records: int  # asked: prompts x samples
    prompts: int
    clusters: int  # source pictures
    accuracy: float
    low: float  # 95 % interval of the accuracy
    high: float
    consistent: float | None  # share of `consistency_records`
    consistent_right: float | None  # the same among right answers
    consistent_wrong: float | None  # and among wrong ones
    consistency_records: int  # records with reasoning and a parsed choice
    unparsed: float  # no answer could be read (unfinished and missing tags included)
    truncated: float  # a turn was cut at its token limit
    tool_used: float  # made at least one call
    tool_calls: float  # calls of a record, mean
    tool_valid: float | None  # share of all calls that worked
    accuracy_with_tools: float | None
    accuracy_without_tools: float | None
    tokens: Distribution  # sampled by the policy
    think_tokens: Distribution
    answer_likelihood: float | None  # geometric mean likelihood of an answer's tokens, mean over those that answered
    status: Mapping[str, int] = field(default_factory=dict)  # extraction status -> records
    stop: Mapping[str, int] = field(default_factory=dict)  # reason of the end -> records
    faults: Mapping[str, int] = field(default_factory=dict)  # "kind:code" -> times


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def summarise(records: Sequence[Mapping[str, Any]]) -> Score:
    """The score of records (at least one) as `mmrl_eval.records.record` makes them."""
    if not records:
        raise ValueError("no records to summarise")
    scores = [float(r["score"]) for r in records]
    clusters = [r["source"] for r in records]
    low, high = interval(scores, clusters)
    judged = [r for r in records if r["consistent"] is not None]
    calls = [call for r in records for call in r["tool_calls"]]
    used = [bool(r["tool_calls"]) for r in records]
    return Score(
        records=len(records),
        prompts=len({r["key"] for r in records}),
        clusters=len(set(clusters)),
        accuracy=statistics.fmean(scores),
        low=low,
        high=high,
        consistent=_mean([float(r["consistent"]) for r in judged]),
        consistent_right=_mean([float(r["consistent"]) for r in judged if r["score"] == 1]),
        consistent_wrong=_mean([float(r["consistent"]) for r in judged if r["score"] != 1]),
        consistency_records=len(judged),
        unparsed=statistics.fmean(float(r["answer"] is None) for r in records),
        truncated=statistics.fmean(float(r["stop"] == "max_tokens") for r in records),
        tool_used=statistics.fmean(map(float, used)),
        tool_calls=len(calls) / len(records),
        tool_valid=_mean([float(c["error"] is None) for c in calls]),
        accuracy_with_tools=_mean([s for s, u in zip(scores, used, strict=True) if u]),
        accuracy_without_tools=_mean([s for s, u in zip(scores, used, strict=True) if not u]),
        tokens=Distribution.of([r["lengths"]["policy"] for r in records]),
        think_tokens=Distribution.of([r["lengths"]["think"] for r in records]),
        answer_likelihood=_mean([math.exp(r["answer_logp"]) for r in records if r["answer_logp"] is not None]),
        status=dict(Counter(r["status"] for r in records)),
        stop=dict(Counter(r["stop"] for r in records)),
        faults=dict(Counter(f"{f['kind']}:{f['code']}" for r in records for f in r["faults"])),
    )


def by_task(records: Sequence[Mapping[str, Any]]) -> dict[str, Score]:
    """The score of each task, in the order of their names."""
    tasks: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in records:
        tasks[row["task"]].append(row)
    return {name: summarise(tasks[name]) for name in sorted(tasks)}
