"""Models and shards that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trainer_runs import make_shards, make_tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums in one order, and no fight over the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`qwen3_vl`, `qwen2_5_vl` and `shards`."""
    out = tmp_path_factory.mktemp("trainers")
    make_tiny("qwen3_vl", out / "qwen3_vl")
    make_tiny("qwen2_5_vl", out / "qwen2_5_vl")
    make_shards(out / "shards")
    return out
