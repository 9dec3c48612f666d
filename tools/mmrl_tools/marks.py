"""draw, measure and objects: marks on a picture, lengths and angles in it, and what its annotations say it shows.

Coordinates of calls are 0..1000 of the picture named. `measure` answers in pixels of the stored picture: a crop has the
pixels of its original, so lengths of both compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import ToolResult
from mmrl_tools import options
from mmrl_tools.boxes import BOX, inside
from mmrl_tools.geometry import (
    POINT,
    Point,
    Size,
    angle_at,
    fitted,
    max_pixels,
    sides_cross,
    signed_area,
    to_pixels,
)

COLOURS = ("red", "blue", "lime", "yellow", "magenta", "cyan")  # of marks in turn, as Pillow knows them
MOST_MARKS, MOST_POINTS = 24, 32
LATIN = 0x250  # letters from here on are not in Pillow's own font
_IMAGE = {"type": "string"}
_FORMS = ("box", "point", "line")
_MARK = {
    "type": "object",
    "properties": {"box": BOX, "point": POINT, "line": BOX, "label": {"type": "string", "maxLength": 24}},
}


@register(
    "tool",
    "draw",
    schema=schema(
        "Draw marks on a copy of an image: each a box x1,y1,x2,y2, a point x,y or a line x1,y1,x2,y2 in 0-1000 of the "
        "image, with an optional label",
        {"image": _IMAGE, "marks": {"type": "array", "items": _MARK, "minItems": 1, "maxItems": MOST_MARKS}},
        ["image", "marks"],
    ),
    limits=Limits(seconds=30, text=3000, media=1),
)
def draw(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """A copy of the picture with marks, in the colours red, blue, lime, yellow, magenta, cyan and so on in turn.

    Boxes are cut to the picture. The copy is an original of its own: views of it show the marks.

    Setting: `max_pixels` of the copy (default 16,777,216), to which it is scaled down.

    Errors: unknown_image, bad_arguments (a mark that is not one of the three forms), outside_picture.
    """
    options.check_options(context, ("max_pixels",))
    ref = context.image(arguments["image"])
    read = [_read_mark(number, mark) for number, mark in enumerate(arguments["marks"], 1)]
    image = context.load(ref)
    copy = fitted(image, max_pixels(context)).copy()
    told, data = [], []
    for number, (form, place, label) in enumerate(read):
        colour = COLOURS[number % len(COLOURS)]
        _draw(copy, form, place, label, colour)
        named = f" {label!r}" if label else ""
        told.append(f"{colour} {form} {','.join(f'{v:.0f}' for v in place)}{named}")
        data.append({"form": form, "place": list(place), "colour": colour, "label": label})
    new = context.add(copy)
    strange = any(ord(c) >= LATIN for _, _, label in read for c in label)
    note = " (letters that the font lacks are shown as empty boxes)" if strange else ""
    scaled = f" (scaled to {copy.width}x{copy.height} pixels)" if copy.size != image.size else ""
    text = f"{new.id}: {ref.id}{scaled} with {'; '.join(told)}{note}"
    return ToolResult(text, (new,), data={"id": new.id, "of": ref.id, "marks": data})


@register(
    "tool",
    "measure",
    schema=schema(
        "Measure in an image, points in 0-1000 of it: distance of 2 points, angle at the 2nd of 3 points, area of a "
        "polygon of 3 or more points (of 2: of the box between them); gives pixels or degrees",
        {
            "image": _IMAGE,
            "what": {"type": "string", "enum": ["distance", "angle", "area"]},
            "points": {"type": "array", "items": POINT, "minItems": 2, "maxItems": MOST_POINTS},
        },
        ["image", "what", "points"],
    ),
    limits=Limits(seconds=10, text=300, media=0),
)
def measure(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """A distance (pixels), an angle (degrees, 0 to 180) or an area (square pixels) in the picture as stored.

    `data`: `value`, `unit` ("pixels", "degrees", "square pixels") and `points` in pixels.

    Errors: unknown_image, outside_picture, bad_arguments (another number of points, an angle without two directions,
    a polygon whose sides cross).
    """
    options.check_options(context, ())
    ref = context.image(arguments["image"])
    what = arguments["what"]
    size = (ref.width, ref.height)
    points = [to_pixels(p, size, f"point {n}") for n, p in enumerate(arguments["points"], 1)]
    value, unit = {"distance": _distance, "angle": _angle, "area": _area}[what](points)
    text = f"{what}: {value:.1f} {unit} of {ref.id}, which is {ref.width}x{ref.height} pixels"
    if unit == "degrees":
        text = f"{what}: {value:.1f} {unit}"
    return ToolResult(text, data={"image": ref.id, "value": value, "unit": unit, "points": [list(p) for p in points]})


def _distance(points: Sequence[Point]) -> tuple[float, str]:
    if len(points) != 2:
        raise ToolError("bad_arguments", f"distance takes 2 points, got {len(points)}")
    return math.dist(*points), "pixels"


def _angle(points: Sequence[Point]) -> tuple[float, str]:
    if len(points) != 3:
        raise ToolError("bad_arguments", f"angle takes 3 points, the corner in the middle, got {len(points)}")
    if points[1] in (points[0], points[2]):
        raise ToolError("bad_arguments", "the 2nd point is the corner: the others must lie elsewhere")
    return angle_at(*points), "degrees"


def _area(points: Sequence[Point]) -> tuple[float, str]:
    if len(points) == 2:
        (x1, y1), (x2, y2) = points
        return abs(x2 - x1) * abs(y2 - y1), "square pixels"
    if sides_cross(points):
        raise ToolError("bad_arguments", "sides of the polygon cross or touch: name its corners in order, each once")
    return abs(signed_area(points)), "square pixels"


def _read_mark(number: int, mark: Mapping[str, Any]) -> tuple[str, tuple[float, ...], str]:
    """Form, place in 0..1000 and label of a mark. Raises ToolError that names its number."""
    forms = [form for form in _FORMS if form in mark]
    if len(forms) != 1:
        raise ToolError(
            "bad_arguments", f"mark {number}: give one of box, point, line, got {', '.join(forms) or 'none'}"
        )
    form, place = forms[0], mark[forms[0]]
    label = " ".join(str(mark.get("label", "")).split())
    if form == "box":
        return form, inside(place), label
    for n in range(0, len(place), 2):
        to_pixels(place[n : n + 2], (1, 1), f"mark {number}: point")
    return form, tuple(float(v) for v in place), label


def _draw(image: Image.Image, form: str, place: Sequence[float], label: str, colour: str) -> None:
    """Draw a mark at a place of 0..1000 into the picture itself."""
    pen, width = ImageDraw.Draw(image), stroke(image.size)
    # the last pixel belongs to 1000, not one behind it
    x = [min(v * image.width / 1000, image.width - 1) for v in place[::2]]
    y = [min(v * image.height / 1000, image.height - 1) for v in place[1::2]]
    if form == "box":
        pen.rectangle((x[0], y[0], x[1], y[1]), outline=colour, width=width)
    elif form == "line":
        pen.line((x[0], y[0], x[1], y[1]), fill=colour, width=width)
    else:
        reach = 2 * width
        pen.ellipse((x[0] - reach, y[0] - reach, x[0] + reach, y[0] + reach), fill=colour, outline="black")
    if label:
        _write(pen, label, (min(x), min(y)), image.size, colour)


def stroke(size: Size) -> int:
    """Width in pixels of a line that is seen in a picture of this size."""
    return max(2, round(min(size) / 200))


def _write(pen: ImageDraw.ImageDraw, label: str, at: Point, size: Size, colour: str) -> None:
    """A label on its own ground, above its mark where there is room, moved into the picture."""
    font = ImageFont.load_default(size=max(12, round(min(size) / 25)))
    left, top, right, bottom = pen.textbbox((0, 0), label, font=font)
    wide, high, gap = right - left + 4, bottom - top + 4, 3 * stroke(size)
    x = max(0.0, min(at[0], size[0] - wide))
    y = at[1] - gap - high if at[1] - gap - high >= 0 else min(at[1] + gap, max(0.0, size[1] - high))
    pen.rectangle((x, y, x + wide, y + high), fill="white", outline=colour)
    pen.text((x + 2 - left, y + 2 - top), label, fill="black", font=font)
