"""objects: what the annotations of a sample say that its picture shows.

They stand in the sample's meta, in pixels xyxy of the stored picture; `image` may be left out for the first one:

    "objects": [{"label": "cup", "box": [40, 60, 120, 200]}, {"label": "cat", "box": [...], "image": "img_2"}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.registry import nearest, register
from mmrl.rollout.arguments import short
from mmrl.rollout.tools import Limits, ToolContext, schema
from mmrl.types import Box, Fault, FaultKind, MediaRef, Sample, ToolResult
from mmrl_tools import options
from mmrl_tools.boxes import thousandths

MOST_LISTED = 60


@dataclass(frozen=True, slots=True)
class Annotated:
    """An object: `box` xyxy in pixels of the stored picture `image`."""

    label: str
    box: Box
    image: str


@register(
    "tool",
    "objects",
    schema=schema(
        "List the annotated objects in an image, all or those of a label, with boxes in 0-1000 of the image",
        {"image": {"type": "string"}, "label": {"type": "string", "maxLength": 80}},
        ["image"],
    ),
    limits=Limits(seconds=10, media=0),
)
def objects(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The objects in a picture of the sample, or in a crop of it, where boxes are cut to the crop ("cut").

    `data`: `image`, `annotated` (whether there are annotations for it) and `objects`, each with `label`, `box` in
    0..1000 of the picture named, and `cut`.

    Error: unknown_image. Annotations that cannot be read are a fault of the task (bad_objects).
    """
    options.check_options(context, ())
    ref = context.image(arguments["image"])
    label = arguments.get("label")
    try:
        known = read_objects(context.sample)
    except ValueError as error:
        return ToolResult(
            "Error: annotations are not available", fault=Fault(FaultKind.TASK, "bad_objects", str(error))
        )
    original, frame = _place(ref, context)
    given = {m.id for m in context.sample.media} if context.sample else set()
    if known is None or original not in given:
        why = "" if known is None else ": it is neither a picture of the task nor a crop of one"
        return ToolResult(
            f"no annotations for {ref.id}{why}", data={"image": ref.id, "annotated": False, "objects": []}
        )
    here = [(o, part) for o in known if o.image == original and (part := _overlap(o.box, frame))]
    kept = [(o, part) for o, part in here if label is None or _same(o.label, label)]
    found = []
    for item, part in kept:
        moved = tuple(v - frame[n % 2] for n, v in enumerate(part))
        box = thousandths(moved, (ref.width, ref.height))
        found.append({"label": item.label, "box": box, "cut": part != item.box})
    text = _text(ref.id, label, found, sorted({o.label for o, _ in here}))
    return ToolResult(text, data={"image": ref.id, "annotated": True, "objects": found})


def read_objects(sample: Sample | None) -> list[Annotated] | None:
    """The annotations of a sample; None where it has none. Raises ValueError that says what is wrong with them."""
    if sample is None or sample.meta.get("objects") is None:
        return None
    rows = sample.meta["objects"]
    if not isinstance(rows, list | tuple):
        raise ValueError(f"objects is a {type(rows).__name__}: give a list of {{label, box}}")
    pictures = [m.id for m in sample.media if m.kind == "image"]
    return [_read(number, row, pictures) for number, row in enumerate(rows)]


def _read(number: int, row: Any, pictures: Sequence[str]) -> Annotated:
    where = f"objects[{number}]"
    if not isinstance(row, Mapping) or not isinstance(row.get("label"), str):
        raise ValueError(f"{where} is {short(row)}: give a mapping with label and box")
    image = row.get("image", pictures[0] if pictures else "")
    if image not in pictures:
        raise ValueError(f"{where}.image is {short(image)}: {nearest(str(image), list(pictures))}")
    box = row.get("box")
    values: list[Any] = list(box) if isinstance(box, list | tuple) and len(box) == 4 else [None]
    if not all(type(v) in (int, float) for v in values) or not (values[0] < values[2] and values[1] < values[3]):
        raise ValueError(f"{where}.box is {short(box)}: give x1, y1, x2, y2 in pixels, x1 < x2 and y1 < y2")
    x1, y1, x2, y2 = (float(v) for v in values)
    return Annotated(row["label"], (x1, y1, x2, y2), image)


def _place(ref: MediaRef, context: ToolContext) -> tuple[str, Box]:
    """The stored picture that a picture shows, and which part of it, in its pixels."""
    if ref.region and ref.parent in context.media:
        return ref.parent, ref.region
    return ref.id, (0.0, 0.0, float(ref.width), float(ref.height))


def _overlap(box: Box, frame: Box) -> Box | None:
    x1, y1 = max(box[0], frame[0]), max(box[1], frame[1])
    x2, y2 = min(box[2], frame[2]), min(box[3], frame[3])
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _same(one: str, other: str) -> bool:
    return " ".join(one.casefold().split()) == " ".join(other.casefold().split())


def _text(id: str, label: str | None, data: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    named = "" if label is None else f" {label!r}"
    if not data:
        others = f"; annotated there: {', '.join(labels[:MOST_LISTED])}" if labels else ""
        return f"no annotated object{named} in {id}{others}"
    count = f"{len(data)}{named} object{'s' * (len(data) != 1)} in {id}"
    told = [f"{d['label']} [{','.join(f'{v:.0f}' for v in d['box'])}]{' cut' * d['cut']}" for d in data[:MOST_LISTED]]
    more = f"; and {len(data) - MOST_LISTED} more: ask for a label" if len(data) > MOST_LISTED else ""
    return f"{count}: {'; '.join(told)}{more}"
