"""Depth order: numbered marks on a picture; which are nearer? The 3D task of Visual Jigsaw (card visual-jigsaw)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl_prep.puzzles import orders
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import TRIES, Puzzle, Unpuzzling, difference

MARGIN = 0.1  # a farther mark lies at least this share farther than the one before it
SAME = 0.02  # share by which depth may vary beneath a mark: its surface must be one
MIN_SIDE = 64  # pixels of the picture's shorter side
CANDIDATES = 400


@dataclass(frozen=True, slots=True)
class DepthPicture:
    """A picture with the distance of each of its pixels.

    depth: [H, W] numbers of any unit, larger is farther; 0, negative, nan and infinite mean unknown. Raises Unpuzzling
        "depth_shape" where it has another size than the picture.
    """

    picture: Image.Image
    depth: np.ndarray

    def __post_init__(self) -> None:
        if self.depth.shape != (self.picture.height, self.picture.width):
            size = f"{self.picture.width}x{self.picture.height}"
            raise Unpuzzling("depth_shape", f"a depth map of shape {self.depth.shape} for {size} pixels")


def read_depth(source: bytes | Path) -> np.ndarray:
    """A depth map [H, W] float64 from a single-channel picture (16-bit PNG is usual) or a .npy file.

    Raises Unpuzzling "not_depth" where the file is something else.
    """
    data = source if isinstance(source, bytes) else source.read_bytes()
    try:
        if data.startswith(b"\x93NUMPY"):
            depth = np.load(io.BytesIO(data), allow_pickle=False)
        else:
            with Image.open(io.BytesIO(data)) as image:
                depth = np.asarray(image)
    except (OSError, ValueError) as error:
        raise Unpuzzling("not_depth", f"not a depth map: {error}") from error
    if depth.ndim != 2 or depth.dtype.kind not in "uif":
        raise Unpuzzling("not_depth", f"a depth map has one channel of numbers, not {depth.dtype} {depth.shape}")
    return depth.astype(np.float64)


def make(source: DepthPicture, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """`options.points` marks at clearly different depths, numbered at random, on the picture scaled to a longer side
    of at most `options.size`.

    Raises Unpuzzling: "too_small", "no_depth" (too little is known), "flat_depth" (too few different depths).
    """
    width, height = _scaled(source.picture, options.size)
    if min(width, height) < MIN_SIDE:
        raise Unpuzzling("too_small", f"{width}x{height} pixels: marks need a shorter side of {MIN_SIDE}")
    radius = max(6, max(width, height) // 36)
    points = _points(source, rng, (width, height), radius, options.points)
    order = orders.shuffle(len(points), rng)
    shown = orders.show(points, order)
    marked = _draw(source.picture, [(x, y) for x, y, _ in shown], (width, height), radius)
    sentence = (
        f"The marks on this picture are numbered from 0 to {len(points) - 1}. "
        "In which order do the marked places lie, from the nearest to the camera to the farthest?"
    )
    question, answer = orders.ask(sentence, order, rng, options)
    marks = [[x, y] for x, y, _ in shown]
    depths = [round(depth, 6) for _, _, depth in shown]
    meta = {"order": order, "marks": marks, "depths": depths, "size": [width, height], "radius": radius}
    return Puzzle((marked,), question, answer, meta)


def undo(puzzle: Puzzle) -> list[float]:
    """The stored depths of the marks in the stated order: they must increase."""
    return [puzzle.meta["depths"][mark] for mark in orders.stated(puzzle.answer)]


def check(puzzle: Puzzle, source: DepthPicture, tolerance: float = 0.0) -> bool:
    """Whether the marks stand where the meta says, and the source is farther at each next one by the margin."""
    meta = puzzle.meta
    size = (meta["size"][0], meta["size"][1])
    drawn = _draw(source.picture, [(x, y) for x, y in meta["marks"]], size, meta["radius"])
    depths = [_depth_at(source, x, y, size, meta["radius"]) for x, y in meta["marks"]]
    stored = all(d is not None and np.isclose(d, m, rtol=1e-4) for d, m in zip(depths, meta["depths"], strict=True))
    found = undo(puzzle)
    apart = all(far >= near * (1 + MARGIN) * (1 - 1e-4) for near, far in pairwise(found))
    return orders.proves(puzzle.answer, meta["order"]) and stored and apart and _same(puzzle, drawn, tolerance)


def _same(puzzle: Puzzle, drawn: Image.Image, tolerance: float) -> bool:
    return puzzle.images[0].size == drawn.size and difference(puzzle.images[0], drawn) <= tolerance


def _scaled(picture: Image.Image, size: int) -> tuple[int, int]:
    scale = min(1.0, size / max(picture.size))
    return round(picture.width * scale), round(picture.height * scale)


def _points(
    source: DepthPicture, rng: np.random.Generator, size: tuple[int, int], radius: int, count: int
) -> list[tuple[int, int, float]]:
    """(x, y, depth) in pixels of the scaled picture, nearest first: apart in depth, and apart in the picture."""
    if min(size) <= 2 * radius + 1:
        raise Unpuzzling("too_small", f"{size[0]}x{size[1]} pixels: no room for marks")
    candidates = []
    for _ in range(CANDIDATES):
        x, y = (int(rng.integers(radius, side - radius)) for side in size)
        depth = _depth_at(source, x, y, size, radius)
        if depth is not None:
            candidates.append((x, y, depth))
    if len(candidates) < count:
        raise Unpuzzling("no_depth", f"depth is known and even at {len(candidates)} of {CANDIDATES} places only")
    for _ in range(TRIES):
        found: list[tuple[int, int, float]] = []
        for n in rng.permutation(len(candidates)):
            x, y, depth = candidates[n]
            if all(_apart(depth, d) and (x - a) ** 2 + (y - b) ** 2 > (3 * radius) ** 2 for a, b, d in found):
                found.append((x, y, depth))
                if len(found) == count:
                    return sorted(found, key=lambda point: point[2])
    raise Unpuzzling("flat_depth", f"no {count} places that differ by {MARGIN:.0%} in depth")


def _apart(a: float, b: float) -> bool:
    return max(a, b) >= min(a, b) * (1 + MARGIN)


def _depth_at(source: DepthPicture, x: int, y: int, size: tuple[int, int], radius: int) -> float | None:
    """Median depth under half a mark's width around a place; None where some is unknown, or it is not one surface."""
    height, width = source.depth.shape
    reach = max(1, round(radius * width / size[0] / 2))
    column, row = int((x + 0.5) * width / size[0]), int((y + 0.5) * height / size[1])
    patch = source.depth[max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1]
    middle = float(np.median(patch))
    known = bool(np.isfinite(patch).all()) and patch.min() > 0
    return middle if known and patch.max() - patch.min() <= 2 * SAME * middle else None


def _draw(picture: Image.Image, marks: list[tuple[int, int]], size: tuple[int, int], radius: int) -> Image.Image:
    marked = picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    draw, font = ImageDraw.Draw(marked), ImageFont.load_default(size=round(1.5 * radius))
    for number, (x, y) in enumerate(marks):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill="white", outline="red", width=2)
        draw.text((x, y), str(number), fill="black", font=font, anchor="mm")
    return marked
