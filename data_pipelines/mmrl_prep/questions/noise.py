"""Visual noise on pictures and frames, from none (strength 0) to hardly recognisable (strength 1)."""

from __future__ import annotations

import io
from typing import Literal, TypeVar

import numpy as np
from PIL import Image, ImageFilter

Kind = Literal["gaussian", "jpeg", "blur"]
KINDS: tuple[Kind, ...] = ("gaussian", "jpeg", "blur")
LEVELS = {"light": 0.25, "medium": 0.5, "heavy": 1.0}  # strengths by name
MAX_SIGMA = 96.0  # levels of gaussian noise at strength 1
BEST, WORST = 95, 3  # JPEG quality near strength 0 and at strength 1
MAX_BLUR = 0.04  # radius at strength 1, as a share of the shorter side
Picture = TypeVar("Picture", Image.Image, np.ndarray)


def add_noise(picture: Picture, rng: np.random.Generator, strength: float, kind: Kind = "gaussian") -> Picture:
    """A picture, or frames [F, H, W, 3] uint8 (noise of its own for each), of the same type and size.

    gaussian: added to each pixel and channel; jpeg: artefacts of lossy storage; blur. Raises ValueError.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength {strength}: from 0 to 1")
    if kind not in KINDS:
        raise ValueError(f"noise {kind!r}: one of {', '.join(KINDS)}")
    if isinstance(picture, np.ndarray):
        if picture.ndim != 4 or picture.dtype != np.uint8:
            raise ValueError(f"frames are [F, H, W, 3] uint8, not {picture.dtype} of shape {picture.shape}")
        frames = [add_noise(Image.fromarray(frame), rng, strength, kind) for frame in picture]
        return np.stack([np.asarray(frame) for frame in frames]) if frames else picture.copy()
    picture = picture.convert("RGB")
    if strength == 0:
        return picture
    if kind == "gaussian":
        noise = rng.normal(0.0, MAX_SIGMA * strength, (picture.height, picture.width, 3))
        return Image.fromarray(np.clip(np.rint(np.asarray(picture) + noise), 0, 255).astype(np.uint8))
    if kind == "blur":
        return picture.filter(ImageFilter.GaussianBlur(MAX_BLUR * strength * min(picture.size)))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=round(BEST + (WORST - BEST) * strength))
    return Image.open(buffer).convert("RGB")
