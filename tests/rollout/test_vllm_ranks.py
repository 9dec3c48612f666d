"""vLLM in the two processes of a sharded model (gloo): each samples for itself, and weights come from both."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tiny_models import build, make_prompt, picture, rescore

from mmrl import families
from mmrl.config import RolloutConfig
from mmrl.rollout import rollout
from mmrl.rollout.vllm_engine import VllmEngine

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.xdist_group("vllm"),
]
CONFIG = RolloutConfig(group=2, max_new_tokens=16, max_context=800)
PROMPTS = [make_prompt(f"p{i}", "which?", picture(60 + 20 * i, 60, i)) for i in range(3)]


def learn(model: Any) -> None:
    """One step of an optimiser, so that every weight is another."""
    tokens = torch.tensor([[5, 6, 7]])
    inputs = families.forward_inputs(model, tokens, torch.ones_like(tokens), [[]])
    model(**inputs, use_cache=False).logits.float().pow(2).mean().backward()
    torch.optim.AdamW([p for p in model.parameters() if p.grad is not None], lr=1e-2).step()


def worker(rank: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    tiny = build("qwen3_vl")
    for layer in families.decoder_layers(tiny.model):
        fully_shard(layer)
    fully_shard(tiny.model, reshard_after_forward=True)
    engine = VllmEngine(tiny.model, tiny.chat, max_len=1024, kv_cache=0.05, max_rows=16)
    if rank == 0:  # the other one has nothing to do, and nobody waits for it
        assert len(rollout(engine, tiny.chat, PROMPTS, CONFIG, seed=3)) == 6
    learn(tiny.model)
    with pytest.raises(RuntimeError, match="all ranks have to call its `sync`"):
        engine.generate([])
    engine.sync()
    found = rollout(engine, tiny.chat, PROMPTS[: rank + 1], CONFIG, seed=5)
    weights = {name: weight.full_tensor() for name, weight in tiny.model.named_parameters()}
    engine.close()
    ones = torch.ones(1)
    dist.all_reduce(ones)  # the trainer's group is still there
    assert ones.item() == 2
    torch.save(([(t.tokens, t.logp, t.group) for t in found], weights), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_sample_alone_and_share_new_weights(tmp_path: Path) -> None:
    importlib.import_module("vllm.v1.worker.cpu_worker")  # once, not in each process
    mp.start_processes(worker, (str(tmp_path),), nprocs=2, start_method="fork")
    tiny = build("qwen3_vl")
    (first, weights), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert [t for t, _, _ in first] == [t for t, _, _ in second[:2]]
    assert (len(first), len(second)) == (2, 4)
    tiny.model.load_state_dict(weights, strict=False)
    for tokens, logp, group in second:
        prompt = PROMPTS[group]
        vision = tiny.chat.encode_prompt(prompt.messages, {m.id: m for m in prompt.sample.media}).vision
        right = rescore(tiny, SimpleNamespace(tokens=tokens, vision=vision))
        own = torch.tensor(logp)
        sampled = ~own.isnan()
        assert sampled.any()
        torch.testing.assert_close(own[sampled], right[sampled], atol=1e-3, rtol=0)
