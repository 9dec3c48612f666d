"""Steps that are made once in one process and once in two with FSDP2: see test_fsdp.py.

torchrun --nproc-per-node 2 tests/trainers/fsdp_cases.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from trainer_runs import first_gradients, make_config

from mmrl.config import RunConfig
from mmrl.shards import Loader, ShardSet

STEPS = ("train.steps=1",)
CASES: dict[str, tuple[str, ...]] = {
    "qwen3_vl": ("rollout.prompts=4",),
    "qwen2_5_vl": ("rollout.prompts=4",),
    "uneven": ("rollout.prompts=3", "rollout.group=2", "train.micro_tokens=150"),  # two prompts against one
    "nothing-to-learn": (
        "rollout.prompts=2",
        "rewards={even-only: 1}",
        "algorithm.zero_signal=skip",
    ),  # all groups of the second rank are even
    "no-prompt": ("rollout.prompts=1",),  # the second rank has none at all
    "everything": (
        "train.steps=2",
        "rollout.prompts=5",
        "algorithm.regularizers=[{name: kl, coef: 0.1}]",
        "algorithm.shaping=[grpo-care]",
        "algorithm.zero_signal=count",
        "rewards={chance: 1, accuracy: 1}",
        "train.importance_cap=2.0",
        "reference.ema_every=1",
    ),
    "lora": ("rollout.prompts=3", "model.lora={rank: 4}", "model.freeze_vision=true"),
}


def case(name: str, folder: Path, out: Path) -> RunConfig:
    """The configuration of a case; models and shards are in `folder`."""
    family = "qwen2_5_vl" if name == "qwen2_5_vl" else "qwen3_vl"
    seed = next(s for s in range(99) if _halves(folder / "shards", s) == [0, 1])
    settings = (*STEPS, *CASES[name], f"train.seed={seed}")
    return make_config(out / name, folder / family, folder / "shards", *settings)


def _halves(shards: Path, seed: int) -> list[int]:
    batch = next(iter(Loader(ShardSet.open(shards), batch=2, seed=seed)))
    return [s.meta["number"] % 2 for s in batch]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for name in CASES:
        gradients = first_gradients(case(name, folder, folder / "two"))
        if torch.distributed.get_rank() == 0:
            torch.save(gradients, folder / "two" / name / "gradients.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
