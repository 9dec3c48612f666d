"""Keys and values of rows of unequal length, in buffers that are written in place.

A row ends at the right edge of what has been written: whatever its length, its next token is written to the same
column as everybody's. Columns left of a row's first token are masked. So rows join and leave by one copy, and a
decoding step copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class Layer(DynamicLayer):
    """Keys and values [N, H, columns, D] of one layer, of which the first `width` columns are written."""

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None, width: int = 0) -> None:
        super().__init__()
        self.keys, self.values, self.width = keys, values, width
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new columns [N, H, T, D]; all that is written since the beginning."""
        start, self.width = self.width, self.width + key_states.shape[2]
        if self.keys is None or self.values is None:
            self.keys, self.values = key_states, value_states
        else:
            self.keys[:, :, start : self.width] = key_states
            self.values[:, :, start : self.width] = value_states
        return self.keys[:, :, : self.width], self.values[:, :, : self.width]

    def get_seq_length(self) -> int:
        return self.width


class KV(Cache):
    """What a model computed for N rows, as its `past_key_values`. Empty until the first pass unless it is joined.

    mask: [N, columns] bool, False left of a row's first token; columns not yet written are True.
    """

    layers: list[Any]  # of Layer

    def __init__(self, layers: list[Layer] | None = None, mask: Tensor | None = None) -> None:
        super().__init__(**({"layer_class_to_replicate": Layer} if layers is None else {"layers": layers}))
        self.mask = mask

    @property
    def width(self) -> int:
        """Columns that are written."""
        return self.layers[0].width if self.layers else 0

    @property
    def full(self) -> bool:
        """Whether no column is left to write to."""
        return self.layers[0].width == self.layers[0].keys.shape[2]


class Piece(NamedTuple):
    """The tokens of one row: columns [start, stop) of row `row`."""

    kv: KV
    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def join(pieces: Sequence[Piece], room: int, *, used_up: KV | None = None) -> KV:
    """One row for each piece (at least one), aligned at their right ends, with `room` columns to be written.

    used_up: a KV that nobody needs afterwards; it is emptied layer by layer, so that it and its copy never take up
    memory at the same time.
    """
    width = max(p.length for p in pieces)
    layers = []
    for i in range(len(pieces[0].kv.layers)):
        keys, values = (_joined(pieces, i, name, width, room) for name in ("keys", "values"))
        layers.append(Layer(keys, values, width))
        if used_up is not None:
            used_up.layers[i].keys = used_up.layers[i].values = None
    device = layers[0].keys.device  # type: ignore[union-attr]  # set above
    first = torch.tensor([width - p.length for p in pieces], device=device)
    return KV(layers, torch.arange(width + room, device=device) >= first[:, None])


def _joined(pieces: Sequence[Piece], layer: int, name: str, width: int, room: int) -> Tensor:
    some: Tensor = getattr(pieces[0].kv.layers[layer], name)
    # zeros: a masked column has weight 0, and 0 times whatever else memory holds may be nan
    out = some.new_zeros((len(pieces), some.shape[1], width + room, some.shape[3]))
    for n, piece in enumerate(pieces):
        part: Tensor = getattr(piece.kv.layers[layer], name)
        out[n, :, width - piece.length : width] = part[piece.row, :, piece.start : piece.stop]
    return out
