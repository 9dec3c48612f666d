"""What both loops start from: the run's folder, its processes, the policy ready to train, and where to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from mmrl.chat import Chat
from mmrl.config import ConfigError, TrainConfig
from mmrl.policy import checkpoint, shard
from mmrl.policy.checkpoint import Progress
from mmrl.policy.load import load_policy
from mmrl.policy.reference import Weights, copy_weights
from mmrl.policy.shard import World
from mmrl.shards import Loader, atomic_write, open_data
from mmrl.trainers.log import METRICS, Log
from mmrl.trainers.optim import make_optimiser

CHECKPOINTS, MODEL, CONFIG = "checkpoints", "model", "config.yaml"


@dataclass
class Run:
    """A run that may take its next step."""

    out: Path
    train: TrainConfig
    world: World
    model: Any
    chat: Chat
    optimiser: torch.optim.AdamW
    loader: Loader
    log: Log
    step: int  # steps done
    copies: dict[str, Weights] = field(default_factory=dict)

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint when one is due after this step; the last step always is followed by one."""
        due = step == self.train.steps or (self.train.save_every and step % self.train.save_every == 0)
        if due:
            checkpoint.save(
                self.out / CHECKPOINTS,
                self.model,
                self.optimiser,
                self.copies.get("ema", {}),
                Progress(step, self.loader.position),
                keep=self.train.keep,
            )

    def finish(self) -> Path:
        """Export the model; the run's folder."""
        checkpoint.export(self.model, self.chat, self.out / MODEL)
        self.log.say(f"model: {self.out / MODEL}")
        return self.out


def start(cfg: Any, *, batch: int, resume: bool, copies: Sequence[str] = ()) -> Run:
    """Prepare a run: load, shard, take copies of the policy, and restore the newest checkpoint when resuming.

    Args:
        cfg: a RunConfig or SftConfig.
        batch: samples of one step, over all ranks.
        resume: go on after the newest whole checkpoint; from the beginning where there is none yet.
        copies: `ref` and `ema`, where they are needed.

    Raises ConfigError where the folder holds another run, or there is nothing to train on.
    """
    out = Path(cfg.out)
    world = shard.start(cfg.model.device)
    found = checkpoint.complete(out / CHECKPOINTS)
    if not resume and (found or (out / METRICS).exists()):
        raise ConfigError(f"out: {out} already holds a run: go on with --resume, or choose another folder")
    data = open_data(cfg.data.train, cfg.data.tasks, cfg.data.filters) if cfg.data.train else ()
    if not len(data):
        raise ConfigError("data.train: no samples to train on: set data.train=[FOLDER], made by mmrl-prep build")
    shard.barrier()  # all have looked before the first one writes
    if world.main:
        checkpoint.clean(out / CHECKPOINTS)
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / CONFIG, yaml.safe_dump(cfg.model_dump(mode="json"), sort_keys=False).encode())
    torch.manual_seed(cfg.train.seed)
    # a model that will be sharded over GPUs is not loaded whole onto each
    model, chat = load_policy(cfg.model if world.size == 1 else cfg.model.model_copy(update={"device": "cpu"}))
    model = shard.prepare(model, world)
    optimiser = make_optimiser(model, cfg.train)
    kept = {name: copy_weights(model) for name in copies}
    progress = Progress(0, 0)
    if found:
        progress = checkpoint.load(found[-1], model, optimiser, kept.get("ema", {}))
    return Run(
        out=out,
        train=cfg.train,
        world=world,
        model=model,
        chat=chat,
        optimiser=optimiser,
        loader=Loader(
            data, batch=batch, seed=cfg.train.seed, rank=world.rank, world=world.size, position=progress.position
        ),
        log=Log(out, cfg.log, name=cfg.name, steps=cfg.train.steps, step=progress.step, main=world.main),
        step=progress.step,
        copies=kept,
    )
