"""Log-probs of given tokens under a model, in micro-batches, without ever holding logits [N, T, V]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mmrl import families
from mmrl.chat import Chat, pad_rows
from mmrl.families import VisionInput
from mmrl.policy.shard import agree
from mmrl.types import Origin, Trajectory

LOGITS = 1 << 27  # numbers of one block of logits: 512 MiB in float32


@dataclass(frozen=True, slots=True)
class Row:
    """A token sequence with its media, and the positions (each at least 1) whose log-prob is asked for."""

    tokens: list[int]
    vision: list[VisionInput]
    scored: list[int]


def trajectory_row(trajectory: Trajectory) -> Row:
    """A trajectory of which every token that the policy sampled is scored."""
    scored = [t for t, origin in enumerate(trajectory.origin) if origin is Origin.POLICY]
    return Row(trajectory.tokens, trajectory.vision, scored)


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows by number in batches of at most `budget` padded tokens, rows of like length together, longest first.

    A row longer than the budget is a batch of its own. The order is fixed by the lengths alone.
    """
    batches: list[list[int]] = []
    width = 0
    for row in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        if not batches or (len(batches[-1]) + 1) * width > budget:
            batches.append([])
            width = lengths[row]
        batches[-1].append(row)
    return batches


def passes(model: Any, rows: Sequence[Row], budget: int) -> list[tuple[list[int], int]]:
    """The forward passes over rows: for each its rows by number, and how often it calls the vision tower.

    Rows without a scored position are in none. On all ranks of a sharded model the passes are equally many and of the
    same kinds; those of a rank that has less to do are empty or hold a dummy beside its rows.
    """
    wanted = [n for n, row in enumerate(rows) if row.scored]
    parts = [[wanted[i] for i in part] for part in micro_batches([len(rows[n].tokens) for n in wanted], budget)]
    calls = agree(model, [families.vision_calls(v for n in part for v in rows[n].vision) for part in parts])
    return [(parts[i] if i < len(parts) else [], calls[i]) for i in range(len(calls))]


def row_logps(
    model: Any, chat: Chat, rows: Sequence[Row], width: int, *, vision_calls: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-prob of each scored token and entropy of its distribution: two [n, width] tensors, 0 elsewhere.

    One forward pass; the log-probs carry a gradient where gradients are enabled, the entropies never. The distribution
    is that of the engines: temperature 1, banned ids excluded. `vision_calls` is what `passes` said; where the rows
    call the vision tower less often, a dummy row makes up for it, and its gradient is exactly 0.
    """
    device = next(model.parameters()).device
    rows = list(rows)
    own = len(rows)
    if not rows or families.vision_calls(v for row in rows for v in row.vision) < vision_calls:
        start, vision = families.dummy_row(model, vision_calls)
        rows.append(Row([*start, 0], vision, [len(start)]))
    tokens, attention = (x.to(device) for x in pad_rows([r.tokens for r in rows], chat.pad_id))
    row = torch.tensor([n for n, r in enumerate(rows) for _ in r.scored], device=device)
    place = torch.tensor([t for r in rows for t in r.scored], device=device)
    inputs = families.forward_inputs(model, tokens, attention, [r.vision for r in rows])
    with _scoring_head(model, (row, place - 1), tokens[row, place], chat.banned_ids):
        scores = model(**inputs, use_cache=False).logits  # [P, 2]
    table = scores.new_zeros((len(rows), max(width, tokens.shape[1]), 2)).index_put((row, place), scores)
    logp, entropy = table[:own, :width].unbind(-1)
    return logp, entropy.detach()


@torch.no_grad()
def token_logps(
    model: Any, chat: Chat, trajectories: Sequence[Trajectory], *, budget: int = 16384
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token that the policy sampled and entropy of its distribution: two float32 [N, T] tensors.

    T is the longest trajectory's length; position t speaks of token t; 0 in prompts, observations and padding. `budget`
    bounds the padded tokens of one forward pass. All ranks of a sharded model call this together.
    """
    rows = [trajectory_row(t) for t in trajectories]
    width = max((len(r.tokens) for r in rows), default=0)
    device = next(model.parameters()).device
    logp = torch.zeros((len(rows), width), device=device)
    entropy = torch.zeros_like(logp)
    for part, calls in passes(model, rows, budget):
        logp[part], entropy[part] = row_logps(model, chat, [rows[n] for n in part], width, vision_calls=calls)
    return logp, entropy


@contextmanager
def _scoring_head(model: Any, where: tuple[Tensor, Tensor], targets: Tensor, banned: Sequence[int]) -> Iterator[None]:
    """While this lasts, the language-model head gives log-prob and entropy [P, 2] of `targets` instead of logits.

    `where` are the rows and positions of the hidden states that predict the targets. Working inside the head keeps
    everything within the model's own forward pass, which is where a sharded model has its weights together.
    """
    head = model.get_output_embeddings()
    logits_of = head.forward

    def score(hidden: Tensor, wanted: Tensor) -> Tensor:
        logp = families.mask_banned(logits_of(hidden), banned).log_softmax(-1)  # [p, V]
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        return torch.stack([logp.gather(-1, wanted[:, None])[:, 0], entropy], dim=-1)

    def forward(hidden: Tensor) -> Tensor:
        picked = hidden[where]  # [P, H]
        block = max(1, LOGITS // head.weight.shape[0])
        if len(picked) <= block:
            return score(picked, targets)
        # the logits of a block are made again in the backward pass rather than kept
        parts = zip(picked.split(block), targets.split(block), strict=True)
        return torch.cat([checkpoint(score, h, w, use_reentrant=False) for h, w in parts])

    head.forward = forward
    try:
        yield
    finally:
        del head.forward
