"""Copies of the policy: a moving average of the right values, and an exchange that leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmrl.config import ReferenceConfig
from mmrl.policy.logprobs import token_logps
from mmrl.policy.reference import Models, copy_weights, swapped, update_ema


def nudge(model: Any, by: float) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by)


def test_ema_moves_at_its_steps_by_its_decay(tiny: Any) -> None:
    ema = copy_weights(tiny.model)
    start = {k: v.clone() for k, v in ema.items()}
    nudge(tiny.model, 1.0)
    config = ReferenceConfig(ema_decay=0.75, ema_every=2)
    update_ema(ema, tiny.model, config, 1)
    assert all(torch.equal(ema[k], start[k]) for k in start)
    update_ema(ema, tiny.model, config, 2)
    assert all(torch.allclose(ema[k], start[k] + 0.25, atol=1e-6) for k in start)
    update_ema(ema, tiny.model, config, 4)
    assert all(torch.allclose(ema[k], start[k] + 0.4375, atol=1e-6) for k in start)


def test_a_copy_scores_as_the_policy_did_and_leaves_no_trace(tiny: Any, speak: Any) -> None:
    trajectories = [speak(tiny.chat, "it is red")]
    before, _ = token_logps(tiny.model, tiny.chat, trajectories)
    models = Models(tiny.model, tiny.chat, {"ref": copy_weights(tiny.model)})
    nudge(tiny.model, 0.01)
    moved = {k: v.clone() for k, v in tiny.model.state_dict().items()}
    after, _ = token_logps(tiny.model, tiny.chat, trajectories)
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.equal(models.logp("ref", trajectories), before)
    assert torch.equal(models.logp("policy", trajectories), after)
    assert all(torch.equal(v, moved[k]) for k, v in tiny.model.state_dict().items())


def test_weights_come_back_when_a_pass_fails(tiny: Any) -> None:
    other = {k: v + 1 for k, v in copy_weights(tiny.model).items()}
    own = {k: v.clone() for k, v in tiny.model.state_dict().items()}
    with pytest.raises(RuntimeError, match="out of memory"), swapped(tiny.model, other):
        raise RuntimeError("out of memory")
    assert all(torch.equal(v, own[k]) for k, v in tiny.model.state_dict().items())


def test_forward_passes_are_shared(tiny: Any, speak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = type(tiny.model).forward
    monkeypatch.setattr(type(tiny.model), "forward", lambda self, **kw: calls.append(1) or forward(self, **kw))
    trajectories = [speak(tiny.chat, "red")]
    models = Models(tiny.model, tiny.chat, {"ema": copy_weights(tiny.model)})
    models.logp("ema", trajectories)
    models.logp("ema", trajectories)
    models.entropy("ema", trajectories)
    models.logp("policy", trajectories)
    assert len(calls) == 2
