"""DAPO's filter of prompts that are solved always or never."""

from __future__ import annotations

from torch import Tensor

from mmrl.algorithms.groups import group_mean
from mmrl.registry import register
from mmrl.types import RolloutBatch


@register("filter", "mixed-groups", paper="2503.14476")
def mixed_groups(batch: RolloutBatch) -> Tensor:
    """True [N] for the rows of groups in which some rollouts are right and some are wrong, whatever their rewards."""
    if batch.correct is None:
        raise ValueError("mixed-groups needs batch.correct: which rollouts are right")
    share = group_mean(batch.correct.to(batch.reward.dtype), batch.group)
    return (share > 0) & (share < 1)
