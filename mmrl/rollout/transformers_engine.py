"""The embedded engine: transformers on the trainer's own model, CPU or GPU, no server.

A context is encoded once (vision and prefix) and its cache shared by its continuations; a context that extends an
earlier continuation is only encoded from where that one ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl import families
from mmrl.chat import Chat, pad_rows
from mmrl.families import VisionInput, mask_banned
from mmrl.registry import register
from mmrl.rollout import lockstep
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.sampling import choose, derive_seed, uniforms

Forward = Generator[dict[str, Any], Any, Any]  # yields inputs of `model.forward`, is sent the outputs


@dataclass
class Cache:
    """Keys and values of rows. Columns whose `attention` is 0 are padding or belong to no row's text."""

    keys: list[Tensor]  # of each layer [N, H, L, D]
    values: list[Tensor]
    attention: Tensor  # [N, L]

    def select(self, rows: Tensor) -> Cache:
        return Cache([k[rows] for k in self.keys], [v[rows] for v in self.values], self.attention[rows])

    @staticmethod
    def of(cache: Any, attention: Tensor) -> Cache:
        return Cache([x.keys for x in cache.layers], [x.values for x in cache.layers], attention)


@dataclass(frozen=True)
class Kept:
    """Where one continuation left its cache: what the next turn starts from."""

    cache: Cache
    row: int
    tokens: list[int]  # that the cache has been computed for
    media: int  # how many media they hold


@dataclass
class _Row:
    """One continuation under way."""

    request: int
    tokens: list[int]
    logp: list[float]


