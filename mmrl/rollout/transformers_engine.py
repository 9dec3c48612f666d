"""The embedded engine: transformers on the trainer's own model, CPU or GPU, no server.

It batches continuously: rows join and leave between decoding steps. A context is computed once (vision and text) and
its cache shared by its continuations; one that extends an earlier continuation is only computed from where that ended.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmrl import families
from mmrl.chat import Chat
from mmrl.families import mask_banned
from mmrl.policy.shard import is_sharded
from mmrl.registry import register
from mmrl.rollout import lockstep
from mmrl.rollout.attention import grouped_attention
from mmrl.rollout.contexts import Context, Forward, Kept, encode
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.features import FeatureCache, version
from mmrl.rollout.sampling import choose, derive_seed, uniforms

if TYPE_CHECKING:  # transformers takes seconds to import
    from mmrl.rollout.kv import KV, Piece

STEPS = 8  # decoding steps after which `step` looks up: a tool may have answered
ROOM = 64  # columns that a cache is given for decoding, more as it grows


@dataclass(eq=False)
class _Job:
    """A request under way."""

    ticket: int
    request: Request
    done: dict[int, Sampled] = field(default_factory=dict)  # continuations by number


@dataclass(eq=False)
class Row:
    """One continuation under way."""

    job: _Job
    index: int  # number of the continuation
    context: Context
    uniform: Any  # of each token that it may sample, numpy float64
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def request(self) -> Request:
        return self.job.request

    @property
    def fed(self) -> int:
        """Tokens that its cache holds: all but the last sampled."""
        return len(self.context.tokens) + max(0, len(self.tokens) - 1)

    @property
    def left(self) -> int:
        """Tokens that it may still sample."""
        return self.request.max_new_tokens - len(self.tokens)


@register("engine", "transformers")
class TransformersEngine:
    """Batched sampling with a decoding loop of its own.

    Weights may change between calls when nothing is under way: what was computed with others is never used again. A
    change in place is noticed, any other needs `sync`.

    Args:
        model: a supported vision-language model, plain or wrapped by PEFT or FSDP2; it is put into eval mode while it
            samples and returned to its former mode.
        chat: its chat format (stop, padding and banned ids).
        batch_tokens: tokens that the running batch may come to hold (rows x longest context and answer); a single row
            may be longer. As many again are kept of turns that are to be extended.
    """

    def __init__(self, model: Any, chat: Chat, *, batch_tokens: int = 131072) -> None:
        self.model = model
        self.chat = chat
        self.batch_tokens = batch_tokens
        self._synced = 0
        self._tickets = 0
        self._features = FeatureCache(model, batch_tokens)
        # oldest first; a state that no caller holds any more is gone
        self._kept: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()
        self._reset()

    # --- what callers use -------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        """See `Engine.generate`. With a sharded model all ranks call this together, with any requests or none."""
        for request in requests:
            self._check(request)
        tickets = [self._add(r) for r in requests]
        self._run(self._rounds(lambda: all(t in self._done for t in tickets)))
        return [self._done.pop(t) for t in tickets]

    def add(self, request: Request) -> int:
        """Put a request into the queue; the ticket under which `step` gives its continuations.

        Raises ValueError where its state is that of another context, or where media and placeholders differ.
        """
        self._check(request)
        return self._add(request)

    def step(self) -> list[tuple[int, list[Sampled]]]:
        """Decode until a request is whole, but a few steps at most so that new ones can join: there may be none yet."""
        begun = self._decoded
        self._run(self._rounds(lambda: bool(self._done) or self._decoded >= begun + STEPS))
        out = list(self._done.items())
        self._done.clear()
        return out

    def sync(self) -> None:
        """The weights are others now."""
        self._synced += 1
        self._features.clear()

    def sleep(self) -> None:
        """Forget what the vision tower computed."""
        self._features.clear()

    def close(self) -> None:
        """Forget everything."""
        self._reset()
        self._features.clear()

    # --- the queue --------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        state = request.state
        if state is not None and not state.fits(request.tokens):
            raise ValueError("a request's tokens do not extend the continuation whose state it carries")
        if request.max_new_tokens < 1:
            raise ValueError(f"a request for {request.max_new_tokens} new tokens")
        config = families.base_model(self.model).config
        families.check_counts(config, torch.tensor([request.tokens]), [request.vision])

    def _add(self, request: Request) -> int:
        self._tickets += 1
        job = _Job(self._tickets, request)
        if request.n:
            self._waiting.append(job)
        else:
            self._done[job.ticket] = []
        return job.ticket

    def _reset(self) -> None:
        """Forget everything that is under way."""
        self._waiting: deque[_Job] = deque()
        self._ready: deque[Row] = deque()  # their contexts are computed
        self._rows: list[Row] = []  # the running batch, rows that ended since it was made included
        self._kv: KV | None = None  # theirs
        self._token = self._position = torch.empty(0)  # [N]: what they are fed next, and where
        self._idle = 0  # row-steps lost since the batch was made, to rows that ended or wait
        self._decoded = 0  # steps
        self._done: dict[int, list[Sampled]] = {}

    # --- the loop ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self, rounds: Generator[dict[str, Any], Any, None]) -> None:
        training = self.model.training
        self.model.eval()
        self._version = self._synced + version(self.model)
        try:
            with grouped_attention(self.model) as self._grouped:
                lockstep.run(self.model, rounds)
        except BaseException:
            self._reset()
            raise
        finally:
            self.model.train(training)
        self._evict()

    def _rounds(self, enough: Callable[[], bool]) -> Generator[dict[str, Any], Any, None]:
        while (self._waiting or self._ready or self._rows) and not enough():
            if self._due():
                yield from self._renew()
            if self._rows:
                yield from self._decode()

    def _due(self) -> bool:
        """Whether the batch is to be made anew: rows join, and those that ended leave.

        That costs about a decoding step of the running rows, so it is done when as much has been lost by waiting.
        """
        running = sum(not r.ended for r in self._rows)
        return not running or self._idle >= running or (self._kv is not None and self._kv.full)

    def _renew(self) -> Forward:
        from mmrl.rollout.kv import join

        stay = [i for i, row in enumerate(self._rows) if not row.ended]
        rows, pieces = [self._rows[i] for i in stay], [self._piece(i) for i in stay]
        token, position = self._token[stay], self._position[stay]
        contexts = self._admitted(rows)
        if contexts:
            features = None if is_sharded(self.model) else self._features
            yield from encode(self.model, self.chat, contexts, features)
        joining: list[Row] = []
        while self._ready and self._fits([*rows, *joining], self._ready[0].request):
            joining.append(self._ready.popleft())
        if joining:
            begun = [r.context for r in joining]
            first = self._sample(joining, torch.stack([c.logits for c in begun]), lambda i: begun[i].piece)
            new = [i for i, row in enumerate(joining) if not row.ended]
            rows += [joining[i] for i in new]
            pieces += [begun[i].piece for i in new]
            token = torch.cat([token.to(first), first[new]])
            position = torch.cat([position.to(first), torch.tensor([begun[i].position for i in new]).to(first)])
        old, self._kv = self._kv, None
        if rows:
            room = min(max(r.left for r in rows), max(ROOM, max(p.length for p in pieces)))
            self._kv = join(pieces, room, used_up=old)
        self._rows, self._token, self._position, self._idle = rows, token, position, 0
        self._evict()

    def _admitted(self, rows: list[Row]) -> list[Context]:
        """The contexts of the requests that come next, as many as there is room for beside `rows`; equal ones once."""
        contexts: dict[Any, Context] = {}
        beside = [*rows, *self._ready]
        while self._waiting:
            job = self._waiting[0]
            request, state = job.request, job.request.state
            if state is not None and (state.kv is None or state.version != self._version):
                state = None
            key = (id(state), tuple(request.tokens), tuple(map(id, request.vision)))
            context = contexts.get(key) or Context(request.tokens, request.vision, state)
            if not self._fits(beside, request):
                break
            self._waiting.popleft()
            contexts[key] = context
            new = [Row(job, j, context, _draws(request, j)) for j in range(request.n)]
            self._ready += new
            beside += new
        return list(contexts.values())

    def _fits(self, rows: Sequence[Row], request: Request) -> bool:
        """Whether one more row, of this request, can join these."""
        longest = max(len(r.tokens) + r.max_new_tokens for r in (request, *(row.request for row in rows)))
        return not rows or (len(rows) + 1) * longest <= self.batch_tokens

    def _decode(self) -> Forward:
        """Feed each row its last token and sample the next."""
        assert self._kv is not None
        assert self._kv.mask is not None
        mask = self._kv.mask[:, : self._kv.width + 1]
        output = yield {
            "input_ids": self._token[:, None],
            "attention_mask": mask[:, None, None] if self._grouped else mask.long(),
            "position_ids": self._position[None, :, None].expand(3, -1, -1),
            "past_key_values": self._kv,
            "use_cache": True,
        }
        self._token = self._sample(self._rows, output.logits[:, -1], self._piece)
        self._position = self._position + 1
        self._decoded += 1
        live = [r for r in self._rows if not r.ended]
        if not live:
            self._rows, self._kv = [], None
        self._idle += len(self._rows) - len(live)
        if self._waiting and self._fits(live, self._waiting[0].request):
            self._idle += sum(job.request.n for job in self._waiting)

    def _piece(self, place: int) -> Piece:
        """The cache of a row of the running batch."""
        from mmrl.rollout.kv import Piece

        assert self._kv is not None
        return Piece(self._kv, place, self._kv.width - self._rows[place].fed, self._kv.width)

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _sample(self, rows: list[Row], logits: Tensor, piece: Callable[[int], Piece]) -> Tensor:
        """Sample a token for each row [N] from its logits [N, V]; rows that end with it become results."""
        logp = mask_banned(logits, self.chat.banned_ids).log_softmax(-1)
        token = self._choose(rows, logp)
        chosen = zip(token.tolist(), logp.gather(-1, token[:, None])[:, 0].tolist(), strict=True)
        for i, (row, (token_id, value)) in enumerate(zip(rows, chosen, strict=True)):
            if row.ended:
                continue
            row.tokens.append(token_id)
            row.logp.append(value)
            stopped = token_id in self.chat.stop_ids
            row.ended = stopped or len(row.tokens) == row.request.max_new_tokens
            if row.ended:
                state = self._keep(row, piece(i)) if stopped and row.request.keep else None
                self._finish(row, Sampled(row.tokens, row.logp, stopped, state))
        return token

    def _choose(self, rows: Sequence[Row], logp: Tensor) -> Tensor:
        """The next token of each row [N]."""
        device = logp.device
        uniform = torch.tensor([r.uniform[min(len(r.tokens), len(r.uniform) - 1)] for r in rows], dtype=torch.float64)
        temperature = torch.tensor([r.request.temperature for r in rows], device=device)
        top_p = torch.tensor([r.request.top_p for r in rows], device=device)
        return choose(logp, uniform.to(device), temperature, top_p)

    def _finish(self, row: Row, sampled: Sampled) -> None:
        job = row.job
        job.done[row.index] = sampled
        if len(job.done) == job.request.n:
            self._done[job.ticket] = [job.done[j] for j in range(job.request.n)]

    def _keep(self, row: Row, piece: Piece) -> Kept:
        """Remember the cache of a row that ended and that the caller may extend; the oldest ones give way."""
        from mmrl.rollout.kv import join

        tokens = [*row.context.tokens, *row.tokens[:-1]]
        position = row.context.position + len(row.tokens) - 1
        kept = Kept(join([piece], 0), self._version, tokens, len(row.context.vision), position)
        self._kept[id(kept)] = kept
        return kept

    def _evict(self) -> None:
        """Drop the oldest caches that are kept over the limit: their contexts will be computed again."""
        kept = [k for k in list(self._kept.values()) if k.kv is not None]
        total = sum(len(k.tokens) for k in kept)
        for old in kept:
            if total <= self.batch_tokens:
                return
            old.kv = None
            total -= len(old.tokens)


def _draws(request: Request, number: int) -> Any:
    """The uniform number of each token of a continuation."""
    return uniforms(derive_seed(request.seed, number), request.max_new_tokens).numpy()
