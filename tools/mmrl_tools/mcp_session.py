"""Sessions with MCP servers: one a server, all in one background thread with its own event loop.

A session that ends, because the server died or was closed, is opened anew by the next call. A call that is under way
when it ends is sent again where that can do no harm; else it fails, since it may have been carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from mmrl.rollout.tools import ToolError

T = TypeVar("T")

PROBE = 5.0  # seconds in which a server that let a call run out of time has to list its tools
GOODBYE = 10.0  # seconds that closing a session takes at most
ERRORS_KEPT = 1 << 20  # bytes of what a server writes to its error stream; beyond, it is thrown away
ERRORS_TOLD = 500  # characters of it in a message


@dataclass(frozen=True)
class Server:
    """How a server is reached: a `command` that speaks MCP over its standard streams, or the `url` of a running one
    (streamable HTTP).

    Args:
        name: first part of the names of its tools.
        env: added to the few variables that a server started here gets (HOME, PATH, ...).
        cwd: the folder that it is started in.
        headers: of the requests to a url.
        seconds: that a call may take.
        start_seconds: that starting or reaching it, and listing its tools, may take.
        stateful: False where it only looks things up: then results are cached as those of other tools, calls of a turn
            run side by side, and all are sent again where the server died amid them.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: float = 30.0
    start_seconds: float = 30.0
    stateful: bool = True


@dataclass(frozen=True, eq=False)
class _Live:
    """An open session: `ended` is set to end it, and where it has ended."""

    client: Any
    ended: asyncio.Event
    task: asyncio.Task[None]


