"""Tool calls in what a policy wrote, in the forms that `rollout.syntax` names:

- `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write it;
- `tool_code`: `<tool_code>crop(image="img_1", box=[0, 0, 9, 9])</tool_code>`, Python-like calls of constants, also
  inside `print(...)`; positional arguments take the names of the tool's schema in its order;
- `json`: a fenced ```json block, also with `function` or `tool` for the name, and with arguments beside the name.

Policies, each tested:

- All calls of a turn are taken, in order. One that cannot be read is kept in its place with its error, so that the
  others run and each gets its own response. `rollout.calls` may take the first or the last only, `rollout.max_calls`
  bounds their number; those beyond are answered by `too_many_calls`.
- Objects that follow each other in one block (`{...}{...}`) are separate calls.
- JSON is read strictly: NaN, Infinity, duplicate keys, trailing text and arguments that are no object are errors.
- A call without its closing tag is `unclosed_call`, or `truncated_call` where the turn was cut at the token limit.
- A call inside <think> is a call like any other, or with `rollout.think_calls: ignore` just a thought
  (`call_in_think`).
- Calls before an answer run, and the dialogue goes on; calls after `<answer>` do not (`call_after_answer`). An
  <answer> inside closed <think> tags is not an answer.
- A <tool_response> that the policy made up is counted (`made_up_response`) and stays its own text.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.chat import CALL_TAGS
from mmrl.registry import UnknownName, get
from mmrl.types import Box, Fault, FaultKind, ToolCall

AFTER_ANSWER = "call_after_answer"
_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_BOX = re.compile(rf"\[\s*({_NUMBER})\s*,\s*({_NUMBER})\s*,\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\]")


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


def parse_turn(
    text: str,
    *,
    cut: bool = False,
    turn: int = 0,
    syntax: Sequence[str] = ("hermes",),
    which: str = "all",
    most: int | None = None,
    think: str = "run",
) -> ParsedTurn:
    """Parse one policy turn.

    Args:
        cut: it was ended by the token limit.
        turn: its number, for the faults.
        syntax: forms of calls that are understood, keys of `CALL_TAGS`.
        which: `all` calls are taken, or only the `first` or the `last` one.
        most: calls that run; those beyond are answered by an error.
        think: `run` calls inside <think>, or `ignore` them.
    """
    thoughts = [m.span() for m in _THINK.finditer(text)]
    hidden = _THINK.sub(lambda m: " " * len(m.group()), text)  # same length: positions stay
    answer = hidden.find("<answer>")
    faults = []
    calls: list[ToolCall] = []
    found = ((start, form, body, closed) for form in syntax for start, body, closed in _blocks(text, *CALL_TAGS[form]))
    for start, form, body, closed in sorted(found):
        if think == "ignore" and any(low <= start < high for low, high in thoughts):
            faults.append(Fault(FaultKind.POLICY, "call_in_think", "a call inside <think> was not run", turn))
            continue
        read = _python_calls if form == "tool_code" else _objects
        for item in read(body) if closed else [_Bad(*_unclosed(form, cut))]:
            if 0 <= answer < start:
                item = _Bad(AFTER_ANSWER, "it comes after the answer and is not run")
            if isinstance(item, dict):
                item = _as_call(_flat(item) if form == "json" else item)
            if isinstance(item, ToolCall) and most is not None and len(calls) >= most and which == "all":
                item = _Bad("too_many_calls", f"only {most} calls of a turn are run")
            if isinstance(item, _Bad):
                fault = Fault(FaultKind.POLICY, item.code, f"call {len(calls) + 1}: {item}", turn)
                item = ToolCall("", {}, fault)
            calls.append(item)
    if which != "all":
        calls = calls[:1] if which == "first" else calls[-1:]
    if "<tool_response>" in text:
        faults.append(Fault(FaultKind.POLICY, "made_up_response", "the policy wrote a <tool_response> itself", turn))
    return ParsedTurn(tuple(calls), tuple(faults))


def inline_boxes(text: str) -> list[Box]:
    """Boxes `[x1, y1, x2, y2]` written into the text, in order, in the unit that the task asks for (GRIT).

    Only lists of exactly four numbers with x1 < x2 and y1 < y2 count.
    """
    boxes = [(float(a), float(b), float(c), float(d)) for a, b, c, d in _BOX.findall(text)]
    return [b for b in boxes if b[0] < b[2] and b[1] < b[3] and all(map(math.isfinite, b))]


def _unclosed(form: str, cut: bool) -> tuple[str, str]:
    if cut:
        return "truncated_call", "cut off at the token limit"
    return "unclosed_call", f"{CALL_TAGS[form][1]} is missing"


def _blocks(text: str, opening: str, closing: str) -> list[tuple[int, str, bool]]:
    """Start, body and closedness of each call block; a block ends at its close or where the next one opens."""
    out = []
    start = text.find(opening)
    while start >= 0:
        body = start + len(opening)
        end, following = text.find(closing, body), text.find(opening, body)
        closed = end >= 0 and not 0 <= following < end
        stop = end if closed else following if following >= 0 else len(text)
        out.append((start, text[body:stop], closed))
        start = following
    return out


def _python_calls(body: str) -> list[Any]:
    """Calls in Python's syntax with constant arguments; the first that cannot be read ends the block with a _Bad."""
    try:
        tree = ast.parse(body.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [_Bad("bad_code", "not a call: write name(argument=value)")]
    out: list[Any] = []
    for line in tree.body:
        node = line.value if isinstance(line, ast.Expr | ast.Assign) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" and node.args:
            node = node.args[0]
        if not isinstance(node, ast.Call):
            return [*out, _Bad("bad_code", "not a call: write name(argument=value)")]
        try:
            out.append(_python_call(node))
        except (_Bad, ValueError, TypeError, RecursionError, MemoryError) as error:
            return [*out, error if isinstance(error, _Bad) else _Bad("bad_code", "arguments must be constants")]
    return out or [_Bad("bad_code", "the call is empty")]


def _python_call(node: ast.Call) -> dict[str, Any]:
    name = ast.unparse(node.func)
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _Bad("bad_code", "** is not understood")
        arguments[keyword.arg] = _plain(ast.literal_eval(keyword.value))
    if node.args:
        try:
            names = list(get("tool", name).info["schema"]["parameters"]["properties"])
        except UnknownName:
            names = []
        if len(node.args) > len(names):
            raise _Bad("bad_code", f"{len(node.args)} positional arguments, at most {len(names)} are known")
        for argument, value in zip(names, node.args, strict=False):
            if argument in arguments:
                raise _Bad("bad_code", f"argument {argument!r} is given twice")
            arguments[argument] = _plain(ast.literal_eval(value))
    return {"name": name, "arguments": arguments}


def _plain(value: Any) -> Any:
    """A Python constant as JSON would hold it; anything else is an error."""
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {k: _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("no JSON value")


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    """The other spellings of a call: `function` or `tool` for the name, arguments beside it."""
    rest = dict(item)
    name = next((rest.pop(k) for k in ("name", "function", "tool") if k in rest), None)
    named = next((rest.pop(k) for k in ("arguments", "parameters", "args") if k in rest), None)
    return {"name": name, "arguments": rest if named is None else named}


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
