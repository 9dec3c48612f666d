"""Part of the credit for answers that are nearly right, beside `accuracy`, which is all or nothing."""

from __future__ import annotations

from mmrl.registry import register
from mmrl.rewards.extract import Status, extract
from mmrl.types import Trajectory


@register("reward", "order_partial", paper="Visual Jigsaw")
def order_partial(trajectory: Trajectory, *, gamma: float = 0.2, least: int = 5) -> float | None:
    """gamma times the share of pieces at their right place, for an order of at least `least` pieces that is not wholly
    right, has the right length and names no piece twice; else 0 (card visual-jigsaw). None for other answers."""
    answer = trajectory.prompt.sample.answer
    if answer.kind != "order":
        return None
    found = extract(trajectory.answer_text, answer)
    right = list(answer.value)
    said = found.value if found.status is Status.OK else []
    if len(right) < least or sorted(said) != sorted(right) or said == right:
        return 0.0
    return gamma * sum(a == b for a, b in zip(said, right, strict=True)) / len(right)


@register("reward", "closeness")
def closeness(trajectory: Trajectory, *, within: float = 0.1) -> float | None:
    """1 - relative error / `within` of a number, at least 0; 0 without one. None for other answers."""
    answer = trajectory.prompt.sample.answer
    if answer.kind != "number":
        return None
    found = extract(trajectory.answer_text, answer)
    if found.status is not Status.OK:
        return 0.0
    error = abs(found.value - float(answer.value)) / max(1.0, abs(float(answer.value)))
    return max(0.0, 1.0 - error / within)
