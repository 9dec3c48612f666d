"""Frame budgets: each question is shown with a number of frames of its own (ParaVT, card para-frame-budget)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

CHOICES = (4, 8, 16, 32, 64)


def frame_budget(key: str, choices: Sequence[int] = CHOICES, seed: int = 0) -> int:
    """Number of frames for the question `key`, the same on every machine and for every rollout of the question.

    Raises ValueError where there is nothing to choose from.
    """
    if not choices or min(choices) < 1:
        raise ValueError(f"choices {tuple(choices)}: at least one number of frames, each at least 1")
    digest = hashlib.sha256(f"{seed}|{key}".encode()).digest()
    return choices[int.from_bytes(digest[:8], "big") % len(choices)]