@register("engine", "transformers")
class TransformersEngine:
    """Batched sampling with a decoding loop of its own.

    Args:
        model: a supported vision-language model, plain or wrapped by PEFT or FSDP2; it is put into eval mode while it
            samples and returned to its former mode.
        chat: its chat format (stop, padding and banned ids).
        batch_tokens: tokens, padding included, that one batch may come to hold (rows x longest context and answer).
            Bounds the memory of the cache.
    """

    def __init__(self, model: Any, chat: Chat, *, batch_tokens: int = 131072) -> None:
        self.model = model
        self.chat = chat
        self.batch_tokens = batch_tokens

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        """See `Engine.generate`. With a sharded model all ranks call this together, with any requests or none."""
        training = self.model.training
        self.model.eval()
        try:
            return lockstep.run(self.model, self._generate(requests))
        finally:
            self.model.train(training)

    def _generate(self, requests: Sequence[Request]) -> Generator[dict[str, Any], Any, list[list[Sampled]]]:
        out: list[list[Sampled]] = [[] for _ in requests]
        for batch in self._batches(requests):
            for number, sampled in zip(batch, (yield from self._batch([requests[i] for i in batch])), strict=True):
                out[number] = sampled
        return out

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Numbers of the requests that are computed together: fresh contexts and extended ones apart, by length."""
        order = sorted(range(len(requests)), key=lambda i: (requests[i].state is not None, len(requests[i].tokens), i))
        for _, same in itertools.groupby(order, key=lambda i: requests[i].state is not None):
            batch: list[int] = []
            rows, width = 0, 0
            for i in same:
                wide = max(width, len(requests[i].tokens) + requests[i].max_new_tokens)
                if batch and (rows + requests[i].n) * wide > self.batch_tokens:
                    yield batch
                    batch, rows, wide = [], 0, len(requests[i].tokens) + requests[i].max_new_tokens
                batch.append(i)
                rows, width = rows + requests[i].n, wide
            yield batch

    def _batch(self, requests: Sequence[Request]) -> Generator[dict[str, Any], Any, list[list[Sampled]]]:
        """Encode the contexts, share each one's cache among its continuations, decode until the last has ended."""
        device = next(self.model.parameters()).device
        output, attention, position = yield from self._encode(requests, device)
        owner = [r for r, request in enumerate(requests) for _ in range(request.n)]
        rows = [_Row(r, [], []) for r in owner]
        uniform = torch.zeros(len(rows), max(r.max_new_tokens for r in requests), dtype=torch.float64)
        for r, same in itertools.groupby(range(len(rows)), key=owner.__getitem__):
            for j, n in enumerate(same):
                count = requests[r].max_new_tokens
                uniform[n, :count] = uniforms(derive_seed(requests[r].seed, j), count)
        index = torch.tensor(owner, device=device)
        cache, logits = output.past_key_values, output.logits[:, -1][index]
        cache.batch_select_indices(index)
        attention, position = attention[index], position[index]
        uniform = uniform.to(device)
        temperature = torch.tensor([requests[r].temperature for r in owner], device=device)
        top_p = torch.tensor([requests[r].top_p for r in owner], device=device)
        kept: dict[int, Kept] = {}

        live = list(range(len(rows)))  # rows of the batch, those that ended since the last compaction included
        ended = [False] * len(rows)
        for step in itertools.count():
            logp = mask_banned(logits, self.chat.banned_ids).log_softmax(-1)  # [N, V]
            at = torch.tensor(live, device=device)
            token = self._choose(rows, live, logp, uniform[at, step], temperature[at], top_p[at])
            chosen = zip(token.tolist(), logp.gather(-1, token[:, None])[:, 0].tolist(), strict=True)
            for n, (token_id, value) in zip(live, chosen, strict=True):
                row = rows[n]
                if not ended[n]:
                    row.tokens.append(token_id)
                    row.logp.append(value)
                    request = requests[row.request]
                    ended[n] = token_id in self.chat.stop_ids or len(row.tokens) == request.max_new_tokens
            running = [i for i, n in enumerate(live) if not ended[n]]
            if len(running) <= 0.75 * len(live):  # copying the cache costs about as much as some steps
                now = Cache.of(cache, attention)
                self._keep(kept, requests, rows, live, [i for i, n in enumerate(live) if ended[n]], now)
                if not running:
                    break
                stay = torch.tensor(running, device=device)
                cache.batch_select_indices(stay)
                attention, position, token = attention[stay], position[stay], token[stay]
                live = [live[i] for i in running]
            running_now = torch.tensor([[not ended[n]] for n in live], device=device)
            attention = torch.cat([attention, running_now.to(attention.dtype)], dim=1)
            output = yield {
                "input_ids": token[:, None],
                "attention_mask": attention,
                "position_ids": position[None, :, None].expand(3, -1, 1),
                "past_key_values": cache,
                "use_cache": True,
            }
            cache, logits = output.past_key_values, output.logits[:, -1]
            position = position + 1
        return self._results(requests, rows, kept)

    def _choose(
        self, rows: list[_Row], live: list[int], logp: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor
    ) -> Tensor:
        """The next token of each live row [N]."""
        return choose(logp, uniform, temperature, top_p)

    def _encode(self, requests: Sequence[Request], device: torch.device) -> Forward:
        """One pass over the contexts, or over what they add to their kept caches, left-padded.

        Returns the output, the attention over all columns [R, L] and the position of the next token [R].
        """
        states: list[Kept | None] = [r.state for r in requests]
        for request, state in zip(requests, states, strict=True):
            if state is not None and request.tokens[: len(state.tokens)] != state.tokens:
                raise ValueError("a request's tokens do not extend the continuation whose state it carries")
        new = [r.tokens[len(s.tokens) if s else 0 :] for r, s in zip(requests, states, strict=True)]
        vision: list[list[VisionInput]] = [
            r.vision[s.media if s else 0 :] for r, s in zip(requests, states, strict=True)
        ]
        whole, whole_attention = pad_rows([r.tokens for r in requests], self.chat.pad_id, left=True)
        tokens, attention = pad_rows(new, self.chat.pad_id, left=True)
        # left padding: the last columns of the whole rows are those of the new tokens
        positions = families.rope_positions(self.model, whole, whole_attention, [r.vision for r in requests])
        old = _join([s for s in states if s is not None])
        attention = attention.to(device)
        if old is not None:
            attention = torch.cat([old.attention, attention], dim=1)
        inputs = families.forward_inputs(
            self.model, tokens.to(device), attention, vision, positions[:, :, -tokens.shape[1] :]
        )
        output = yield inputs | {"past_key_values": _dynamic(old), "use_cache": True, "logits_to_keep": 1}
        # the last token, not the largest position: a long clip's times may reach beyond those of the text behind it
        return output, attention, positions[:, :, -1].amax(0).to(device) + 1

    def _keep(
        self,
        kept: dict[int, Kept],
        requests: Sequence[Request],
        rows: list[_Row],
        live: list[int],
        ended: list[int],
        cache: Cache,
    ) -> None:
        """Remember the caches of rows (places in `live`) that ended and that the caller may extend."""
        ended = [
            i for i in ended if requests[rows[live[i]].request].keep and rows[live[i]].tokens[-1] in self.chat.stop_ids
        ]
        if not ended:
            return
        own = cache.select(torch.tensor(ended, device=cache.attention.device))
        for place, i in enumerate(ended):
            row = rows[live[i]]
            request = requests[row.request]
            # the last sampled token was never fed back
            kept[live[i]] = Kept(own, place, [*request.tokens, *row.tokens[:-1]], len(request.vision))

    def _results(self, requests: Sequence[Request], rows: list[_Row], kept: dict[int, Kept]) -> list[list[Sampled]]:
        out: list[list[Sampled]] = [[] for _ in requests]
        for n, row in enumerate(rows):
            stopped = row.tokens[-1] in self.chat.stop_ids
            out[row.request].append(Sampled(row.tokens, row.logp, stopped, kept.get(n)))
        return out


def _join(states: Sequence[Kept]) -> Cache | None:
    """The rows of kept caches in one cache, in the order of `states`, left-padded to the longest."""
    if not states:
        return None
    groups: dict[int, tuple[Cache, list[int]]] = {}
    for place, state in enumerate(states):
        groups.setdefault(id(state.cache), (state.cache, []))[1].append(place)
    pieces = [c.select(torch.tensor([states[p].row for p in places])) for c, places in groups.values()]
    order = torch.tensor([p for _, places in groups.values() for p in places]).argsort()
    width = max(p.attention.shape[1] for p in pieces)

    def join(parts: list[Tensor], dim: int) -> Tensor:
        return torch.cat([_pad_left(part, width, dim) for part in parts])[order.to(parts[0].device)]

    layers = range(len(pieces[0].keys))
    return Cache(
        [join([p.keys[i] for p in pieces], 2) for i in layers],
        [join([p.values[i] for p in pieces], 2) for i in layers],
        join([p.attention for p in pieces], 1),
    )


def _pad_left(part: Tensor, width: int, dim: int) -> Tensor:
    shape = list(part.shape)
    shape[dim] = width - shape[dim]
    return torch.cat([part.new_zeros(shape), part], dim=dim)


def _dynamic(cache: Cache | None) -> Any:
    from transformers import DynamicCache

    if cache is None:
        return DynamicCache()
    return DynamicCache(zip(cache.keys, cache.values, strict=True))
