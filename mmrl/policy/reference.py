"""Frozen and slowly moving copies of the policy.

A copy is a set of weights, not a second model: to use it, its weights and the policy's change places for some forward
passes. That holds for one process, for sharded models (each rank keeps its own part) and for adapters alike, and only
trainable weights are kept: all others are the policy's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.ema import ema_due, ema_update
from mmrl.chat import Chat
from mmrl.config import ReferenceConfig
from mmrl.policy.logprobs import token_logps
from mmrl.policy.shard import local
from mmrl.types import Trajectory

Weights = dict[str, Tensor]  # trainable parameters by name; sharded as the policy's are


@torch.no_grad()
def copy_weights(model: Any) -> Weights:
    """A copy of the trainable parameters in float32: in less, the small updates of a moving average would be lost."""
    return {name: p.detach().float().clone() for name, p in model.named_parameters() if p.requires_grad}


def update_ema(weights: Weights, model: Any, config: ReferenceConfig, step: int) -> None:
    """Move an EMA copy towards the policy, in place, after step number `step` (the first is 1), where it is due."""
    if ema_due(step, config.ema_every):
        own = [local(p.detach()) for name, p in model.named_parameters() if name in weights]
        ema_update([local(w) for w in weights.values()], own, config.ema_decay)


@contextmanager
def swapped(model: Any, weights: Weights) -> Iterator[None]:
    """While this lasts, the model computes with `weights`; afterwards with its own again, bit for bit."""
    pairs = [(local(p.detach()), local(weights[name])) for name, p in model.named_parameters() if name in weights]
    own = [mine.clone() for mine, _ in pairs]
    for mine, other in pairs:
        mine.copy_(other)
    try:
        yield
    finally:
        for (mine, _), kept in zip(pairs, own, strict=True):
            mine.copy_(kept)


@dataclass
class Models:
    """The policy and its copies as signals see them. Made anew for each batch of trajectories: results are kept.

    Args:
        copies: `ref` and `ema` where the run has them.
        budget: padded tokens of one forward pass.
    """

    model: Any
    chat: Chat
    copies: dict[str, Weights] = field(default_factory=dict)
    budget: int = 16384
    _known: dict[tuple[str, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def logp(self, name: str, trajectories: Sequence[Trajectory]) -> Tensor:
        """Log-prob [N, T] of each token that was sampled, under `policy`, `ref` or `ema`; 0 elsewhere."""
        return self._scores(name, trajectories)[0]

    def entropy(self, name: str, trajectories: Sequence[Trajectory]) -> Tensor:
        """Entropy [N, T] in nats of the distribution that each sampled token was drawn from; 0 elsewhere."""
        return self._scores(name, trajectories)[1]

    def _scores(self, name: str, trajectories: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
        key = (name, id(trajectories))
        if key not in self._known:
            with swapped(self.model, {} if name == "policy" else self.copies[name]):
                self._known[key] = token_logps(self.model, self.chat, trajectories, budget=self.budget)
        return self._known[key]
