"""Is the answer right? One comparison for each kind of answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrl.registry import register
from mmrl.rewards.expression import makes
from mmrl.rewards.extract import Status, extract
from mmrl.rewards.unit_tests import share_passed
from mmrl.types import Answer, Trajectory


@register("reward", "accuracy")
def accuracy(trajectory: Trajectory, *, iou: float | None = 0.5, tolerance: float = 1e-6) -> float:
    """1 for a right answer, else 0; an answer that cannot be read is wrong, never guessed.

    iou: boxes and spans are right from this intersection over union on; None gives the IoU itself.
    tolerance: relative difference up to which numbers are equal.
    """
    answer = trajectory.prompt.sample.answer
    found = extract(trajectory.answer_text, answer)
    if found.status is not Status.OK:
        return 0.0
    score = compare(found.value, answer, tolerance=tolerance)
    if answer.kind in ("box", "span") and iou is not None:
        return float(score >= iou)
    return score


def compare(value: object, answer: Answer, *, tolerance: float = 1e-6) -> float:
    """How right a read value is, from 0 to 1: IoU for boxes and spans, the share of unit tests that a transcription
    passes, 0 or 1 for all else.

    A choice compares letters; choices are right as a whole set; text compares without case, punctuation at the ends
    and repeated spaces, with any of the accepted texts; a rotation compares modulo 360; an order must be the whole
    order; an expression must make the target of the numbers; a point must lie in the box that is given, or
    equal the point.
    """
    right = answer.value
    if answer.kind == "choice":
        return float(str(value).upper() == str(right).strip().upper())
    if answer.kind == "choices":
        return float(isinstance(value, list) and sorted(map(str, value)) == sorted(map(str, right)))
    if answer.kind == "tests":
        return share_passed(right, str(value))
    if answer.kind == "expression":
        return float(makes(str(value), right["numbers"], right["target"]))
    if answer.kind == "text":
        accepted = right if isinstance(right, list | tuple) else [right]
        return float(plain(str(value)) in {plain(str(a)) for a in accepted})
    if answer.kind == "number":
        return float(abs(_float(value) - float(right)) <= tolerance * max(1.0, abs(float(right))))
    if answer.kind == "rotation":
        return float(abs((_float(value) - float(right) + 180) % 360 - 180) <= tolerance * 360)
    numbers = [float(v) for v in value] if isinstance(value, list | tuple) and answer.kind != "boxes" else []
    if answer.kind == "order":
        return float(numbers == [float(v) for v in right])
    if answer.kind == "box":
        return box_iou(numbers, [float(v) for v in right])
    if answer.kind == "span":
        return span_iou(numbers, [float(v) for v in right])
    if answer.kind == "point":
        return float(_point_right(numbers, [float(v) for v in right], tolerance))
    raise ValueError(f"no comparison for answers of kind {answer.kind!r}")


def plain(text: str) -> str:
    """Text for comparison: case folded, inner spaces single, no punctuation at the ends."""
    return re.sub(r"\s+", " ", text).strip().strip(".,;:!?\"'").casefold()


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two xyxy boxes in one frame. Corners in the wrong order make an empty box: 0."""
    if any(box[2] <= box[0] or box[3] <= box[1] for box in (a, b)):
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def span_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two spans [start, stop] in seconds; a reversed or empty span gives 0."""
    if a[1] <= a[0] or b[1] <= b[0]:
        return 0.0
    common = max(min(a[1], b[1]) - max(a[0], b[0]), 0.0)
    return common / (a[1] - a[0] + b[1] - b[0] - common)


def _point_right(point: Sequence[float], right: Sequence[float], tolerance: float) -> bool:
    if len(right) == 4:
        return right[0] <= point[0] <= right[2] and right[1] <= point[1] <= right[3]
    return all(abs(p - r) <= tolerance * max(1.0, abs(r)) for p, r in zip(point, right, strict=True))
