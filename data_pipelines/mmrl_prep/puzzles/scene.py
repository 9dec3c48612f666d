"""Scene: coloured shapes drawn on a part of a picture; colour, count or position is asked."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, chosen, difference, letter, lettered
from mmrl_prep.scenes import QUARTERS, Shape, draw_scene, redraw


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """A scene with the picture as its background; options stand in a fixed order, every answer is as likely."""
    scene = draw_scene(picture, rng, options.size)
    answer = Answer("choice", letter(scene.options.index(scene.answer)), scene.options)
    shapes = [{**asdict(shape), "box": list(shape.box)} for shape in scene.shapes]
    meta = {"asks": scene.kind, "shapes": shapes, "crop": list(scene.crop)}
    return Puzzle((scene.image,), lettered(scene.question, scene.options), answer, meta)


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the answer follows from the shapes (the first is the one asked about), and drawing them again on the
    same part of the picture gives what is stored, up to `tolerance` levels on average."""
    shapes = [Shape(**{**shape, "box": tuple(shape["box"])}) for shape in puzzle.meta["shapes"]]
    first, image = shapes[0], puzzle.images[0]
    x, y, side = puzzle.meta["crop"]
    truth = {"colour": first.colour, "count": str(len(shapes)), "position": QUARTERS[first.quarter]}
    follows = chosen(puzzle.answer) == truth[puzzle.meta["asks"]] and [s.form for s in shapes].count(first.form) == 1
    return follows and difference(redraw(picture, (x, y, side), image.width, shapes), image) <= tolerance
