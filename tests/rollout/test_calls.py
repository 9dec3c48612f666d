"""Many calls at once: their order, their limits, what is remembered, and tools that fail, hang or are gone."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tiny_models import Tiny, make_prompt, picture

from mmrl import registry
from mmrl.config import RolloutConfig
from mmrl.registry import register
from mmrl.rollout import Limits, Request, Sampled, ToolContext, ToolError, Tools, call_tool, rollout, schema
from mmrl.types import FaultKind, StopReason, ToolCall, ToolResult

ANY = schema("x", {"n": {"type": "integer"}, "wait": {"type": "number"}})


@pytest.fixture
def tool() -> Iterator[Any]:
    """Registers a function as a tool for one test."""
    names: list[str] = []

    def add(function: Any, **info: Any) -> str:
        register("tool", function.__name__, schema=ANY, **info)(function)
        names.append(function.__name__)
        return str(function.__name__)

    yield add
    for name in names:
        registry._entries.pop(("tool", name))


def context(**settings: Any) -> ToolContext:
    return ToolContext({}, settings=settings)


def run(calls: Sequence[ToolCall], where: ToolContext | None = None, **options: Any) -> list[ToolResult]:
    with Tools(**options) as tools:
        return tools.submit(calls, context() if where is None else where).result(timeout=60)


def faults(results: Sequence[ToolResult]) -> list[str]:
    return [f"{r.fault.kind.value}.{r.fault.code}" if r.fault else "" for r in results]


def test_results_and_their_pictures_come_in_the_order_of_the_calls(tool: Any) -> None:
    """The first call ends last: each waits for the one behind it."""
    ended = [threading.Event() for _ in range(4)]

    def slow(arguments: Any, context: ToolContext) -> ToolResult:
        n = arguments["n"]
        if n < 3:
            assert ended[n + 1].wait(30)
        ref = context.add(picture(30 + n, 30, n))
        ended[n].set()
        return ToolResult(f"{ref.id} is {n}", (ref,), data={"id": ref.id, "n": n})

    tool(slow)
    where = context()
    found = run([ToolCall("slow", {"n": n}) for n in range(4)], where)
    assert [r.text for r in found] == ["img_1 is 0", "img_2 is 1", "img_3 is 2", "img_4 is 3"]
    assert [dict(r.data) for r in found] == [{"id": f"img_{n + 1}", "n": n} for n in range(4)]
    assert [(i, m.width) for i, m in where.media.items()] == [(f"img_{n + 1}", 30 + n) for n in range(4)]


def test_one_bad_call_spoils_none_of_its_siblings(tool: Any) -> None:
    def odd(arguments: Any, context: ToolContext) -> ToolResult:
        ref = context.add(picture(40, 40, arguments["n"]))
        if arguments["n"] == 1:
            raise ValueError("one")
        if arguments["n"] == 2:
            raise ToolError("no_two", "two is not allowed")
        return ToolResult(ref.id, (ref,))

    tool(odd)
    where = context()
    found = run([ToolCall("odd", {"n": n}) for n in range(4)] + [ToolCall("odd", {"n": "x"})], where)
    assert faults(found) == ["", "tool.tool_failed", "policy.no_two", "", "policy.bad_arguments"]
    assert [r.text for r in found] == [
        "img_1",
        "Error: odd failed",
        "Error: two is not allowed",
        "img_2",
        "Error: n must be of type integer, got 'x'",
    ]
    assert list(where.media) == ["img_1", "img_2"]


def test_no_more_run_at_once_than_allowed(tool: Any) -> None:
    now, most, lock = 0, 0, threading.Lock()

    def counted(arguments: Any, context: ToolContext) -> ToolResult:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.02)
        with lock:
            now -= 1
        return ToolResult("x")

    tool(counted)
    with Tools(concurrency=5) as tools:
        waiting = [tools.submit([ToolCall("counted", {"n": n})], context()) for n in range(40)]
        assert [f.result(timeout=60)[0].text for f in waiting] == ["x"] * 40
    assert most == 5


def test_a_call_that_hangs_is_an_observation(tool: Any) -> None:
    free = threading.Event()

    def hangs(arguments: Any, context: ToolContext) -> ToolResult:
        free.wait(60)
        context.add(picture(30, 30))  # too late: nobody may see it
        return ToolResult("late")

    async def hangs_too(arguments: Any, context: ToolContext) -> ToolResult:
        await asyncio.sleep(60)
        return ToolResult("late")

    def quick(arguments: Any, context: ToolContext) -> ToolResult:
        return ToolResult("here")

    for function in (hangs, hangs_too):
        tool(function, limits=Limits(seconds=0.2))
    tool(quick)
    where = context()
    found = run([ToolCall(n, {}) for n in ("hangs", "quick", "hangs_too")], where)
    free.set()
    assert faults(found) == ["tool.timeout", "", "tool.timeout"]
    assert found[0].text == "Error: hangs took longer than 0.2 seconds"
    assert 0.2 <= found[0].seconds < 30
    assert not where.media


def test_equal_calls_run_once(tool: Any) -> None:
    ran: list[int] = []

    def costly(arguments: Any, context: ToolContext) -> ToolResult:
        ran.append(arguments["n"])
        if arguments["n"] == 9:
            raise RuntimeError("down")
        ref = context.add(picture(30, 30, arguments["n"]))
        return ToolResult(f"{ref.id}: {context.options.get('how')}", (ref,))

    tool(costly)

    def ask(n: int, where: ToolContext) -> ToolResult:
        return tools.submit([ToolCall("costly", {"n": n})], where).result()[0]

    with Tools() as tools:
        one, two = context(), context()
        assert [ask(n, one).cached for n in (1, 2)] == [False, False]
        again = ask(1, two)
        assert (again.cached, again.text, list(two.media)) == (True, "img_1: None", ["img_1"])
        assert two.media["img_1"].hash == one.media["img_1"].hash
        assert not ask(1, two).cached  # the dialogue has another picture now
        assert not ask(1, context(costly={"how": "other"})).cached
        assert ask(1, context(costly={"how": "other"})).cached
        for _ in range(2):
            assert not ask(9, context()).cached  # a failure is not remembered
    assert ran == [1, 2, 1, 1, 9, 9]


def test_tools_with_a_memory_take_turns(tool: Any) -> None:
    def count(arguments: Any, context: ToolContext) -> ToolResult:
        time.sleep(0.01 * (3 - arguments["n"]))
        context.state.setdefault("count", []).append(arguments["n"])
        if arguments["n"] == 1:
            raise ToolError("odd", "not this one")
        return ToolResult(str(context.state["count"]))

    tool(count, stateful=True)
    where = context()
    found = run([ToolCall("count", {"n": n}) for n in range(3)], where)
    assert [r.text for r in found] == ["[0]", "Error: not this one", "[0, 2]"]
    assert where.state == {"count": [0, 2]}  # what failed left nothing
    assert run([ToolCall("count", {"n": 0})], where)[0].text == "[0, 2, 0]"


def test_a_tool_that_keeps_failing_rests(tool: Any) -> None:
    ran: list[int] = []
    well = False

    def shaky(arguments: Any, context: ToolContext) -> ToolResult:
        ran.append(arguments["n"])
        if not well:
            raise ConnectionError("gone")
        return ToolResult("back")

    def steady(arguments: Any, context: ToolContext) -> ToolResult:
        return ToolResult("here")

    tool(shaky)
    tool(steady)

    def ask(name: str, n: int) -> str:
        (result,) = tools.submit([ToolCall(name, {"n": n})], context()).result()
        return result.fault.code if result.fault else result.text

    with Tools(failures=3, rest=0.5) as tools:
        codes = [ask("shaky", n) for n in range(6)]
        assert codes == ["tool_failed"] * 3 + ["tool_unavailable"] * 3
        assert ran == [0, 1, 2]
        assert ask("steady", 0) == "here"
        time.sleep(0.6)
        assert [ask("shaky", n) for n in (6, 7)] == ["tool_failed", "tool_unavailable"]  # one try, then rest again
        well = True
        time.sleep(0.6)
        assert [ask("shaky", n) for n in (8, 9)] == ["back", "back"]
        assert ran == [0, 1, 2, 6, 8, 9]


def test_long_texts_many_pictures_and_impossible_ones(tool: Any) -> None:
    def long(arguments: Any, context: ToolContext) -> ToolResult:
        return ToolResult("é" * 1000, tuple(context.add(picture(30, 30, n)) for n in range(5)))

    def thin(arguments: Any, context: ToolContext) -> ToolResult:
        ref = context.add(picture(1000, 4))
        return ToolResult(ref.id, (ref,))

    def wrong(arguments: Any, context: ToolContext) -> Any:
        return "text"

    def exits(arguments: Any, context: ToolContext) -> ToolResult:
        raise SystemExit(3)

    tool(long, limits=Limits(text=100, media=2))
    for function in (thin, wrong, exits):
        tool(function)
    where = context()
    found = run([ToolCall(n, {}) for n in ("long", "thin", "wrong", "exits")], where)
    assert faults(found) == ["", "tool.tool_failed", "tool.tool_failed", "tool.tool_failed"]
    assert found[0].text == f"{'é' * 100} [cut: 100 of 1000 characters] [only the first 2 of 5 pictures are shown]"
    assert list(where.media) == ["img_1", "img_2"]
    assert "1000x4" in found[1].fault.message


def test_a_single_call_from_anywhere(tool: Any) -> None:
    async def later(arguments: Any, context: ToolContext) -> ToolResult:
        await asyncio.sleep(0)
        return ToolResult(f"{arguments['n']}")

    tool(later)
    assert call_tool(ToolCall("later", {"n": 3}), context()).text == "3"
    assert faults([call_tool(ToolCall("latter", {}), context())]) == ["policy.unknown_tool"]
    assert faults([call_tool(ToolCall("later", {}), context(), ("crop",))]) == ["policy.unknown_tool"]


class Script:
    """An engine that writes given texts at once: `said(dialogue's tokens)`."""

    def __init__(self, tiny: Tiny, said: Any) -> None:
        self.chat, self.said = tiny.chat, said
        self.asked: list[int] = []

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        self.asked.append(len(requests))
        out = []
        for request in requests:
            tokens = [*self.chat.encode_text(self.said(request)), self.chat.end_of_turn]
            out.append([Sampled(tokens, [-1.0] * len(tokens), True) for _ in range(request.n)])
        return out


CALL = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'


def test_a_slow_call_holds_up_no_other_dialogue(tiny: Tiny, tool: Any) -> None:
    """The slow dialogue's call returns only after the other one has ended."""
    others_end = threading.Event()

    def slow(arguments: Any, context: ToolContext) -> ToolResult:
        return ToolResult("late" if others_end.wait(60) else "never")

    def quick(arguments: Any, context: ToolContext) -> ToolResult:
        return ToolResult("red")

    tool(slow, limits=Limits(seconds=50))
    tool(quick)
    turns: dict[str, int] = {}

    def said(request: Request) -> str:
        text = tiny.chat.decode(request.tokens)
        name = "slow" if "SLOW" in text else "quick"
        turns[name] = turns.get(name, 0) + 1
        if name == "quick" and turns[name] == 4:
            others_end.set()
        return CALL.format(name) if turns[name] < 4 and "late" not in text else "<answer>A</answer>"

    prompts = [make_prompt("a", "SLOW", tools=("slow",)), make_prompt("b", "which?", tools=("quick",))]
    config = RolloutConfig(group=1, max_turns=6, max_new_tokens=200, max_context=4000)
    a, b = rollout(Script(tiny, said), tiny.chat, prompts, config, seed=0)
    assert (a.turns[1].text, a.stop, len(a.turns)) == ("late", StopReason.FINISHED, 3)
    assert (b.turns[1].text, b.stop, len(b.turns)) == ("red", StopReason.FINISHED, 7)
    assert a.turns[0].results[0].seconds > b.turns[0].results[0].seconds


