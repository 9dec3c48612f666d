"""The distance to a reference policy, estimated from the sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.registry import register
from mmrl.types import RolloutBatch

ESTIMATORS = ("k1", "k2", "k3", "abs")


def estimate_kl(difference: Tensor, estimator: str) -> Tensor:
    """KL(policy || reference) of each token from d = logp_policy - logp_reference.

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d; abs = |d|. In a loss on its own samples k1 has an expected gradient of 0
    and k2 that of the reverse KL. Source: Schulman, Approximating KL divergence; verl and TRL for the options.
    """
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "k3":
        return (-difference).exp() - 1 + difference
    if estimator == "abs":
        return difference.abs()
    raise ValueError(f"kl: estimator must be one of {', '.join(ESTIMATORS)}, not {estimator!r}")


@register("regularizer", "kl", paper="2402.03300", needs=("ref_logp",))
def kl(
    batch: RolloutBatch,
    logp_new: Tensor,
    *,
    coef: float = 0.001,
    estimator: str = "k3",
    log_ratio_clip: float | None = 20.0,
) -> Tensor:
    """coef * KL estimate of each token [N, T] against the signal `ref_logp`.

    log_ratio_clip: the log-ratio is clamped to +-c first; there the gradient is 0.
    """
    difference = torch.where(batch.mask > 0, logp_new - batch.signals["ref_logp"], torch.zeros_like(logp_new))
    if log_ratio_clip is not None:
        difference = difference.clamp(-log_ratio_clip, log_ratio_clip)
    return coef * estimate_kl(difference, estimator)
