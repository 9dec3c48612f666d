"""Calls in the other forms that policies write, and the choices of `rollout.calls`, `max_calls` and `think_calls`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CROP, ForcedEngine, Tiny, make_prompt, picture

from mmrl.config import ConfigError, RolloutConfig, load_config
from mmrl.rollout import rollout
from mmrl.rollout.parsing import inline_boxes, parse_turn
from mmrl.types import Origin, Span, StopReason, ToolCall

BOX = {"image": "img_1", "box": [0, 0, 500, 500]}


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def read(text: str, form: str = "tool_code", **options: Any) -> list[tuple[str, dict[str, Any]] | str]:
    """Each call as (name, arguments), or the code of its error."""
    calls: tuple[ToolCall, ...] = parse_turn(text, syntax=[form], **options).calls
    return [c.error.code if c.error else (c.name, dict(c.arguments)) for c in calls]


@pytest.mark.parametrize(
    "body",
    [
        'crop(image="img_1", box=[0, 0, 500, 500])',
        "crop(image='img_1', box=(0, 0, 500, 500))",
        'crop("img_1", [0, 0, 500, 500])',
        'crop("img_1", box=[0, 0, 500, 500])',
        'print(crop(image="img_1", box=[0, 0, 500, 500]))',
        'view = crop(image="img_1", box=[0, 0, 500, 500])',
        '\n  crop(image="img_1",\n box=[0, 0, 500, 500])  # the corner\n',
    ],
)
def test_code_calls(body: str) -> None:
    assert read(f"look: <tool_code>{body}</tool_code>") == [("crop", BOX)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("", ["bad_code"]),
        ("crop(", ["bad_code"]),
        ("crop", ["bad_code"]),
        ("1 + 1", ["bad_code"]),
        ("import os", ["bad_code"]),
        ("crop(image=x)", ["bad_code"]),
        ("crop(image=__import__('os').getcwd())", ["bad_code"]),
        ("crop(**{'image': 1})", ["bad_code"]),
        ("crop('img_1', image='img_1')", ["bad_code"]),
        ("crop('img_1', [0, 0, 9, 9], 3)", ["bad_code"]),  # more than the tool has
        ("dig('img_1')", ["bad_code"]),  # nobody knows the names of its arguments
        ("crop(image=b'x')", ["bad_code"]),
        ("crop(image={1: 2})", ["bad_code"]),
        ("crop(box=[1e999])", ["bad_code"]),
        ("crop(image='a')\nzoom(image='b')", [("crop", {"image": "a"}), ("zoom", {"image": "b"})]),
        ("crop(image='a')\nnonsense", [("crop", {"image": "a"}), "bad_code"]),
        ("(" * 5000, ["bad_code"]),
    ],
)
def test_code_that_is_no_call(body: str, found: list[Any]) -> None:
    assert read(f"<tool_code>{body}</tool_code>") == found


@pytest.mark.parametrize(
    "item",
    [
        {"name": "crop", "arguments": BOX},
        {"function": "crop", "arguments": BOX},
        {"tool": "crop", "parameters": BOX},
        {"name": "crop", **BOX},
        {"function": "crop", **BOX},
    ],
)
def test_fenced_json(item: dict[str, Any]) -> None:
    assert read(f"I look.\n```json\n{json.dumps(item)}\n```", "json") == [("crop", BOX)]


def test_forms_stay_apart() -> None:
    text = f"{hermes('one')}<tool_code>two()</tool_code>```json\n{json.dumps({'name': 'three'})}\n```"
    assert [c.name for c in parse_turn(text).calls] == ["one"]
    assert [c.name for c in parse_turn(text, syntax=["json", "hermes"]).calls] == ["one", "three"]
    assert [c.name for c in parse_turn(text, syntax=["json", "tool_code", "hermes"]).calls] == ["one", "two", "three"]
    assert read("<tool_code>crop(", cut=True) == ["truncated_call"]
    assert read("```json {", "json", cut=False) == ["unclosed_call"]


def test_which_of_several() -> None:
    text = f"{hermes('one')}{hermes('two')}<tool_call>{{</tool_call>{hermes('four')}"
    assert [c.name for c in parse_turn(text, which="first").calls] == ["one"]
    assert [c.name for c in parse_turn(text, which="last").calls] == ["four"]
    errors = [c.error.code if c.error else c.name for c in parse_turn(text, most=2).calls]
    assert errors == ["one", "two", "bad_json", "too_many_calls"]
    assert [c.name for c in parse_turn(text, which="last", most=1).calls] == ["four"]


def test_calls_in_thought() -> None:
    text = f"<think>perhaps {hermes('one')}</think>{hermes('two')}"
    assert [c.name for c in parse_turn(text).calls] == ["one", "two"]
    parsed = parse_turn(text, think="ignore", turn=4)
    assert [c.name for c in parsed.calls] == ["two"]
    assert [(f.code, f.turn) for f in parsed.faults] == [("call_in_think", 4)]
    assert parse_turn(f"<think>{hermes('one')}</think><answer>A</answer>", think="ignore").final


@given(
    st.lists(
        st.sampled_from(
            [
                "<tool_code>",
                "</tool_code>",
                "```json",
                "```",
                "<tool_call>",
                "</tool_call>",
                "crop(",
                ")",
                "image=",
                "'a'",
                "{",
                "}",
                '"name":"a"',
                "<think>",
                "</think>",
                "<answer>",
                "\n",
                "print(",
                "\x00",
                "é",
            ]
        ),
        max_size=14,
    ),
    st.sampled_from(["all", "first", "last"]),
    st.sampled_from(["run", "ignore"]),
)
def test_any_text_in_any_form(pieces: list[str], which: str, think: str) -> None:
    parsed = parse_turn("".join(pieces), syntax=["hermes", "tool_code", "json"], which=which, think=think, most=3)
    for c in parsed.calls:
        assert (c.error is None) == bool(c.name)
    assert sum(c.error is None for c in parsed.calls) <= 3


def test_boxes_in_the_text() -> None:
    text = "the cat [10, 20, 30, 40] left of [1.5,2,3,4], not [1,2,3], [5, 5, 1, 9], [1,2,3,4,5] or [0, 0, 0, 0]"
    assert inline_boxes(text) == [(10, 20, 30, 40), (1.5, 2, 3, 4)]


def test_a_dialogue_in_code(tiny: Tiny) -> None:
    said = iter(["<tool_code>crop('img_1', [0, 0, 500, 500])</tool_code>", "<answer>A</answer>"])
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
    config = RolloutConfig(group=1, max_new_tokens=200, max_turns=3, max_context=1500, syntax=["tool_code"])
    (t,) = rollout(engine, tiny.chat, [make_prompt("k", "which?", picture(120, 90))], config, seed=0)
    assert (t.stop, [f.code for f in t.faults]) == (StopReason.FINISHED, [])
    assert (t.media["img_2"].parent, t.media["img_2"].region) == ("img_1", (0, 0, 60, 45))
    spoken = t.span[t.turns[0].start : t.turns[0].stop]
    assert set(spoken[:-1]) == {Span.TOOL_CALL}
    assert [u.origin for u in t.turns] == [Origin.POLICY, Origin.OBSERVATION, Origin.POLICY]


def test_ignored_and_surplus_calls_in_a_dialogue(tiny: Tiny) -> None:
    def play(first: str, **settings: Any) -> Any:
        said = iter([first, "<answer>A</answer>"])
        engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
        config = RolloutConfig(group=1, max_new_tokens=300, max_turns=3, max_context=1500, **settings)
        return rollout(engine, tiny.chat, [make_prompt("k", "which?", picture(120, 90))], config, seed=0)[0]

    t = play(f"<think>{CROP}</think>", think_calls="ignore")
    assert ([f.code for f in t.faults], len(t.turns), list(t.media)) == (["call_in_think"], 1, ["img_1"])
    t = play(CROP * 3, max_calls=2)
    assert ([f.code for f in t.faults], list(t.media)) == (["too_many_calls"], ["img_1", "img_2", "img_3"])
    assert t.turns[1].text.count("only 2 calls of a turn are run") == 1
    t = play(CROP * 3, calls="first")
    assert ([f.code for f in t.faults], list(t.media)) == ([], ["img_1", "img_2"])


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(ConfigError, match="syntax"):
        load_config("grpo", ["rollout.syntax=[xml]"])
