"""Boxes of calls, in 0..1000 of a picture, as whole pixels of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmrl.rollout.tools import ToolError

SCALE = 1000
MAX_RATIO = 100  # of the sides; processors refuse 200

BOX = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}


def inside(box: Sequence[float]) -> tuple[float, float, float, float]:
    """A box x1, y1, x2, y2 of 0..1000 with swapped corners put right and what lies outside cut off.

    Raises ToolError outside_picture where no part of it lies inside.
    """
    x1, x2 = sorted((float(box[0]), float(box[2])))
    y1, y2 = sorted((float(box[1]), float(box[3])))
    if x1 >= SCALE or y1 >= SCALE or x2 <= 0 or y2 <= 0:
        told = ",".join(f"{v:g}" for v in box)
        raise ToolError("outside_picture", f"box {told} is outside the image, which is 0-1000")
    return max(x1, 0.0), max(y1, 0.0), min(x2, float(SCALE)), min(y2, float(SCALE))


def pixels(box: Sequence[float], size: tuple[int, int], least: int = 1) -> tuple[int, int, int, int]:
    """The whole pixels x1, y1, x2, y2 that cover a box of 0..1000 (inside) in a picture of `size` (width, height).

    Sides shorter than `least`, or than a hundredth of the other, grow around the same middle where there is room.
    """
    width, height = size
    x = (box[0] * width / SCALE, box[2] * width / SCALE)
    y = (box[1] * height / SCALE, box[3] * height / SCALE)
    side = max(least, math.ceil(max(x[1] - x[0], y[1] - y[0]) / MAX_RATIO))
    (x1, x2), (y1, y2) = _whole(x, side, width), _whole(y, side, height)
    return x1, y1, x2, y2


def thousandths(box: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Pixels x1, y1, x2, y2 of a picture of `size` (width, height) as 0..1000, to a tenth."""
    return [round(v * SCALE / side, 1) for v, side in zip(box, (*size, *size), strict=True)]


def _whole(span: tuple[float, float], least: int, stop: int) -> tuple[int, int]:
    # a millionth of a pixel is rounding, not picture
    low, high = math.floor(span[0] + 1e-6), math.ceil(span[1] - 1e-6)
    if high - low < least:
        low = math.floor((span[0] + span[1] - least) / 2 + 0.5)
        high = low + least
    shift = max(-low, 0) or min(stop - high, 0)
    return max(low + shift, 0), min(high + shift, stop)
