"""How likely a model finds the answer that a trajectory gives, given everything before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.chat import Chat
from mmrl.types import Origin, Trajectory

OPEN, CLOSE = b"<answer>", b"</answer>"


def answer_positions(trajectory: Trajectory, chat: Chat) -> list[int]:
    """Positions of the tokens between the last <answer> of the last policy turn and its closing tag.

    A token that holds a part of a tag and a part of the answer belongs to the answer. Empty where the turn has no
    complete answer.
    """
    last = next((t for t in reversed(trajectory.turns) if t.origin is Origin.POLICY), None)
    if last is None:
        return []
    pieces = [chat.token_bytes(t) for t in trajectory.tokens[last.start : last.stop]]
    text = b"".join(pieces)
    start = text.rfind(OPEN)
    stop = text.find(CLOSE, start + len(OPEN))
    if start < 0 or stop < 0:
        return []
    start += len(OPEN)
    out, at = [], 0
    for place, piece in enumerate(pieces):
        if at < stop and at + len(piece) > start:
            out.append(last.start + place)
        at += len(piece)
    return out


def answer_logp(logp: Tensor, trajectories: Sequence[Trajectory], chat: Chat) -> Tensor:
    """Mean log-prob of each trajectory's answer tokens [N] from the log-probs of its tokens [N, T].

    -inf where there is no complete, non-empty answer: such a trajectory is never consistent.
    """
    out = logp.new_full((len(trajectories),), -torch.inf)
    for n, trajectory in enumerate(trajectories):
        places = answer_positions(trajectory, chat)
        if places:
            out[n] = logp[n, places].mean()
    return out
