"""The tiny models as a fixture."""

from __future__ import annotations

import pytest
from tiny_models import CROP, ZOOM, ForcedEngine, Tiny, build, make_prompt, picture, rescore

__all__ = ["CROP", "ZOOM", "ForcedEngine", "Tiny", "build", "make_prompt", "picture", "rescore"]


@pytest.fixture(scope="session", params=["qwen2_5_vl", "qwen3_vl", "glm4v"])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return build(request.param)
