"""Log-probs of trajectories are those of one plain forward pass over each."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl import families
from mmrl.policy import logprobs
from mmrl.policy.logprobs import micro_batches, passes, row_logps, token_logps, trajectory_row
from mmrl.types import Origin

RED = "<think>it is red</think><answer>red</answer>"


def plain(tiny: Any, trajectory: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy at every token [T] by an unpadded pass of the bare model."""
    tokens = torch.tensor([trajectory.tokens])
    inputs = families.forward_inputs(tiny.model, tokens, torch.ones_like(tokens), [trajectory.vision])
    logits = tiny.model(**inputs, use_cache=False).logits[0].float()
    logits[:, list(tiny.chat.banned_ids)] = -torch.inf
    probs = logits.softmax(-1)
    own = probs[:-1].gather(-1, tokens[0, 1:, None])[:, 0].log()
    entropy = torch.special.entr(probs[:-1]).sum(-1)
    zero = torch.zeros(1)
    return torch.cat([zero, own]), torch.cat([zero, entropy])


def test_token_logps_are_those_of_a_plain_pass(tiny: Any, speak: Any) -> None:
    trajectories = [
        speak(tiny.chat, RED),
        speak(tiny.chat, "let me look", RED, pictures=2),
        speak(tiny.chat, "", pictures=0),
    ]
    logp, entropy = token_logps(tiny.model, tiny.chat, trajectories)
    assert logp.shape == entropy.shape == (3, max(len(t.tokens) for t in trajectories))
    for n, trajectory in enumerate(trajectories):
        own = torch.tensor([o is Origin.POLICY for o in trajectory.origin])
        with torch.no_grad():
            expected = plain(tiny, trajectory)
        for found, right in zip((logp[n], entropy[n]), expected, strict=True):
            assert torch.allclose(found[: len(own)][own], right[own], atol=1e-5)
            assert found[: len(own)][~own].abs().sum() == 0
            assert found[len(own) :].abs().sum() == 0


def test_micro_batches_and_blocks_change_nothing(tiny: Any, speak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trajectories = [speak(tiny.chat, RED * n, pictures=n % 3) for n in (1, 4, 2, 3, 1)]
    whole = token_logps(tiny.model, tiny.chat, trajectories, budget=100_000)
    rows = [trajectory_row(t) for t in trajectories]
    logp, _ = row_logps(tiny.model, tiny.chat, rows, whole[0].shape[1])
    logp.sum().backward()
    gradient = {n: p.grad.clone() for n, p in tiny.model.named_parameters()}
    tiny.model.zero_grad()

    # micro-batches of one or two rows; logits in blocks of seven positions, made again in the backward pass
    monkeypatch.setattr(logprobs, "LOGITS", 7 * tiny.model.lm_head.weight.shape[0])
    cut = token_logps(tiny.model, tiny.chat, trajectories, budget=90)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(whole, cut, strict=True))
    parts = passes(tiny.model, rows, 90)
    assert len(parts) > 2
    for part, calls in parts:
        logp, _ = row_logps(tiny.model, tiny.chat, [rows[n] for n in part], whole[0].shape[1], vision_calls=calls)
        logp.sum().backward()
    for name, p in tiny.model.named_parameters():
        assert torch.allclose(p.grad, gradient[name], rtol=1e-3, atol=1e-4 * float(gradient[name].abs().max())), name


def test_a_dummy_row_changes_nothing_and_reaches_every_weight(tiny: Any, speak: Any) -> None:
    rows = [trajectory_row(speak(tiny.chat, RED, pictures=0))]
    width = len(rows[0].tokens)
    alone, _ = row_logps(tiny.model, tiny.chat, rows, width)
    padded, _ = row_logps(tiny.model, tiny.chat, rows, width, vision_calls=2)
    assert padded.shape == alone.shape
    assert torch.allclose(alone, padded, atol=1e-5)
    nothing, _ = row_logps(tiny.model, tiny.chat, [], width, vision_calls=1)
    assert nothing.shape == (0, width)
    nothing.sum().backward()
    for name, p in tiny.model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() == 0, name


def test_entropy_has_no_gradient_and_the_head_is_left_as_it_was(tiny: Any, speak: Any) -> None:
    rows = [trajectory_row(speak(tiny.chat, RED))]
    logp, entropy = row_logps(tiny.model, tiny.chat, rows, len(rows[0].tokens))
    assert logp.requires_grad
    assert not entropy.requires_grad
    assert "forward" not in vars(tiny.model.lm_head)
    with pytest.raises(ValueError, match="placeholder"):
        row_logps(tiny.model, tiny.chat, [logprobs.Row(rows[0].tokens, [], [1])], 1)
    assert "forward" not in vars(tiny.model.lm_head)


@given(lengths=st.lists(st.integers(1, 50), max_size=30), budget=st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = micro_batches(lengths, budget)
    assert sorted(n for part in batches for n in part) == list(range(len(lengths)))
    for part in batches:
        padded = len(part) * max(lengths[n] for n in part)
        assert len(part) == 1 or padded <= budget
    # no batch could have taken the first row of the next one
    for part, following in itertools.pairwise(batches):
        assert (len(part) + 1) * max(lengths[n] for n in part) > budget
        assert min(lengths[n] for n in part) >= max(lengths[n] for n in following)


def test_nothing_to_score(tiny: Any) -> None:
    logp, entropy = token_logps(tiny.model, tiny.chat, [])
    assert logp.shape == entropy.shape == (0, 0)
    assert math.prod(logp.shape) == 0
