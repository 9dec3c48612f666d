"""Two processes with FSDP2 make the step that one process makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fsdp_cases import CASES, case
from trainer_runs import first_gradients

from mmrl.config import ModelConfig
from mmrl.policy.load import load_policy
from mmrl.trainers import rl
from mmrl.trainers.log import TIMING

TIMEOUT = 240


@pytest.fixture(scope="module")
def two(folder: Path) -> Path:
    """Where two processes left their runs of all cases."""
    script = Path(__file__).with_name("fsdp_cases.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(script), str(folder)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "two"


def metrics(out: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMING)} for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_step_is_that_of_one_process(name: str, folder: Path, two: Path) -> None:
    one = first_gradients(case(name, folder, folder / "one"))
    other = torch.load(two / name / "gradients.pt")
    assert sorted(one) == sorted(other)
    size = sum(float(g.double().pow(2).sum()) for g in one.values()) ** 0.5
    apart = sum(float((one[n] - other[n]).double().pow(2).sum()) for n in one) ** 0.5
    assert size > 0
    assert apart <= 1e-5 * size
    for mine, theirs in zip(metrics(folder / "one" / name), metrics(two / name), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            # the loss of a step on its own samples is a sum that cancels
            assert theirs[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def test_the_export_of_two_processes_is_that_of_one(folder: Path, two: Path) -> None:
    for name in ("everything", "lora"):
        if not (folder / "one" / name / "model").exists():
            rl.train(case(name, folder, folder / "one"))
        models = [
            load_policy(ModelConfig(path=str(f / name / "model"), device="cpu"))[0] for f in (folder / "one", two)
        ]
        mine, theirs = (m.state_dict() for m in models)
        assert mine.keys() == theirs.keys()
        assert all(torch.allclose(mine[k], theirs[k], atol=2e-5) for k in mine)


def test_one_process_goes_on_from_the_checkpoint_of_two(folder: Path, two: Path) -> None:
    config = case("everything", folder, folder / "one")
    if not (folder / "one" / "everything" / "model").exists():
        rl.train(config)
    wider = config.model_copy(update={"train": config.train.model_copy(update={"steps": 3})})
    straight = wider.model_copy(update={"out": str(folder / "straight")})
    rl.train(straight)
    rl.train(wider.model_copy(update={"out": str(two / "everything")}), resume=True)
    mine, theirs = metrics(folder / "straight"), metrics(two / "everything")
    assert [row["step"] for row in theirs] == [1, 2, 3]
    for key in ("reward", "entropy", "kl_ref", "grad_norm", "length"):
        assert theirs[2][key] == pytest.approx(mine[2][key], rel=1e-2, abs=1e-4), key
