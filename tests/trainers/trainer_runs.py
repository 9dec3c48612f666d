"""Small runs for the tests of the trainers: a tiny model with random weights, shards of noise, a reward of chance.

python tests/trainers/trainer_runs.py OUT FOLDER key=value ...   runs the recipe in a process of its own
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from PIL import Image

from mmrl.chat import Chat
from mmrl.config import RunConfig, apply_override, validate
from mmrl.policy import tiny
from mmrl.policy.checkpoint import export
from mmrl.registry import register
from mmrl.shards import ShardWriter
from mmrl.types import Trajectory


@register("reward", "chance")
def chance(trajectory: Trajectory) -> float:
    """A number in [0, 1) that depends on what was sampled and on nothing else."""
    content = repr((trajectory.prompt.sample.key, trajectory.tokens)).encode()
    return xxhash.xxh3_64_intdigest(content) % 1000 / 1000


@register("reward", "even-only")
def even_only(trajectory: Trajectory) -> float:
    """`chance` for samples with an even number, 0 for all others: those teach nothing."""
    return chance(trajectory) if trajectory.prompt.sample.meta["number"] % 2 == 0 else 0.0


def make_tiny(family: tiny.TinyFamily, folder: Path, seed: int = 3) -> Path:
    """A tiny model with random weights in a Hugging Face folder."""
    text = "Think inside <think></think>, then answer inside <answer></answer>. Which letter: A, B, C, D?"
    tokenizer = tiny.train_tokenizer([text] * 4, 320)
    config = tiny.make_config(family, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    model = tiny.make_model(config, seed=seed)
    with torch.no_grad():  # random weights give logits near 0: make them matter
        model.model.language_model.norm.weight.mul_(8)
    return export(model, Chat(tiny.make_processor(family, tokenizer, side=32), config), folder)


def make_shards(folder: Path, count: int = 12, *, answers: bool = False) -> Path:
    """Pictures of noise: most samples have one, some two, some none; with `answers` the assistant's answer is there."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder, max_samples=5) as writer:
        for n in range(count):
            names = ["000.png", "001.png"][: 0 if n % 4 == 3 else 1 + (n % 3 == 2)]
            parts: list[dict[str, Any]] = [{"type": "image", "id": f"img_{i + 1}"} for i in range(len(names))]
            question = {"role": "user", "content": [*parts, {"type": "text", "text": "Which letter? " * (1 + n % 2)}]}
            letter = "ABCD"[n % 4]
            answer = {"role": "assistant", "content": f"<think>it is</think><answer>{letter}</answer>"}
            record = {
                "key": f"noise-{n}",
                "task": "mcq",
                "media": [
                    {"id": f"img_{i + 1}", "kind": "image", "name": name, "width": 64, "height": 64}
                    for i, name in enumerate(names)
                ],
                "messages": [question, answer] if answers else [question],
                "answer": {"kind": "choice", "value": letter, "options": list("wxyz")},
                "meta": {"number": n},
            }
            writer.write(record, {name: _png(rng) for name in names})
    return folder


def _png(rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(out, "png")
    return out.getvalue()


def make_config(out: Path, model: Path, shards: Path, *overrides: str) -> RunConfig:
    """Four prompts of three rollouts of at most 10 tokens a step."""
    data: dict[str, Any] = {
        "out": str(out),
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": [str(shards)]},
        "rollout": {"prompts": 4, "group": 3, "max_new_tokens": 10, "max_turns": 1, "tools": []},
        "algorithm": {"aggregation": "token-mean"},
        "rewards": {"chance": 1.0},
        "train": {"steps": 3, "lr": 1e-3, "micro_tokens": 400},
        "log": {"tensorboard": False, "trajectories": 2},
    }
    for override in overrides:
        data = apply_override(data, override)
    return validate(data)


def kill_at(step: int) -> None:
    """Have this process killed, as by kill -9, when it logs a step."""
    from mmrl.trainers.log import Log

    write = Log.write

    def deadly(self: Log, number: int, *rest: Any) -> None:
        write(self, number, *rest)
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Log.write = deadly  # type: ignore[method-assign]


def kill_in_rollout(step: int) -> None:
    """Have this process killed in the rollout of a step, when some trajectories are sampled and others are not."""
    from mmrl.trainers import rl

    sample, calls = rl.rollout, []

    def deadly(engine: Any, *rest: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == step:
            sample_some = engine.step
            engine.step = lambda: (sample_some(), os.kill(os.getpid(), signal.SIGKILL))
        return sample(engine, *rest, **options)

    rl.rollout = deadly


def kill_in_checkpoint(step: int) -> None:
    """Have this process killed when a checkpoint is half written."""
    from mmrl.policy import checkpoint

    save = checkpoint.dcp.save

    def deadly(state: Any, *, checkpoint_id: Path, **rest: Any) -> None:
        save(state, checkpoint_id=checkpoint_id, **rest)
        if f"{step:06d}" in checkpoint_id.name:
            next(checkpoint_id.glob("*.distcp")).write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.dcp.save = deadly


def first_gradients(config: RunConfig) -> dict[str, torch.Tensor]:
    """Train as configured; the whole gradient of each parameter at the first update, by name."""
    from torch.distributed.tensor import DTensor

    from mmrl.trainers import rl

    found: dict[str, torch.Tensor] = {}
    apply = rl.apply_gradient

    def recording(model: Any, *rest: Any) -> float:
        if not found:
            for name, p in model.named_parameters():
                if p.grad is not None:
                    found[name] = (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).clone()
        return apply(model, *rest)

    rl.apply_gradient = recording
    try:
        rl.train(config)
    finally:
        rl.apply_gradient = apply
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    from mmrl.trainers.rl import train

    out, model, shards, death, *overrides = sys.argv[1:]
    kind, _, number = death.partition("=")
    {"log": kill_at, "checkpoint": kill_in_checkpoint, "rollout": kill_in_rollout}[kind](int(number))
    train(make_config(Path(out), Path(model), Path(shards), *overrides), resume=True)
