"""Patch fit: a quarter of a picture is gray; which of four patches belongs there?"""

from __future__ import annotations

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.puzzle import (
    MIN_DIFFERENCE,
    TRIES,
    Puzzle,
    crop,
    cut,
    difference,
    letter,
    lettered,
    quadrants,
    source_crop,
)

PLACES = ("top left", "top right", "bottom left", "bottom right")
GRAY = (128, 128, 128)


def patchfit(picture: Image.Image, rng: np.random.Generator, size: int) -> Puzzle:
    """Picture 1 with a hole, picture 2 a 2x2 board of patches: the right one and three from elsewhere in the same
    source at the same scale."""
    size -= size % 2
    piece, box = crop(picture, rng, size)
    hole = int(rng.integers(4))
    area = quadrants(size)[hole]
    patches = [piece.crop(area)]
    for _ in range(3):
        patches.append(_other(picture, box, patches, rng, size // 2))
    right = int(rng.integers(4))
    patches.insert(right, patches.pop(0))
    holed = piece.copy()
    holed.paste(GRAY, area)
    board = Image.new("RGB", (size, size))
    for patch, place in zip(patches, quadrants(size), strict=True):
        board.paste(patch, place)
    answer = Answer("choice", letter(right), PLACES)
    question = lettered("Which patch of the second picture fits the gray hole?", answer.options)
    return Puzzle((holed, board), question, answer, {"hole": hole, "patch": right, "crop": list(box)})


def undo(puzzle: Puzzle) -> Image.Image:
    """The first picture with the chosen patch in its hole."""
    holed, board = puzzle.images
    places = quadrants(holed.width)
    restored = holed.copy()
    restored.paste(board.crop(places[ord(puzzle.answer.value) - ord("A")]), places[puzzle.meta["hole"]])
    return restored


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the chosen patch makes the hole the crop again, up to `tolerance` levels on average."""
    original = source_crop(puzzle, picture)
    return puzzle.answer.value == letter(puzzle.meta["patch"]) and difference(undo(puzzle), original) <= tolerance


def _other(
    picture: Image.Image, box: tuple[int, int, int], patches: list[Image.Image], rng: np.random.Generator, half: int
) -> Image.Image:
    """A patch at the scale of the puzzle from a random place, unlike those there are already."""
    side = max(1, box[2] // 2)
    best, most = patches[0], -1.0
    for _ in range(TRIES):
        x, y = int(rng.integers(picture.width - side + 1)), int(rng.integers(picture.height - side + 1))
        patch = cut(picture, x, y, side, half)
        unlike = min(difference(patch, p) for p in patches)
        if unlike > most:
            best, most = patch, unlike
        if most >= MIN_DIFFERENCE:
            break
    return best
