"""Aggregations as weights w [N, T] with loss = sum(w * token loss).

Denominators come from the explicit `counts` of the whole update, so that sums over micro-batches and ranks equal one
large batch. A rollout without learnable tokens counts as a rollout; nothing to learn from gives weights of 0.
"""

from __future__ import annotations

from torch import Tensor

from mmrl.algorithms.groups import group_sum
from mmrl.registry import register
from mmrl.types import Counts, RolloutBatch


@register("aggregation", "token-mean", paper="2503.14476")
def token_mean(batch: RolloutBatch, counts: Counts) -> Tensor:
    """Mean over all tokens of the update: 1 / tokens. DAPO as verl has it."""
    return batch.mask / max(counts.tokens, 1.0)


@register("aggregation", "seq-mean-token-mean", paper="2402.03300")
def seq_mean_token_mean(batch: RolloutBatch, counts: Counts) -> Tensor:
    """Mean over a rollout's tokens, then over rollouts: 1 / (trajectories * its tokens). GRPO."""
    return batch.mask / batch.mask.sum(-1, keepdim=True).clamp_min(1) / max(counts.trajectories, 1.0)


@register("aggregation", "seq-mean-token-sum")
def seq_mean_token_sum(batch: RolloutBatch, counts: Counts) -> Tensor:
    """Sum over a rollout's tokens, mean over rollouts: 1 / trajectories."""
    return batch.mask / max(counts.trajectories, 1.0)


@register("aggregation", "seq-mean-token-sum-const", paper="2503.20783")
def seq_mean_token_sum_const(batch: RolloutBatch, counts: Counts, *, const: float) -> Tensor:
    """Sum over a rollout's tokens over a constant, mean over rollouts: 1 / (trajectories * const). Dr. GRPO.

    const: the most tokens that a rollout may have.
    """
    return seq_mean_token_sum(batch, counts) / const


@register("aggregation", "group-token-mean", paper="2503.14476")
def group_token_mean(batch: RolloutBatch, counts: Counts) -> Tensor:
    """Mean over the tokens of a group, then over groups: 1 / (groups * tokens of the group). DAPO as written.

    The rollouts of a group must stand in one batch.
    """
    own = group_sum(batch.mask.sum(-1), batch.group).clamp_min(1)
    return batch.mask / own[:, None] / max(counts.groups, 1.0)
