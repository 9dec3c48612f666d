"""crop and zoom: a closer look at a picture of the dialogue.

Coordinates of calls are 0..1000 of the picture that the call names (the schema says so, they are never guessed from
their size), whatever size the model saw it in. Both tools cut from the original stored picture at its own resolution,
so a crop of a crop loses nothing, and the new picture's `region` is in pixels of that original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmrl.registry import register
from mmrl.rollout.tools import ToolContext, ToolError
from mmrl.types import Box, ToolResult
from mmrl_tools.geometry import MAX_PIXELS, MAX_RATIO, MIN_SIDE, SCALE, fitted

_IMAGE = {"type": "string"}


def _schema(description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {"image": _IMAGE, **properties},
            "required": ["image", *required],
        },
    }


@register(
    "tool",
    "crop",
    schema=_schema(
        "Cut out a box x1,y1,x2,y2 in 0-1000 of the image",
        {"box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}},
        ["box"],
    ),
)
def crop(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The part of a picture inside `box`. Swapped corners are put right, what lies outside is cut off.

    Errors: unknown_image, outside_picture (no part of the box lies in the picture).
    """
    x1, y1, x2, y2 = arguments["box"]
    x1, x2 = sorted((x1, x2))
    y1, y2 = sorted((y1, y2))
    if x1 >= SCALE or y1 >= SCALE or x2 <= 0 or y2 <= 0:
        raise ToolError("outside_picture", f"box {_numbers(arguments['box'])} is outside the image, which is 0-1000")
    return _view(context, arguments["image"], (max(x1, 0), max(y1, 0), min(x2, SCALE), min(y2, SCALE)))


@register(
    "tool",
    "zoom",
    schema=_schema(
        "Enlarge around a point x,y in 0-1000 of the image",
        {
            "point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            "factor": {"type": "number"},
        },
        ["point"],
    ),
)
def zoom(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The part of a picture around `point` whose sides are 1/`factor` (default 2) of the picture's, moved inside it.

    Errors: unknown_image, outside_picture (the point), bad_arguments (factor not over 1).
    """
    x, y = arguments["point"]
    factor = arguments.get("factor", 2)
    if factor <= 1:
        raise ToolError("bad_arguments", f"factor must be over 1, got {factor}")
    if not (0 <= x <= SCALE and 0 <= y <= SCALE):
        raise ToolError("outside_picture", f"point {_numbers((x, y))} is outside the image, which is 0-1000")
    side = SCALE / factor
    left, top = (min(max(v - side / 2, 0), SCALE - side) for v in (x, y))
    return _view(context, arguments["image"], (left, top, left + side, top + side))


def _view(context: ToolContext, id: str, box: Box) -> ToolResult:
    """Add the part `box` (0..1000, inside) of picture `id` to the dialogue."""
    ref = context.image(id)
    # a sample's own picture may name a parent that is not part of the dialogue: then it is an original here
    original = context.media.get(ref.parent, ref)
    frame = ref.region if ref.region and original is not ref else (0.0, 0.0, float(ref.width), float(ref.height))
    region = _region(frame, box)
    part = context.load(original).crop(region)
    # a picture that is thinner itself leaves no room to grow: processors take it enlarged only
    new = context.add(fitted(part, max(part.width * part.height, MAX_PIXELS)), original.id, region)
    told = [v * SCALE / side for v, side in zip(region, (original.width, original.height) * 2, strict=True)]
    return ToolResult(f"{new.id}: region {_numbers(told)} of {original.id}", (new,))


def _region(frame: Box, box: Box) -> Box:
    """`box` of 0..1000 in the picture at `frame` of its original, as whole pixels xyxy of the original, grown to the
    least size where there is room."""
    left, top, right, bottom = frame
    x = (left + box[0] / SCALE * (right - left), left + box[2] / SCALE * (right - left))
    y = (top + box[1] / SCALE * (bottom - top), top + box[3] / SCALE * (bottom - top))
    least = max(MIN_SIDE, math.ceil(max(x[1] - x[0], y[1] - y[0]) / MAX_RATIO))
    (x1, x2), (y1, y2) = _whole(x, least, left, right), _whole(y, least, top, bottom)
    return x1, y1, x2, y2


def _whole(span: tuple[float, float], least: int, low: float, high: float) -> tuple[float, float]:
    """A span as whole pixels that cover it, at least `least` long around the same middle, inside [low, high]."""
    low, high = math.floor(low), math.ceil(high)  # a region made by others may begin within a pixel
    # a millionth of a pixel is rounding, not picture
    start, stop = math.floor(span[0] + 1e-6), math.ceil(span[1] - 1e-6)
    if stop - start < least:
        start = math.floor((span[0] + span[1] - least) / 2 + 0.5)
        stop = start + least
    shift = max(low - start, 0) or min(high - stop, 0)
    return max(start + shift, low), min(stop + shift, high)


def _numbers(values: Any) -> str:
    return ",".join(f"{v:.0f}" for v in values)
