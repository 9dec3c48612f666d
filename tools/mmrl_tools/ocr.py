"""ocr: the text in a picture, read by RapidOCR on this machine (extra `mmrl[ocr]`).

Its models (PP-OCRv6 for finding and for reading lines) come inside its package and are named to it by path, so it has
nothing to fetch. Text is taken to be upright: the classifier of lines that stand on their head is left out.

Settings of a recipe under `rollout.tool_options`, with their defaults:

    ocr:
      confidence: 0.5   # lines that are read with less are left out, and counted
      max_side: 1600    # pixels; larger pictures are reduced before they are read
"""

from __future__ import annotations

import os
import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, schema
from mmrl.types import Box, ToolResult
from mmrl_tools.boxes import BOX, inside, pixels, thousandths
from mmrl_tools.options import check_options, count, number

SHORT_SIDE = 736  # pixels that smaller pictures are enlarged to, which the finder of lines was trained at ...
MOST_ENLARGED = 4.0  # ... but never more than so many times
LEAST_SIDE = 96  # pixels; what is smaller gets a margin
READERS = min(4, os.cpu_count() or 1)  # calls that read at the same time, in up to 1 GB each; the others wait
DETECTOR, RECOGNISER = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"


@dataclass(frozen=True, slots=True)
class Line:
    """A run of text: `box` xyxy in pixels of the picture that was read, `confidence` in 0..1."""

    text: str
    box: Box
    confidence: float


@register(
    "tool",
    "ocr",
    schema=schema(
        "Read the text in an image, or in a box x1,y1,x2,y2 of it in 0-1000; gives lines with boxes in 0-1000 of the "
        "image",
        {"image": {"type": "string"}, "box": BOX},
        ["image"],
    ),
    limits=Limits(seconds=60, text=8000, media=0),  # a dense page is 6000 characters with its boxes
)
def ocr(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The lines of text in a picture or a part of it, in rows from top to bottom, in a row from left to right.

    `data`: `image`, `lines` of `text`, `box` (0..1000 of the picture named, also where a part was asked for) and
    `confidence` (0..1), and `left_out`, the number of lines read with too little confidence.

    Errors: unknown_image, outside_picture. Raises RuntimeError where RapidOCR is not installed, ValueError for wrong
    settings.
    """
    check_options(context, ("confidence", "max_side"))
    least = number(context, "confidence", 0.5, low=0, high=1)
    max_side = count(context, "max_side", 1600, low=256, high=8000)
    ref = context.image(arguments["image"])
    part = inside(arguments["box"]) if "box" in arguments else (0, 0, 1000, 1000)
    image = context.load(ref)
    region = pixels(part, image.size)
    found = read_lines(image.crop(region), max_side=max_side)
    kept = [line for line in found if line.confidence >= least]
    x, y = region[:2]
    told, data = [], []
    for line in kept:
        x1, y1, x2, y2 = line.box
        box = thousandths((x1 + x, y1 + y, x2 + x, y2 + y), image.size)
        told.append(f"{line.text} [{','.join(f'{v:.0f}' for v in box)}]")
        data.append({"text": line.text, "box": box, "confidence": round(line.confidence, 3)})
    if not told:
        told = [f"no text found in {ref.id}"]
    if left_out := len(found) - len(kept):
        told.append(f"({left_out} unclear {'line' if left_out == 1 else 'lines'} left out)")
    return ToolResult("\n".join(told), data={"image": ref.id, "lines": data, "left_out": left_out})


def read_lines(image: Image.Image, *, max_side: int = 1600) -> list[Line]:
    """The lines of text in an RGB picture in reading order, whatever their confidence. Same picture, same lines.

    Small pictures are enlarged first; ones with a longer side than `max_side` pixels are reduced. Safe in threads.
    Raises RuntimeError where RapidOCR is not installed.
    """
    width, height = image.size
    scale = min(max(1.0, min(MOST_ENLARGED, SHORT_SIDE / min(image.size))), max_side / max(image.size))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    scaled = image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)
    found = _read(_with_margin(np.asarray(scaled)))
    lines = []
    for text, quad, confidence in found:
        x = np.clip(np.asarray(quad)[:, 0] * width / size[0], 0, width)
        y = np.clip(np.asarray(quad)[:, 1] * height / size[1], 0, height)
        box = (float(x.min()), float(y.min()), float(x.max()), float(y.max()))
        if text.strip() and box[0] < box[2] and box[1] < box[3]:
            lines.append(Line(" ".join(text.split()), box, float(confidence)))
    return reading_order(lines)


def reading_order(lines: Sequence[Line]) -> list[Line]:
    """Lines in rows from top to bottom, in a row from left to right. A line belongs to the row above it where more
    than half of its height, or of the height of the row's first line, lies beside that line."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda it: (it.box[1] + it.box[3], it.box[0])):
        if rows and _beside(rows[-1][0], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda it: (it.box[0], it.box[1]))]


def _beside(one: Line, other: Line) -> bool:
    common = min(one.box[3], other.box[3]) - max(one.box[1], other.box[1])
    return common > 0.5 * min(one.box[3] - one.box[1], other.box[3] - other.box[1])


def _with_margin(array: np.ndarray) -> np.ndarray:
    """[H, W, 3] grown at the right and the bottom to LEAST_SIDE by its own edge: the finder of lines works in steps of
    32 pixels, and would stretch a thin picture to the next one."""
    height, width = array.shape[:2]
    room = ((0, max(0, LEAST_SIDE - height)), (0, max(0, LEAST_SIDE - width)), (0, 0))
    return np.pad(array, room, mode="edge")


# one engine a reader, made on first use: the library promises nothing on threads
_engines: queue.LifoQueue[Any] = queue.LifoQueue()
for _ in range(READERS):
    _engines.put(None)


def _read(array: np.ndarray) -> list[tuple[str, Any, float]]:
    """Text, corners [4, 2] in pixels (x, y) and confidence of each line in an RGB array [H, W, 3]."""
    engine = _engines.get()
    try:
        engine = engine or _engine()
        found = engine(np.ascontiguousarray(array[..., ::-1]))  # it reads BGR, as OpenCV does
    finally:
        _engines.put(engine)
    if found.boxes is None or found.txts is None:
        return []
    return list(zip(found.txts, found.boxes, found.scores, strict=True))


def _engine() -> Any:
    try:
        import rapidocr
    except ImportError as error:
        raise RuntimeError("reading text needs RapidOCR: install mmrl[ocr]") from error
    models = Path(rapidocr.__file__).parent / "models"
    missing = [name for name in (DETECTOR, RECOGNISER) if not (models / name).is_file()]
    if missing:
        raise RuntimeError(
            f"this RapidOCR does not carry {' and '.join(missing)} in {models}: install rapidocr>=3.10, mmrl fetches "
            "no models"
        )
    return rapidocr.RapidOCR(
        params={
            "Global.log_level": "error",
            "Global.use_cls": False,
            "Global.text_score": 0.0,
            # sizes are chosen above; by itself it would enlarge long pictures without bounds
            "Global.max_side_len": 100_000,
            "Global.use_vertical_padding": False,
            "Det.limit_type": "max",
            "Det.limit_side_len": 100_000,
            "Det.model_path": str(models / DETECTOR),
            "Rec.model_path": str(models / RECOGNISER),
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )
