"""Checkpoints that are there whole or not at all, and the export to a Hugging Face folder.

A checkpoint is a folder `step-000010`: weights, optimiser and EMA in torch's distributed format (any number of ranks
loads what any other wrote) and `state.pt` with the small rest. It is written under a temporary name, synced, renamed.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from mmrl.chat import Chat
from mmrl.policy import shard

NAME = re.compile(r"step-(\d{6,})")
TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    step: int  # steps done
    position: int  # samples delivered by the loader


def complete(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    found = [p for p in folder.glob("step-*") if NAME.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def save(folder: Path, model: Any, optimiser: Any, ema: dict[str, Tensor], progress: Progress, *, keep: int) -> Path:
    """Write the checkpoint of this step and remove all but the newest `keep`. All ranks call this together.

    Ranks share one state of the random generators: what they draw never depends on the rank.
    """
    state = _state(model, optimiser, ema)
    rest = {
        "step": progress.step,
        "position": progress.position,
        "torch_rng": torch.get_rng_state(),
        "numpy_rng": np.random.get_state(),
    }

    def write(temporary: Path) -> None:
        with _quiet():
            dcp.save(state, checkpoint_id=temporary, no_dist=not shard.several())
        if _main():
            torch.save(rest, temporary / "state.pt")

    path = atomic_folder(folder / f"step-{progress.step:06d}", write)
    if _main():
        for old in complete(folder)[:-keep]:
            shutil.rmtree(old)
    shard.barrier()
    return path


def load(path: Path, model: Any, optimiser: Any, ema: dict[str, Tensor]) -> Progress:
    """Restore everything that `save` wrote, in place. All ranks call this together; they may be more or fewer."""
    state = _state(model, optimiser, ema)
    with _quiet():
        dcp.load(state, checkpoint_id=path, no_dist=not shard.several())
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimiser, state["optimiser"])
    for name, tensor in state["ema"].items():
        ema[name].copy_(tensor)
    rest = torch.load(path / "state.pt", weights_only=False)
    torch.set_rng_state(rest["torch_rng"])
    np.random.set_state(rest["numpy_rng"])
    return Progress(rest["step"], rest["position"])


def clean(folder: Path) -> None:
    """Remove what a killed process left unfinished. Called by one rank, before anything is written."""
    for path in folder.glob(f"*{TEMPORARY}") if folder.is_dir() else ():
        shutil.rmtree(path)


def _state(model: Any, optimiser: Any, ema: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model),
        "optimiser": get_optimizer_state_dict(model, optimiser),
        "ema": dict(ema),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of a single process each time, which is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _main() -> bool:
    return not shard.several() or torch.distributed.get_rank() == 0


def atomic_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Make a folder that is there whole or not at all: `write` fills a temporary one, which is synced and renamed.

    An older folder of that name is replaced. All ranks call this together and see the same files.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    if _main():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    shard.barrier()
    write(temporary)
    shard.barrier()
    if _main():
        for part in [*temporary.rglob("*"), temporary]:
            sync(part)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
        sync(path.parent)
    shard.barrier()
    return path


def sync(path: Path) -> None:
    """Have a file or folder on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def export(model: Any, chat: Chat, folder: Path) -> Path:
    """Write a Hugging Face folder that plain transformers loads, adapters merged, whole or not at all.

    All ranks call this together; the first one writes. Weights get the type that the checkpoint had at the start.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(model, options=options)

    def write(temporary: Path) -> None:
        if _main():
            _plain_model(model, merge_lora(model, state)).save_pretrained(temporary)
            chat.processor.save_pretrained(temporary)

    return atomic_folder(folder, write)


def merge_lora(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """A whole state under PEFT's names -> that of the plain model: W + alpha / rank * B A. Other states as they are."""
    if not hasattr(model, "peft_config"):
        return state
    config = model.peft_config["default"]
    scale = config.lora_alpha / config.r
    out = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        if name.endswith(".base_layer.weight"):
            a, b = (state[name.replace("base_layer", f"lora_{x}.default")] for x in "AB")
            tensor = (tensor.float() + scale * (b.float() @ a.float())).to(tensor.dtype)
        out[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return out


def _plain_model(model: Any, state: dict[str, Any]) -> Any:
    """An unsharded model of the same configuration around the given weights."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    kind = next(c for c in type(inner).__mro__ if c.__module__.startswith("transformers."))
    config = copy.deepcopy(inner.config)  # saving writes into it
    with torch.device("meta"):
        plain: Any = kind(config)
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    if isinstance(config.dtype, torch.dtype):
        plain.to(config.dtype)
    plain.generation_config = inner.generation_config
    return plain
