"""Measuring: marked points on a photograph; how far apart are two, what is the angle at one, what area do they span?

Options are steps of a ladder, so that a reading within an eighth of the truth is enough; the right one stands anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, chosen, difference, letter, lettered

KINDS = ("distance", "angle", "area")
LADDER = 1.3  # an option by the one before it
MIN_SIZE = 96
TRIES = 200
Point = tuple[int, int]


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """Two or three lettered marks on the picture scaled to a longer side of `options.size`; the numbers are in pixels
    of that picture, whose size the question tells. Raises Unpuzzling "too_small"."""
    scale = options.size / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    radius = max(5, options.size // 40)
    if options.size < MIN_SIZE or min(width, height) < 10 * radius:
        raise Unpuzzling("too_small", f"{width}x{height} pixels: no room to measure")
    kind = KINDS[int(rng.integers(len(KINDS)))]
    points = _points(rng, (width, height), radius, kind)
    truth = measured(kind, points)
    place = int(rng.integers(4))
    numbers = tuple(str(round(truth * LADDER ** (n - place))) for n in range(4))
    unit = "degrees" if kind == "angle" else "pixels"
    asked = {
        "distance": "How far apart are the middles of the marks A and B",
        "angle": "How large is the angle at mark B between the lines to the middles of A and C",
        "area": "How large is the area of the triangle between the middles of the marks A, B and C",
    }[kind]
    size = "" if kind == "angle" else f" The picture is {width} pixels wide and {height} high."
    question = lettered(f"{asked}, in {'square ' if kind == 'area' else ''}{unit}?{size}", numbers)
    meta = {"measures": kind, "points": [list(p) for p in points], "value": round(truth, 3), "radius": radius}
    return Puzzle(
        (draw_marks(picture, (width, height), points, radius),),
        question,
        Answer("choice", letter(place), numbers),
        meta,
    )


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the chosen number is nearest to what the marks measure, and the picture shows these marks."""
    meta, image = puzzle.meta, puzzle.images[0]
    points = [(int(x), int(y)) for x, y in meta["points"]]
    truth = measured(meta["measures"], points)
    nearest = min(puzzle.answer.options, key=lambda o: abs(float(o) - truth))
    drawn = draw_marks(picture, image.size, points, meta["radius"])
    return chosen(puzzle.answer) == nearest and difference(drawn, image) <= tolerance


def measured(kind: str, points: Sequence[Point]) -> float:
    """Distance of two points in pixels, angle at the second of three in degrees (0 to 180), area in square pixels."""
    (ax, ay), (bx, by) = points[:2]
    if kind == "distance":
        return math.hypot(ax - bx, ay - by)
    cx, cy = points[2]
    cross = (ax - bx) * (cy - by) - (ay - by) * (cx - bx)
    if kind == "area":
        return abs(cross) / 2
    return math.degrees(math.atan2(abs(cross), (ax - bx) * (cx - bx) + (ay - by) * (cy - by)))


def draw_marks(picture: Image.Image, size: tuple[int, int], points: Sequence[Point], radius: int) -> Image.Image:
    image = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(round(1.5 * radius))
    for number, (x, y) in enumerate(points):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill="white", outline="red", width=2)
        draw.text((x, y), letter(number), fill="black", font=font, anchor="mm")
    return image


def _points(rng: np.random.Generator, size: tuple[int, int], radius: int, kind: str) -> list[Point]:
    """Points well apart; of three, none nearly on the line of the others. No option may be more than can be."""
    width, height = size
    most = {"distance": math.hypot(width, height), "angle": 180.0, "area": width * height / 2}[kind]
    for _ in range(TRIES):
        count = 2 if kind == "distance" else 3
        xs = rng.integers(radius, width - radius, count)
        ys = rng.integers(radius, height - radius, count)
        points = [(int(x), int(y)) for x, y in zip(xs, ys, strict=True)]
        gaps = [math.hypot(a[0] - b[0], a[1] - b[1]) for n, a in enumerate(points) for b in points[:n]]
        flat = kind != "distance" and not 20 <= measured("angle", points) <= 140
        if min(gaps) >= 5 * radius and not flat and measured(kind, points) * LADDER**3 <= most:
            return points
    raise Unpuzzling("too_small", f"{width}x{height} pixels: no marks well apart")
