"""Signals: the tokens of the answer, their likelihood under the moving average, and errors that say what is missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mmrl.algorithms.loss import Stages
from mmrl.config import AlgorithmConfig
from mmrl.policy.reference import Models, copy_weights
from mmrl.registry import register
from mmrl.signals import MissingSignal, answer_positions, compute, models_needed, signals_needed
from mmrl.trainers.batch import make_batch

RED = "<think>it is red</think><answer>red</answer>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (RED, "red"),
        ("<think>is it <answer>blue</answer>?</think><answer>red</answer>", "red"),
        ("<answer>red</answer><answer>b", None),
        ("<answer></answer>", None),
        ("red", None),
        ("", None),
        ("<answer>réd ✓</answer> and more", "réd ✓"),
    ],
)
def test_answer_positions_are_those_of_the_last_complete_answer(
    tiny: Any, speak: Any, text: str, answer: str | None
) -> None:
    trajectory = speak(tiny.chat, "<answer>earlier</answer>", text)
    places = answer_positions(trajectory, tiny.chat)
    if answer is None:
        assert places == []
    else:
        assert places == list(range(places[0], places[-1] + 1))
        pieces = b"".join(tiny.chat.token_bytes(trajectory.tokens[t]) for t in places).decode()
        # a token may hold the end of a tag too
        assert answer in pieces
        assert pieces.replace(answer, "", 1).strip("<answer>/") == ""
        before = b"".join(
            tiny.chat.token_bytes(t) for t in trajectory.tokens[trajectory.turns[-1].start : places[0]]
        ).decode()
        assert text.startswith(before)


def test_answer_likelihood_is_that_of_the_moving_average(tiny: Any, speak: Any) -> None:
    trajectories = [speak(tiny.chat, RED), speak(tiny.chat, "look", RED), speak(tiny.chat, "no answer")]
    batch = make_batch(trajectories, device=torch.device("cpu"))
    ema = copy_weights(tiny.model)
    expected = Models(tiny.model, tiny.chat).logp("policy", trajectories)  # the copy is the policy of now
    with torch.no_grad():
        for p in tiny.model.parameters():
            p.add_(0.02)
    models = Models(tiny.model, tiny.chat, {"ema": ema})
    compute(batch, trajectories, models, ["ema_answer_logp", "ema_logp", "entropy", "engine_logp"])
    found = batch.signals["ema_answer_logp"]
    for n, trajectory in enumerate(trajectories[:2]):
        places = answer_positions(trajectory, tiny.chat)
        assert found[n] == pytest.approx(float(expected[n, places].mean()), abs=1e-5)
    assert found[2] == -math.inf
    assert torch.allclose(batch.signals["ema_logp"], expected, atol=1e-5)
    assert not torch.allclose(models.logp("policy", trajectories), expected, atol=1e-3)
    assert torch.equal(batch.signals["engine_logp"], -1.0 * batch.mask)
    assert (batch.signals["entropy"] * (1 - batch.mask)).abs().sum() == 0


def test_what_is_needed_comes_from_the_components() -> None:
    kl = {"name": "kl", "coef": 0.1}
    stages = Stages.from_config(AlgorithmConfig(shaping=["grpo-care"], regularizers=[kl, {**kl, "estimator": "k1"}]))
    assert signals_needed(stages) == ["ema_answer_logp", "ref_logp"]
    assert models_needed(signals_needed(stages)) == ["ema", "ref"]
    assert signals_needed(Stages.from_config(AlgorithmConfig())) == []


def test_missing_signals_name_component_signal_and_copy(tiny: Any, speak: Any) -> None:
    @register("shaping", "needs-belief", needs=("beleif",))
    def needs_belief(batch: Any) -> torch.Tensor:
        return batch.reward

    with pytest.raises(MissingSignal, match=r"algorithm.shaping: 'needs-belief' needs the signal 'beleif'"):
        signals_needed(Stages.from_config(AlgorithmConfig(shaping=["needs-belief"])))
    trajectories = [speak(tiny.chat, RED)]
    batch = make_batch(trajectories, device=torch.device("cpu"))
    with pytest.raises(MissingSignal, match=r"'ref_logp' needs the copy 'ref'"):
        compute(batch, trajectories, Models(tiny.model, tiny.chat), ["ref_logp"])

    @register("signal", "broken")
    def broken(batch: Any, trajectories: Any, models: Any) -> torch.Tensor:
        return torch.tensor([math.nan])

    with pytest.raises(ValueError, match=r"'broken' is not finite for k/0"):
        compute(batch, trajectories, Models(tiny.model, tiny.chat), ["broken"])
