"""Jigsaw: the four tiles of a picture were shuffled; in which order do they make it?"""

from __future__ import annotations

import itertools

import numpy as np
from PIL import Image

from mmrl_prep.puzzles.puzzle import Puzzle, choice, chosen, crop, difference, lettered, quadrants, source_crop

# the identity is neither a puzzle nor an option: it would be an option that is never right
ORDERS = [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)]


def jigsaw(picture: Image.Image, rng: np.random.Generator, size: int) -> Puzzle:
    """A 2x2 board of shuffled tiles; options name the places on the board in reading order of the picture.

    Right and wrong orders are drawn alike, four different ones of the 23, so the options alone tell nothing.
    """
    size -= size % 2
    piece, box = crop(picture, rng, size)
    drawn = [ORDERS[n] for n in rng.choice(len(ORDERS), 4, replace=False)]
    order = drawn[0]  # order[t] is the place on the board of tile t of the picture
    board = Image.new("RGB", (size, size))
    places = quadrants(size)
    for tile, place in enumerate(order):
        board.paste(piece.crop(places[tile]), places[place])
    answer = choice([" ".join(str(p + 1) for p in o) for o in drawn], 0, rng)
    question = lettered("In which order do the tiles make the picture?", answer.options)
    return Puzzle((board,), question, answer, {"order": list(order), "crop": list(box)})


def undo(puzzle: Puzzle) -> Image.Image:
    """The tiles of the board put back by the stated order."""
    board = puzzle.images[0]
    restored = Image.new("RGB", board.size)
    places = quadrants(board.width)
    for place, shown in zip(places, chosen(puzzle.answer).split(), strict=True):
        restored.paste(board.crop(places[int(shown) - 1]), place)
    return restored


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the stated order, which is not the identity, makes the crop again, up to `tolerance` levels."""
    order = puzzle.meta["order"]
    stated = chosen(puzzle.answer) == " ".join(str(place + 1) for place in order) and tuple(order) in ORDERS
    original = source_crop(puzzle, picture)
    return stated and difference(undo(puzzle), original) <= tolerance
