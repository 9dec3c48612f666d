"""Importance ratios [N, T]; without `logp_old` the batch is on-policy: the ratio is 1 and has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.registry import register
from mmrl.types import RolloutBatch

LOG_LIMIT = 20.0  # log-ratios are clamped to this before exp


def log_ratio(batch: RolloutBatch, logp_new: Tensor) -> Tensor:
    """logp_new - logp_old [N, T], 0 outside the mask."""
    old = logp_new.detach() if batch.logp_old is None else batch.logp_old
    return torch.where(batch.mask > 0, logp_new - old, torch.zeros_like(logp_new))


@register("ratio", "token", paper="2402.03300")
def token(batch: RolloutBatch, logp_new: Tensor) -> Tensor:
    """exp(logp_new - logp_old) of each token [N, T]."""
    return log_ratio(batch, logp_new).clamp(-LOG_LIMIT, LOG_LIMIT).exp()


@register("ratio", "gspo", paper="2507.18071")
def gspo(batch: RolloutBatch, logp_new: Tensor) -> Tensor:
    """The sequence's length-normalised ratio s = exp(mean over its tokens of the log-ratio), on each token [N, T].

    The token form sg(s) exp(logp_new - sg(logp_new)): value and gradient are those of the sequence form where the
    advantage is constant over the rollout, and it takes token advantages too. Tokens of tools do not count.
    """
    mean = log_ratio(batch, logp_new).detach().sum(-1) / batch.mask.sum(-1).clamp_min(1)
    own = torch.where(batch.mask > 0, logp_new - logp_new.detach(), torch.zeros_like(logp_new))
    return mean.clamp(-LOG_LIMIT, LOG_LIMIT).exp()[:, None] * own.exp()
