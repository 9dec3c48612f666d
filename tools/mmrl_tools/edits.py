"""rotate, flip, sharpen, contrast, super_resolution and perspective_correct: a picture made easier to read.

An edited picture is an original of its own: it is no region of the one it was made from, so crops of it are cut from
what the edit shows. What it was made from stands in the result's `data`. Pictures larger than the setting `max_pixels`
of a tool (default 16,777,216) are scaled down and ones under 28 pixels up, which the text says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter

from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import MediaRef, ToolResult
from mmrl_tools import options
from mmrl_tools.boxes import thousandths
from mmrl_tools.geometry import POINT, fitted, max_pixels, scaled_size, to_pixels
from mmrl_tools.page import find_page, flatten, refuse_corners
from mmrl_tools.superres import by_lanczos, by_model

LIMITS = Limits(seconds=60, text=400, media=1)
SHARPEN_RADIUS = 2  # pixels of the blur that is taken away
SUPER_PIXELS = 4_194_304  # of an enlarged picture, by default
_IMAGE = {"type": "string"}
_TURNS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
_FLIPS = {"horizontal": Image.Transpose.FLIP_LEFT_RIGHT, "vertical": Image.Transpose.FLIP_TOP_BOTTOM}


@register(
    "tool",
    "rotate",
    schema=schema(
        "Turn an image by degrees, clockwise; negative: counter-clockwise",
        {"image": _IMAGE, "degrees": {"type": "number"}},
        ["image", "degrees"],
    ),
    limits=LIMITS,
)
def rotate(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The picture turned clockwise. The canvas grows so that no corner is cut, its new parts are white; multiples of 90
    degrees only move pixels. Error: unknown_image."""
    ref = context.image(arguments["image"])
    degrees = arguments["degrees"] % 360
    image = context.load(ref)
    if degrees in _TURNS:
        turned = image.transpose(_TURNS[int(degrees)])
    elif degrees:
        # Pillow counts counter-clockwise
        turned = image.rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    else:
        turned = image
    return _edited(context, ref, turned, f"turned {arguments['degrees']:g} degrees clockwise", {"degrees": degrees})


