"""Branches share their prefix token by token and go on from the very state of the dialogue there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from tiny_models import CROP, ForcedEngine, Tiny, make_prompt, picture, rescore

from mmrl import registry
from mmrl.config import RolloutConfig
from mmrl.registry import register
from mmrl.rollout import Branch, ToolContext, TransformersEngine, branch, rollout, schema
from mmrl.types import Origin, Span, StopReason, ToolResult, Trajectory

CONFIG = RolloutConfig(group=1, max_new_tokens=200, max_turns=4, max_context=2000)
ANSWER = "<think>x</think><answer>A</answer>"


def play(tiny: Tiny, *turns: str, tools: tuple[str, ...] = ("crop", "zoom")) -> Trajectory:
    said = iter(turns)
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
    (out,) = rollout(engine, tiny.chat, [make_prompt("k", "which?", picture(120, 90), tools=tools)], CONFIG, seed=0)
    return out


def go_on(tiny: Tiny, *branches: Branch, text: str = ANSWER) -> list[list[Trajectory]]:
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: text)
    return branch(engine, tiny.chat, branches, CONFIG, seed=1)


def assert_scored(tiny: Tiny, t: Trajectory) -> None:
    again = rescore(tiny, t)
    assert all(math.isnan(x) or abs(float(again[i]) - x) < 1e-4 for i, x in enumerate(t.logp))


def test_a_branch_behind_an_observation_and_one_before_its_call(tiny: Tiny) -> None:
    """An answer probed with and without the call of a tool."""
    t = play(tiny, CROP, CROP, ANSWER)
    opening = tuple(tiny.chat.encode_text("<answer>"))
    seen, call = t.turns[1], t.turns[0]
    ((with_it,), (without,)) = go_on(
        tiny, Branch(t, seen.stop, opening), Branch(t, call.start, opening), text="B</answer>"
    )
    assert with_it.tokens[: seen.stop] == t.tokens[: seen.stop]
    assert (list(with_it.media), len(with_it.vision)) == (["img_1", "img_2"], 2)
    assert (list(without.media), len(without.vision)) == (["img_1"], 1)
    for probe in (with_it, without):
        assert probe.answer_text == "<answer>B</answer>"
        last = probe.turns[-1]
        assert probe.origin[last.start : last.start + len(opening)] == [Origin.PROMPT] * len(opening)
        assert set(probe.span[last.start : last.stop - 1]) == {Span.ANSWER}
        assert probe.stop is StopReason.FINISHED
        assert_scored(tiny, probe)
    assert with_it.meta["branch"] == seen.stop


def test_several_answers_for_one_thought(tiny: Tiny) -> None:
    t = play(tiny, CROP, ANSWER)
    last = t.turns[-1]
    at = last.start + len(tiny.chat.tokenizer("<think>x", add_special_tokens=False)["input_ids"])
    (group,) = branch(TransformersEngine(tiny.model, tiny.chat), tiny.chat, [Branch(t, at, n=5)], CONFIG, seed=3)
    assert [b.index for b in group] == list(range(5))
    assert len({tuple(b.tokens) for b in group}) == 5
    for b in group:
        assert b.tokens[:at] == t.tokens[:at]
        assert b.logp[last.start : at] == t.logp[last.start : at]  # sampled once, learnt from like any other
        assert b.turns[2].start == last.start
        assert b.turns[2].text.startswith("<think>x")
        assert_scored(tiny, b)
    again = branch(TransformersEngine(tiny.model, tiny.chat), tiny.chat, [Branch(t, at, n=5)], CONFIG, seed=3)
    assert [b.tokens for b in again[0]] == [b.tokens for b in group]


def test_a_call_that_a_branch_completes_runs(tiny: Tiny) -> None:
    t = play(tiny, CROP, ANSWER)
    ids = tiny.chat.tokenizer(CROP, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    at = t.turns[0].start + len(ids) // 2
    rest = tiny.chat.tokenizer.decode(ids[len(ids) // 2 :])
    said = iter([rest, ANSWER])
    ((b,),) = branch(
        ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said)), tiny.chat, [Branch(t, at)], CONFIG, seed=1
    )
    assert b.turns[0].text == CROP
    assert list(b.media) == ["img_1", "img_2"]
    assert b.faults == []


@pytest.fixture
def counter() -> Iterator[str]:
    @register("tool", "counter", schema=schema("Count", {}), stateful=True)
    def count(arguments: Any, context: ToolContext) -> ToolResult:
        context.state["n"] = context.state.get("n", 0) + 1
        return ToolResult(f"n is {context.state['n']}")

    yield '<tool_call>{"name": "counter", "arguments": {}}</tool_call>'
    registry._entries.pop(("tool", "counter"))


def test_tools_remember_what_they_did_before_the_branch(tiny: Tiny, counter: str) -> None:
    t = play(tiny, counter * 2, counter, counter, ANSWER, tools=("counter",))
    assert [u.text for u in t.turns if u.origin is Origin.OBSERVATION] == ["n is 1\nn is 2", "n is 3", "n is 4"]
    said = iter([counter, ANSWER])
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
    ((b,),) = branch(engine, tiny.chat, [Branch(t, t.turns[1].stop)], CONFIG, seed=0)
    assert [u.text for u in b.turns if u.origin is Origin.OBSERVATION] == ["n is 1\nn is 2", "n is 3"]


def test_points_that_no_turn_can_go_on_from(tiny: Tiny) -> None:
    t = play(tiny, CROP, ANSWER)
    for at, message in [
        (t.turns[0].start - 1, "is outside of"),
        (len(t.tokens) + 1, "is outside of"),
        (t.turns[1].start + 1, "would cut the observation"),
        (t.turns[0].stop, "behind the end of a turn"),
        (len(t.tokens), "behind the end of a turn"),
    ]:
        with pytest.raises(ValueError, match=message):
            go_on(tiny, Branch(t, at))
