"""Points, polygons and sizes of pictures: what the tools that edit, mark and measure share.

Points of calls are 0..1000 of the picture named. In pixels, 0 is the outer edge of the first pixel and `width` that of
the last one, as in `mmrl_tools.views`, so the middle of pixel n lies at n + 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from PIL import Image

from mmrl.rollout.tools import ToolContext, ToolError
from mmrl_tools import options

Point = tuple[float, float]
Size = tuple[int, int]  # width, height in pixels

SCALE = 1000  # of coordinates in calls
MIN_SIDE = 28  # pixels: one vision token of Qwen2.5-VL
MAX_RATIO = 100  # of the sides; processors refuse 200
POINT = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
MAX_PIXELS = 16_777_216  # of a new picture, where the recipe does not say


def to_pixels(point: Sequence[float], size: Size, what: str = "point") -> Point:
    """A point of 0..1000 in pixels of a picture of `size`. Raises ToolError outside_picture, which calls it `what`."""
    x, y = (float(v) for v in point)
    if not (0 <= x <= SCALE and 0 <= y <= SCALE):
        raise ToolError("outside_picture", f"{what} {x:g},{y:g} is outside the image, which is 0-1000")
    return x * size[0] / SCALE, y * size[1] / SCALE


def signed_area(polygon: Sequence[Point]) -> float:
    """Area in square pixels by the shoelace formula, positive where the corners go clockwise as seen (y goes down)."""
    after = [*polygon[1:], polygon[0]]
    return sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(polygon, after, strict=True)) / 2


def sides_cross(polygon: Sequence[Point]) -> bool:
    """Whether two sides that are no neighbours meet: such a polygon has no area of its own."""
    count = len(polygon)
    sides = [(polygon[n], polygon[(n + 1) % count]) for n in range(count)]
    return any(
        _meet(sides[a], sides[b]) for a, b in combinations(range(count), 2) if b - a > 1 and (a, b) != (0, count - 1)
    )


def angle_at(a: Point, middle: Point, b: Point) -> float:
    """Degrees, 0..180, between the directions from `middle` to the two others. Raises ValueError where one is it."""
    (ax, ay), (bx, by) = ((p[0] - middle[0], p[1] - middle[1]) for p in (a, b))
    if not (ax or ay) or not (bx or by):
        raise ValueError("an angle needs points apart from its middle")
    return math.degrees(abs(math.atan2(ax * by - ay * bx, ax * bx + ay * by)))


def corner_angles(polygon: Sequence[Point]) -> list[float]:
    """The angle at each corner in degrees, 0..180. Raises ValueError where neighbours are one point."""
    count = len(polygon)
    return [angle_at(polygon[n - 1], polygon[n], polygon[(n + 1) % count]) for n in range(count)]


def clockwise_convex(polygon: Sequence[Point]) -> bool:
    """Whether all corners turn right, as seen, going round once."""
    count = len(polygon)
    turns = [_turn(polygon[n - 1], polygon[n], polygon[(n + 1) % count]) for n in range(count)]
    return min(turns) > 0 and not sides_cross(polygon)


def max_pixels(context: ToolContext, default: int = MAX_PIXELS) -> int:
    """The largest area of a new picture: the setting `max_pixels` of the running tool. Raises ValueError."""
    return options.count(context, "max_pixels", default, low=4096, high=MAX_PIXELS)


def scaled_size(size: Size, scale: float, most: int) -> Size:
    """The size times `scale` in whole pixels, of an area of at most `most`. The longer side is rounded down and the
    shorter one up, so that a shape that processors take stays one."""
    short = min(max(1, math.ceil(min(size) * scale - 1e-6)), math.isqrt(most))
    long = max(short, min(math.floor(max(size) * scale + 1e-6), most // short))
    return (long, short) if size[0] > size[1] else (short, long)


def fitted_size(size: Size, most: int) -> Size:
    """The size scaled to an area of at most `most` pixels, or else up to a shorter side of 28 pixels."""
    area, short = size[0] * size[1], min(size)
    if area <= most and short >= MIN_SIDE:
        return size
    return scaled_size(size, max(min(1.0, math.sqrt(most / area)), MIN_SIDE / short), most)


def fitted(image: Image.Image, most: int) -> Image.Image:
    """The picture scaled to `fitted_size`; the same object where that changes nothing."""
    size = fitted_size(image.size, most)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])


def _meet(one: tuple[Point, Point], other: tuple[Point, Point]) -> bool:
    """Whether two segments have a point in common."""
    (a, b), (c, d) = one, other
    turns = _turn(a, b, c), _turn(a, b, d), _turn(c, d, a), _turn(c, d, b)
    if turns[0] * turns[1] < 0 and turns[2] * turns[3] < 0:
        return True
    ends = ((turns[0], c, one), (turns[1], d, one), (turns[2], a, other), (turns[3], b, other))
    return any(turn == 0 and _between(point, side) for turn, point, side in ends)


def _between(point: Point, side: tuple[Point, Point]) -> bool:
    """Whether a point on the line of a segment lies on the segment."""
    return all(min(p, q) <= v <= max(p, q) for v, p, q in zip(point, *side, strict=True))
