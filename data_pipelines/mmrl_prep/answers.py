"""Plain columns become a typed answer; boxes and points become upright pixels."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from mmrl.types import Answer, AnswerKind
from mmrl_prep.mappings import RowError
from mmrl_prep.puzzles.puzzle import letter

BoxFormat = Literal["xyxy", "xywh"]
BoxUnit = Literal["pixel", "norm_1", "norm_1000"]
BoxFrame = Literal["stored", "upright"]
GEOMETRIC = ("box", "boxes", "point")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """How a row writes boxes and points, and the size of the picture that it says they were drawn on."""

    format: BoxFormat = "xyxy"
    unit: BoxUnit = "pixel"
    frame: BoxFrame = "stored"  # before the picture is turned upright by its EXIF orientation, or after
    size: tuple[float, float] | None = None


def typed(row: Mapping[str, Any], *, clip: bool) -> Answer:
    """The answer of a row of plain columns. `clip`: two numbers are then a span of seconds, else a point.

    Without `answer_kind`: options make a choice (choices where the answer is a list), a number a number, a text or a
    list of texts a text, four numbers a box. Raises RowError.
    """
    value, options, kind = row.get("answer"), row.get("options"), row.get("answer_kind")
    if value is None or value == "":
        raise RowError("missing_field", "answer", "a value is needed")
    if kind is not None and kind not in get_args(AnswerKind):
        raise RowError("missing_field", "answer_kind", f"one of {', '.join(get_args(AnswerKind))}, not {kind!r}")
    if options and kind in (None, "choice", "choices"):
        return choice(value, options, letters_only=bool(row.get("_answer_is_letter")))
    kind = kind or _infer(value, clip)
    if kind in ("number", "rotation"):
        return Answer(kind, _number(value))
    if kind == "text":
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(t, str | int | float) and str(t).strip() for t in texts):
            raise RowError("bad_answer", "answer", f"a text or a list of texts, not {value!r}")
        return Answer("text", [str(t) for t in texts] if isinstance(value, list) else str(value))
    if kind in ("tests", "expression"):  # checked when they are written
        return Answer(kind, json.loads(value) if isinstance(value, str) else value)
    numbers = _numbers(value)
    if kind == "order":
        return Answer("order", [int(n) for n in numbers])
    if kind == "span" and (len(numbers) != 2 or numbers[0] > numbers[1]):
        raise RowError("bad_answer", "answer", f"a span is [start, end] in seconds, not {value!r}")
    return Answer(kind, numbers)


def choice(value: Any, options: Any, *, letters_only: bool = False) -> Answer:
    """One right option, or several where the answer is a list, given as letters or as texts of options."""
    options = json.loads(options) if isinstance(options, str) and options.startswith("[") else options
    if not isinstance(options, list) or not 2 <= len(options) <= 26:
        raise RowError("bad_options", "options", "a list of 2 to 26 texts is needed")
    texts = tuple(str(o).strip() for o in options)
    if len(set(texts)) < len(texts) or not all(texts):
        raise RowError("bad_options", "options", f"two are equal or one is empty: {list(texts)}")
    if isinstance(value, list):
        right = sorted({_letter(v, texts, letters_only) for v in value})
        if not right:
            raise RowError("bad_answer", "answer", "an empty list: at least one option is right")
        return Answer("choices", right, texts)
    return Answer("choice", _letter(value, texts, letters_only), texts)


def _letter(answer: Any, options: tuple[str, ...], letters_only: bool) -> str:
    said = str(answer).strip()
    letters = [letter(n) for n in range(len(options))]
    readings = {letters[options.index(said)]} if said in options and not letters_only else set()
    if said in letters:
        readings.add(said)
    if len(readings) != 1:
        problem = "is an option's text and another one's letter" if readings else "is no letter and no option"
        raise RowError("ambiguous_answer" if readings else "bad_answer", "answer", f"{said!r} {problem}")
    return readings.pop()


def _infer(value: Any, clip: bool) -> AnswerKind:
    if isinstance(value, bool):
        raise RowError("bad_answer", "answer", "true and false are not answers: write yes or no, or options")
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        if len(value) == 4:
            return "box"
        if len(value) == 2:
            return "span" if clip else "point"
    if isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        return "boxes"
    return "text"


def _number(value: Any) -> float:
    try:
        number = float(str(value).replace(",", "").strip())
    except ValueError as error:
        raise RowError("bad_answer", "answer", f"a number is needed, not {value!r}") from error
    if not math.isfinite(number):
        raise RowError("bad_answer", "answer", f"a finite number is needed, not {value!r}")
    return number


def _numbers(value: Any) -> list[Any]:
    try:
        value = json.loads(value) if isinstance(value, str) else value
        nested = [list(map(float, v)) if isinstance(v, list) else float(v) for v in value]
    except (ValueError, TypeError) as error:
        raise RowError("bad_answer", "answer", f"a list of numbers is needed, not {value!r}") from error
    return nested


def frame_of(row: Mapping[str, Any]) -> Frame:
    """How the row writes boxes. Raises RowError for a value that does not exist."""
    chosen = {}
    for field, kind in (("format", BoxFormat), ("unit", BoxUnit), ("frame", BoxFrame)):
        value = row.get(f"box_{field}")
        if value is not None:
            if value not in get_args(kind):
                raise RowError("bad_box", f"box_{field}", f"one of {', '.join(get_args(kind))}, not {value!r}")
            chosen[field] = value
    size = (float(row["width"]), float(row["height"])) if row.get("width") and row.get("height") else None
    return Frame(**chosen, size=size)


def upright(answer: Answer, frame: Frame, stored: tuple[int, int], orientation: int) -> Answer:
    """The answer with its boxes and points in pixels of the upright picture.

    stored: (width, height) of the picture's bytes before `orientation` (EXIF, 1 to 8) turns it. Where the row gives
    a size that only one of the two pictures has, that decides the frame. Raises RowError for what lies outside.
    """
    if answer.kind not in GEOMETRIC:
        return answer
    values = answer.value if answer.kind == "boxes" else [answer.value]
    moved = [move(v, frame, stored, orientation) for v in values]
    return dataclasses.replace(answer, value=moved if answer.kind == "boxes" else moved[0])


def move(values: Sequence[float], frame: Frame, stored: tuple[int, int], orientation: int) -> list[float]:
    """A box [x1, y1, x2, y2] or a point [x, y] in pixels of the upright picture."""
    turned = orientation >= 5
    own = frame.frame
    if frame.size is not None and turned and stored[0] != stored[1]:
        own = "upright" if frame.size == (stored[1], stored[0]) else "stored" if frame.size == stored else own
    width, height = (stored[1], stored[0]) if own == "upright" and turned else stored
    points = _points(values, frame.format)
    base = frame.size or (width, height)
    scale = {"pixel": base, "norm_1": (1.0, 1.0), "norm_1000": (1000.0, 1000.0)}[frame.unit]
    points = [(x / scale[0] * width, y / scale[1] * height) for x, y in points]
    if any(not (-1 <= x <= width + 1 and -1 <= y <= height + 1) for x, y in points):
        raise RowError(
            "bad_box", "answer", f"{list(values)} ({frame.format}, {frame.unit}) lies outside {width}x{height}"
        )
    points = [(min(max(x, 0.0), float(width)), min(max(y, 0.0), float(height))) for x, y in points]
    if own == "stored":
        points = [_turn(x, y, width, height, orientation) for x, y in points]
    if len(points) == 1:
        return [round(v, 4) for v in points[0]]
    (ax, ay), (bx, by) = points
    box = [min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)]
    if box[0] == box[2] or box[1] == box[3]:
        raise RowError("bad_box", "answer", f"{list(values)}: a box without area")
    return [round(v, 4) for v in box]


def _points(values: Sequence[float], form: str) -> list[tuple[float, float]]:
    if len(values) == 2:
        return [(values[0], values[1])]
    if len(values) != 4:
        raise RowError("bad_box", "answer", f"a box has four numbers, not {list(values)}")
    a, b, c, d = values
    if form == "xywh":
        c, d = a + c, b + d
    if c < a or d < b:
        raise RowError("bad_box", "answer", f"{list(values)} as {form}: its corners stand in the wrong order")
    return [(a, b), (c, d)]


def _turn(x: float, y: float, width: float, height: float, orientation: int) -> tuple[float, float]:
    """Where a point of the stored picture lies in the upright one."""
    return {
        2: (width - x, y),
        3: (width - x, height - y),
        4: (x, height - y),
        5: (y, x),
        6: (height - y, x),
        7: (height - y, width - x),
        8: (y, width - x),
    }.get(orientation, (x, y))
