"""Rotation: a picture was turned by a quarter turn or not at all; by how much?"""

from __future__ import annotations

import numpy as np
from PIL import Image

from mmrl_prep.puzzles.puzzle import Puzzle, choice, chosen, crop, difference, lettered, source_crop

ANGLES = (0, 90, 180, 270)  # clockwise
_TURN = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}


def rotation(picture: Image.Image, rng: np.random.Generator, size: int) -> Puzzle:
    """A crop turned clockwise by 0, 90, 180 or 270 degrees, each equally likely: an angle that never came would be a
    fifth of the answer for free."""
    piece, box = crop(picture, rng, size)
    place = int(rng.integers(len(ANGLES)))
    angle = ANGLES[place]
    turned = piece.transpose(_TURN[angle]) if angle else piece
    answer = choice([str(a) for a in ANGLES], place, rng)
    question = lettered("By how many degrees clockwise was this picture turned?", answer.options)
    return Puzzle((turned,), question, answer, {"angle": angle, "crop": list(box)})


def undo(puzzle: Puzzle) -> Image.Image:
    """The picture turned back by the stated angle."""
    angle = int(chosen(puzzle.answer))
    return puzzle.images[0].transpose(_TURN[360 - angle]) if angle else puzzle.images[0]


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether turning back gives the crop again, up to `tolerance` levels on average."""
    original = source_crop(puzzle, picture)
    return int(chosen(puzzle.answer)) == puzzle.meta["angle"] and difference(undo(puzzle), original) <= tolerance
