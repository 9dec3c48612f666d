"""A run that is killed goes on as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import make_config

from mmrl.config import ConfigError
from mmrl.policy import checkpoint
from mmrl.trainers import rl
from mmrl.trainers.log import TIMING, truncate

SETTINGS = (
    "train.steps=10",
    "train.save_every=5",
    "algorithm.shaping=[grpo-care]",
    "rewards={chance: 1, accuracy: 1}",
    "reference.ema_every=2",
    "train.schedule=cosine",
    "train.warmup=2",
    "train.updates=2",
    "train.weight_decay=0.1",
)


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMING)} for row in rows]


def run(out: Path, folder: Path, death: str) -> int:
    script = Path(__file__).with_name("trainer_runs.py")
    command = [sys.executable, str(script), str(out), str(folder / "qwen3_vl"), str(folder / "shards"), death]
    return subprocess.run([*command, *SETTINGS], capture_output=True, timeout=200, check=False).returncode


@pytest.fixture(scope="module")
def straight(folder: Path) -> Path:
    """The run that nothing interrupts."""
    out = folder / "uninterrupted"
    rl.train(make_config(out, folder / "qwen3_vl", folder / "shards", *SETTINGS))
    return out


def test_a_killed_run_goes_on_bit_for_bit(straight: Path, folder: Path) -> None:
    out = folder / "killed"
    # first in the middle of the checkpoint after step 5, then in the rollout of step 3, then in step 7: the first two
    # leave no whole checkpoint, so the next start is from the beginning
    assert run(out, folder, "checkpoint=5") == -signal.SIGKILL
    assert checkpoint.complete(out / "checkpoints") == []
    assert (out / "checkpoints" / "step-000005.tmp").exists()
    assert run(out, folder, "rollout=3") == -signal.SIGKILL
    assert len(lines(out / "metrics.jsonl")) == 2
    assert run(out, folder, "log=7") == -signal.SIGKILL
    assert [p.name for p in checkpoint.complete(out / "checkpoints")] == ["step-000005"]
    assert len(lines(out / "metrics.jsonl")) == 7
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "rew')  # a line that the kill cut in two
    rl.train(make_config(out, folder / "qwen3_vl", folder / "shards", *SETTINGS), resume=True)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        assert lines(out / name) == lines(straight / name)
    assert [row["step"] for row in lines(out / "metrics.jsonl")] == list(range(1, 11))
    mine, theirs = (load_file(f / "model" / "model.safetensors") for f in (out, straight))
    assert all(torch.equal(mine[k], theirs[k]) for k in theirs)
    assert not list((out / "checkpoints").glob("*.tmp"))


def test_a_folder_with_a_run_is_not_overwritten(straight: Path, folder: Path) -> None:
    config = make_config(straight, folder / "qwen3_vl", folder / "shards", *SETTINGS)
    with pytest.raises(ConfigError, match=r"already holds a run.*--resume"):
        rl.train(config)
    before = (straight / "metrics.jsonl").read_text()
    assert rl.train(config, resume=True) == straight  # nothing left to do
    assert (straight / "metrics.jsonl").read_text() == before


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path) -> None:
    def good(temporary: Path) -> None:
        (temporary / "a").write_text("whole")

    def bad(temporary: Path) -> None:
        (temporary / "a").write_text("ha")
        raise OSError("disk full")

    checkpoint.atomic_folder(tmp_path / "step-000001", good)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.atomic_folder(tmp_path / "step-000001", bad)
    assert (tmp_path / "step-000001" / "a").read_text() == "whole"
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step-000001"]
    checkpoint.clean(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_lines_after_a_step_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2}\n{"step": 3}\n{"st')
    truncate(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2}\n'
    truncate(tmp_path / "none.jsonl", 2)
    assert not (tmp_path / "none.jsonl").exists()
