"""Simple questions about small scenes: coloured shapes on crops of real pictures; colour, count and position are asked.

The scenes are drawn, the backgrounds are photographs. The tiny model is pretrained on them, among other things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 214), "yellow": (240, 210, 40)}
SHAPES = ("circle", "square", "triangle")
QUARTERS = ("top left", "top right", "bottom left", "bottom right")
QUESTIONS = ("colour", "count", "position")


@dataclass(frozen=True)
class Shape:
    """One drawn shape: `box` xyxy in pixels, `quarter` a place in QUARTERS."""

    form: str
    colour: str
    quarter: int
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Scene:
    """One drawn picture with one question about it."""

    image: Image.Image
    question: str
    options: tuple[str, ...]
    answer: str  # one of the options
    kind: str  # colour, count or position
    shapes: tuple[Shape, ...] = ()  # what was drawn; the first is the one asked about
    crop: tuple[int, int, int] = (0, 0, 0)  # x, y, side in pixels of the background


def draw_scene(background: Image.Image, rng: np.random.Generator, size: int, kind: str | None = None) -> Scene:
    """A scene of `size` x `size` pixels with one to four shapes, each in a quarter of its own.

    The options stand in the order of `COLOURS`, of counting, or of `QUARTERS`; every answer is as likely as the others.
    """
    kind = kind or QUESTIONS[rng.integers(len(QUESTIONS))]
    crop = _place(background, rng)
    count = int(rng.integers(1, 5))
    if kind != "count" and rng.random() < 0.75:  # graded difficulty: often there is nothing to confuse it with
        count = 1
    quarters = [int(q) for q in rng.permutation(4)[:count]]
    # the first shape is the one asked about: no other has its form
    asked, *rest = (SHAPES[i] for i in rng.permutation(len(SHAPES)))
    forms = [asked, *(rest[rng.integers(len(rest))] for _ in range(count - 1))]
    colours = [list(COLOURS)[rng.integers(len(COLOURS))] for _ in range(count)]
    shapes = []
    for quarter, form, colour in zip(quarters, forms, colours, strict=True):
        side = int(size * rng.uniform(0.16, 0.3))
        half = size // 2
        x = (quarter % 2) * half + int(rng.integers(2, max(3, half - side - 2)))
        y = (quarter // 2) * half + int(rng.integers(2, max(3, half - side - 2)))
        shapes.append(Shape(form, colour, quarter, (x, y, x + side, y + side)))
    question, options, answer = {
        "colour": (f"What colour is the {asked}?", tuple(COLOURS), colours[0]),
        "count": ("How many shapes are there?", ("1", "2", "3", "4"), str(count)),
        "position": (f"Where is the {asked}?", QUARTERS, QUARTERS[quarters[0]]),
    }[kind]
    return Scene(redraw(background, crop, size, shapes), question, options, answer, kind, tuple(shapes), crop)


def redraw(background: Image.Image, crop: tuple[int, int, int], size: int, shapes: Sequence[Shape]) -> Image.Image:
    """The picture of a scene: shapes on a crop (x, y, side) of the background, pale."""
    x, y, side = crop
    square = background.convert("RGB").crop((x, y, x + side, y + side)).resize((size, size), Image.Resampling.BICUBIC)
    image = Image.blend(square, Image.new("RGB", (size, size), (128, 128, 128)), 0.5)
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        _draw(draw, shape.form, shape.box, COLOURS[shape.colour])
    return image


def _place(image: Image.Image, rng: np.random.Generator) -> tuple[int, int, int]:
    side = int(min(image.size) * rng.uniform(0.4, 1.0))
    x, y = (int(rng.integers(0, full - side + 1)) for full in image.size)
    return x, y, side


def _draw(draw: ImageDraw.ImageDraw, form: str, box: tuple[int, int, int, int], fill: tuple[int, int, int]) -> None:
    x1, y1, x2, y2 = box
    if form == "circle":
        draw.ellipse(box, fill=fill)
    elif form == "square":
        draw.rectangle(box, fill=fill)
    else:
        draw.polygon([(x1, y2), (x2, y2), ((x1 + x2) / 2, y1)], fill=fill)
