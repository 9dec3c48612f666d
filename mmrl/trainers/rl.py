"""The reinforcement-learning loop: the same lines for one process and for torchrun with FSDP2.

Every denominator and every metric is that of all ranks, so the number of ranks changes nothing but the speed.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mmrl.algorithms.loss import (
    Stages,
    compute_advantage,
    counted,
    counts,
    has_signal,
    policy_loss,
    shape_rewards,
)
from mmrl.config import ConfigError, RunConfig
from mmrl.policy.logprobs import trajectory_row
from mmrl.policy.reference import Models, update_ema
from mmrl.policy.shard import gather, sum_over_ranks
from mmrl.registry import get
from mmrl.rewards import score
from mmrl.rollout import make_engine, rollout
from mmrl.rollout.sampling import derive_seed
from mmrl.signals import compute, models_needed, signals_needed
from mmrl.trainers.batch import learnable, make_batch, split_groups
from mmrl.trainers.log import Clock
from mmrl.trainers.metrics import Record, records, summarise, update_metrics
from mmrl.trainers.optim import TrainingError, apply_gradient, backward, lr_at
from mmrl.trainers.run import Run, start
from mmrl.types import Counts, Prompt, RolloutBatch, Sample, Trajectory


def train(cfg: RunConfig, *, resume: bool = False) -> Path:
    """Run a recipe to its end. The folder of the run: `model/`, `checkpoints/`, `metrics.jsonl`, `trajectories.jsonl`.

    With `resume` it goes on after the newest checkpoint. Raises ConfigError for settings that cannot work, and
    TrainingError where a step cannot go on.
    """
    stages = Stages.from_config(cfg.algorithm)
    signals = signals_needed(stages)
    check(cfg)
    run = start(cfg, batch=cfg.rollout.prompts, resume=resume, copies=models_needed(signals))
    engine = make_engine(cfg.rollout.engine.name, run.model, run.chat, **cfg.rollout.engine.params)
    samples = iter(run.loader)
    with run.log, contextlib.closing(engine):
        for step in range(run.step + 1, cfg.train.steps + 1):
            clock = Clock()
            prompts = make_prompts(next(samples), cfg.rollout.tools)
            engine.sync()
            everything = rollout(engine, run.chat, prompts, cfg.rollout, seed=derive_seed(cfg.train.seed, step))
            engine.sleep()
            clock.lap("rollout")
            score(everything, functools.partial(reward_weights, chosen=cfg.rewards))
            clock.lap("score")
            trajectories = [t for t in everything if learnable(t)]
            batch = make_batch(trajectories, device=run.world.device)
            models = Models(run.model, run.chat, run.copies, cfg.train.micro_tokens)
            batch.logp_old = models.logp("policy", trajectories)
            clock.lap("logp")
            compute(batch, trajectories, models, ["engine_logp", *signals])
            clock.lap("signals")
            batch.reward = shape_rewards(batch, stages)
            batch.advantage = compute_advantage(batch, stages)
            rows = records(trajectories, batch, models.entropy("policy", trajectories))
            metrics = gathered_metrics(rows, [t for t in everything if not learnable(t)])
            check_gap(metrics, cfg.train.max_logp_gap, step)
            metrics |= update(run, batch, trajectories, stages, cfg, step)
            clock.lap("update")
            if "ema" in run.copies:
                update_ema(run.copies["ema"], run.model, cfg.reference, step)
            run.log.write(step, metrics | clock.metrics(metrics.get("tokens", 0.0)), everything)
            run.checkpoint(step)
        return run.finish()


def update(
    run: Run, batch: RolloutBatch, trajectories: Sequence[Trajectory], stages: Stages, cfg: RunConfig, step: int
) -> dict[str, float]:
    """The optimiser steps that are made from one batch, each from its own whole groups.

    Rows without a gradient are not passed through the model; a mini-batch that has no others on any rank makes no
    optimiser step.
    """
    sums: Counter[str] = Counter()
    norms = []
    for rows in split_groups(batch.group, cfg.train.updates):
        mini = batch.select(rows)
        inside = counted(mini, stages, zero_signal=cfg.algorithm.zero_signal)
        own = counts(mini, inside)
        if not stages.regularizers:  # then nothing but an advantage has a gradient
            inside &= has_signal(mini)
        rows = rows[inside]
        mini = batch.select(rows)
        *sizes, learning = sum_over_ranks([own.tokens, own.trajectories, own.groups, float(mini.mask.sum())])
        if not learning:
            continue
        total = Counts(*sizes)
        mini.weight = stages.aggregation(mini, total)  # on whole groups, before rows are cut into micro-batches
        if cfg.train.importance_cap is not None:
            mini.weight = mini.weight * importance(mini, cfg.train.importance_cap)

        loss_of = functools.partial(part_loss, mini=mini, total=total, stages=stages)
        sums.update(
            backward(
                run.model,
                run.chat,
                [trajectory_row(trajectories[n]) for n in rows.tolist()],
                batch.mask.shape[1],
                loss_of,
                world=run.world,
                budget=cfg.train.micro_tokens,
            )
        )
        norms.append(apply_gradient(run.model, run.optimiser, cfg.train, step))
    return {
        **update_metrics(sums, len(norms)),
        "updates": float(len(norms)),
        "grad_norm": max(norms, default=0.0),
        "lr": lr_at(step, cfg.train),
    }


def part_loss(
    part: list[int], logp: Tensor, *, mini: RolloutBatch, total: Counts, stages: Stages
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some rows of a mini-batch, given their log-probs [n, T]."""
    return policy_loss(mini.select(part), logp, total, stages)


