"""Enlarging pictures: by interpolation, or by a model of the user's through spandrel (extra `mmrl[superres]`)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from mmrl_tools.geometry import Size

TILE, MARGIN = 256, 32  # pixels of a piece that a model sees at once, and of its surroundings on each side
CHANNELS = 3


def by_lanczos(image: Image.Image, size: Size) -> Image.Image:
    """Lanczos, then an unsharp mask as wide as the enlargement blurs."""
    radius = size[0] / image.width / 2
    mask = ImageFilter.UnsharpMask(radius, percent=80, threshold=2)
    return image.resize(size, Image.Resampling.LANCZOS).filter(mask)


def by_model(image: Image.Image, size: Size, weights: Path, device: str = "cpu") -> tuple[Image.Image, str]:
    """The picture enlarged by the model of a weights file, then brought to `size`, with the name of the method.

    Raises RuntimeError where spandrel is not installed; ValueError where the file is no model for RGB pictures.
    """
    if not weights.is_file():
        raise ValueError(f"rollout.tool_options.super_resolution.weights: no file {str(weights)!r}")
    model = _model(str(weights), weights.stat().st_mtime_ns, device)
    large = Image.fromarray(_in_tiles(model, np.asarray(image), device))
    method = f"the model {model.architecture.name} x{model.scale}"
    return large if large.size == size else large.resize(size, Image.Resampling.LANCZOS), method


@lru_cache(maxsize=2)
def _model(path: str, changed: int, device: str) -> Any:
    """`changed`, the file's time, is part of the question, so a file that was replaced is read anew."""
    try:
        import spandrel
    except ImportError as error:
        raise RuntimeError("super-resolution with weights needs spandrel: install mmrl[superres]") from error
    try:
        model = spandrel.ModelLoader(device=device).load_from_file(path)
    except Exception as error:  # what it raises for files of other kinds is not documented
        raise ValueError(f"{path}: spandrel reads no model from it: {type(error).__name__}: {error}") from error
    if not isinstance(model, spandrel.ImageModelDescriptor) or model.input_channels != CHANNELS:
        raise ValueError(f"{path}: a model that makes RGB pictures of RGB pictures is needed")
    return model.eval()


def _in_tiles(model: Any, pixels: np.ndarray, device: str) -> np.ndarray:
    """The model on [H, W, 3] uint8, piece by piece so that memory stays bounded: [H x scale, W x scale, 3] uint8."""
    import torch

    height, width = pixels.shape[:2]
    scale = model.scale
    out = np.empty((height * scale, width * scale, CHANNELS), np.uint8)
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            y, x = max(0, top - MARGIN), max(0, left - MARGIN)
            bottom, right = min(height, top + TILE), min(width, left + TILE)
            piece = pixels[y : bottom + MARGIN, x : right + MARGIN].astype(np.float32) / 255
            with torch.inference_mode():
                made = model(torch.from_numpy(piece).permute(2, 0, 1)[None].to(device))[0]
            levels = (made.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            rows = slice((top - y) * scale, (bottom - y) * scale)
            columns = slice((left - x) * scale, (right - x) * scale)
            out[top * scale : bottom * scale, left * scale : right * scale] = levels[rows, columns]
    return out
