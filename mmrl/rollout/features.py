"""What the vision tower made of pictures and clips, kept for as long as its weights stay the same.

The same picture comes again in the prompt of each branch, in contexts that are computed anew, and where rollouts crop
alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl import families
from mmrl.families import VisionInput


def version(module: torch.nn.Module) -> int:
    """A number that grows when any weight is changed in place, as optimisers and `load_state_dict` do."""
    return sum(p._version for p in module.parameters())


@dataclass
class Features:
    """The vision tower's output under the names that transformers gives it: all tokens [T, H], and the same of each of
    its deeper levels (Qwen3-VL)."""

    pooler_output: Tensor
    deepstack_features: list[Tensor] = field(default_factory=list)

    def split(self, sizes: Sequence[int]) -> list[Features]:
        levels = [level.split(list(sizes)) for level in self.deepstack_features]
        whole = self.pooler_output.split(list(sizes))
        return [Features(part, [level[i] for level in levels]) for i, part in enumerate(whole)]


class FeatureCache:
    """Features by picture, the least recently used dropped first.

    Args:
        model: a model whose forward passes of the vision tower need no other rank.
        tokens: vision tokens that are kept at most.
    """

    def __init__(self, model: Any, tokens: int) -> None:
        self.tower = getattr(families.base_model(model), "visual", None)
        self.tokens = tokens
        self._version: Any = None
        # by identity, which the entry itself keeps alive: a chat gives the same object for the same pixels
        self._kept: OrderedDict[int, tuple[VisionInput, Features]] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()

    @contextmanager
    def reused(self, media: Sequence[VisionInput]) -> Iterator[None]:
        """While this lasts, the tower computes of its input (the patches of `media`: pictures, then clips) only what is
        not kept, each picture once. The work is done inside the model's own pass, under its own precision."""
        tower = self.tower
        if tower is None or not media:
            yield
            return
        if self._version != (now := version(tower)):
            self._version = now
            self.clear()
        parts = iter([p for name in ("image", "video") if (p := [m for m in media if m.stream == name])])
        compute = tower.forward

        def forward(patches: Tensor, grid_thw: Tensor, **kwargs: Any) -> Features:
            part = next(parts)
            starts = torch.tensor([0, *(len(m.patches) for m in part)]).cumsum(0).tolist()
            new = {id(m): i for i, m in enumerate(part) if id(m) not in self._kept}
            if new:
                places = list(new.values())
                some = torch.cat([patches[starts[i] : starts[i + 1]] for i in places])
                grids = torch.tensor([g for i in places for g in part[i].grids]).to(grid_thw)  # of a medium 1 or more
                out = compute(some, grid_thw=grids, **kwargs)
                made = Features(out.pooler_output, list(getattr(out, "deepstack_features", None) or []))
                for i, one in zip(places, made.split([part[i].n_tokens for i in places]), strict=True):
                    self._kept[id(part[i])] = (part[i], one)
            found = []
            for medium in part:
                self._kept.move_to_end(id(medium))
                found.append(self._kept[id(medium)][1])
            levels = zip(*(f.deepstack_features for f in found), strict=True)
            return Features(torch.cat([f.pooler_output for f in found]), [torch.cat(level) for level in levels])

        tower.forward = forward
        try:
            yield
        finally:
            del tower.forward
            self._shrink()

    def _shrink(self) -> None:
        total = sum(m.n_tokens for m, _ in self._kept.values())
        while total > self.tokens:
            _, (medium, _) = self._kept.popitem(last=False)
            total -= medium.n_tokens