def importance(batch: RolloutBatch, cap: float) -> Tensor:
    """Truncated importance weights [N, T]: min(exp(trainer's - engine's log-prob), cap), 1 outside the mask.

    They make up for an engine that samples from a slightly different model than the one that is trained.
    """
    assert batch.logp_old is not None
    apart = (batch.logp_old - batch.signals["engine_logp"]) * batch.mask
    return apart.clamp(-20, 20).exp().clamp_max(cap)


def make_prompts(samples: Sequence[Sample], tools: list[str] | None) -> list[Prompt]:
    """Each sample as its task puts it to the policy.

    Raises UnknownName for a task that nothing registers, ConfigError for a dialogue that is already answered.
    """
    prompts = [get("task", sample.task).obj.prompt(sample, tools=tools) for sample in samples]
    for prompt in prompts:
        if prompt.messages[-1]["role"] == "assistant":
            raise ConfigError(f"data.train: sample {prompt.sample.key} ends with an answer; such data are for mmrl sft")
    return prompts


def reward_weights(trajectory: Trajectory, *, chosen: Mapping[str, float]) -> Mapping[str, float]:
    """The weights of the recipe where it sets any, else those of the trajectory's task."""
    weights: Mapping[str, float] = chosen or get("task", trajectory.prompt.sample.task).obj.rewards
    return weights


def gathered_metrics(rows: list[Record], left_out: list[Trajectory]) -> dict[str, float]:
    """The summary of the trajectories of all ranks, on every rank."""
    faults = [[f"{f.kind.value}.{f.code}" for f in t.faults] for t in left_out]
    parts = gather((rows, faults))
    return summarise([r for part, _ in parts for r in part], [f for _, part in parts for f in part])


def check(cfg: RunConfig) -> None:
    """Raise ConfigError for settings that cannot work together in this loop."""
    if cfg.model.lora and cfg.model.lora.dropout:
        raise ConfigError(
            f"model.lora.dropout is {cfg.model.lora.dropout}: engine and trainer must score alike, "
            "so dropout is for mmrl sft only; set it to 0"
        )


def check_gap(metrics: Mapping[str, float], largest: float, step: int) -> None:
    """Raise TrainingError where the engine and the trainer disagree on the log-probs of what was sampled."""
    if metrics.get("gap", 0.0) > largest:
        raise TrainingError(
            f"step {step}: the engine's and the trainer's log-probs differ by {metrics['gap']:.3g} on average "
            f"(at most {metrics['gap_max']:.3g}), over train.max_logp_gap {largest:g}: they do not compute the same "
            "model. Check that the engine has the newest weights, the same picture sizes and the same chat template"
        )
