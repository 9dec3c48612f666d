"""python: image code that the policy writes, run behind the boundary of `sandbox.py`.

Settings of a recipe under `rollout.tool_options`, with their defaults:

    python:
      seconds: 10          # of wall time and of CPU time, at most 50
      memory_mb: 1024      # address space of the process
      scratch_mb: 64       # files that the code writes
      output: 2000         # characters of what it prints, and of its last value, at most 3000
      read_paths: []       # absolute folders or files that it may read beside the Python installation
      accept_no_isolation: false  # true: run it where the machine cannot keep it from files, network or processes

Without isolation the tool refuses to start, unless the last setting says otherwise; then only the layers that hold
apply, and in any case a process of its own, a scratch folder and the limits.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from PIL import Image

from mmrl.media import MediaError, normalise_image
from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import MediaRef, ToolResult
from mmrl_tools.geometry import MAX_RATIO, MIN_SIDE
from mmrl_tools.sandbox import Bounds, isolation, open_doors, run

MOST_IMAGES = 32
MOST_PIXELS = 64_000_000  # of all pictures that a call is given
SETTLE = 10.0  # seconds that a call takes at most beside the time of the code

_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)


@dataclass(frozen=True)
class _Settings:
    seconds: float = 10.0
    memory_mb: int = 1024
    scratch_mb: int = 64
    output: int = 2000
    read_paths: tuple[str, ...] = ()
    accept_no_isolation: bool = False


_RANGES = {"seconds": (0.1, 50), "memory_mb": (256, 1 << 20), "scratch_mb": (1, 1 << 16), "output": (1, 3000)}


@register(
    "tool",
    "python",
    schema=schema(
        "Run Python code on the images, e.g. images['img_1'], a PIL image (RGB). What it prints and the value of its "
        "last line come back as text; show(image) gives a new picture (PIL image or uint8 RGB array), and so do files "
        "saved as out/NAME.png. numpy, PIL and cv2 are there; no network, no other files, nothing is kept for later",
        {
            "code": {"type": "string", "maxLength": 20000},
            "images": {"type": "array", "items": {"type": "string"}, "maxItems": MOST_IMAGES},
        },
        ["code"],
    ),
    limits=Limits(seconds=50 + SETTLE, text=8000, media=8),
    random=True,
)
def python(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """What the code printed, the value of its last expression, and the pictures that it showed or saved.

    `images`: ids of the pictures that the code gets, default all. New pictures have at most 4 megapixels; smaller ones
    than a vision token are enlarged by whole factors. `random` and numpy draw from the dialogue's seed.

    Errors: unknown_image, too_many_images, code_error (an exception, or the process died), code_timeout, code_memory,
    code_output, code_scratch, code_threads. Raises RuntimeError where nothing isolates the code, ValueError for wrong
    settings.
    """
    settings = _settings(context.options)
    layers = isolation()
    if (doors := open_doors(layers)) and not settings.accept_no_isolation:
        raise RuntimeError(
            f"code of the policy is not run here: nothing keeps it from {', '.join(doors)} (layers that hold: "
            f"{', '.join(layers) or 'none'}); leave out the tool, or accept that with rollout.tool_options: "
            "{python: {accept_no_isolation: true}}"
        )
    bounds = Bounds(settings.seconds, settings.memory_mb, settings.scratch_mb, output=settings.output)
    code = arguments["code"]
    if fenced := _FENCE.fullmatch(code):
        code = fenced[1]
    outcome = run(
        code,
        _pictures(arguments.get("images"), context),
        layers=layers,
        bounds=bounds,
        seed=context.seed,
        read_paths=settings.read_paths,
    )
    printed = outcome.text.rstrip() + " [cut]" * outcome.cut
    if outcome.error is not None:
        what, message = outcome.error
        raise ToolError(what, f"{printed}\n{message}" if printed else message)
    refs, lines, refused = [], [], list(outcome.refused)
    for name, image in outcome.pictures:
        try:
            ref = context.add(_shown(image))
        except MediaError as error:
            refused.append(f"{name}: {error.message}")
            continue
        refs.append(ref)
        lines.append(f"{ref.id}: {name}, {ref.width}x{ref.height}")
    lines += [f"not taken: {reason}" for reason in refused]
    text = "\n".join([t for t in (printed, outcome.value) if t] + lines)
    data = {"printed": outcome.text, "value": outcome.value, "pictures": [r.id for r in refs], "refused": refused}
    return ToolResult(text or "(no output)", tuple(refs), data=data)


def _settings(options: Mapping[str, Any]) -> _Settings:
    """The settings of a recipe. Raises ValueError that names what is wrong."""
    known = [f.name for f in fields(_Settings)]
    for name, value in options.items():
        where = f"rollout.tool_options: python: {name}"
        if name not in known:
            raise ValueError(f"{where} is not known; there are: {', '.join(known)}")
        if name == "accept_no_isolation":
            if not isinstance(value, bool):
                raise ValueError(f"{where} must be true or false, got {value!r}")
        elif name == "read_paths":
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise ValueError(f"{where} must be a list of paths, got {value!r}")
        else:
            low, high = _RANGES[name]
            kinds = (int, float) if name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                raise ValueError(f"{where} must be a number from {low:g} to {high:g}, got {value!r}")
    return _Settings(**{**options, "read_paths": tuple(options.get("read_paths", ()))})


def _pictures(ids: list[str] | None, context: ToolContext) -> dict[str, bytes]:
    """The pictures that the code gets, as PNG files by id."""
    refs: list[MediaRef] = [m for m in context.media.values() if m.kind == "image"]
    if ids is not None:
        refs = [context.image(i) for i in dict.fromkeys(ids)]
    if len(refs) > MOST_IMAGES or sum(r.width * r.height for r in refs) > MOST_PIXELS:
        most = f"at most {MOST_IMAGES} of {MOST_PIXELS // 1_000_000} megapixels in all"
        raise ToolError("too_many_images", f"name the images that the code needs, {most}")
    return {ref.id: _png(context.load(ref)) for ref in refs}


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _shown(image: Image.Image) -> Image.Image:
    """A picture of the code's as one of the dialogue, enlarged where it is too small to be seen."""
    upright, _ = normalise_image(image)
    small, large = sorted(upright.size)
    if large > MAX_RATIO * small:
        raise MediaError("ratio", f"one side is more than {MAX_RATIO} times the other")
    factor = math.ceil(MIN_SIDE / small)
    if factor == 1:
        return upright
    return upright.resize((upright.width * factor, upright.height * factor), Image.Resampling.NEAREST)
