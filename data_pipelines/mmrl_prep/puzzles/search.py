"""Visual search: numbers on small discs in a large photograph; the one asked for can be read only from near by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, difference

COLOURS = {
    "red": (200, 30, 30),
    "green": (20, 120, 50),
    "blue": (30, 60, 190),
    "purple": (120, 30, 150),
    "brown": (110, 65, 25),
    "black": (15, 15, 15),
}
LARGER = 4  # longer side of the picture in sizes of the options: shrunk to one, nothing can be read
ENLARGED = 2.0  # how much a source may be enlarged for it
LETTERS = 4.0  # pixels of a digit where the picture is shrunk to the size of the options
RADIUS = round(LETTERS * LARGER * 1.1)  # pixels of a disc
Disc = tuple[str, int, int, int]  # colour, number, x, y of the middle in pixels


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """The picture with a longer side of LARGER * `options.size` pixels and 3 to 6 numbered discs of different colours.

    `meta["target"]` is the box of the disc asked for, xyxy in pixels. Raises Unpuzzling "too_small".
    """
    long = LARGER * options.size
    scale = long / max(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    if scale > ENLARGED or min(width, height) < 12 * RADIUS:
        raise Unpuzzling("too_small", f"{picture.width}x{picture.height} pixels: too few for a search of {long}")
    discs: list[Disc] = []
    count = int(rng.integers(3, 7))
    names = [list(COLOURS)[int(n)] for n in rng.permutation(len(COLOURS))[:count]]
    numbers = [int(n) for n in rng.choice(np.arange(10, 100), count, replace=False)]
    for name, number in zip(names, numbers, strict=True):
        for _ in range(200):
            x, y = (int(rng.integers(2 * RADIUS, side - 2 * RADIUS)) for side in (width, height))
            if all((x - a) ** 2 + (y - b) ** 2 > (4 * RADIUS) ** 2 for _, _, a, b in discs):
                discs.append((name, number, x, y))
                break
        else:
            raise Unpuzzling("too_small", f"no room for {count} discs in {width}x{height} pixels")
    colour, number, x, y = discs[0]
    meta = {
        "target": [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS],
        "discs": [list(d) for d in discs],
    }
    question = f"Which number stands on the small {colour} disc? It has two digits."
    return Puzzle((draw_discs(picture, (width, height), discs),), question, Answer("number", number), meta)


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the answer is the number of the disc in `target`, its colour is asked for, and the picture shows all."""
    meta, image = puzzle.meta, puzzle.images[0]
    discs = [(str(c), int(n), int(x), int(y)) for c, n, x, y in meta["discs"]]
    colour, number, x, y = discs[0]
    named = f" {colour} disc" in puzzle.question and [d[0] for d in discs].count(colour) == 1
    placed = list(meta["target"]) == [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS]
    drawn = draw_discs(picture, image.size, discs)
    return named and placed and puzzle.answer.value == number and difference(drawn, image) <= tolerance


def draw_discs(picture: Image.Image, size: tuple[int, int], discs: Sequence[Disc]) -> Image.Image:
    image = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(round(LETTERS * LARGER * 1.25))
    for colour, number, x, y in discs:
        draw.ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), fill=COLOURS[colour], outline="white")
        draw.text((x, y), str(number), fill="white", font=font, anchor="mm")
    return image
