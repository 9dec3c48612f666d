"""Vectors of pictures from an embedding model of transformers in a local folder, such as CLIP or SigLIP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl_tools.built import once

BATCH = 16

Embed = Callable[[Sequence[Image.Image]], np.ndarray]


def embedder(folder: Path, device: str = "cpu") -> Embed:
    """A function of RGB pictures that gives a vector of length 1 of each, [len(images), D] float32.

    The model is loaded once a process, in float32, and used by one thread at a time. Raises ValueError where the folder
    holds no model that gives features of pictures.
    """
    return once(("embedder", str(folder), device), model_stamp(folder), lambda: _load(folder, device))


def model_stamp(folder: Path) -> str:
    """The files of a model folder with their sizes and times. Raises ValueError where it is no model."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model: give the folder of a CLIP or SigLIP model with its config.json")
    facts = ((f.name, f.stat()) for f in sorted(folder.iterdir()) if f.is_file())
    return " ".join(f"{name}:{s.st_size}:{s.st_mtime_ns}" for name, s in facts)


def _load(folder: Path, device: str) -> Embed:
    import torch
    from transformers import AutoImageProcessor, AutoModel

    model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).to(device).eval()
    if not hasattr(model, "get_image_features"):
        raise ValueError(f"{folder}: {type(model).__name__} gives no features of pictures: use a CLIP or SigLIP")
    processor: Any = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    lock = threading.Lock()

    def embed(images: Sequence[Image.Image]) -> np.ndarray:
        found = []
        for start in range(0, len(images), BATCH):
            inputs = processor(images=list(images[start : start + BATCH]), return_tensors="pt").to(device)
            with lock, torch.inference_mode():
                out = model.get_image_features(**inputs)
            features = out if isinstance(out, torch.Tensor) else out.pooler_output
            found.append(torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy())
        return np.concatenate(found)

    return embed
