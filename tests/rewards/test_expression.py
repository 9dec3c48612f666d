"""Expressions: exact values, each number used once, and nothing that is no arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.accuracy import accuracy
from mmrl.rewards.expression import LONGEST, evaluate, makes
from mmrl.types import Answer, Origin, Prompt, Sample, Trajectory, Turn


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("8/(3-8/3)", Fraction(24), [8, 3, 8, 3]),
        ("1+2*3", Fraction(7), [1, 2, 3]),
        ("(1 + 2) × 3 ÷ 2", Fraction(9, 2), [1, 2, 3, 2]),
        ("[2−1]*{12·2} = 24", Fraction(24), [2, 1, 12, 2]),
        ("$10-3$", Fraction(7), [10, 3]),
        ("1-2-3", Fraction(-4), [1, 2, 3]),
        ("24", Fraction(24), [24]),
    ],
)
def test_values(text: str, value: Fraction, numbers: list[int]) -> None:
    assert evaluate(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2**3",
        "9**9**9**9",
        "-3+4",
        "1/0",
        "1/(2-2)",
        "2//1",
        "3(4)",
        "1.5*2",
        "0x18",
        "1_0",
        "1e2",
        "x",
        "f(1)",
        "(1",
        "1 2",
        "1, 2",
        "24 = 6*4",
        "(" * 150 + "1",
        "1+" * LONGEST + "1",
        "__import__('os').system('true')",
    ],
)
def test_what_is_no_arithmetic_is_not_read(text: str) -> None:
    assert evaluate(text) is None


@given(st.text(alphabet="0123456789+-*/() =", max_size=40))
def test_no_text_breaks_it_and_values_are_those_of_python(text: str) -> None:
    found = evaluate(text)
    if found is not None and "=" not in text:
        assert float(found[0]) == pytest.approx(eval(text.strip()), rel=1e-9)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("8/(3-8/3)", True),
        ("3*8", False),  # not all cards
        ("3*8*3/3*8/8", False),  # too many
        ("(8-3)*3+8", False),  # 23
        ("24", False),
        ("3*3+8+8-1", False),
    ],
)
def test_each_number_is_used_once(text: str, right: bool) -> None:
    assert makes(text, [3, 3, 8, 8], 24) == right


def answered(text: str) -> Trajectory:
    answer = Answer("expression", {"numbers": [3, 3, 8, 8], "target": 24})
    prompt = Prompt(Sample("k", (), (), answer, "points24"), ())
    out = Trajectory(prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[])
    out.turns.append(Turn(Origin.POLICY, text, 0, 0))
    return out


def test_the_reward_reads_the_answer_alone() -> None:
    assert accuracy(answered("<think>3*8</think><answer>8/(3-8/3) = 24</answer>")) == 1.0
    assert accuracy(answered("<think>8/(3-8/3)</think><answer>3*8</answer>")) == 0.0
    assert accuracy(answered("8/(3-8/3)")) == 0.0
