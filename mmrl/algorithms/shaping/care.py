"""GRPO-CARE: right rollouts whose reasoning makes their own answer likely earn a bonus over their peers."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_mean, group_sum
from mmrl.registry import register
from mmrl.types import RolloutBatch


def consistency_bonus(
    accuracy: Tensor, answer_logp: Tensor, group: Tensor, *, coef: float, cap: float | None, margin: float | None
) -> Tensor:
    """The bonus [N] of `grpo-care`, from accuracy [N] and the mean log-prob of each answer [N]."""
    confidence = answer_logp.exp()
    if cap is not None:
        confidence = confidence.clamp_max(cap)
    accurate = (accuracy > 0.1) & (accuracy >= group_mean(accuracy, group)) & answer_logp.isfinite()
    chosen = accurate.to(confidence.dtype)
    held = torch.where(accurate, confidence, torch.zeros_like(confidence))
    threshold = group_sum(held, group) / group_sum(chosen, group).clamp_min(1) - (margin or 0.0)
    return torch.where(accurate & (confidence >= threshold), coef * accuracy, torch.zeros_like(accuracy))


@register("shaping", "grpo-care", paper="2506.16141", needs=("ema_answer_logp",))
def grpo_care(
    batch: RolloutBatch, *, coef: float = 0.5, cap: float | None = 0.95, margin: float | None = 0.01
) -> Tensor:
    """reward + coef * accuracy for rollouts that are accurate and consistent [N].

    Accurate: accuracy over 0.1 and not under the group's mean. Consistent: the likelihood of the own answer given the
    own reasoning under the EMA reference (capped) reaches the mean of the group's accurate ones, less a margin. A
    rollout without an answer (likelihood -inf or nan) is never accurate; one accurate rollout alone always earns it.
    Needs the reward `accuracy`. Source: TencentARC/GRPO-CARE, whose code takes the means over a device's batch, which
    is one prompt there. Its advantage is `grpo` with ddof 1 and eps 1e-4.
    """
    if "accuracy" not in batch.reward_terms:
        raise ValueError("grpo-care compares accuracies: give the task a reward named accuracy")
    bonus = consistency_bonus(
        batch.reward_terms["accuracy"],
        batch.signals["ema_answer_logp"],
        batch.group,
        coef=coef,
        cap=cap,
        margin=margin,
    )
    return batch.reward + bonus
