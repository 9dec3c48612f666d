"""Sources that the tests share: pictures and clips with something to see, made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def scene(number: int, width: int = 96, height: int = 72) -> Image.Image:
    """A picture of its own for each number: random blocks, with no symmetry and nowhere flat."""
    blocks = np.random.default_rng(number).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(10):
        scene(number).save(folder / f"p{number}.png")
    return folder
