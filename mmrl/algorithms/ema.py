"""The moving average behind EMA references."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def ema(ref: Tensor, policy: Tensor, decay: float) -> Tensor:
    """decay * ref + (1 - decay) * policy. decay 0 copies the policy. Keep `ref` in float32: a low precision loses small
    updates. Source: GRPO-CARE (TencentARC/GRPO-CARE), which moves its reference every 10 optimiser steps."""
    return decay * ref + (1 - decay) * policy


@torch.no_grad()
def ema_update(refs: Iterable[Tensor], policies: Iterable[Tensor], decay: float) -> None:
    """`ema` in place, parameter by parameter, in the precision and on the device of each reference."""
    for ref, policy in zip(refs, policies, strict=True):
        ref.copy_(ema(ref, policy.detach().to(ref.device, ref.dtype), decay))


def ema_due(step: int, every: int) -> bool:
    """Whether the reference moves after optimiser step `step` (the first is 1)."""
    return step % every == 0
