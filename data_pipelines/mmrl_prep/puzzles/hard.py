"""Patch fit with decoys: more wrong patches, among them mirrored, turned and recoloured ones (card
puzzlecraft-puzzles).

Were all decoys made from the right patch, it would be the one that the others resemble, and the hole need not be
looked at. So there are two bases, the right patch and another one of the same picture, and both are shown as they are
and in the same changed forms: 2, 3 or 4 forms of each make 3, 5 or 7 distractors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.patchfit import GRAY
from mmrl_prep.puzzles.puzzle import (
    MIN_DIFFERENCE,
    MIN_SPREAD,
    TRIES,
    Puzzle,
    Unpuzzling,
    crop,
    cut,
    difference,
    least_difference,
    letter,
    lettered,
    quadrants,
    source_crop,
    spread,
)

GAP = 4  # pixels between the patches of the board


def _recoloured(patch: Image.Image) -> Image.Image:
    """Colours swapped round and dark made bright, so that gray patches change as well."""
    return Image.fromarray(255 - np.roll(np.asarray(patch), 1, axis=-1))


FORMS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": lambda patch: patch.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "upside_down": lambda patch: patch.transpose(Image.Transpose.ROTATE_180),
    "turned": lambda patch: patch.transpose(Image.Transpose.ROTATE_270),
    "recoloured": _recoloured,
}


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """Picture 1 with a quarter gray, picture 2 a board of two rows with `options.distractors` + 1 patches.

    Raises Unpuzzling: "too_small", "alike" (no patches that differ clearly).
    """
    size, columns = options.size - options.size % 2, (options.distractors + 1) // 2
    if min(picture.size) < 16:
        raise Unpuzzling("too_small", f"{picture.width}x{picture.height} pixels: patches would be of under 8")
    piece, box = crop(picture, rng, size)
    hole = int(rng.integers(4))
    area = quadrants(size)[hole]
    patches, names = _patches(picture, piece.crop(area), box[2], rng, columns)
    order = [int(n) for n in rng.permutation(len(patches))]
    holed = piece.copy()
    holed.paste(GRAY, area)
    board = Image.new("RGB", (columns * (size // 2 + GAP) - GAP, size + GAP), GRAY)
    for slot, number in enumerate(order):
        board.paste(patches[number], _corner(slot, columns, size // 2))
    places = tuple(f"{row} row, patch {n + 1}" for row in ("upper", "lower") for n in range(columns))
    answer = Answer("choice", letter(order.index(0)), places)
    question = lettered("Which patch of the second picture fits the gray hole?", places)
    shown = [names[n] for n in order]
    return Puzzle((holed, board), question, answer, {"hole": hole, "patches": shown, "crop": list(box)})


def undo(puzzle: Puzzle) -> Image.Image:
    """The first picture with the chosen patch in its hole."""
    return _filled(puzzle, ord(puzzle.answer.value) - ord("A"))


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the chosen patch, and no other, makes the hole the crop again, up to `tolerance` levels on average."""
    original = source_crop(puzzle, picture)
    errors = [difference(_filled(puzzle, slot), original) for slot in range(len(puzzle.answer.options))]
    right = ord(puzzle.answer.value) - ord("A")
    named = puzzle.meta["patches"].index("right") == right
    return named and int(np.argmin(errors)) == right and errors[right] <= tolerance


def _patches(
    picture: Image.Image, right: Image.Image, side: int, rng: np.random.Generator, forms: int
) -> tuple[list[Image.Image], list[str]]:
    """The right patch, its changed forms, another patch and the same forms of it; all unlike, with their names."""
    side = max(1, side // 2)
    for _ in range(TRIES):
        x, y = int(rng.integers(picture.width - side + 1)), int(rng.integers(picture.height - side + 1))
        other = cut(picture, x, y, side, right.width)
        if spread(other) < MIN_SPREAD:
            continue
        names = [list(FORMS)[n] for n in rng.permutation(len(FORMS))[: forms - 1]]
        patches = [made for base in (right, other) for made in (base, *(FORMS[name](base) for name in names))]
        if least_difference(patches) >= MIN_DIFFERENCE:
            return patches, ["right", *names, "other", *(f"other_{name}" for name in names)]
    raise Unpuzzling("alike", f"no {2 * forms} patches that differ clearly")


def _corner(slot: int, columns: int, half: int) -> tuple[int, int]:
    row, column = divmod(slot, columns)
    return column * (half + GAP), row * (half + GAP)


def _filled(puzzle: Puzzle, slot: int) -> Image.Image:
    holed, board = puzzle.images
    half = holed.width // 2
    x, y = _corner(slot, len(puzzle.answer.options) // 2, half)
    restored = holed.copy()
    restored.paste(board.crop((x, y, x + half, y + half)), quadrants(holed.width)[puzzle.meta["hole"]])
    return restored
