"""Tool calls in what a policy wrote: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen).

Policies, each tested:

- All calls of a turn are taken, in order. One that cannot be read is kept in its place with its error, so that the
  others run and each gets its own response.
- Objects that follow each other in one block (`{...}{...}`) are separate calls.
- JSON is read strictly: NaN, Infinity, duplicate keys, trailing text and arguments that are no object are errors.
- A call without its closing tag is `unclosed_call`, or `truncated_call` where the turn was cut at the token limit.
- A call inside <think> is a call like any other.
- Calls before an answer run, and the dialogue goes on; calls after `<answer>` do not (`call_after_answer`). An
  <answer> inside closed <think> tags is not an answer.
- A <tool_response> that the policy made up is counted (`made_up_response`) and stays its own text.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from mmrl.types import Fault, FaultKind, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
AFTER_ANSWER = "call_after_answer"
_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class ParsedTurn:
    """The calls of a turn in order, bad ones with their error, and what else was wrong with it."""

    calls: tuple[ToolCall, ...]
    faults: tuple[Fault, ...]  # those of no single call; the errors of calls stand in the calls

    @property
    def final(self) -> bool:
        """Whether nothing is left to run or to answer: the policy has finished."""
        return all(c.error is not None and c.error.code == AFTER_ANSWER for c in self.calls)


class _Bad(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def parse_turn(text: str, *, cut: bool = False, turn: int = 0) -> ParsedTurn:
    """Parse one policy turn. `cut`: it was ended by the token limit; `turn`: its number, for the faults."""
    hidden = _THINK.sub(lambda m: " " * len(m.group()), text)  # same length: positions stay
    answer = hidden.find("<answer>")
    calls: list[ToolCall] = []
    for start, body, closed in _blocks(text):
        for item in _objects(body) if closed else [_Bad(*_unclosed(cut))]:
            number = len(calls) + 1
            if 0 <= answer < start:
                item = _Bad(AFTER_ANSWER, "it comes after the answer and is not run")
            if isinstance(item, dict):
                item = _as_call(item)
            if isinstance(item, _Bad):
                fault = Fault(FaultKind.POLICY, item.code, f"call {number}: {item}", turn)
                item = ToolCall("", {}, fault)
            calls.append(item)
    faults = []
    if "<tool_response>" in text:
        faults.append(Fault(FaultKind.POLICY, "made_up_response", "the policy wrote a <tool_response> itself", turn))
    return ParsedTurn(tuple(calls), tuple(faults))


def _unclosed(cut: bool) -> tuple[str, str]:
    return ("truncated_call", "cut off at the token limit") if cut else ("unclosed_call", f"{CLOSE} is missing")


def _blocks(text: str) -> list[tuple[int, str, bool]]:
    """Start, body and closedness of each call block; a block ends at its close or where the next one opens."""
    out = []
    start = text.find(OPEN)
    while start >= 0:
        body = start + len(OPEN)
        end, following = text.find(CLOSE, body), text.find(OPEN, body)
        closed = end >= 0 and not 0 <= following < end
        stop = end if closed else following if following >= 0 else len(text)
        out.append((start, text[body:stop], closed))
        start = following
    return out


def _objects(body: str) -> list[Any]:
    """The JSON objects of one block; the first that cannot be read ends it with a _Bad."""
    out: list[Any] = []
    at = 0
    while True:
        while at < len(body) and body[at].isspace():
            at += 1
        if at == len(body):
            return out or [_Bad("bad_json", "the call is empty")]
        try:
            item, at = _DECODER.raw_decode(body, at)
        except RecursionError:
            return [*out, _Bad("bad_json", "not valid JSON: nested too deeply")]
        except ValueError as error:
            return [*out, _Bad("bad_json", f"not valid JSON: {str(error)[:80]}")]
        out.append(item if isinstance(item, dict) else _Bad("bad_call", "a call is a JSON object"))


def _as_call(item: dict[str, Any]) -> ToolCall | _Bad:
    name, arguments = item.get("name"), item.get("arguments", {})
    if not isinstance(name, str) or not name:
        return _Bad("bad_call", 'a call needs "name", a string')
    if not isinstance(arguments, dict):
        return _Bad("bad_call", '"arguments" must be an object')
    return ToolCall(name, arguments)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"duplicate key {key[:40]!r}")
        out[key] = value
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:20]} is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
