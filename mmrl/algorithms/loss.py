"""The stages of an algorithm put together: rewards to advantages, and log-probs to a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_sum
from mmrl.config import AlgorithmConfig, Component
from mmrl.registry import bind, entries, get
from mmrl.types import Counts, RolloutBatch


class NonFinite(ValueError):
    """A component made a number that is not finite; the message names it and the trajectory."""


@dataclass(frozen=True)
class Stage:
    """One component with its parameters set."""

    kind: str
    name: str
    call: Callable[..., Tensor]
    needs: tuple[str, ...]

    def __call__(self, *args: Any) -> Tensor:
        batch: RolloutBatch = args[0]
        for need in self.needs:
            if need not in batch.signals:
                providers = [e.name for e in entries("signal")]
                raise ValueError(
                    f"{self.kind} {self.name!r} needs the signal {need!r}, which the batch does not have; "
                    f"registered signals: {', '.join(providers) or 'none'}"
                )
        out = self.call(*args)
        if not bool(out.isfinite().all()):
            raise NonFinite(f"{self.kind} {self.name!r} made a number that is not finite {_where(out, batch)}")
        return out


def _where(values: Tensor, batch: RolloutBatch) -> str:
    bad = ~values.detach().isfinite()
    row = int(bad.flatten(1).any(-1).nonzero()[0]) if values.ndim > 1 else int(bad.nonzero()[0])
    key = f" (key {batch.meta[row].get('key')})" if batch.meta else ""
    return f"at row {row}{key}"


@dataclass(frozen=True)
class Stages:
    """The components of a run in the order in which they act."""

    shaping: tuple[Stage, ...]
    filters: tuple[Stage, ...]
    advantage: Stage
    credit: tuple[Stage, ...]
    ratio: Stage
    surrogate: Stage
    aggregation: Stage
    regularizers: tuple[Stage, ...]

    @classmethod
    def from_config(cls, config: AlgorithmConfig) -> Stages:
        """Look up and bind every component. Raises UnknownName or ValueError with a hint."""

        def stage(kind: str, component: Component) -> Stage:
            return Stage(
                kind,
                component.name,
                bind(kind, component.name, component.params),
                get(kind, component.name).needs,
            )

        return cls(
            shaping=tuple(stage("shaping", c) for c in config.shaping),
            filters=tuple(stage("filter", c) for c in config.filters),
            advantage=stage("advantage", config.advantage),
            credit=tuple(stage("credit", c) for c in config.credit),
            ratio=stage("ratio", config.ratio),
            surrogate=stage("surrogate", config.surrogate),
            aggregation=stage("aggregation", config.aggregation),
            regularizers=tuple(stage("regularizer", c) for c in config.regularizers),
        )

    @property
    def all(self) -> tuple[Stage, ...]:
        single = (self.advantage, *self.credit, self.ratio, self.surrogate, self.aggregation)
        return (*self.shaping, *self.filters, *single, *self.regularizers)

    @property
    def needs(self) -> tuple[str, ...]:
        """The signals that the components read, each once, in order of first use."""
        return tuple(dict.fromkeys(need for stage in self.all for need in stage.needs))


def shape_rewards(batch: RolloutBatch, stages: Stages) -> Tensor:
    """The reward [N] after every shaping, each of which sees what the one before made."""
    reward = batch.reward
    for stage in stages.shaping:
        batch.reward = stage(batch)
    shaped, batch.reward = batch.reward, reward
    return shaped


def compute_advantage(batch: RolloutBatch, stages: Stages) -> Tensor:
    """The advantage of each token [N, T]: the advantage stage, then every credit stage; 0 in rows that filters drop."""
    advantage = stages.advantage(batch)
    for stage in stages.credit:
        advantage = stage(batch, advantage)
    if advantage.ndim == 1:
        advantage = advantage[:, None].expand_as(batch.mask)
    for stage in stages.filters:
        advantage = advantage * stage(batch)[:, None]
    return torch.where(batch.mask > 0, advantage, torch.zeros_like(advantage))


def kept(batch: RolloutBatch, stages: Stages) -> Tensor:
    """True [N] for the rows that no filter drops."""
    keep = torch.ones(len(batch.group), dtype=torch.bool, device=batch.group.device)
    for stage in stages.filters:
        keep &= stage(batch)
    return keep


def has_signal(batch: RolloutBatch) -> Tensor:
    """True [N] for the rows of groups in which any token has an advantage."""
    if batch.advantage is None:
        raise ValueError("has_signal: compute_advantage comes first")
    own = (batch.advantage != 0).flatten(1).any(-1)
    return group_sum(own.to(batch.mask.dtype), batch.group) > 0


def counted(batch: RolloutBatch, stages: Stages, *, zero_signal: str) -> Tensor:
    """True [N] for the rows that the denominators count: not dropped by a filter and, with "skip", of a group with some
    advantage."""
    keep = kept(batch, stages)
    return keep & has_signal(batch) if zero_signal == "skip" else keep


def counts(batch: RolloutBatch, rows: Tensor) -> Counts:
    """The denominators that the given rows (True in [N]) contribute to those of the update."""
    return Counts(
        tokens=float(batch.mask[rows].sum()),
        trajectories=float(rows.sum()),
        groups=float(len(batch.group[rows].unique())),
    )


def policy_loss(
    batch: RolloutBatch, logp_new: Tensor, total: Counts, stages: Stages
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some rows: sum(w * (surrogate + regularizers)), which adds up over micro-batches and ranks.

    Args:
        batch: rows with their `advantage` [N, T]; with `weight` [N, T] where that was taken on whole groups before.
        logp_new: log-probs under the policy being trained [N, T], differentiable.
        total: denominators of the whole update.

    Returns:
        The loss, and detached sums over tokens that add up likewise: `clipped`, `ratio`, `kl_old` (k3 against the
        sampling policy), each regularizer's weighted sum, and `tokens` to divide the first three by.
    """
    weights = stages.aggregation(batch, total) if batch.weight is None else batch.weight
    if batch.advantage is None:
        raise ValueError("policy_loss: compute_advantage comes first")
    inside = batch.mask > 0
    # what stands outside the mask is no number to learn from, and may be anything
    logp = torch.where(inside, logp_new, torch.zeros_like(logp_new))
    ratio = stages.ratio(batch, logp)
    token_loss = stages.surrogate(batch, ratio, logp, batch.advantage)
    terms = {s.name: s(batch, logp) for s in stages.regularizers}
    loss = (weights * torch.where(inside, token_loss, torch.zeros_like(token_loss))).sum()
    for term in terms.values():
        loss = loss + (weights * torch.where(inside, term, torch.zeros_like(term))).sum()
    with torch.no_grad():
        plain = -ratio * batch.advantage
        changed = inside & ((token_loss - plain).abs() > 1e-12) & (batch.advantage != 0)
        step = ratio.clamp_min(1e-9).log()
        metrics = {
            "clipped": changed.sum().to(logp.dtype),
            "ratio": (ratio * inside).sum(),
            "kl_old": ((step.exp() - 1 - step) * inside).sum(),
            "tokens": inside.sum().to(logp.dtype),
            **{name: (weights * term * inside).sum() for name, term in terms.items()},
        }
    return loss, metrics
