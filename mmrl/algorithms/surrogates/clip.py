"""Clipped surrogates: token losses [N, T] to be minimised."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.registry import register
from mmrl.types import RolloutBatch


@register("surrogate", "clip", paper="1707.06347")
def clip(
    batch: RolloutBatch,
    ratio: Tensor,
    logp_new: Tensor,
    advantage: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A) [N, T].

    dual: for negative advantages the loss is at most -dual A (dual clip; 3 in verl, off by default).
    """
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)


@register("surrogate", "dapo", paper="2503.14476")
def dapo(
    batch: RolloutBatch,
    ratio: Tensor,
    logp_new: Tensor,
    advantage: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = None,
) -> Tensor:
    """`clip` with the wider upper bound of DAPO ("clip-higher") [N, T]."""
    return clip(batch, ratio, logp_new, advantage, low=low, high=high, dual=dual)


def cispo_weight(ratio: Tensor, *, low: float | None, high: float) -> Tensor:
    """clip(ratio, 1 - low, 1 + high) [N, T], detached; low None is no lower bound."""
    return ratio.detach().clamp(0.0 if low is None else 1 - low, 1 + high)


@register("surrogate", "cispo", paper="2506.13585")
def cispo(
    batch: RolloutBatch,
    ratio: Tensor,
    logp_new: Tensor,
    advantage: Tensor,
    *,
    low: float | None = None,
    high: float = 0.2,
) -> Tensor:
    """-sg(clip(ratio, 1 - low, 1 + high)) A logp_new [N, T]: the weight is clipped, every token keeps its gradient.

    low: None is no lower bound (MiniMax-M1). high: the bound is 1 + high (in TRL it is the bound itself).
    """
    weight = cispo_weight(ratio, low=low, high=high)
    return torch.where(batch.mask > 0, -weight * advantage * logp_new, torch.zeros_like(logp_new))
