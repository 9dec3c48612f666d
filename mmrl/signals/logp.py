"""Signals that are log-probs or entropies of the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.policy.reference import Models
from mmrl.registry import register
from mmrl.signals.answer import answer_logp
from mmrl.types import RolloutBatch, Trajectory


@register("signal", "ref_logp", needs=("ref",))
def ref_logp(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models) -> Tensor:
    """Log-prob [N, T] of each sampled token under the policy as it was at the start of the run."""
    return models.logp("ref", trajectories)


@register("signal", "ema_logp", paper="2506.16141", needs=("ema",))
def ema_logp(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models) -> Tensor:
    """Log-prob [N, T] of each sampled token under the policy's moving average (reference.ema_decay, ema_every)."""
    return models.logp("ema", trajectories)


@register("signal", "engine_logp")
def engine_logp(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models) -> Tensor:
    """Log-prob [N, T] that the engine sampled each token with; 0 outside the mask."""
    out = torch.zeros_like(batch.mask)
    for n, trajectory in enumerate(trajectories):
        out[n, : len(trajectory.logp)] = torch.tensor(trajectory.logp, dtype=out.dtype)
    return torch.where(batch.mask > 0, out, torch.zeros_like(out))


@register("signal", "entropy")
def entropy(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models) -> Tensor:
    """Entropy [N, T] in nats of the policy's distribution at each sampled token, before the update."""
    return models.entropy("policy", trajectories)


@register("signal", "ema_answer_logp", paper="2506.16141", needs=("ema",))
def ema_answer_logp(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models) -> Tensor:
    """Mean log-prob [N] of the answer's tokens, given all before them, under the policy's moving average.

    -inf without a complete answer. GRPO-CARE's own code ends the answer three tokens before the end of the sequence and
    gives confidence 1 to a rollout without an answer; here it ends at the closing tag, and no answer is never likely.
    """
    return answer_logp(models.logp("ema", trajectories), trajectories, models.chat)
