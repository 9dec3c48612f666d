"""Difficulty-aware augmentation: questions that are too hard get a hint, those too easy get noise (DeepVideo-R1, card
reg-grpo). The card gives the rule, the numbers are ours."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

TOLERANCE = 0.05  # gap of rewards up to which a question is left as it is
FULL = 0.5  # gap at which the strength is 1


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What to do with a question, and how strongly: 0 (nothing) to 1. For `hint` see `add_hint`, for `noise`
    `mmrl_prep.questions.noise.add_noise`."""

    kind: Literal["none", "hint", "noise"]
    strength: float = 0.0


def augmentation(
    mean_reward: float, running_mean: float, *, tolerance: float = TOLERANCE, full: float = FULL
) -> Augmentation:
    """What a question's mean reward over its group asks for, next to the running mean over groups.

    Under the running mean it is too hard, above it too easy; the strength grows evenly with the gap, from 0 at
    `tolerance` to 1 at `full`. Raises ValueError unless 0 <= tolerance < full.
    """
    if not 0 <= tolerance < full:
        raise ValueError(f"tolerance {tolerance}: from 0 to under full {full}")
    gap = mean_reward - running_mean
    excess = (abs(gap) - tolerance) / (full - tolerance)
    if not excess > 0:  # nan too: nothing is known yet
        return Augmentation("none")
    return Augmentation("hint" if gap < 0 else "noise", min(1.0, excess))


def add_hint(question: str, hint: str, level: float) -> str:
    """The question with the first `level` (0 to 1) of the hint's words, rounded up, on a line of its own beneath.

    Raises ValueError.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level {level}: from 0 to 1")
    words = hint.split()
    shown = words[: ceil(level * len(words))]
    if not shown:
        return question
    return f"{question}\nHint: {' '.join(shown)}{'' if len(shown) == len(words) else ' ...'}"
