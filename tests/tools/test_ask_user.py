"""ask_user: the fact that a question asks for, the count of questions, and how the reward reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.rewards.clarify import clarify
from mmrl.rollout import ToolContext, call_tool
from mmrl.types import Answer, FaultKind, Origin, Prompt, Sample, ToolCall, ToolResult, Trajectory, Turn
from mmrl_tools.ask_user import Fact, best_fact, words_of

FACTS = [
    {"about": ["price", "cost", "euros"], "say": "Each apple costs 3 euros."},
    {"about": ["how many", "number of apples"], "say": "There are 12 apples."},
    {"about": ["price", "transport"], "say": "Transport is free."},
]


def dialogue(user: Any = None, **meta: Any) -> ToolContext:
    notes = {**meta} if user is None else {"user": user, **meta}
    return ToolContext({}, sample=Sample("s", (), (), Answer("number", 36), "t", notes))


def ask(where: ToolContext, question: str) -> ToolResult:
    return call_tool(ToolCall("ask_user", {"question": question}), where)


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("What does it COST in euros?", 0),
        ("What is the price?", 2),  # one entry of two, against one of three
        ("How many are there?", 1),
        ("How does it look?", None),  # one word of "how many" is not enough
        ("The prices of transport?", 2),
        ("Is there a number of apple?", 1),
        ("priceless", None),
    ],
)
def test_the_fact_that_is_asked_for(question: str, fact: int | None) -> None:
    result = ask(dialogue({"facts": FACTS}), question)
    assert result.fault is None
    assert result.data["fact"] == fact
    assert result.text == ("I don't know." if fact is None else FACTS[fact]["say"])
    assert (result.data["asked"], result.data["again"], result.media) == (1, False, ())


def test_a_fact_that_is_new_goes_before_one_that_was_given() -> None:
    where = dialogue({"facts": FACTS})
    answers = [ask(where, "What is the price?") for _ in range(3)]
    assert [a.data["fact"] for a in answers] == [2, 0, 2]
    assert [a.data["again"] for a in answers] == [False, False, True]
    assert [a.data["asked"] for a in answers] == [1, 2, 3]
    assert not any(a.cached for a in answers)


def test_questions_over_the_limit_are_refused() -> None:
    where = dialogue({"facts": FACTS, "limit": 2, "unknown": "No idea."})
    assert [ask(where, "Which colour?").text for _ in range(2)] == ["No idea."] * 2
    for _ in range(2):
        refused = ask(where, "What is the price?")
        assert refused.fault is not None
        assert (refused.fault.kind, refused.fault.code) == (FaultKind.POLICY, "too_many_questions")
        assert "at most 2 questions" in refused.text
        assert FACTS[2]["say"] not in refused.text
    default = dialogue({"facts": FACTS})
    assert [ask(default, "price").fault is None for _ in range(5)] == [True] * 4 + [False]


def test_a_branch_goes_on_from_its_own_count() -> None:
    where = dialogue({"facts": FACTS, "limit": 2})
    ask(where, "How many?")
    branch = ToolContext({}, sample=where.sample, state={"ask_user": dict(where.state["ask_user"])})
    assert ask(branch, "price").data["asked"] == 2
    assert ask(where, "price").data["asked"] == 2


def test_a_premise_answers_any_question_that_nothing_else_does() -> None:
    premise = {"say": "The train leaves at 9."}
    where = dialogue({"facts": [premise, FACTS[0]]})
    assert ask(where, "Something is missing here.").data["fact"] == 0
    assert ask(where, "What does it cost?").data["fact"] == 1


def test_who_has_nothing_to_add() -> None:
    assert ask(dialogue(), "Is anything missing?").text == "I don't know."
    assert ask(ToolContext({}), "Is anything missing?").data["fact"] is None


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ([], "user: give a mapping"),
        ({"fact": []}, "did you mean 'facts'"),
        ({"facts": "x"}, "user.facts: give a list"),
        ({"facts": [{"about": ["a"]}]}, "user.facts[0].say is None"),
        ({"facts": [{"say": "a", "about": "price"}]}, "user.facts[0].about is 'price'"),
        ({"facts": [{"say": "a", "about": ["?"]}]}, "user.facts[0].about"),
        ({"limit": True}, "user.limit is True"),
        ({"unknown": ""}, "user.unknown is ''"),
    ],
)
def test_a_user_that_cannot_be_read_is_a_fault_of_the_task(user: Any, message: str) -> None:
    result = ask(dialogue(user), "price")
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.TASK, "bad_user")
    assert message in result.fault.message


@pytest.mark.parametrize("question", ["", "x" * 501])
def test_the_length_of_a_question(question: str) -> None:
    result = ask(dialogue({"facts": FACTS}), question)
    assert result.fault is not None
    assert result.fault.code == "bad_arguments"


@given(st.text(max_size=60), st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3), max_size=5))
def test_no_other_fact_is_asked_for_more(question: str, entries: list[list[str]]) -> None:
    facts = [Fact("-", tuple(frozenset([word]) for word in about)) for about in entries]
    found = best_fact(question, facts)
    hits = [sum(word in words_of(question) for word in about) for about in entries]
    if found is None:
        assert not any(hits)
    else:
        assert hits[found] == max(hits) > 0


def test_the_reward_charges_for_every_call() -> None:
    """A premise is missing: asked at once (0.3 x 1), then a right answer (0.7 x 1); a second question costs 0.7 x 2."""

    def reward(*questions: str) -> float | None:
        where = dialogue({"facts": [{"say": "Each costs 3 euros."}]}, missing=True)
        calls = [ToolCall("ask_user", {"question": q}) for q in questions]
        turns = [Turn(Origin.POLICY, "?", 0, 0, (c,), (call_tool(c, where),)) for c in calls]
        turns.append(Turn(Origin.POLICY, "<answer>36</answer>", 0, 0))
        assert where.sample is not None
        return clarify(Trajectory(Prompt(where.sample, ()), 0, 0, [], [], [], [], [], [], turns))

    assert reward("What does one cost?") == pytest.approx(1.0)
    assert reward("What does one cost?", "And again?") == pytest.approx(0.3 - 1.4)
    assert reward() == -1


ABOUT = st.lists(st.sampled_from(["price", "how many", "number of apples", "?"]) | st.text(max_size=4), max_size=3)
FACT = st.fixed_dictionaries({"say": st.sampled_from(["a", "b", ""])}, optional={"about": ABOUT | st.none()})
USERS = st.fixed_dictionaries(
    {},
    optional={
        "facts": st.lists(FACT, max_size=4) | st.text(max_size=2),
        "limit": st.integers(-1, 3) | st.none(),
        "unknown": st.text(max_size=2) | st.integers(),
    },
)
ASKED = st.text(max_size=520) | st.sampled_from(["What is the price?", "How many apples?"]) | st.none() | st.integers()


@given(USERS | st.none() | st.lists(st.integers(), max_size=1), st.lists(ASKED, max_size=5))
@settings(max_examples=100, deadline=None)
def test_no_user_and_no_question_makes_it_fail(user: Any, questions: list[Any]) -> None:
    where = dialogue(user)
    for question in questions:
        result = call_tool(ToolCall("ask_user", {"question": question}), where)
        assert result.fault is None or result.fault.kind in (FaultKind.POLICY, FaultKind.TASK)
