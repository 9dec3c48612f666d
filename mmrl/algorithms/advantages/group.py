"""Advantages from the rewards of a group alone. Equal rewards, and a group of one, give 0."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_mean, group_size, group_spread, group_std
from mmrl.registry import register
from mmrl.types import RolloutBatch


@register("advantage", "grpo", paper="2402.03300")
def grpo(batch: RolloutBatch, *, std: bool = True, eps: float = 1e-6, ddof: int = 0) -> Tensor:
    """Group-normalised reward [N]: (r - mean) / (std + eps) over the group.

    std: divide by the spread; without, this is `dr-grpo`. ddof: 0 is the population's (mmrl's default), 1 is what TRL
    and verl take. A group of one gets 0 (verl gives it its raw reward).
    """
    reward, group = batch.reward, batch.group
    centred = reward - group_mean(reward, group)
    scaled = centred / (group_std(reward, group, ddof=ddof) + eps) if std else centred
    return torch.where(group_spread(reward, group) > 0, scaled, torch.zeros_like(reward))


@register("advantage", "dr-grpo", paper="2503.20783")
def dr_grpo(batch: RolloutBatch) -> Tensor:
    """Centred reward [N]: r - mean over the group, no division. Source: sail-sg/understand-r1-zero."""
    return grpo(batch, std=False)


@register("advantage", "rloo", paper="2402.14740")
def rloo(batch: RolloutBatch, *, singleton: str = "zero") -> Tensor:
    """Leave-one-out [N]: r minus the mean of the group's other rewards, n / (n - 1) (r - mean).

    singleton: what a group of one gets, "zero", or "reward" for its raw reward as in verl.
    """
    if singleton not in ("zero", "reward"):
        raise ValueError(f"rloo: singleton must be zero or reward, not {singleton!r}")
    reward, group = batch.reward, batch.group
    size = group_size(group, reward)
    left_out = grpo(batch, std=False) * size / (size - 1).clamp_min(1)
    return torch.where(size > 1, left_out, reward) if singleton == "reward" else left_out
