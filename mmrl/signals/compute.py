"""The mechanism: which signals the components in use need, which model copies those need, and their computation.

A signal's own `needs` name the copies of the policy that it scores with: `ref` (frozen at the start) or `ema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mmrl.algorithms.loss import Stages
from mmrl.config import ConfigError
from mmrl.policy.reference import Models
from mmrl.registry import entries, get, nearest
from mmrl.types import RolloutBatch, Trajectory


class MissingSignal(ConfigError):
    """A component needs a signal that nothing provides."""


def signals_needed(stages: Stages) -> list[str]:
    """Names of the signals that the components in use declare in `needs`, each once.

    Raises MissingSignal, naming the component, the signal and the setting, where no such signal is registered.
    """
    known = [e.name for e in entries("signal")]
    for stage in stages.all:
        for name in stage.needs:
            if name not in known:
                raise MissingSignal(
                    f"algorithm.{stage.kind}: {stage.name!r} needs the signal {name!r}, which nothing provides "
                    f"({nearest(name, known)}): choose another {stage.kind}, or register the signal in a plugin"
                )
    return list(stages.needs)


def models_needed(signals: Iterable[str]) -> list[str]:
    """Names of the policy copies that these signals score with, sorted."""
    return sorted({model for name in signals for model in get("signal", name).needs})


def compute(batch: RolloutBatch, trajectories: Sequence[Trajectory], models: Models, signals: Sequence[str]) -> None:
    """Fill `batch.signals`. Forward passes that several signals need are made once (`models` keeps them).

    Raises MissingSignal where a signal needs a copy of the policy that `models` lacks, ValueError where a signal is not
    a number (-inf is allowed: it says that something cannot be) or has not one entry a row.
    """
    for name in signals:
        lacking = [m for m in get("signal", name).needs if m not in models.copies]
        if lacking:
            raise MissingSignal(f"signal {name!r} needs the copy {lacking[0]!r} of the policy, which this run has not")
        value = get("signal", name).obj(batch, trajectories, models)
        if len(value) != len(trajectories):
            raise ValueError(f"signal {name!r}: {len(value)} entries for {len(trajectories)} trajectories")
        bad = torch.isnan(value) | (value == torch.inf)
        if bool(bad.any()):
            culprit = trajectories[int(bad.nonzero()[0, 0])]
            raise ValueError(f"signal {name!r} is not finite for {culprit.prompt.sample.key}/{culprit.index}")
        batch.signals[name] = value
