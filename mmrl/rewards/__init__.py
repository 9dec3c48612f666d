"""Rewards: what a finished trajectory is worth, by named terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mmrl.registry import get
from mmrl.rewards import accuracy, clarify, environment, format, looked, partial, safety
from mmrl.types import Trajectory

Weights = Mapping[str, float] | Callable[[Trajectory], Mapping[str, float]]

__all__ = [
    "accuracy",
    "clarify",
    "environment",
    "format",
    "looked",
    "partial",
    "safety",
    "score",
]


def score(trajectories: Sequence[Trajectory], weights: Weights) -> None:
    """Fill `reward_terms`, `reward` (their weighted sum) and `correct` of each trajectory.

    weights: of each reward by name, the same for all or a function of the trajectory (its task's). A reward that says
    None does not apply: it is left out of the terms and of the sum. `correct` is `accuracy` >= 0.5, whether or not
    accuracy is among the weights.
    """
    for trajectory in trajectories:
        own = weights(trajectory) if callable(weights) else weights
        values = {name: get("reward", name).obj(trajectory) for name in own}
        trajectory.reward_terms = {name: float(v) for name, v in values.items() if v is not None}
        trajectory.reward = sum(own[name] * v for name, v in trajectory.reward_terms.items())
        right = trajectory.reward_terms.get("accuracy")
        trajectory.correct = (get("reward", "accuracy").obj(trajectory) if right is None else right) >= 0.5
