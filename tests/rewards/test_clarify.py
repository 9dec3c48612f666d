"""GRIL: the worked examples of its cards, and what counts as asking and answering in a dialogue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.registry import get
from mmrl.rewards.clarify import PHRASES, Attempt, clarify, says_missing, staged
from mmrl.types import Answer, Origin, Prompt, Sample, ToolCall, Trajectory, Turn

ASK, A, B, C = Attempt(asks=True), Attempt(answer="a", right=True), Attempt(answer="b"), Attempt(answer="c")


@pytest.mark.parametrize(
    ("missing", "attempts", "value"),
    [
        # the worked examples of the card
        (True, [ASK, A], 1.0),
        (True, [B, ASK, C, A], 0.79),
        (False, [B, A], 1.0),
        (True, [B, C, Attempt(answer="d"), Attempt(answer="e")], -1.0),
        (False, [ASK], -1.0),
        # asked again: 0.3 * 1 + 0.7 * -2, and nothing after it counts
        (True, [ASK, ASK, A], -1.1),
        (True, [ASK, B, ASK], -1.1),
        # never asked, though right
        (True, [A], -1.0),
        # late: 0.3 * 0.3^3 + 0.7; the last turn still allows one answer, and one only
        (True, [B, C, B, ASK, A], 0.7081),
        (True, [B, C, B, ASK, C, A], 0.0081),
        (True, [B, C, B, C, ASK, A], -1.0),
        # answers repeated: after the question two of three are new, those before it do not count
        (True, [ASK, B, B, C], 0.3 - 0.5 / 3),
        (True, [B, ASK, B, C], 0.09),
        (False, [B, B, A], 1 - 0.5 / 3),
        (False, [B, B, B, B], -0.375),
        # solved before the question: the episode had ended
        (False, [A, ASK], 1.0),
        (False, [B, ASK, A], -1.0),
        (True, [ASK, A, ASK], 1.0),
        (False, [], 0.0),
        (True, [], -1.0),
        (True, [ASK], 0.3),
    ],
)
def test_staged(missing: bool, attempts: list[Attempt], value: float) -> None:
    assert staged(missing, attempts) == pytest.approx(value)


ATTEMPTS = st.lists(st.builds(Attempt, st.booleans(), st.sampled_from(["", "a", "b"]), st.booleans()), max_size=7)


@given(st.booleans(), ATTEMPTS)
def test_nothing_is_worth_more_than_asking_at_once_where_needed_and_then_solving(
    missing: bool, attempts: list[Attempt]
) -> None:
    assert 0.7 * -2 <= staged(missing, attempts) <= 1


def dialogue(*turns: tuple[str, str | None], missing: bool | None = True) -> Trajectory:
    """Turns of text and the name of the tool called in it."""
    meta = {} if missing is None else {"missing": missing}
    prompt = Prompt(Sample("k", (), (), Answer("number", 42), "clarify", meta), ())
    out = Trajectory(prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[])
    for text, tool in turns:
        calls = (ToolCall(tool, {}),) if tool else ()
        out.turns.append(Turn(Origin.POLICY, text, 0, 0, calls=calls))
        out.turns.append(Turn(Origin.OBSERVATION, "<answer>42</answer> insufficient information", 0, 0))
    return out


def test_calls_of_ask_user_ask_and_answer_tags_answer() -> None:
    asked, solved = ("<think>?</think>", "ask_user"), ("<think>.</think><answer>42</answer>", None)
    assert clarify(dialogue(asked, solved)) == pytest.approx(1.0)
    assert clarify(dialogue(solved)) == -1.0
    assert clarify(dialogue(solved, missing=False)) == 1.0
    assert clarify(dialogue(asked, solved, missing=False)) == -1.0
    assert clarify(dialogue(asked, asked)) == pytest.approx(-1.1)
    assert clarify(dialogue(solved, missing=None)) is None


def test_a_look_at_the_picture_is_no_attempt() -> None:
    look, asked, solved = ("", "crop"), ("", "ask_user"), ("<think>.</think><answer>42</answer>", None)
    assert clarify(dialogue(look, asked, look, solved)) == pytest.approx(1.0)


def test_phrases_ask_too_where_they_are_set() -> None:
    said = ("<think>There is not ENOUGH information.</think>", None)
    solved = ("<think>.</think><answer>42</answer>", None)
    assert clarify(dialogue(said, solved)) == -1.0
    assert clarify(dialogue(said, solved), phrases=PHRASES) == pytest.approx(1.0)
    assert get("reward", "clarify").paper == "GRIL"


def test_claims_of_the_card_gril_text() -> None:
    assert [says_missing(t) for t in ("We lack a value. [Missing premise detected]", "12 + 30", "")] == [
        True,
        False,
        False,
    ]
