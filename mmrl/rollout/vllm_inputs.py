"""What vLLM is told of a context: token ids as they are, and each medium as the patches that the processor made."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor

from mmrl import families
from mmrl.families import VisionInput

PADS = {"image": "image_token_id", "video": "video_token_id"}


def engine_input(config: Any, tokens: list[int], vision: Sequence[VisionInput]) -> tuple[Any, list[str]]:
    """The context in vLLM's own form, past its tokenizer and processor, and the name of each medium.

    `tokens` hold as many placeholders as the media have features.
    """
    from vllm.inputs.engine import mm_input, tokens_input
    from vllm.multimodal.inputs import MultiModalKwargsItems

    if not vision:
        return tokens_input(tokens), []
    items: dict[str, list[Any]] = {}
    names: dict[str, list[str]] = {}
    places: dict[str, list[Any]] = {}
    pads = {kind: iter([i for i, t in enumerate(tokens) if t == getattr(config, name)]) for kind, name in PADS.items()}
    for medium in vision:
        items.setdefault(medium.kind, []).append(_item(medium))
        names.setdefault(medium.kind, []).append(content_name(medium))
        places.setdefault(medium.kind, []).append(_place([next(pads[medium.stream]) for _ in range(medium.n_tokens)]))
    order = {kind: iter(found) for kind, found in names.items()}
    return mm_input(tokens, MultiModalKwargsItems(items), names, places), [next(order[v.kind]) for v in vision]


def content_name(medium: VisionInput) -> str:
    """A name that equal media share and no others: caches of features and of keys and values go by it.

    The seconds of a clip belong to it. The vision tower does not see them, but its positions follow from them.
    """
    patches = medium.patches.detach().cpu().contiguous()
    digest = xxhash.xxh3_128(patches.numpy().tobytes())
    seconds = -1.0 if medium.seconds_per_grid is None else float(medium.seconds_per_grid)
    digest.update(struct.pack("<4qd", *medium.grid, medium.merge, seconds) + medium.kind.encode())
    return digest.hexdigest()


def _item(medium: VisionInput) -> Any:
    from vllm.multimodal.inputs import (
        MultiModalBatchedField,
        MultiModalFieldElem,
        MultiModalFlatField,
        MultiModalKwargsItem,
    )

    pixels, grid = (
        ("pixel_values", "image_grid_thw") if medium.kind == "image" else ("pixel_values_videos", "video_grid_thw")
    )
    fields = {
        pixels: MultiModalFieldElem(medium.patches, MultiModalFlatField(slices=())),  # joined with those of others
        grid: MultiModalFieldElem(torch.tensor(medium.grid), MultiModalBatchedField(keep_on_cpu=True)),
    }
    return MultiModalKwargsItem(fields)


def _place(pads: list[int]) -> Any:
    """Where a medium's features go: a range, and which of its tokens are placeholders where it holds others too."""
    from vllm.multimodal.inputs import PlaceholderRange

    start, length = pads[0], pads[-1] + 1 - pads[0]
    if length == len(pads):
        return PlaceholderRange(start, length)
    inside = torch.zeros(length, dtype=torch.bool)
    inside[torch.tensor(pads) - start] = True
    return PlaceholderRange(start, length, is_embed=inside)


class Positions:
    """Rotary positions of contexts, by the trainer's model in the place of vLLM's own.

    vLLM's differ behind a clip of Qwen2.5-VL: there text goes on after the clip's last second.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.shown: dict[str, VisionInput] = {}  # media under way by their names
        self._last: tuple[Any, Any] = (None, None)  # n samples of a context ask for the same

    def __call__(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """M-RoPE positions [3, T], and by how much those of sampled tokens differ from their places.

        The arguments have the names that vLLM calls them by.
        """
        key = (tuple(input_tokens), tuple(f.identifier for f in mm_features))
        if self._last[0] != key:
            row = torch.tensor([input_tokens])
            vision = [self.shown[f.identifier] for f in mm_features]
            positions = families.rope_positions(self.policy, row, torch.ones_like(row), [vision])[:, 0].cpu()
            self._last = (key, (positions, int(positions[:, -1].max()) + 1 - len(input_tokens)))
        found: tuple[Tensor, int] = self._last[1]
        return found
