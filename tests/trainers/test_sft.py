"""Supervised training: the right loss at the right tokens, a lower one later, and resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import make_config, make_shards

from mmrl import families
from mmrl.config import ConfigError, SftConfig
from mmrl.policy.load import load_policy
from mmrl.registry import get
from mmrl.shards import ShardSet
from mmrl.trainers import rl
from mmrl.trainers.log import TIMING
from mmrl.trainers.sft import dialogue_row, sft


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("dialogues") / "shards", answers=True)


def config(out: Path, folder: Path, dialogues: Path, **train: Any) -> SftConfig:
    return SftConfig.model_validate(
        {
            "out": str(out),
            "batch": 6,
            "model": {"path": str(folder / "qwen3_vl"), "device": "cpu"},
            "data": {"train": [str(dialogues)]},
            "train": {"lr": 3e-3, "micro_tokens": 400, **train},
            "log": {"tensorboard": False},
        }
    )


def metrics(out: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMING)} for row in rows]


def test_the_loss_is_that_of_the_answers_and_falls(folder: Path, dialogues: Path, tmp_path: Path) -> None:
    cfg = config(tmp_path / "run", folder, dialogues, steps=30)
    rows = metrics(sft(cfg))
    model, chat = load_policy(cfg.model)
    data = ShardSet.open([dialogues])
    # what a step learns from: of these twelve samples the first batch holds six
    scored = {}
    for n in range(len(data)):
        sample = data[n]
        row = dialogue_row(chat, sample)
        said = chat.decode([row.tokens[t] for t in row.scored])
        assert said == sample.messages[-1]["content"] + chat.decode([chat.end_of_turn])
        system = get("task", sample.task).obj.prompt(sample).messages[0]
        assert chat.decode(row.tokens).count(system["content"]) == 1
        tokens = torch.tensor([row.tokens])
        inputs = families.forward_inputs(model, tokens, torch.ones_like(tokens), [row.vision])
        with torch.no_grad():
            logits = model(**inputs, use_cache=False).logits[0].float()
        logits[:, list(chat.banned_ids)] = -torch.inf
        logp = logits.log_softmax(-1)
        scored[n] = [float(logp[t - 1, row.tokens[t]]) for t in row.scored]
    low, high = (f(-sum(s) / len(s) for s in scored.values()) for f in (min, max))
    assert low <= rows[0]["loss"] <= high
    assert rows[0]["dialogues"] == 6
    assert rows[0]["tokens"] == pytest.approx(6 * len(scored[0]))
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"]


def test_resumption_is_bit_for_bit(folder: Path, dialogues: Path, tmp_path: Path) -> None:
    sft(config(tmp_path / "straight", folder, dialogues, steps=6))
    sft(config(tmp_path / "halved", folder, dialogues, steps=3))
    sft(config(tmp_path / "halved", folder, dialogues, steps=6), resume=True)
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "halved")
    mine, theirs = (load_file(tmp_path / d / "model" / "model.safetensors") for d in ("straight", "halved"))
    assert all(torch.equal(mine[k], theirs[k]) for k in theirs)


def test_each_kind_of_data_goes_to_its_own_command(folder: Path, dialogues: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"noise-\d+: no assistant message to learn from"):
        sft(config(tmp_path / "a", folder, folder / "shards"))
    with pytest.raises(ConfigError, match=r"noise-\d+ ends with an answer; such data are for mmrl sft"):
        rl.train(make_config(tmp_path / "b", folder / "qwen3_vl", dialogues))
