"""Rotation: a picture was turned by a quarter turn or not at all; by how much?"""

from __future__ import annotations

import numpy as np
from PIL import Image

from mmrl_prep.puzzles.puzzle import Puzzle, choice, crop, lettered

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
