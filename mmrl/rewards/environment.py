"""What the tools of an environment paid: step by step, and for reaching the goal (cards gtr, mobile-r1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmrl.registry import register
from mmrl.rewards.format import is_calling, is_final
from mmrl.types import Origin, Trajectory


@register("reward", "steps")
def steps(trajectory: Trajectory) -> float:
    """Sum of `data["reward"]` of all results of calls; 0 when there is none."""
    return sum(float(data["reward"]) for data in _data(trajectory) if "reward" in data)


@register("reward", "success")
def success(trajectory: Trajectory) -> float:
    """1 when the last result that says so has `data["success"]`, else 0."""
    said = [bool(data["success"]) for data in _data(trajectory) if "success" in data]
    return float(bool(said) and said[-1])


@register("reward", "turn_format", paper="Mobile-R1")
def turn_format(trajectory: Trajectory) -> float:
    """Share of the policy's turns that are in form: calls, or as the last turn the answer; 0 without a turn."""
    turns = [t.text for t in trajectory.turns if t.origin is Origin.POLICY]
    if not turns:
        return 0.0
    return (sum(map(is_calling, turns)) + (is_final(turns[-1]) and not is_calling(turns[-1]))) / len(turns)


def _data(trajectory: Trajectory) -> Iterator[Any]:
    """Data of the results of calls, in their order."""
    return (result.data for turn in trajectory.turns for result in turn.results)
