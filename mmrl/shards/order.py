"""Orders without state: which sample stands at a place is computed, so that a place is all there is to remember."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, isfinite, lcm

import xxhash

ROUNDS = 6
PERIOD = 10_000  # the finest share of a mixture is 1 / PERIOD


def permute(index: int, size: int, seed: int, epoch: int) -> int:
    """Place `index` of the order of an epoch: a permutation of range(size) for each (seed, epoch), in constant memory.

    A Feistel network over the next power of four, walked until it falls inside the range (Black and Rogaway 2002).
    The domain has at least 64 values: over smaller ones six rounds do not give all orders equally often.
    """
    half = max(3, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(ROUNDS):
            mixed = xxhash.xxh3_64_intdigest(b"%d %d %d %d" % (seed, epoch, number, right))
            left, right = right, left ^ (mixed & mask)
        index = left << half | right
        if index < size:
            return index


def shuffled(place: int, size: int, seed: int) -> int:
    """Number of the sample at a place of the endless stream: epoch 0 in its order, then epoch 1 in its own, ..."""
    return permute(place % size, size, seed, place // size)


def shares(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers without a common divisor: how often each comes in a period, their sum.

    Exact for weights whose period is at most PERIOD; otherwise rounded to a period of PERIOD by largest remainders.
    Raises ValueError for a weight that is not above 0, or too small for a period.
    """
    if not weights or not all(isfinite(w) and w > 0 for w in weights):
        raise ValueError(f"weights are numbers above 0, not {list(weights)}")
    exact = [Fraction(str(w)) for w in weights]
    whole = lcm(*(w.denominator for w in exact))
    counts = [int(w * whole) for w in exact]
    counts = [n // gcd(*counts) for n in counts]
    if sum(counts) <= PERIOD:
        return counts
    ideal = [w * PERIOD / sum(exact) for w in exact]
    counts = [int(n) for n in ideal]
    by_remainder = sorted(range(len(counts)), key=lambda k: (counts[k] - ideal[k], k))
    for k in by_remainder[: PERIOD - sum(counts)]:
        counts[k] += 1
    if min(counts) == 0:
        raise ValueError(f"a weight below 1/{PERIOD} of all: {min(weights)} of {sum(weights)}")
    return [n // gcd(*counts) for n in counts]


def schedule(counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Which part each place of a period draws from, and as the how-manieth draw of that part in this period.

    After p places, part k has come p * counts[k] / sum(counts) times, give or take less than one: at every place the
    parts that are behind their share compete, and the one wins that would be a whole draw behind the soonest.
    """
    period, done = sum(counts), [0] * len(counts)
    parts, draws = [], []
    for place in range(period):
        behind = [k for k, n in enumerate(counts) if done[k] * period < n * (place + 1)]
        part = min(behind, key=lambda k: Fraction(done[k] + 1, counts[k]))
        parts.append(part)
        draws.append(done[part])
        done[part] += 1
    return parts, draws
