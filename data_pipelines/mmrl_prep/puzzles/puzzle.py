"""What a puzzle is, and what all of them do: take a crop, tell pieces apart, and shuffle options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageStat

from mmrl.types import Answer

MIN_SPREAD = 12.0  # standard deviation of gray levels under which a crop shows too little
MIN_DIFFERENCE = 16.0  # levels by which a wrong patch must differ from the right one and from the other wrong ones
TRIES = 20


class Unpuzzling(ValueError):
    """A source that allows no puzzle of the kind asked for. `code` is short and stable: "blank", "alike",
    "too_small", "too_short", "still", "flat_depth" ..."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)  # both, so that it survives the way back from a worker process
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A question whose answer is known because the pictures were made from it."""

    images: tuple[Image.Image, ...]
    question: str  # what is asked, then the lettered options, a line each, where there are options
    answer: Answer
    meta: Mapping[str, Any] = field(default_factory=dict)  # the truth beneath the letters, as plain JSON values
    clips: tuple[bytes, ...] = ()  # encoded MP4 files; in the order of the media they come before the images
    sizes: tuple[tuple[int, int], ...] = ()  # (width, height) in upright pixels of each clip


def letter(place: int) -> str:
    return chr(ord("A") + place)


def lettered(question: str, options: Sequence[str]) -> str:
    """The text of a multiple-choice question."""
    return "\n".join([question, *(f"{letter(n)}) {text}" for n, text in enumerate(options))])


def choice(options: Sequence[str], right: int, rng: np.random.Generator) -> Answer:
    """The options in random order, with the letter under which the one at `right` then stands."""
    order = rng.permutation(len(options))
    return Answer("choice", letter(int(np.flatnonzero(order == right)[0])), tuple(options[n] for n in order))


def chosen(answer: Answer) -> str:
    """The text of the option that the stored letter names."""
    return answer.options[ord(answer.value) - ord("A")]


def spread(picture: Image.Image) -> float:
    """Standard deviation of the gray levels: how much there is to see."""
    return float(ImageStat.Stat(picture.convert("L")).stddev[0])


def difference(a: Image.Image, b: Image.Image) -> float:
    """Mean absolute difference of two pictures of one size, in levels."""
    return float(np.abs(np.asarray(a, np.int16) - np.asarray(b, np.int16)).mean())


def least_difference(pictures: Sequence[Image.Image]) -> float:
    """Difference of the two most alike among pictures of one size, in levels."""
    small = [np.asarray(p, np.int16) for p in pictures]
    pairs = [np.abs(a - b).mean() for n, a in enumerate(small) for b in small[:n]]
    return float(min(pairs)) if pairs else 0.0


def random_box(picture: Image.Image, rng: np.random.Generator, size: int) -> tuple[int, int, int]:
    """(x, y, side) of a square at random place and scale: at least half of the shorter side, and not so small that it
    has to be enlarged to `size` where the picture has more pixels."""
    short = min(picture.size)
    side = int(rng.integers(max((short + 1) // 2, min(short, size)), short + 1))
    return int(rng.integers(picture.width - side + 1)), int(rng.integers(picture.height - side + 1)), side


def cut(picture: Image.Image, x: int, y: int, side: int, size: int) -> Image.Image:
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))


def source_crop(puzzle: Puzzle, picture: Image.Image) -> Image.Image:
    """The square crop that a puzzle was made from, cut out of its source once more."""
    x, y, side = puzzle.meta["crop"]
    return cut(picture, x, y, side, puzzle.images[0].width)


def crop(picture: Image.Image, rng: np.random.Generator, size: int) -> tuple[Image.Image, tuple[int, int, int]]:
    """A square crop of `size` pixels with its (x, y, side) in the picture; of flat ones, the least flat."""
    best: tuple[float, Image.Image, tuple[int, int, int]] | None = None
    for _ in range(TRIES):
        box = random_box(picture, rng, size)
        piece = cut(picture, *box, size)
        seen = min(spread(piece.crop(q)) for q in [(0, 0, size, size), *quadrants(size)]) + spread(piece)
        if best is None or seen > best[0]:
            best = (seen, piece, box)
        if seen >= 2 * MIN_SPREAD:
            break
    assert best is not None
    return best[1], best[2]


def quadrants(size: int) -> list[tuple[int, int, int, int]]:
    """Boxes of the four quarters of a square in reading order."""
    half = size // 2
    return [(x, y, x + half, y + half) for y in (0, half) for x in (0, half)]
