"""Trajectories to the padded tensors of a batch, and its division over the updates of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.chat import pad_rows
from mmrl.types import Origin, RolloutBatch, StopReason, Trajectory


def learnable(trajectory: Trajectory) -> bool:
    """Whether a trajectory may enter a batch at all: it was not broken off by a fault of the infrastructure or of the
    task, and the policy wrote something. Others say nothing of the policy; they are counted and left out."""
    return trajectory.stop is not StopReason.FAULT and trajectory.length > 0


def make_batch(trajectories: Sequence[Trajectory], *, device: torch.device | str = "cpu") -> RolloutBatch:
    """The batch of scored trajectories, one a row, with the very ids that were sampled.

    `mask` is 1 on policy tokens whose sampled log-prob is finite: others are left out of all sums, never zeroed.
    Raises ValueError where a trajectory's records do not fit each other.
    """
    for trajectory in trajectories:
        trajectory.check()
    terms = sorted({name for t in trajectories for name in t.reward_terms})
    batch = RolloutBatch(
        group=torch.tensor([t.group for t in trajectories], dtype=torch.long),
        reward=torch.tensor([t.reward for t in trajectories]),
        mask=_padded([_mask(t) for t in trajectories], 0).float(),
        tokens=_padded([t.tokens for t in trajectories], 0),
        # a reward that does not apply to a trajectory gave it nothing
        reward_terms={k: torch.tensor([t.reward_terms.get(k, 0.0) for t in trajectories]) for k in terms},
        correct=torch.tensor([float(t.correct) for t in trajectories]),
        span=_padded([[int(s) for s in t.span] for t in trajectories], 0),
        turn=_padded([t.turn for t in trajectories], -1),
        meta=[{"key": t.prompt.sample.key, "index": t.index, "task": t.prompt.sample.task} for t in trajectories],
    )
    return to_device(batch, torch.device(device))


def to_device(batch: RolloutBatch, device: torch.device) -> RolloutBatch:
    """The batch with every tensor on `device`, changed in place."""
    for name in ("group", "reward", "mask", "tokens", "correct", "span", "turn"):
        setattr(batch, name, getattr(batch, name).to(device))
    batch.reward_terms = {k: v.to(device) for k, v in batch.reward_terms.items()}
    return batch


def split_groups(group: Tensor, parts: int) -> list[Tensor]:
    """Row numbers of `parts` mini-batches: whole groups, spread evenly; some are empty where groups are few."""
    numbers = group.unique()
    bounds = [len(numbers) * i // parts for i in range(parts + 1)]
    return [torch.isin(group, numbers[low:high]).nonzero()[:, 0] for low, high in itertools.pairwise(bounds)]


def _mask(trajectory: Trajectory) -> list[int]:
    pairs = zip(trajectory.origin, trajectory.logp, strict=True)
    return [int(origin is Origin.POLICY and math.isfinite(logp)) for origin, logp in pairs]


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    return pad_rows(rows, pad)[0]
