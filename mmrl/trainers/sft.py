"""Supervised training on the dialogues of shards: a cold start before reinforcement learning.

Samples are learnt from whose messages hold assistant turns; the loss is the mean over all tokens that the assistant
wrote in the whole batch, on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from mmrl.chat import Chat
from mmrl.config import ConfigError, SftConfig
from mmrl.policy.logprobs import Row
from mmrl.policy.shard import sum_over_ranks
from mmrl.registry import get
from mmrl.trainers.log import Clock
from mmrl.trainers.optim import apply_gradient, backward, lr_at
from mmrl.trainers.run import Run, start
from mmrl.types import Sample


def sft(cfg: SftConfig, *, resume: bool = False) -> Path:
    """Run supervised training to its end; the run's folder, laid out as that of `rl.train`. Raises ConfigError."""
    run = start(cfg, batch=cfg.batch, resume=resume)
    run.model.train(bool(cfg.model.lora and cfg.model.lora.dropout))  # dropout is for adapters only
    samples = iter(run.loader)
    with run.log:
        for step in range(run.step + 1, cfg.train.steps + 1):
            clock = Clock()
            rows = [dialogue_row(run.chat, sample) for sample in next(samples)]
            clock.lap("encode")
            metrics = sft_step(run, rows, step)
            clock.lap("update")
            run.log.write(step, metrics | clock.metrics(metrics["tokens"]))
            run.checkpoint(step)
        return run.finish()


def sft_step(run: Run, rows: Sequence[Row], step: int) -> dict[str, float]:
    """One optimiser step on this rank's dialogues."""
    tokens, dialogues = sum_over_ranks([sum(len(r.scored) for r in rows), len(rows)])

    def loss_of(part: list[int], logp: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return -logp.sum() / tokens, {}  # log-probs are 0 at tokens that are not learnt

    width = max((len(r.tokens) for r in rows), default=0)
    sums = backward(run.model, run.chat, rows, width, loss_of, world=run.world, budget=run.train.micro_tokens)
    norm = apply_gradient(run.model, run.optimiser, run.train, step)
    return {**sums, "dialogues": dialogues, "tokens": tokens, "grad_norm": norm, "lr": lr_at(step, run.train)}


def dialogue_row(chat: Chat, sample: Sample) -> Row:
    """A sample's dialogue, scored at the tokens that the assistant wrote. Raises ConfigError where it wrote none."""
    if all(m["role"] != "assistant" for m in sample.messages):
        raise ConfigError(f"sample {sample.key}: no assistant message to learn from; mmrl sft needs whole dialogues")
    messages = sample.messages
    if messages[0]["role"] != "system":  # as the policy will see it in reinforcement learning
        messages = get("task", sample.task).obj.prompt(sample).messages
    encoded, mask = chat.encode_dialogue(messages, chat.shown(sample))
    return Row(encoded.tokens, encoded.vision, [t for t, own in enumerate(mask) if own])