class Session:
    """A connection to one server, opened when it is needed. Its public methods may be called from any thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._live: _Live | None = None
        self._opening: asyncio.Task[_Live] | None = None  # shared by all calls that wait for it
        self._errors: TextIO | None = None  # what the server wrote to its error stream

    def tools(self) -> list[Any]:
        """All tools of the server. Raises ConnectionError, TimeoutError, RuntimeError."""
        return _run(self._ask(_all_tools, self.server.start_seconds))

    def call(self, tool: str, arguments: Mapping[str, Any], *, again: bool = False) -> Any:
        """What one call gives, an `mcp.CallToolResult`.

        again: it may be carried out twice, and is sent a second time where the server goes away amid the first.

        Raises ToolError where the server refuses the arguments, TimeoutError, ConnectionAbortedError where the server
        goes away amid the call, ConnectionError where it cannot be reached, RuntimeError where it answers with any
        other error or with nonsense.
        """

        async def work(client: Any) -> Any:
            return await client.call_tool(tool, dict(arguments))

        async def asked() -> Any:
            try:
                return await self._ask(work, self.server.seconds)
            except ConnectionResetError:  # refused, so it has not been carried out
                pass
            except ConnectionAbortedError:
                if not again:
                    raise
            return await self._ask(work, self.server.seconds)

        return _run(asked())

    def close(self) -> None:
        """End the session, where one is open, and the server with it, where it was started here."""
        with contextlib.suppress(TimeoutError):
            _run(_closed(self._live), GOODBYE + 1)

    async def _ask(self, work: Callable[[Any], Awaitable[T]], seconds: float) -> T:
        live, name = await self._current(), self.server.name
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST

        self._trim_errors()
        try:
            return await asyncio.wait_for(work(live.client), seconds)
        except TimeoutError:
            _background(_probe(live))
            raise TimeoutError(f"MCP server {name!r} took longer than {seconds:g} seconds") from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError("bad_arguments", error.message) from error
            if error.code == INVALID_REQUEST and self.server.url:
                self._drop(live)  # it has been started anew and does not know the session
                raise ConnectionResetError(self._told(f"refused the session: {error.message}")) from error
            if error.code != CONNECTION_CLOSED:
                raise RuntimeError(f"MCP server {name!r} answers with error {error.code}: {error.message}") from error
            self._drop(live)
            raise ConnectionAbortedError(self._told("went away during the call")) from error
        except Exception as error:
            if isinstance(error, RuntimeError) and not live.ended.is_set():
                # what came does not fit the schema that the server gave of it
                raise RuntimeError(f"MCP server {name!r}: {error}") from error
            self._drop(live)  # what state the connection is in is not known
            raise ConnectionAbortedError(self._told(f"went away during the call: {_reason(error)}")) from error

    async def _current(self) -> _Live:
        if self._live is not None and not self._live.ended.is_set():
            return self._live
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[_Live]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._live = task.result()

    async def _open(self) -> _Live:
        try:
            from mcp import Client
        except ImportError as error:
            raise RuntimeError("tools of MCP servers need the mcp package (2.0 or later): install mmrl[mcp]") from error
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()

        async def hold() -> None:  # a session is left by the task that entered it
            try:
                async with Client(self._transport(ended), cache=None) as client:
                    ready.set_result(client)
                    await ended.wait()
            finally:
                ended.set()

        task = _background(hold())
        await asyncio.wait({task, ready}, timeout=self.server.start_seconds, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return _Live(ready.result(), ended, task)
        if not task.done():
            task.cancel()
            raise ConnectionError(self._told(f"did not start within {self.server.start_seconds:g} seconds"))
        cause = None if task.cancelled() else task.exception()
        why = _reason(cause) if cause else "it closed the connection"
        raise ConnectionError(self._told(f"cannot be reached: {why}")) from cause

    def _transport(self, ended: asyncio.Event) -> Any:
        if self.server.url:
            return _over_http(self.server)
        from mcp import StdioServerParameters, stdio_client

        if self._errors is None:
            self._errors = tempfile.TemporaryFile("a+")  # noqa: SIM115  it lives as long as the server
        self._errors.truncate(0)
        how = StdioServerParameters(
            command=self.server.command, args=list(self.server.args), env=dict(self.server.env), cwd=self.server.cwd
        )
        return _watched(stdio_client(how, errlog=self._errors), ended)

    def _drop(self, live: _Live) -> None:
        """Have the next call open a new session."""
        live.ended.set()
        _background(_closed(live))

    def _trim_errors(self) -> None:
        if self._errors is not None and os.fstat(self._errors.fileno()).st_size > ERRORS_KEPT:
            self._errors.truncate(0)  # the server appends

    def _told(self, what: str) -> str:
        """A message, with the end of what the server wrote to its error stream."""
        told = ""
        if self._errors is not None:
            file = self._errors.fileno()
            start = max(0, os.fstat(file).st_size - 4 * ERRORS_TOLD)
            told = os.pread(file, 4 * ERRORS_TOLD, start).decode(errors="replace")[-ERRORS_TOLD:].strip()
        return f"MCP server {self.server.name!r} {what}{f'; it wrote: {told}' if told else ''}"


def drain() -> None:
    """Wait until the sessions that have been told to end have ended, and their servers with them."""

    async def wait() -> None:
        others = _running - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=GOODBYE)

    with contextlib.suppress(TimeoutError):
        _run(wait(), GOODBYE + 1)


async def _closed(live: _Live | None) -> None:
    if live is not None:
        live.ended.set()
        await asyncio.wait([live.task], timeout=GOODBYE)


async def _probe(live: _Live) -> None:
    """End a session whose server does not answer at all any more."""
    try:
        await asyncio.wait_for(live.client.list_tools(), PROBE)
    except Exception:
        await _closed(live)


async def _all_tools(client: Any) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if (cursor := page.next_cursor) is None:
            return found


@contextlib.asynccontextmanager
async def _over_http(server: Server) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    async with (
        create_mcp_http_client(headers=dict(server.headers)) as client,
        streamable_http_client(server.url, http_client=client) as streams,
    ):
        yield streams


@contextlib.asynccontextmanager
async def _watched(transport: Any, ended: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
    """A transport that sets `ended` when the other side has closed its stream."""
    import anyio

    async with transport as (read, write):
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def pass_on() -> None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with send:
                    async for message in read:
                        await send.send(message)
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(pass_on)
            yield receive, write
            group.cancel_scope.cancel()


def _reason(error: BaseException) -> str:
    """The first cause within groups of exceptions, which task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mmrl-mcp", daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result(seconds)


_running: set[asyncio.Task[None]] = set()


def _background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    _running.add(task)  # the loop itself does not keep tasks alive
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[None]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # told by those who wait for it; unread ones would be printed