@register(
    "tool",
    "flip",
    schema=schema(
        "Mirror an image: horizontal swaps left and right, vertical top and bottom",
        {"image": _IMAGE, "direction": {"type": "string", "enum": list(_FLIPS)}},
        ["image", "direction"],
    ),
    limits=LIMITS,
)
def flip(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The picture mirrored. Error: unknown_image."""
    ref = context.image(arguments["image"])
    direction = arguments["direction"]
    image = context.load(ref).transpose(_FLIPS[direction])
    return _edited(context, ref, image, f"mirrored, {direction}", {"direction": direction})


@register(
    "tool",
    "sharpen",
    schema=schema(
        "Sharpen an image; amount 0-5, default 1.5",
        {"image": _IMAGE, "amount": {"type": "number", "minimum": 0, "maximum": 5}},
        ["image"],
    ),
    limits=LIMITS,
)
def sharpen(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The picture plus `amount` times its difference from its blurred self (unsharp mask, radius 2 pixels).

    Error: unknown_image."""
    ref = context.image(arguments["image"])
    amount = arguments.get("amount", 1.5)
    mask = ImageFilter.UnsharpMask(SHARPEN_RADIUS, round(100 * amount), 0)
    return _edited(context, ref, context.load(ref).filter(mask), f"sharpened by {amount:g}", {"amount": amount})


@register(
    "tool",
    "contrast",
    schema=schema(
        "Change contrast and brightness of an image by factors 0.1-5; 1 changes nothing",
        {
            "image": _IMAGE,
            "factor": {"type": "number", "minimum": 0.1, "maximum": 5},
            "brightness": {"type": "number", "minimum": 0.1, "maximum": 5},
        },
        ["image"],
    ),
    limits=LIMITS,
)
def contrast(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Levels times `brightness`, then their distance from the mean gray level times `factor` (both 1 by default).

    Errors: unknown_image, bad_arguments (neither is given)."""
    ref = context.image(arguments["image"])
    if "factor" not in arguments and "brightness" not in arguments:
        raise ToolError("bad_arguments", "give factor for contrast, brightness, or both")
    factor, brightness = arguments.get("factor", 1), arguments.get("brightness", 1)
    image = ImageEnhance.Brightness(context.load(ref)).enhance(brightness)
    image = ImageEnhance.Contrast(image).enhance(factor)
    parts = [f"{name} x{v:g}" for name, v in (("contrast", factor), ("brightness", brightness)) if v != 1]
    what = f"with {' and '.join(parts)}" if parts else "unchanged"
    return _edited(context, ref, image, what, {"factor": factor, "brightness": brightness})


@register(
    "tool",
    "super_resolution",
    schema=schema(
        "Enlarge an image 2-4 times and sharpen it (default 2)",
        {"image": _IMAGE, "scale": {"type": "number", "minimum": 2, "maximum": 4}},
        ["image"],
    ),
    limits=LIMITS,
)
def super_resolution(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The picture enlarged `scale` times, less where it would have more than `max_pixels`; the text says which method
    was used. By default Lanczos and an unsharp mask, which add no detail.

    `rollout.tool_options.super_resolution`: `weights`, a file of a super-resolution model that spandrel reads; `device`
    that it runs on (default cpu); `max_pixels` of the result (default 4,194,304).

    Errors: unknown_image, too_large (no room to enlarge). Raises RuntimeError where spandrel is not installed,
    ValueError for wrong settings.
    """
    most = max_pixels(context, SUPER_PIXELS)
    ref = context.image(arguments["image"])
    image = context.load(ref)
    asked = arguments.get("scale", 2)
    scale = min(asked, math.sqrt(most / (image.width * image.height)))
    if scale <= 1:
        raise ToolError("too_large", f"{ref.id} is large already, {image.width}x{image.height} pixels: crop a part")
    size = scaled_size(image.size, scale, most)
    if "weights" in context.options:
        weights = options.path(context, "weights", None, "a file of a super-resolution model")
        large, method = by_model(image, size, weights, str(context.options.get("device", "cpu")))
    else:
        large, method = by_lanczos(image, size), "Lanczos and unsharp mask"
    less = "" if scale == asked else f" (not {asked:g} times: at most {most} pixels)"
    what = f"enlarged {scale:.3g} times{less} by {method}"
    return _edited(context, ref, large, what, {"scale": scale, "method": method}, ("weights", "device"))


@register(
    "tool",
    "perspective_correct",
    schema=schema(
        "Flatten a page seen at an angle. corners: its top-left, top-right, bottom-right, bottom-left x,y in 0-1000 of "
        "the image; left out: looks for the page",
        {"image": _IMAGE, "corners": {"type": "array", "items": POINT, "minItems": 4, "maxItems": 4}},
        ["image"],
    ),
    limits=LIMITS,
)
def perspective_correct(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The four-cornered part of a picture as a rectangle, as wide and high as the longer ones of its opposite sides.

    Corners that are left out are those of the largest page found (see `mmrl_tools.page.find_page`).

    Errors: unknown_image, outside_picture, bad_corners (not convex, not clockwise, too thin or too small), no_page.
    """
    ref = context.image(arguments["image"])
    image = context.load(ref)
    if "corners" in arguments:
        corners = [to_pixels(p, image.size, f"corner {n}") for n, p in enumerate(arguments["corners"], 1)]
        refuse_corners(corners)
    else:
        found = find_page(image)
        if found is None:
            raise ToolError("no_page", f"no page with four corners found in {ref.id}: give its corners")
        corners = found
    told = [thousandths((*p, *p), image.size)[:2] for p in corners]
    page = flatten(image, corners, max_pixels(context))
    what = f"flattened from corners {' '.join(f'{x:.0f},{y:.0f}' for x, y in told)}"
    return _edited(context, ref, page, what, {"corners": told, "found": "corners" not in arguments})


def _edited(
    context: ToolContext,
    ref: MediaRef,
    image: Image.Image,
    what: str,
    data: Mapping[str, Any],
    settings: Sequence[str] = (),
) -> ToolResult:
    """Add an edited picture to the dialogue, within its limits. `settings`: those that a tool has beside max_pixels."""
    options.check_options(context, ("max_pixels", *settings))
    small = fitted(image, max_pixels(context))
    new = context.add(small)
    scaled = "" if small is image else f", scaled from {image.width}x{image.height}"
    text = f"{new.id}: {ref.id} {what}, {new.width}x{new.height} pixels{scaled}"
    return ToolResult(text, (new,), data={"id": new.id, "of": ref.id, "size": [new.width, new.height], **data})
