"""Rewards of trajectories written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.registry import get
from mmrl.rewards import score
from mmrl.rewards.accuracy import box_iou, compare, span_iou
from mmrl.types import Answer, Origin, Prompt, Sample, StopReason, Trajectory, Turn


def said(*turns: str, answer: Answer, stop: StopReason = StopReason.FINISHED) -> Trajectory:
    """A trajectory of these policy turns, with an observation after each but the last."""
    prompt = Prompt(Sample("k", (), (), answer, "mcq"), ())
    out = Trajectory(
        prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[], stop=stop
    )
    for number, text in enumerate(turns):
        out.turns.append(Turn(Origin.POLICY, text, 0, 0))
        if number + 1 < len(turns):
            out.turns.append(Turn(Origin.OBSERVATION, "", 0, 0))
    return out


CHOICE = Answer("choice", "B", ("x", "y", "z", "w"))
CALL = '<tool_call>{"name": "crop", "arguments": {}}</tool_call>'


def accuracy(text: str, answer: Answer, **params: Any) -> float:
    return float(get("reward", "accuracy").obj(said(text, answer=answer), **params))


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("B", CHOICE, 1.0),
        ("A", CHOICE, 0.0),
        ("B or C", CHOICE, 0.0),
        ("3.0", Answer("number", 3), 1.0),
        ("3.1", Answer("number", 3), 0.0),
        ("0.0015", Answer("number", 0.0012), 0.0),
        ("1,200", Answer("number", 1200), 1.0),
        ("450", Answer("rotation", 90), 1.0),
        ("-90", Answer("rotation", 270), 1.0),
        ("359.9999999", Answer("rotation", 0), 1.0),
        ("180", Answer("rotation", 0), 0.0),
        ("The  Red cup.", Answer("text", "the red cup"), 1.0),
        ("mug", Answer("text", ["cup", "mug"]), 1.0),
        ("cups", Answer("text", ["cup", "mug"]), 0.0),
        ("[2, 0, 1]", Answer("order", [2, 0, 1]), 1.0),
        ("[2, 0]", Answer("order", [2, 0, 1]), 0.0),
        ("[0, 0, 10, 10]", Answer("box", [0, 0, 10, 10]), 1.0),
        ("[0, 0, 10, 4]", Answer("box", [0, 0, 10, 10]), 0.0),
        ("[10, 10, 0, 0]", Answer("box", [0, 0, 10, 10]), 0.0),
        ("0 to 8", Answer("span", [0, 10]), 1.0),
        ("8 to 0", Answer("span", [0, 10]), 0.0),
        ("(5, 5)", Answer("point", [0, 0, 10, 10]), 1.0),
        ("(5, 11)", Answer("point", [0, 0, 10, 10]), 0.0),
    ],
)
def test_accuracy(text: str, answer: Answer, value: float) -> None:
    assert accuracy(f"<think>so</think><answer>{text}</answer>", answer) == value


def test_accuracy_reads_the_answer_tag_of_the_last_turn_only() -> None:
    first = said("<answer>B</answer>" + CALL, "<think>so</think>", answer=CHOICE)
    assert get("reward", "accuracy").obj(first) == 0.0
    assert accuracy("<think>so</think>B", CHOICE) == 0.0


def test_iou_itself_can_be_the_reward() -> None:
    assert accuracy("<answer>[0, 0, 10, 4]</answer>", Answer("box", [0, 0, 10, 10]), iou=None) == pytest.approx(0.4)
    assert accuracy("<answer>0 - 2.5</answer>", Answer("span", [0, 10]), iou=None) == pytest.approx(0.25)


BOX = st.lists(st.floats(0, 100), min_size=4, max_size=4)


@given(BOX, BOX)
def test_iou_properties(a: list[float], b: list[float]) -> None:
    iou = box_iou(a, b)
    assert iou == pytest.approx(box_iou(b, a))
    assert 0 <= iou <= 1 + 1e-9
    if a[0] < a[2] and a[1] < a[3] and (a[2] - a[0]) * (a[3] - a[1]) > 0:
        assert box_iou(a, a) == pytest.approx(1)
    assert 0 <= span_iou(a[:2], b[:2]) <= 1 + 1e-9


def test_iou_values() -> None:
    assert box_iou([0, 0, 2, 2], [1, 1, 3, 3]) == pytest.approx(1 / 7)
    assert box_iou([0, 0, 1, 1], [1, 0, 2, 1]) == 0
    assert span_iou([0, 10], [5, 15]) == pytest.approx(1 / 3)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="rubric"):
        compare("x", Answer("rubric", "x"))


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        (["<think>it is</think><answer>B</answer>"], 1.0),
        (["<think>look</think>" + CALL, "<think>it is</think>\n<answer>B</answer>"], 1.0),
        ([CALL, "<think>it is</think><answer>B</answer>"], 1.0),
        (["<answer>B</answer>"], 0.0),
        (["<think></think><answer>B</answer>"], 0.0),
        (["<think>it is</think><answer> </answer>"], 0.0),
        (["<think>it is</think><answer>B</answer> and more"], 0.0),
        (["<think>it is</think><answer>B</answer><answer>C</answer>"], 0.0),
        (["<think>a<think>b</think><answer>B</answer>"], 0.0),
        (["<answer>A</answer>" + CALL, "<think>it is</think><answer>B</answer>"], 0.0),
        (["talk " + CALL, "<think>it is</think><answer>B</answer>"], 0.0),
    ],
)
def test_format(turns: list[str], value: float) -> None:
    assert get("reward", "format").obj(said(*turns, answer=CHOICE)) == value


def test_a_trajectory_cut_off_at_a_limit_has_no_form() -> None:
    whole = "<think>it is</think><answer>B</answer>"
    assert get("reward", "format").obj(said(whole, answer=CHOICE, stop=StopReason.MAX_TOKENS)) == 0.0


def test_score_sums_the_weighted_terms_and_leaves_out_what_does_not_apply() -> None:
    from mmrl.registry import register

    @register("reward", "only-numbers")
    def only_numbers(trajectory: Trajectory) -> float | None:
        return 1.0 if trajectory.prompt.sample.answer.kind == "number" else None

    right = said("<think>so</think><answer>B</answer>", answer=CHOICE)
    wrong = said("<answer>4</answer>", answer=Answer("number", 3))
    score([right, wrong], {"accuracy": 1.0, "format": 0.5, "only-numbers": 2.0})
    assert (right.reward_terms, right.reward, right.correct) == ({"accuracy": 1.0, "format": 1.0}, 1.5, True)
    assert wrong.reward_terms == {"accuracy": 0.0, "format": 0.0, "only-numbers": 1.0}
    assert (wrong.reward, wrong.correct) == (2.0, False)
    score([right], lambda t: {"format": 1.0})
    assert (right.reward, right.correct) == (1.0, True)  # right or not is known even where accuracy is not rewarded
