"""Does the reasoning lead to the answer? By the likelihood of each option after the reasoning.

A reader (the policy itself, or a fixed model for all runs that are compared) sees everything up to the end of the
reasoning, pictures and tool results included, and scores every option as the answer. A trajectory is consistent when
the option that it gave is the likeliest. Read by the policy itself, greedy answers are consistent by construction
(they are its own argmax): sample, or name a reader.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch

from mmrl.chat import Chat, pad_rows
from mmrl.families import VisionInput, forward_inputs
from mmrl.types import Span, Trajectory

LETTERS = string.ascii_uppercase


def reasoning_end(trajectory: Trajectory) -> int | None:
    """Number of tokens up to where the answer of the last policy turn begins; None without reasoning or answer."""
    if not trajectory.turns:
        return None
    last = trajectory.turns[-1]
    spans = trajectory.span
    answers = [t for t in range(last.start, last.stop) if spans[t] is Span.ANSWER]
    if not answers:
        return None
    begin = answers[-1]
    while begin > last.start and spans[begin - 1] is Span.ANSWER:
        begin -= 1
    return begin if Span.THINK in spans[:begin] else None


@torch.no_grad()
def continuation_logps(
    model: Any,
    chat: Chat,
    prefixes: Sequence[tuple[Sequence[int], Sequence[VisionInput]]],
    continuations: Sequence[Sequence[Sequence[int]]],
    *,
    rows: int = 32,
) -> list[list[float]]:
    """Summed log-probs of each continuation (at least one token) after its prefix, at temperature 1.

    Continuations of a prefix that share all but their last token share a row, so options of one token cost one row.

    Args:
        prefixes: token ids with their media.
        continuations: for each prefix, the token ids of its continuations.
        rows: rows of one forward pass.
    """
    device = next(model.parameters()).device
    wanted: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, options in enumerate(continuations):
        for place, option in enumerate(options):
            wanted.setdefault((number, tuple(option[:-1])), []).append(place)
    out = [[0.0] * len(options) for options in continuations]
    jobs = sorted(wanted, key=lambda job: len(prefixes[job[0]][0]) + len(job[1]))
    for at in range(0, len(jobs), rows):
        part = jobs[at : at + rows]
        tokens, attention = pad_rows([[*prefixes[n][0], *head] for n, head in part], chat.pad_id, left=True)
        vision = [prefixes[n][1] for n, _ in part]
        keep = 1 + max(len(head) for _, head in part)
        inputs = forward_inputs(model, tokens.to(device), attention.to(device), vision)
        logits = model(**inputs, use_cache=False, logits_to_keep=keep).logits  # [rows, keep, vocabulary]
        logp = logits.float().log_softmax(-1).cpu()
        for row, (number, head) in enumerate(part):
            first = keep - 1 - len(head)  # the position that predicts the continuation's first token
            for place in wanted[(number, head)]:
                option = continuations[number][place]
                out[number][place] = sum(float(logp[row, first + i, token]) for i, token in enumerate(option))
    return out


def option_logps(reader: Any, chat: Chat, trajectories: Sequence[Trajectory]) -> list[dict[str, float] | None]:
    """For each trajectory the log-likelihood of `<answer>` and each option's letter after its reasoning.

    None where the question has no options, or the trajectory no reasoning or no answer tag. The sampled tokens before
    the answer are used as they are; only the answer is written anew.
    """
    out: list[dict[str, float] | None] = [None] * len(trajectories)
    asked: list[int] = []
    prefixes, continuations = [], []
    for number, trajectory in enumerate(trajectories):
        truth = trajectory.prompt.sample.answer
        end = reasoning_end(trajectory)
        if truth.kind != "choice" or not truth.options or end is None:
            continue
        asked.append(number)
        prefixes.append((trajectory.tokens[:end], trajectory.vision))
        letters = LETTERS[: len(truth.options)]
        continuations.append([chat.encode_text(f"<answer>{letter}") for letter in letters])
    scored = continuation_logps(reader, chat, prefixes, continuations) if asked else []
    for number, logps in zip(asked, scored, strict=True):
        out[number] = dict(zip(LETTERS, logps, strict=False))
    return out


def consistent(options: dict[str, float] | None, answer: Any) -> bool | None:
    """Whether the given answer is the likeliest option; None when either is missing. A tie is not consistent."""
    if options is None or answer not in options:
        return None
    return all(options[answer] > logp for letter, logp in options.items() if letter != answer)
