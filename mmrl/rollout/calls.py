"""Running the calls of many dialogues at once: checked, bounded in time, cached, and never an exception.

The calls of one turn run side by side, those of stateful tools one after the other in call order; their results come
in call order. What a call did wrong, a time-out and a failed tool are results like any other, with a fault.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from mmrl.registry import Entry, UnknownName, get, nearest
from mmrl.rollout.arguments import BadArguments, check_arguments, short
from mmrl.rollout.tools import Limits, ToolContext, ToolError, limits_of, settle
from mmrl.types import Fault, FaultKind, MediaRef, ToolCall, ToolResult

CACHE = 1 << 28  # bytes of pictures and texts
MAX_RATIO, MIN_SIDE = 200, 4  # what processors of pictures take


class Tools:
    """Runs calls in threads of their own.

    Args:
        concurrency: calls that run at the same time; others wait.
        failures: of a tool in a row, after which its calls are answered by an error without being run ...
        rest: ... for this many seconds; then one is tried.
    """

    def __init__(self, *, concurrency: int = 32, failures: int = 5, rest: float = 30.0) -> None:
        self.failures = failures
        self.rest = rest
        self._failed: dict[str, tuple[int, float]] = {}  # tool -> failures in a row, time of the last
        self._cache = _Cache(CACHE)
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._thread = threading.Thread(target=self._loop.run_forever, name="mmrl-tools", daemon=True)
        self._thread.start()

    def submit(
        self, calls: Sequence[ToolCall], context: ToolContext, allowed: Sequence[str] | None = None
    ) -> Future[list[ToolResult]]:
        """Run the calls of one turn. New media and state are put into `context` when all have ended.

        allowed: the tools on offer (None: every registered one).
        """
        return asyncio.run_coroutine_threadsafe(self._turn(list(calls), context, allowed), self._loop)

    def close(self) -> None:
        """Wait for nothing: calls that still run end on their own."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def __enter__(self) -> Tools:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _turn(
        self, calls: list[ToolCall], context: ToolContext, allowed: Sequence[str] | None
    ) -> list[ToolResult]:
        if any(_is_stateful(c) for c in calls):
            results = []
            for call in calls:
                results.append(settle(await self._call(call, context, allowed), context.media))
            return results
        found = await asyncio.gather(*(self._call(c, context, allowed) for c in calls))
        return [settle(r, context.media) for r in found]

    async def _call(self, call: ToolCall, context: ToolContext, allowed: Sequence[str] | None) -> ToolResult:
        start = time.perf_counter()
        result = await self._checked(call, context, allowed)
        return replace(result, seconds=time.perf_counter() - start)

    async def _checked(self, call: ToolCall, context: ToolContext, allowed: Sequence[str] | None) -> ToolResult:
        if call.error is not None:
            return ToolResult(f"Error: {call.error.message}", fault=call.error)
        try:
            if allowed is not None and call.name not in allowed:
                raise UnknownName(f"no tool named {short(call.name)}: {nearest(call.name, list(allowed))}")
            entry = get("tool", call.name)
            check_arguments(call.arguments, entry.info["schema"]["parameters"])
        except UnknownName as error:
            return _error(FaultKind.POLICY, "unknown_tool", str(error))
        except BadArguments as error:
            return _bounded(call.name, _error(FaultKind.POLICY, "bad_arguments", str(error)), limits_of(entry))
        own = replace(context, media=dict(context.media), name=call.name, state=copy.deepcopy(context.state))
        key = None if entry.info.get("stateful") else _key(call, own)
        if key is not None and (known := self._cache.get(key)) is not None:
            return replace(known, cached=True)
        async with self._slots:
            if self._resting(call.name):
                return _error(FaultKind.TOOL, "tool_unavailable", f"{call.name} is not available now; go on without it")
            result = await self._run(entry, call.arguments, own)
        failed = result.fault is not None and result.fault.kind is FaultKind.TOOL
        self._failed[call.name] = (self._failed.get(call.name, (0, 0.0))[0] + 1, time.monotonic()) if failed else (0, 0)
        if result.fault is None:
            context.state.update(own.state)
        if key is not None and not failed:
            self._cache.put(key, result)
        return result

    async def _run(self, entry: Entry, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        limits, name = limits_of(entry), entry.name
        running = _thread(functools.partial(_invoke, entry.obj, arguments, context), self._loop)
        try:
            return _bounded(name, await asyncio.wait_for(running, limits.seconds), limits)
        except TimeoutError:
            return _error(FaultKind.TOOL, "timeout", f"{name} took longer than {limits.seconds:g} seconds")
        except ToolError as error:
            return _bounded(name, _error(FaultKind.POLICY, error.code, error.message), limits)
        except Exception as error:
            detail = f"{name} failed: {type(error).__name__}: {error}"
            return ToolResult(f"Error: {name} failed", fault=Fault(FaultKind.TOOL, "tool_failed", detail))

    def _resting(self, name: str) -> bool:
        count, last = self._failed.get(name, (0, 0.0))
        return count >= self.failures and time.monotonic() - last <= self.rest


@functools.cache
def _shared() -> Tools:
    return Tools()


def call_tool(call: ToolCall, context: ToolContext, allowed: Sequence[str] | None = None) -> ToolResult:
    """Run one call and wait. Never raises for what policy or tool did wrong: the result's text says it and `fault`
    records it.

    allowed: the tools on offer (None: every registered one).
    """
    return _shared().submit([call], context, allowed).result()[0]


def _is_stateful(call: ToolCall) -> bool:
    try:
        return call.error is None and bool(get("tool", call.name).info.get("stateful"))
    except UnknownName:
        return False


def _error(kind: FaultKind, code: str, message: str) -> ToolResult:
    return ToolResult(f"Error: {message}", fault=Fault(kind, code, message))


def _invoke(tool: Callable[..., Any], arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    result = tool(arguments, context)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if not isinstance(result, ToolResult):
        raise TypeError(f"a tool returns a ToolResult, not a {type(result).__name__}")
    return result


def _thread(work: Callable[[], ToolResult], loop: asyncio.AbstractEventLoop) -> asyncio.Future[ToolResult]:
    """Run in a thread that nobody waits for at exit: a call that hangs must not hold up the end of the program."""
    out: asyncio.Future[ToolResult] = loop.create_future()

    def settle_future(result: ToolResult | None, error: BaseException | None) -> None:
        if out.cancelled():
            return
        if error is not None:
            out.set_exception(error)
        else:
            assert result is not None
            out.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        try:
            loop.call_soon_threadsafe(settle_future, result, failure)
        except RuntimeError:  # the loop has been closed meanwhile: nobody wants the result
            return

    threading.Thread(target=run, name="mmrl-tool", daemon=True).start()
    return out


def _bounded(name: str, result: ToolResult, limits: Limits) -> ToolResult:
    """The result within the limits of its tool; what is left out is said in the text."""
    for ref in result.media:
        small, large = sorted((ref.width, ref.height))
        if small < MIN_SIDE or large > MAX_RATIO * small:
            raise ValueError(f"{ref.kind} of {ref.width}x{ref.height} pixels, which no processor takes")
    text, media = result.text, result.media
    if len(text) > limits.text:
        text = f"{text[: limits.text]} [cut: {limits.text} of {len(text)} characters]"
    if len(media) > limits.media:
        text += f" [only the first {limits.media} of {len(media)} pictures are shown]"
        media = media[: limits.media]
    return replace(result, text=text, media=media)


def _key(call: ToolCall, context: ToolContext) -> str:
    """What the result of a call depends on: its arguments, the dialogue's media, sample and settings, the seed."""
    media = [(m.id, m.hash, m.parent, m.region, str(m.info.get("window"))) for m in context.media.values()]
    sample = (context.sample.key, str(dict(context.sample.meta))) if context.sample else ""
    parts = [call.name, call.arguments, media, context.settings, context.seed if _is_random(call) else 0, sample]
    return json.dumps(parts, sort_keys=True, default=repr)


def _is_random(call: ToolCall) -> bool:
    return bool(get("tool", call.name).info.get("random"))


class _Cache:
    """Results by key, the least recently used ones dropped beyond `size` bytes. Used by the loop's thread only."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0
        self.items: OrderedDict[str, tuple[ToolResult, int]] = OrderedDict()

    def get(self, key: str) -> ToolResult | None:
        if key not in self.items:
            return None
        self.items.move_to_end(key)
        return self.items[key][0]

    def put(self, key: str, result: ToolResult) -> None:
        weight = len(key) + len(result.text) + sum(_bytes(m) for m in result.media)
        if key in self.items or weight > self.size:
            return
        self.items[key] = (result, weight)
        self.held += weight
        while self.held > self.size:
            self.held -= self.items.popitem(last=False)[1][1]


def _bytes(ref: MediaRef) -> int:
    return len(ref.data) if ref.data is not None else 0
