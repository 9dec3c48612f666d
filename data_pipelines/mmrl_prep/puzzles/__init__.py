"""Puzzles by name. One more: a function (picture, rng, size) -> Puzzle in a file named after it, and a line here."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from mmrl_prep.puzzles.jigsaw import jigsaw
from mmrl_prep.puzzles.patchfit import patchfit
from mmrl_prep.puzzles.puzzle import Puzzle
from mmrl_prep.puzzles.rotation import rotation

PUZZLES: dict[str, Callable[[Image.Image, np.random.Generator, int], Puzzle]] = {
    "rotation": rotation,
    "jigsaw": jigsaw,
    "patchfit": patchfit,
}

__all__ = ["PUZZLES", "Puzzle"]
