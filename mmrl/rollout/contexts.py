"""The contexts of requests: computed once each, from where an earlier continuation left its cache when it can be."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmrl import families
from mmrl.chat import Chat, pad_rows
from mmrl.families import VisionInput
from mmrl.rollout.features import FeatureCache

if TYPE_CHECKING:  # transformers takes seconds to import
    from mmrl.rollout.kv import KV, Piece

Forward = Generator[dict[str, Any], Any, Any]  # yields inputs of `model.forward`, is sent the outputs


@dataclass(eq=False)
class Kept:
    """Where one continuation left its cache: what the next turn starts from. The engine's part of `Sampled.state`.

    kv: one row, None once its memory was needed. version: of the weights that it was computed with.
    """

    kv: KV | None
    version: int
    tokens: list[int]  # that it holds
    media: int  # how many media they hold
    position: int  # of the next token

    def fits(self, tokens: list[int]) -> bool:
        """Whether a context extends what this holds."""
        return len(tokens) > len(self.tokens) and tokens[: len(self.tokens)] == self.tokens


@dataclass(eq=False)
class Context:
    """The tokens that a request continues, and after `encode` what they were computed to.

    piece: where their keys and values lie. logits [V] of the next token; `position` is its M-RoPE position.
    """

    tokens: list[int]
    vision: list[VisionInput]
    start: Kept | None = None
    piece: Piece = field(init=False)
    logits: Tensor = field(init=False)
    position: int = field(init=False)

    @property
    def new(self) -> list[int]:
        return self.tokens[len(self.start.tokens) if self.start else 0 :]

    @property
    def shown(self) -> list[VisionInput]:
        """The media of the new tokens."""
        return self.vision[self.start.media if self.start else 0 :]


def encode(model: Any, chat: Chat, contexts: Sequence[Context], features: FeatureCache | None) -> Forward:
    """Compute contexts: one pass over those that begin afresh, one over what the others add to their caches."""
    for extended in (False, True):
        same = [c for c in contexts if (c.start is not None) == extended]
        if same:
            yield from _pass(model, chat, same, features)


def _pass(model: Any, chat: Chat, contexts: Sequence[Context], features: FeatureCache | None) -> Forward:
    from mmrl.rollout.kv import KV, Piece, join

    device = next(model.parameters()).device
    vision = [c.shown for c in contexts]
    # padded on the right: a row's tokens follow its cache without a gap, and padding comes after all it could spoil
    tokens, attention = pad_rows([c.new for c in contexts], chat.pad_id)
    positions = families.rope_positions(model, tokens, attention, vision)
    starts = [c.start for c in contexts if c.start is not None]
    if starts:
        pieces = [Piece(s.kv, 0, 0, s.kv.width) for s in starts if s.kv is not None]
        kv = join(pieces, tokens.shape[1])
        # new tokens begin with text, so their positions go on from the last one whatever came before
        positions = positions + torch.tensor([s.position for s in starts])[:, None]
    else:
        kv = KV()
    width = kv.width
    mask = attention.to(device)
    if kv.mask is not None:
        mask = torch.cat([kv.mask[:, :width].long(), mask], dim=1)
    last = [len(c.new) - 1 for c in contexts]
    places = sorted(set(last))
    inputs = families.forward_inputs(model, tokens.to(device), mask, vision, positions)
    inputs |= {"past_key_values": kv, "use_cache": True, "logits_to_keep": torch.tensor(places, device=device)}
    if features is None:
        output = yield inputs
    else:
        with features.reused([v for row in vision for v in row]):
            output = yield inputs
    for n, (context, end) in enumerate(zip(contexts, last, strict=True)):
        before = len(context.tokens) - len(context.new)
        context.piece = Piece(kv, n, width - before, width + end + 1)
        context.logits = output.logits[n, places.index(end)]
        # of the last token, not the largest: a long clip's times may reach beyond those of the text behind it
        context.position = int(positions[..., n, end].max()) + 1
