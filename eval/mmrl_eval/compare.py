"""Two runs on the same samples, paired: is the difference more than luck?"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrl_eval import RunError
from mmrl_eval.metrics import Z95
from mmrl_eval.records import read_records

DRAWS = 10_000  # bootstrap and permutation draws
CHUNK = 200  # of them in memory at a time
EXACT = 14  # up to this many clusters that differ, all sign patterns are counted instead of drawn


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test (1947): won and lost pairs against a fair coin. 1 when nothing differs."""
    n = won + lost
    tail = sum(math.comb(n, k) for k in range(min(won, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


def paired_interval(won: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (won - lost) / n for independent pairs: Wald's after adding 1/2 to each of the four cells
    (Agresti and Min 2005), which stays honest where few pairs or none differ."""
    b, c, total = won + 0.5, lost + 0.5, n + 2
    centre = (b - c) / total
    half = Z95 * math.sqrt(b + c - (b - c) ** 2 / total) / total
    return max(-1.0, centre - half), min(1.0, centre + half)


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p that the clusters' summed differences [C] have their signs by chance (Fisher's randomisation).

    All sign patterns where at most EXACT differences are not zero, else DRAWS random ones (the observed one counted).
    """
    values = np.array([d for d in differences if d != 0], dtype=np.float64)
    observed = abs(values.sum()) - 1e-12  # patterns equal but for rounding count as at least as extreme
    if len(values) <= EXACT:
        patterns = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float((np.abs((2 * patterns - 1) @ values) >= observed).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for _ in range(DRAWS // CHUNK):
        signs = 2.0 * generator.integers(0, 2, (CHUNK, len(values)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ values) >= observed).sum())
    return (1 + extreme) / (1 + DRAWS)


def bootstrap_interval(differences: Sequence[float], sizes: Sequence[int], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of sum(differences) / sum(sizes) under resampling of whole clusters [C]."""
    d, n = np.asarray(differences, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    generator, even = np.random.default_rng(seed), np.full(len(d), 1 / len(d))
    means = []
    for _ in range(DRAWS // CHUNK):
        weights = generator.multinomial(len(d), even, size=CHUNK)  # how often each cluster was drawn
        means.append((weights @ d) / (weights @ n))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """B against A on the prompts of one task, or of all that both were asked."""

    prompts: int
    accuracy_a: float
    accuracy_b: float
    difference: float  # B - A
    low: float  # 95 % interval of the difference
    high: float
    p: float  # two-sided
    test: str  # "mcnemar" | "sign-flip"
    won: int  # prompts on which B scored higher
    lost: int
    tied: int


def paired(a: Mapping[str, float], b: Mapping[str, float], source: Mapping[str, str], *, seed: int = 0) -> Difference:
    """Mean scores by key (the same keys in both) compared; `source` names the picture that each key comes from.

    Single samples of separate pictures: McNemar's exact test and the Agresti-Min interval. Several samples a prompt
    or several prompts a picture: sign flips and bootstrap over pictures.
    """
    if not a or a.keys() != b.keys():
        raise ValueError("a paired comparison needs the same keys on both sides, and at least one")
    deltas = {key: b[key] - a[key] for key in a}
    won, lost = sum(d > 0 for d in deltas.values()), sum(d < 0 for d in deltas.values())
    clusters: dict[str, list[float]] = defaultdict(list)
    for key, delta in deltas.items():
        clusters[source[key]].append(delta)
    if len(clusters) == len(a) and all(score in (0, 1) for side in (a, b) for score in side.values()):
        test, p, (low, high) = "mcnemar", mcnemar(won, lost), paired_interval(won, lost, len(a))
    else:
        sums = [sum(c) for c in clusters.values()]
        test, p = "sign-flip", sign_flip(sums, seed=seed)
        low, high = bootstrap_interval(sums, [len(c) for c in clusters.values()], seed=seed)
    mean_a, mean_b = sum(a.values()) / len(a), sum(b.values()) / len(b)
    return Difference(len(a), mean_a, mean_b, mean_b - mean_a, low, high, p, test, won, lost, tied=len(a) - won - lost)


@dataclass(frozen=True)
class Comparison:
    """Two runs, with what only one of them was asked."""

    tasks: dict[str, Difference]
    overall: Difference
    only_a: int  # prompts left out, because the other run was not asked them
    only_b: int
    budget_differences: dict[str, tuple[Any, Any]]


def budget_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings of two budgets that differ, by name."""
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)}


def compare(a: Path, b: Path, *, allow_different_budgets: bool = False, seed: int = 0) -> Comparison:
    """Compare the run in folder `b` with that in `a`.

    Raises RunError where a folder holds no finished run, the budgets differ (unless allowed), a key stands for
    different questions in the two, or no key is in both.
    """
    results = [_finished(folder) for folder in (a, b)]
    differing = budget_differences(results[0]["budget"], results[1]["budget"])
    if differing and not allow_different_budgets:
        lines = [f"  {name}: {left!r} in A, {right!r} in B" for name, (left, right) in differing.items()]
        raise RunError(
            "\n".join(
                [
                    f"the runs had different budgets ({results[0]['budget_hash']}, {results[1]['budget_hash']}):",
                    *lines,
                    "their scores would differ for that alone: run both alike, or say --allow-different-budgets",
                ]
            )
        )
    sides = [_by_key(read_records(folder / "records.jsonl")) for folder in (a, b)]
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        raise RunError(f"{a} and {b} have no sample key in common: they were run on different data")
    for key in common:
        left, right = sides[0][key][0], sides[1][key][0]
        for what in ("task", "truth", "media"):
            if left[what] != right[what]:
                raise RunError(f"sample {key!r} has another {what} in {b} than in {a}: the data differ")
    means = [{k: sum(r["score"] for r in side[k]) / len(side[k]) for k in common} for side in sides]
    source = {k: str(sides[0][k][0]["source"]) for k in common}
    tasks: dict[str, list[str]] = defaultdict(list)
    for key in common:
        tasks[sides[0][key][0]["task"]].append(key)

    def of(keys: Sequence[str]) -> Difference:
        return paired({k: means[0][k] for k in keys}, {k: means[1][k] for k in keys}, source, seed=seed)

    return Comparison(
        tasks={task: of(tasks[task]) for task in sorted(tasks)},
        overall=of(common),
        only_a=len(sides[0]) - len(common),
        only_b=len(sides[1]) - len(common),
        budget_differences=differing,
    )


def _finished(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.is_file():
        raise RunError(f"{folder} holds no finished run (no result.json): start `mmrl-eval run` again to finish it")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _by_key(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in records:
        out[row["key"]].append(row)
    return out
