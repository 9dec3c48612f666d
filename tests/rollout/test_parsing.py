"""Every stated policy of the tool-call parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rollout.parsing import parse_turn


def call(name: str = "crop", **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def codes(text: str, cut: bool = False) -> list[str]:
    """The error code of each call, "" for good ones."""
    return [c.error.code if c.error else "" for c in parse_turn(text, cut=cut).calls]


def test_one_call() -> None:
    (parsed,) = parse_turn(
        '<think>x</think>\n<tool_call>\n{"name": "crop", "arguments": {"a": [1, 2.5]}}\n</tool_call>'
    ).calls
    assert (parsed.name, parsed.arguments, parsed.error) == ("crop", {"a": [1, 2.5]}, None)


def test_no_call() -> None:
    parsed = parse_turn("<think>x</think><answer>A</answer>")
    assert (parsed.calls, parsed.faults, parsed.final) == ((), (), True)


def test_several_calls_stay_in_order_and_a_bad_one_spoils_none() -> None:
    text = f"{call('one')} and <tool_call>{{broken</tool_call>{call('three')}"
    parsed = parse_turn(text, turn=2)
    assert [c.name for c in parsed.calls] == ["one", "", "three"]
    assert codes(text) == ["", "bad_json", ""]
    assert parsed.calls[1].error.message.startswith("call 2: not valid JSON")
    assert parsed.calls[1].error.turn == 2
    assert not parsed.final


def test_objects_in_one_block_are_separate_calls() -> None:
    one, two = json.dumps({"name": "one", "arguments": {}}), json.dumps({"name": "two", "arguments": {}})
    for between in ("", "\n", "  "):
        parsed = parse_turn(f"<tool_call>{one}{between}{two}</tool_call>")
        assert [c.name for c in parsed.calls] == ["one", "two"]
    assert codes(f"<tool_call>{one}{two[:-1]}</tool_call>") == ["", "bad_json"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "bad_json"),
        ("  \n", "bad_json"),
        ("crop", "bad_json"),
        ('{"name": "crop", "arguments": {"a": NaN}}', "bad_json"),
        ('{"name": "crop", "arguments": {"a": -Infinity}}', "bad_json"),
        ('{"name": "crop", "arguments": {"a": 1e999}}', "bad_json"),
        ('{"name": "crop", "name": "zoom", "arguments": {}}', "bad_json"),
        ('{"name": "crop", "arguments": {"a": 1, "a": 2}}', "bad_json"),
        ("{'name': 'crop'}", "bad_json"),
        ('{"name": "crop", "arguments": {}', "bad_json"),
        ('{"a":' * 100_000, "bad_json"),
        ("[" * 100_000, "bad_json"),
        ('{"name": "crop", "arguments": {"a": ' + "9" * 5000 + "}}", "bad_json"),
        ("[1]", "bad_call"),
        ('"crop"', "bad_call"),
        ('{"arguments": {}}', "bad_call"),
        ('{"name": 3, "arguments": {}}', "bad_call"),
        ('{"name": "", "arguments": {}}', "bad_call"),
        ('{"name": "crop", "arguments": [1]}', "bad_call"),
        ('{"name": "crop", "arguments": "{}"}', "bad_call"),
        ('{"name": "crop", "arguments": null}', "bad_call"),
    ],
)
def test_bad_calls(body: str, code: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert codes(text) == [code]
    assert len(parse_turn(text).calls[0].error.message) < 150
    assert codes(text + call()) == [code, ""]


def test_trailing_text_in_a_block() -> None:
    assert codes('<tool_call>{"name": "crop", "arguments": {}} please</tool_call>') == ["", "bad_json"]


def test_missing_arguments_are_none_given() -> None:
    (parsed,) = parse_turn('<tool_call>{"name": "crop"}</tool_call>').calls
    assert (parsed.arguments, parsed.error) == ({}, None)


def test_unclosed_calls() -> None:
    body = '<tool_call>{"name": "crop", "arguments": {}}'
    assert codes(body) == ["unclosed_call"]
    assert codes(body, cut=True) == ["truncated_call"]
    assert codes(call() + '<tool_call>{"na', cut=True) == ["", "truncated_call"]
    assert codes(body + call("zoom")) == ["unclosed_call", ""]
    assert codes("<tool_call><tool_call>") == ["unclosed_call", "unclosed_call"]
    assert codes("</tool_call>") == []


def test_calls_inside_thinking_are_calls() -> None:
    assert codes(f"<think>let me see {call()}</think>") == [""]
    assert codes(f"<think>never closed {call()}") == [""]


def test_calls_and_answers() -> None:
    after = parse_turn(f"<answer>A</answer>{call()}")
    assert [c.error.code for c in after.calls] == ["call_after_answer"]
    assert after.final
    both = f"{call('one')}<answer>A</answer>{call('two')}"
    assert codes(both) == ["", "call_after_answer"]
    assert not parse_turn(both).final
    assert codes(f"{call()}<answer>A</answer>") == [""]
    assert codes(f"<answer>A{call()}") == ["call_after_answer"]
    assert codes(f"<think>then <answer>A</answer></think>{call()}") == [""]


def test_made_up_responses_are_counted_once_a_turn() -> None:
    parsed = parse_turn(f"{call()}<tool_response>red</tool_response><tool_response>blue", turn=1)
    assert [(f.code, f.turn) for f in parsed.faults] == [("made_up_response", 1)]
    assert len(parsed.calls) == 1


PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "{",
            "}",
            '{"name": "a"}',
            '"',
            "x",
            "1",
        ]
    ),
    max_size=14,
)


@given(PIECES, st.booleans())
def test_any_text_is_parsed(pieces: list[str], cut: bool) -> None:
    text = "".join(pieces)
    parsed = parse_turn(text, cut=cut)
    assert len(parsed.calls) >= text.count("<tool_call>")  # none is dropped in silence
    for c in parsed.calls:
        assert (c.error is None) == bool(c.name)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.text(max_size=8)
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda s: st.lists(s, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_arguments_survive(arguments: dict[str, Any]) -> None:
    text = call("crop", **{f"k{k}": v for k, v in arguments.items()})
    if "<tool_call>" in json.dumps(arguments) or "</tool_call>" in json.dumps(arguments):
        return
    (parsed,) = parse_turn(text).calls
    assert parsed.arguments == {f"k{k}": v for k, v in arguments.items()}
