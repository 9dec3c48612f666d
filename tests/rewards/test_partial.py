"""Partial credit: the worked examples of Visual Jigsaw, and numbers that are nearly right."""

from __future__ import annotations

import pytest

from mmrl.rewards.accuracy import accuracy
from mmrl.rewards.partial import closeness, order_partial
from mmrl.types import Answer, Origin, Prompt, Sample, Trajectory, Turn


def said(text: str, answer: Answer) -> Trajectory:
    prompt = Prompt(Sample("k", (), (), answer, "jigsaw_grid"), ())
    out = Trajectory(prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[])
    out.turns.append(Turn(Origin.POLICY, f"<think>so</think><answer>{text}</answer>", 0, 0))
    return out


NINE = [3, 1, 2, 9, 5, 6, 7, 8, 4]


@pytest.mark.parametrize(
    ("prediction", "right", "value"),
    [
        # accuracy_reward of the card's worked examples
        (NINE, NINE, 1.0),
        ([3, 2, 1, 9, 6, 5, 8, 7, 4], NINE, 0.2 * 3 / 9),
        ([2, 1, 4, 3], [2, 1, 4, 3], 1.0),
        ([2, 1, 3, 4], [2, 1, 4, 3], 0.0),  # four pieces: no part
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5], 0.2 * 4 / 6),
        # no permutation, no part
        ([3, 1, 2, 9, 5, 6, 7, 8, 8], NINE, 0.0),
        (NINE[:8], NINE, 0.0),
        ([*NINE, 4], NINE, 0.0),
        ([3, 1, 2, 9, 5, 6, 7, 8, 10], NINE, 0.0),
    ],
)
def test_orders(prediction: list[int], right: list[int], value: float) -> None:
    trajectory = said(", ".join(map(str, prediction)), Answer("order", right))
    part = order_partial(trajectory)
    assert part is not None
    assert accuracy(trajectory) + part == pytest.approx(value)


def test_other_answers_and_settings() -> None:
    assert order_partial(said("3", Answer("number", 3))) is None
    assert order_partial(said("none", Answer("order", NINE))) == 0.0
    four = said("2, 1, 3, 4", Answer("order", [2, 1, 4, 3]))
    assert order_partial(four, least=4, gamma=0.5) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("text", "right", "value"),
    [
        ("10", 10, 1.0),
        ("9.5", 10, 0.5),
        ("11", 10, 0.0),
        ("9", 10, 0.0),
        ("0.05", 0, 0.5),
        ("ten", 10, 0.0),
        ("-10", 10, 0),
    ],
)
def test_closeness(text: str, right: float, value: float) -> None:
    assert closeness(said(text, Answer("number", right))) == pytest.approx(value)


def test_closeness_of_counts_by_a_wider_measure_and_of_other_answers() -> None:
    assert closeness(said("9", Answer("number", 10)), within=0.5) == pytest.approx(0.8)
    assert closeness(said("B", Answer("choice", "B", ("x", "y")))) is None