def test_no_trajectory_is_lost_when_a_server_dies(tiny: Tiny, tool: Any) -> None:
    """From the 40th call on, everything fails: each dialogue still ends, each failure is told and counted."""
    answered, lock = 0, threading.Lock()

    def remote(arguments: Any, context: ToolContext) -> ToolResult:
        nonlocal answered
        with lock:
            answered += 1
            if answered > 40:
                raise ConnectionResetError("the server is gone")
        return ToolResult("red")

    tool(remote, random=True)

    def said(request: Request) -> str:
        told = tiny.chat.decode(request.tokens).count("<tool_response>")
        return CALL.format("remote").replace("{}}", f'{{"n": {told}}}}}') if told < 3 else "<answer>A</answer>"

    prompts = [make_prompt(f"k{n}", "which?", tools=("remote",)) for n in range(8)]
    config = RolloutConfig(group=4, max_turns=5, max_new_tokens=200, max_context=4000, tool_failures=3, tool_rest=60)
    out = rollout(Script(tiny, said), tiny.chat, prompts, config, seed=0)
    assert [t.stop for t in out] == [StopReason.FINISHED] * 32
    assert all(len(t.turns) == 7 for t in out)
    results = [r for t in out for u in t.turns for r in u.results]
    assert len(results) == 96
    assert sum(r.text == "red" for r in results) == 40
    codes = [f.code for t in out for f in t.faults]
    assert len(codes) == 56
    assert set(codes) == {"tool_failed", "tool_unavailable"}
    assert codes.count("tool_failed") >= 3
    assert all(f.kind is FaultKind.TOOL for t in out for f in t.faults)
    assert all(math.isfinite(r.seconds) for r in results)
