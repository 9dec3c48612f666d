"""Loading, adapters and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl import families
from mmrl.config import ConfigError, LoraConfig, ModelConfig
from mmrl.policy.checkpoint import export
from mmrl.policy.load import load_policy
from mmrl.policy.logprobs import token_logps


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub is out of reach, and its local cache is an empty folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def logits(model: Any, trajectory: Any) -> torch.Tensor:
    tokens = torch.tensor([trajectory.tokens])
    inputs = families.forward_inputs(model, tokens, torch.ones_like(tokens), [trajectory.vision])
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits


def test_export_loads_in_plain_transformers_with_equal_logits(tiny: Any, speak: Any, tmp_path: Path) -> None:
    export(tiny.model, tiny.chat, tmp_path / "model")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "model").eval()
    trajectory = speak(tiny.chat, "look", "red")
    assert torch.equal(logits(plain, trajectory), logits(tiny.model, trajectory))
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    assert processor.tokenizer("red?")["input_ids"] == tiny.chat.encode_text("red?")
    ends = plain.generation_config.eos_token_id
    assert {*(ends if isinstance(ends, list) else [ends])} == {*tiny.chat.stop_ids}
    export(tiny.model, tiny.chat, tmp_path / "model")  # an older export is replaced
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_lora_moves_adapters_only_and_export_merges_them(tiny: Any, speak: Any, tmp_path: Path) -> None:
    export(tiny.model, tiny.chat, tmp_path / "base")
    lora = LoraConfig(rank=2, alpha=8, targets=["q_proj", "down_proj"])
    model, chat = load_policy(ModelConfig(path=str(tmp_path / "base"), device="cpu", lora=lora))
    trajectory = speak(chat, "red")
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trainable
    assert all("lora_" in n and "language_model" in n for n in trainable)
    assert torch.allclose(logits(model, trajectory), logits(tiny.model, trajectory), atol=1e-5)  # they start at 0
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n in trainable:
                p.add_(0.05)
    moved = logits(model, trajectory)
    assert not torch.allclose(moved, logits(tiny.model, trajectory), atol=1e-2)
    export(model, chat, tmp_path / "merged")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    assert torch.allclose(logits(plain, trajectory), moved, atol=1e-4)
    assert torch.equal(logits(model, trajectory), moved)  # exporting changed nothing


def lora_of(tiny: Any) -> LoraConfig:
    """Adapters on all linear layers: GLM-4.1V has two of the usual ones in one."""
    if tiny.chat.config.model_type == "glm4v":
        return LoraConfig(rank=2, targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"])
    return LoraConfig(rank=2)


def test_same_adapters_at_each_start(tiny: Any, tmp_path: Path) -> None:
    export(tiny.model, tiny.chat, tmp_path / "base")
    config = ModelConfig(path=str(tmp_path / "base"), device="cpu", lora=lora_of(tiny))
    torch.manual_seed(1)
    first = load_policy(config)[0].state_dict()
    torch.manual_seed(2)
    second = load_policy(config)[0].state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_freezing_vision_leaves_the_language_model(tiny: Any, tmp_path: Path) -> None:
    export(tiny.model, tiny.chat, tmp_path / "base")
    model, _ = load_policy(ModelConfig(path=str(tmp_path / "base"), device="cpu", freeze_vision=True))
    for name, p in model.named_parameters():
        assert p.requires_grad != ("visual" in name), name


def test_types_of_weights_survive(tiny: Any, speak: Any, tmp_path: Path) -> None:
    export(tiny.model, tiny.chat, tmp_path / "base")
    model, chat = load_policy(ModelConfig(path=str(tmp_path / "base"), device="cpu", dtype="bfloat16"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    logp, _ = token_logps(model, chat, [speak(chat, "red")])
    assert logp.dtype == torch.float32
    export(model, chat, tmp_path / "half")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "half")
    assert {p.dtype for p in plain.parameters()} == {torch.bfloat16}


def test_errors_say_what_to_do(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path: .*nowhere holds no config.json"):
        load_policy(ModelConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"no folder own/nothing, and fetching it from the hub failed"):
        load_policy(ModelConfig(path="own/nothing"))
    export(tiny.model, tiny.chat, tmp_path / "base")
    bad = ModelConfig(path=str(tmp_path / "base"), device="cpu", lora=LoraConfig(targets=["q_prj"]))
    with pytest.raises(ConfigError, match=r"lora.targets.*'q_prj'.*did you mean 'q_proj'"):
        load_policy(bad)


def test_a_name_of_the_hub_is_found_in_the_local_cache(tiny: Any, tmp_path: Path, hub_cache: Path) -> None:
    commit = "0" * 40
    repository = hub_cache / "models--own--tiny"
    export(tiny.model, tiny.chat, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    model, _ = load_policy(ModelConfig(path="own/tiny", device="cpu"))
    mine, theirs = model.state_dict(), tiny.model.state_dict()
    assert all(torch.equal(mine[k], theirs[k]) for k in theirs)
