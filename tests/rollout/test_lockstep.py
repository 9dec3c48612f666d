"""Rollouts of a model sharded by FSDP2 over two processes (gloo): the ranks never wait for each other in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny_models import CROP, ForcedEngine, build, make_prompt, picture

from mmrl import families
from mmrl.config import RolloutConfig
from mmrl.rollout import lockstep, rollout
from mmrl.types import Prompt, Trajectory

CONFIG = RolloutConfig(group=2, max_new_tokens=24, max_turns=2, max_context=800)


def share(rank: int, call: int) -> list[Prompt]:
    """What each rank has to do: unequal amounts, with and without pictures, once nothing at all."""
    pictures = [make_prompt(f"p{i}", "which?", picture(60 + 20 * i, 60, i)) for i in range(3)]
    text = [make_prompt("t", "red or blue?")]
    return ((pictures, text), ([], pictures[:1]))[call][rank]


def play(model: Any, chat: Any, prompts: list[Prompt]) -> list[Trajectory]:
    def script(request: Any, j: int) -> str | None:
        return CROP if request.vision and j == 0 and request.state is None else "<answer>A</answer>"

    return rollout(ForcedEngine(model, chat, script), chat, prompts, CONFIG, seed=3)


def worker(rank: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    tiny = build("qwen3_vl")
    for layer in families.decoder_layers(tiny.model):
        fully_shard(layer)
    fully_shard(tiny.model, reshard_after_forward=True)
    ran = [play(tiny.model, tiny.chat, share(rank, call)) for call in range(2)]
    torch.save([[(t.tokens, t.logp, len(t.vision)) for t in ts] for ts in ran], f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_sharded_ranks_with_unequal_work(tmp_path: Path) -> None:
    # forked: importing everything anew in each would take most of the time
    mp.start_processes(worker, (str(tmp_path),), nprocs=2, start_method="fork")
    tiny = build("qwen3_vl")
    for rank in range(2):
        for call, ran in enumerate(torch.load(tmp_path / f"{rank}.pt")):
            alone = play(tiny.model, tiny.chat, share(rank, call))
            assert [(tokens, media) for tokens, _, media in ran] == [(t.tokens, len(t.vision)) for t in alone]
            for (_, logp, _), t in zip(ran, alone, strict=True):
                assert logp == pytest.approx(t.logp, abs=1e-4, nan_ok=True)
    assert max(media for _, _, media in torch.load(tmp_path / "0.pt")[0]) > 1  # some had a second turn


class Counted(torch.nn.Module):
    """Stands for a model: adds up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, value: float) -> float:
        return value + self.weight.item()


def test_alone_work_is_simply_done() -> None:
    def work() -> Any:
        total = 0.0
        for i in range(4):
            total += yield {"value": float(i)}
        return total

    assert lockstep.run(Counted(), work()) == 0 + 1 + 2 + 3 + 4
    assert lockstep.run(Counted(), iter_nothing()) is None


def iter_nothing() -> Any:
    return
    yield
