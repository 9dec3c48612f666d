"""Media that look alike: fingerprints of pictures and clips, and the pairs among many that are close.

A fingerprint is 64 bits of a cosine transform of the picture's brightness, and its mean colour. Copies in other sizes,
formats, qualities, with borders cut or colours shifted differ in few bits. Pictures of nearly one colour have no
structure to compare: they are alike where their colours are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from mmrl_prep.puzzles.puzzle import MIN_SPREAD

BITS = 64
LIMIT = 10  # bits of 64 by which two look-alikes may differ
COLOUR = 12.0  # levels by which the colours of two flat pictures may differ
BLOCK = 4096  # fingerprints compared at a time


@dataclass(frozen=True, slots=True)
class Print:
    """What is compared of a picture, or of a clip by some of its frames."""

    bits: tuple[int, ...]  # 64 bits of each frame; none where the picture is flat
    colour: tuple[int, int, int]

    @property
    def flat(self) -> bool:
        return not self.bits


@dataclass(frozen=True, slots=True)
class Match:
    """Two places of a list, and how far apart they are: 0 for equal bytes, else the mean of bits that differ."""

    first: int
    second: int
    exact: bool
    distance: float


def fingerprint(small: np.ndarray, colour: Sequence[float]) -> str:
    """The text under which a picture's fingerprint is kept: 16 hex digits of bits, or `flat`, and 6 of colour.

    small: [64, 64] uint8 from `mmrl_prep.scan.gray`.
    """
    tint = "".join(f"{round(c):02x}" for c in colour)
    if cv2.meanStdDev(small)[1][0, 0] < MIN_SPREAD:
        return f"flat:{tint}"
    cells = cv2.dct(cv2.resize(small, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32))[:8, :8]
    # the first coefficient is the mean brightness, which says nothing of the picture's structure
    bits = (cells > np.median(cells.ravel()[1:])).ravel()
    return f"{np.packbits(bits).tobytes().hex()}:{tint}"


def parse(texts: Sequence[str]) -> Print:
    """The fingerprint of a picture (one text) or clip (one a frame)."""
    parts = [t.split(":") for t in texts]
    tints = np.mean([[int(tint[n : n + 2], 16) for n in (0, 2, 4)] for _, tint in parts], axis=0)
    bits = () if all(b == "flat" for b, _ in parts) else tuple(0 if b == "flat" else int(b, 16) for b, _ in parts)
    return Print(bits, (int(tints[0]), int(tints[1]), int(tints[2])))


def matches(
    left: Sequence[tuple[str, Print]], right: Sequence[tuple[str, Print]] | None = None, *, limit: int = LIMIT
) -> Iterator[Match]:
    """Pairs (place in left, place in right) of equal content hash or close fingerprints, each once.

    Without `right`, pairs within `left`, first < second. Pictures are compared with pictures, clips with clips of as
    many frames. All pairs are looked at: no shortcut misses any.
    """
    own = right is None
    other = left if right is None else right
    for count in sorted({len(p.bits) for _, p in left} & {len(p.bits) for _, p in other}):
        a = [n for n, (_, p) in enumerate(left) if len(p.bits) == count]
        b = [n for n, (_, p) in enumerate(other) if len(p.bits) == count]
        yield from _close(left, other, a, b, count, limit, own)


def _close(
    left: Sequence[tuple[str, Print]],
    right: Sequence[tuple[str, Print]],
    a: list[int],
    b: list[int],
    count: int,
    limit: int,
    own: bool,
) -> Iterator[Match]:
    first, second = _table(left, a, count), _table(right, b, count)
    for start in range(0, len(a), BLOCK // 8):
        rows = slice(start, start + BLOCK // 8)
        for begin in range(0, len(b), BLOCK):
            columns = slice(begin, begin + BLOCK)
            if count:
                # [rows, columns]: bits that differ, the mean over frames
                different = np.bitwise_count(first[rows, None, :] ^ second[None, columns, :]).mean(-1)
                near = different <= limit
            else:
                different = np.abs(first[rows, None, :].astype(np.int32) - second[None, columns, :].astype(np.int32))
                different = different.max(-1).astype(float)
                near = different <= COLOUR
            for i, j in zip(*np.nonzero(near), strict=True):
                x, y = a[start + int(i)], b[begin + int(j)]
                if not own or x < y:
                    exact = left[x][0] == right[y][0]
                    yield Match(x, y, exact, 0.0 if exact else round(float(different[i, j]), 2))


def _table(items: Sequence[tuple[str, Print]], places: list[int], count: int) -> np.ndarray:
    """[places, frames] uint64 of bits, or [places, 3] uint64 of colours."""
    values = [items[n][1].bits if count else items[n][1].colour for n in places]
    return np.array(values, np.uint64).reshape(len(places), count or 3)


def groups(size: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Places that pairs join, directly or through others; only groups of two and more, in order."""
    parent = list(range(size))

    def root(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for x, y in pairs:
        a, b = sorted((root(x), root(y)))
        parent[b] = a
    found: dict[Hashable, list[int]] = {}
    for n in range(size):
        found.setdefault(root(n), []).append(n)
    return [g for g in found.values() if len(g) > 1]


def print_of(info: dict[str, Any]) -> Print | None:
    """The fingerprint that a scan left in the info of a medium; None where it has none."""
    texts = info.get("print")
    return parse([texts] if isinstance(texts, str) else texts) if texts else None
