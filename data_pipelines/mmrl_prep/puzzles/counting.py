"""Counting: many small shapes on a photograph; how many are of one form and colour?"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, difference, random_box
from mmrl_prep.scenes import COLOURS, SHAPES, Shape, redraw

COUNTS = range(3, 13)  # of the shapes asked about, each as likely
OTHERS = range(4, 13)  # of other form or colour
MIN_SIDE = 8  # pixels of a shape


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """Shapes in cells of a grid of 5 x 5, some of the form and colour asked about and others that share one of the two
    or neither. Raises Unpuzzling "too_small"."""
    cell = options.size // 5
    if cell < 2 * MIN_SIDE:
        raise Unpuzzling("too_small", f"size {options.size}: shapes would be of under {MIN_SIDE} pixels")
    form, colour = SHAPES[int(rng.integers(len(SHAPES)))], list(COLOURS)[int(rng.integers(len(COLOURS)))]
    kinds = [(f, c) for f in SHAPES for c in COLOURS if (f, c) != (form, colour)]
    count, others = int(rng.choice(COUNTS)), int(rng.choice(OTHERS))
    wanted = [(form, colour)] * count + [kinds[int(rng.integers(len(kinds)))] for _ in range(others)]
    shapes = []
    for (f, c), place in zip(wanted, rng.permutation(25), strict=False):
        side = int(rng.integers(max(MIN_SIDE, cell // 3), cell * 2 // 3 + 1))
        x, y = (int(v) * cell + int(rng.integers(1, cell - side)) for v in (place % 5, place // 5))
        shapes.append(Shape(f, c, 0, (x, y, x + side, y + side)))
    crop = random_box(picture, rng, options.size)
    question = f"How many {colour} {form}s are there?"
    meta = {
        "form": form,
        "colour": colour,
        "shapes": [{**asdict(s), "box": list(s.box)} for s in shapes],
        "crop": list(crop),
    }
    return Puzzle((redraw(picture, crop, options.size, shapes),), question, Answer("number", count), meta)


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the answer is the number of such shapes, and drawing them again gives what is stored."""
    meta, image = puzzle.meta, puzzle.images[0]
    shapes = [Shape(**{**shape, "box": tuple(shape["box"])}) for shape in meta["shapes"]]
    count = sum((s.form, s.colour) == (meta["form"], meta["colour"]) for s in shapes)
    x, y, side = meta["crop"]
    drawn = redraw(picture, (x, y, side), image.width, shapes)
    asked = f" {meta['colour']} {meta['form']}s " in puzzle.question
    shown = drawn.size == image.size and difference(drawn, image) <= tolerance
    return asked and shown and count == puzzle.answer.value
