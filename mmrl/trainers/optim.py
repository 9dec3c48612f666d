"""The optimiser and one exact gradient from many micro-batches on many ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.chat import Chat
from mmrl.config import ConfigError, TrainConfig
from mmrl.policy import shard
from mmrl.policy.logprobs import Row, passes, row_logps
from mmrl.policy.shard import World

# rows by number, their log-probs [n, T] -> their part of the loss, and sums to report
LossOf = Callable[[list[int], Tensor], tuple[Tensor, dict[str, Tensor]]]


class TrainingError(ConfigError):
    """A step that cannot go on; the message says why and what to do."""


def make_optimiser(model: Any, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW on the trainable parameters; vectors (norms, biases) are not decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=train.lr, betas=train.betas)


def lr_at(step: int, train: TrainConfig) -> float:
    """Learning rate of step number `step` (the first is 1): linear warm-up, then constant or falling to 0 at the end.

    The whole state of the schedule is the number of the step.
    """
    if step <= train.warmup:
        return train.lr * step / train.warmup
    done = (step - train.warmup - 1) / max(1, train.steps - train.warmup)
    if train.schedule == "linear":
        return train.lr * (1 - done)
    return train.lr * (0.5 * (1 + math.cos(math.pi * done)) if train.schedule == "cosine" else 1.0)


def backward(
    model: Any, chat: Chat, rows: Sequence[Row], width: int, loss_of: LossOf, *, world: World, budget: int
) -> dict[str, float]:
    """Add to the gradients those of the loss of all rows on all ranks, exactly: losses are sums with the denominators
    of the whole update in them. Returns the sums over all micro-batches and ranks, `loss` among them.

    All ranks call this together, also those without rows. Raises TrainingError where a loss is not finite.
    """
    sums: Counter[str] = Counter()
    for part, calls in passes(model, rows, budget):
        logp, _ = row_logps(model, chat, [rows[n] for n in part], width, vision_calls=calls)
        loss, metrics = loss_of(part, logp)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(f"the loss is {float(loss)} in a micro-batch of rows {part}")
        # FSDP averages over ranks where the sum is wanted; a rank without rows still has to send its zeros
        ((loss + 0.0 * logp.sum()) * world.size).backward()
        sums.update({"loss": float(loss.detach()), **{k: float(v) for k, v in metrics.items()}})
    total: Counter[str] = Counter()
    for part_sums in shard.gather(dict(sums)):
        total.update(part_sums)
    return dict(total)


def apply_gradient(model: Any, optimiser: torch.optim.Optimizer, train: TrainConfig, step: int) -> float:
    """Clip, take one step at the step's learning rate, clear the gradients; the gradient's norm before clipping.

    Raises TrainingError, naming the parameters, where the gradient is not finite.
    """
    norm = shard.clip_grads(model.parameters(), train.clip_grad)
    if not math.isfinite(norm):
        bad = [
            name
            for name, p in model.named_parameters()
            if p.grad is not None and not bool(torch.isfinite(shard.local(p.grad)).all())
        ]
        raise TrainingError(
            f"step {step}: the gradient is not finite in {len(bad)} parameters, the first of them "
            f"{bad[0] if bad else '(on another rank)'}: lower train.lr, or look for extreme rewards in the log"
        )
    for group in optimiser.param_groups:
        group["lr"] = lr_at(step, train)
    optimiser.step()
    optimiser.zero_grad()
    return norm
