"""Loading a policy: the model with its adapters and frozen parts, and its chat format."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Any

import torch

from mmrl import families
from mmrl.chat import Chat
from mmrl.config import ConfigError, LoraConfig, ModelConfig
from mmrl.registry import nearest

CARRIED = "tiny-vlm"  # the model that mmrl carries


def model_folder(path: str) -> Path:
    """The folder of a checkpoint: a local one, the carried one, or one of the Hugging Face hub by its `owner/name`.

    Raises ConfigError where there is none.
    """
    folder = Path(str(importlib.resources.files("mmrl") / "assets" / CARRIED)) if path == CARRIED else Path(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise ConfigError(
            f"model.path: {folder} holds no config.json: name the folder of a Hugging Face checkpoint, the owner/name "
            f"of one on the hub, or {CARRIED}"
        )
    from huggingface_hub import snapshot_download

    try:  # files that are in the local cache are not fetched again
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path: there is no folder {path}, and fetching it from the hub failed: {error}"
        ) from error


def pick_device(name: str) -> torch.device:
    """`cpu`, `cuda` (this process's own GPU), or the better one that is there for `auto`. Raises ConfigError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("model.device is cuda, but torch sees no GPU: set model.device=cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def load_policy(cfg: ModelConfig) -> tuple[Any, Chat]:
    """The model as configured, on its device and in evaluation mode, and its chat format.

    Evaluation mode is kept while training, so that the engine and the trainer compute the same function. Raises
    ConfigError.
    """
    from transformers import AutoModelForImageTextToText

    folder = model_folder(cfg.path)
    chat = load_chat(cfg)
    model: Any = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=getattr(torch, cfg.dtype), attn_implementation=cfg.attention
    )
    if cfg.freeze_vision:
        families.base_model(model).visual.requires_grad_(False)
    if cfg.lora:
        model = add_lora(model, cfg.lora)
    return model.to(pick_device(cfg.device)).eval(), chat


def load_chat(cfg: ModelConfig) -> Chat:
    """The chat format alone, for a policy that runs elsewhere. Raises ConfigError."""
    return Chat.from_pretrained(model_folder(cfg.path), min_pixels=cfg.min_pixels, max_pixels=cfg.max_pixels)


def add_lora(model: Any, cfg: LoraConfig, *, seed: int = 0) -> Any:
    """The model under PEFT with adapters on the language model's linear layers; all else is frozen. Raises ConfigError.

    The adapters' random half comes from `seed` alone, so every rank and every start makes the same ones.
    """
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "language_model" in n]
    for target in cfg.targets:
        if not any(n.endswith(f".{target}") for n in linear):
            known = sorted({n.rsplit(".", 1)[-1] for n in linear})
            raise ConfigError(f"model.lora.targets: no linear layer named {target!r}: {nearest(target, known)}")
    chosen = [n for n in linear if n.rsplit(".", 1)[-1] in cfg.targets]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(
            model,
            PeftConfig(r=cfg.rank, lora_alpha=cfg.alpha, lora_dropout=cfg.dropout, target_modules=chosen),
        )
