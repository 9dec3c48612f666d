"""DAPO's soft penalty for rollouts that near the length limit."""

from __future__ import annotations

from torch import Tensor

from mmrl.registry import register
from mmrl.types import RolloutBatch


def overlong_penalty(length: Tensor, *, max_len: int, cache_len: int) -> Tensor:
    """0 up to max_len - cache_len tokens, then falling linearly to -1 at max_len, and -1 beyond [N]."""
    return ((max_len - cache_len - length) / cache_len).clamp(-1, 0)


@register("shaping", "soft-overlong", paper="2503.14476")
def soft_overlong(batch: RolloutBatch, *, max_len: int = 20480, cache_len: int = 4096, weight: float = 1.0) -> Tensor:
    """reward + weight * penalty of the number of sampled tokens [N]."""
    return batch.reward + weight * overlong_penalty(batch.length, max_len=max_len, cache_len=cache_len)
