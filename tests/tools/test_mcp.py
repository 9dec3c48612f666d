"""Tools of a real MCP server, started by the test: results, errors, time-outs, and its death between and amid calls."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import load_image
from mmrl.registry import get
from mmrl.rollout import ToolContext, call_tool, tool_schemas
from mmrl.rollout.arguments import BadArguments, check_arguments
from mmrl.rollout.calls import Tools
from mmrl.rollout.tools import ToolError
from mmrl.types import FaultKind, ToolCall, ToolResult
from mmrl_tools.mcp import connect, disconnect, register_server, result_of, server_of
from mmrl_tools.mcp_schema import parameters

mcp = pytest.importorskip("mcp")

SCRIPT = Path(__file__).parent / "mcp_test_server.py"
HOW: dict[str, Any] = {"command": sys.executable, "args": [str(SCRIPT)], "seconds": 5}


@pytest.fixture(scope="module", autouse=True)
def names() -> Iterator[list[str]]:
    yield connect({"it": HOW})
    disconnect()


def call(name: str, where: ToolContext | None = None, **arguments: Any) -> ToolResult:
    return call_tool(ToolCall(f"it.{name}", arguments), where or ToolContext({}))


def process() -> tuple[int, int]:
    """The server's process and how often it was asked."""
    result = call("counted")
    assert result.fault is None, result.fault
    pid, count = result.text.split()
    return int(pid), int(count)


def killed(pid: int) -> None:
    """Kill the server and wait until it is gone, for half a second at most."""
    os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        time.sleep(0.01)
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            break
    time.sleep(0.05)  # for the end of its stream to arrive


def test_every_tool_is_registered_under_its_server_with_its_own_schema(names: list[str]) -> None:
    tools = ("echo", "counted", "square", "mixed", "refuse", "slow", "look_up", "wait", "held", "variable", "die")
    assert names == [f"it.{tool}" for tool in tools]
    (schema,) = tool_schemas(["it.echo"])
    assert schema["function"] == {
        "name": "it.echo",
        "description": "Say a text again",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
            "required": ["text"],
        },
    }
    assert get("tool", "it.echo").info["stateful"] is True


def test_text_and_structured_results() -> None:
    result = call("echo", text="hello", times=2)
    assert (result.text, result.fault, result.media) == ("hello hello", None, ())
    assert result.data == {"structured": {"result": "hello hello"}}


def test_results_are_never_taken_from_a_cache() -> None:
    (pid, first), (same, second) = process(), process()
    assert (same, second) == (pid, first + 1)


def test_pictures_become_media_of_the_dialogue() -> None:
    where = ToolContext({})
    result = call("mixed", where)
    assert result.fault is None
    assert [(m.id, m.width, m.height) for m in result.media] == [("img_1", 40, 30)]
    assert load_image(where.media["img_1"]).getpixel((0, 0)) == (10, 200, 30)
    assert result.text.splitlines() == [
        "before",
        "img_1: 40x30",
        "[left out: a picture that cannot be read (truncated)]",
        "[left out: audio of type audio/wav]",
        "after",
    ]


@pytest.mark.parametrize(
    ("size", "shown", "told"),
    [
        ((2, 4), (28, 56), "img_1: 28x56, resized from 2x4"),
        ((3000, 3000), (2048, 2048), "img_1: 2048x2048, resized from 3000x3000"),
        ((1010, 10), None, "[left out: a picture of 1010x10 pixels, one side over 100 times the other]"),
        ((4000, 4), None, "[left out: a picture that cannot be read (ratio)]"),
    ],
)
def test_pictures_have_a_size_that_processors_take(size: tuple[int, int], shown: Any, told: str) -> None:
    result = call("square", width=size[0], height=size[1])
    assert result.fault is None
    assert [(m.width, m.height) for m in result.media] == ([shown] if shown else [])
    assert result.text == told


def test_an_error_of_the_tool_is_read_by_the_policy() -> None:
    result = call("refuse")
    assert result.text == "Error: no such place: Atlantis"
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "tool_error")


@pytest.mark.parametrize("arguments", [{}, {"text": 3}, {"text": "a", "times": "x"}, {"text": "a", "time": 2}])
def test_wrong_arguments_do_not_reach_the_server(arguments: dict[str, Any]) -> None:
    before = process()[1]
    result = call("echo", **arguments)
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "bad_arguments")
    assert process()[1] == before + 1


def test_killed_between_calls_it_is_started_anew() -> None:
    pid, _ = process()
    killed(pid)
    result = call("echo", text="again")
    assert (result.text, result.fault) == ("again", None)
    assert process()[0] != pid


def test_killed_amid_a_call_that_call_fails_and_the_next_one_works() -> None:
    pid, _ = process()
    result = call("die")
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.TOOL, "server_gone")
    assert result.text == "Error: MCP server 'it' went away; what the call did is not known"
    assert "MCP server 'it' went away during the call" in result.fault.message
    assert "out of paper" in result.fault.message
    assert process()[0] != pid


def all_held(server: str, calls: int) -> None:
    """Wait until the server is amid so many calls, for four seconds at most."""
    for _ in range(200):
        if call_tool(ToolCall(f"{server}.held", {}), ToolContext({})).text == str(calls):
            return
        time.sleep(0.02)
    raise AssertionError(f"the server is not amid {calls} calls")


def test_calls_that_only_read_outlive_the_server(tmp_path: Path) -> None:
    """Eight dialogues wait for a look-up when the server is killed, and each gets its own answer; a call that may have
    been carried out is not sent again, and the calls after it in its turn run."""
    pid, _ = process()
    file = tmp_path / "wait"
    file.touch()
    with Tools() as tools:
        reads = [
            tools.submit([ToolCall("it.look_up", {"what": str(n), "file": str(file)})], ToolContext({}))
            for n in range(8)
        ]
        turn = [ToolCall("it.wait", {"file": str(file)}), ToolCall("it.echo", {"text": "after"})]
        other = tools.submit(turn, ToolContext({}))
        all_held("it", 9)
        killed(pid)
        file.unlink()
        found = [r.result()[0] for r in reads]
        lost, after = other.result()
    assert [r.fault for r in found] == [None] * 8
    assert [r.text for r in found] == [f"{n} {process()[0]}" for n in range(8)]
    assert process()[0] != pid
    assert lost.fault is not None
    assert lost.fault.code == "server_gone"
    assert (after.text, after.fault) == ("after", None)


def test_a_server_without_state_is_cached_and_asked_again(tmp_path: Path) -> None:
    names = connect({"reads": {**HOW, "stateful": False}})
    assert {get("tool", name).info["stateful"] for name in names} == {False}
    asked = ToolCall("reads.echo", {"text": "a"})
    assert [call_tool(asked, ToolContext({})).cached for _ in range(2)] == [False, True]
    dead = call_tool(ToolCall("reads.die", {}), ToolContext({}))  # and dies again when it is asked again
    assert dead.fault is not None
    assert dead.fault.code == "server_gone"
    assert call_tool(ToolCall("reads.wait", {"file": ""}), ToolContext({})).text == "done"
    disconnect("reads")


def test_a_server_that_does_not_start_again_is_a_fault(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SCRIPT.read_text())
    connect({"gone": {**HOW, "args": [str(script)]}})
    disconnect("gone")
    script.unlink()
    result = call_tool(ToolCall("gone.echo", {"text": "a"}), ToolContext({}))
    assert result.fault is not None
    assert (result.fault.code, result.text) == ("server_gone", "Error: MCP server 'gone' cannot be reached now")
    assert "No such file" in result.fault.message


def test_a_server_over_http_that_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # with the handshake of older servers, which remember sessions: one started anew knows none
    monkeypatch.setattr(mcp, "Client", functools.partial(mcp.Client, mode="legacy"))
    server = served(port)
    try:
        connect({"web": {"url": f"http://127.0.0.1:{port}/mcp", "seconds": 5}})

        def echo(text: str) -> ToolResult:
            return call_tool(ToolCall("web.echo", {"text": text}), ToolContext({}))

        assert echo("first").text == "first"
        stopped(server)
        server = served(port)
        assert (echo("again").text, echo("once more").text) == ("again", "once more")
        stopped(server)
        away = echo("away")
        assert away.fault is not None
        assert away.fault.code == "server_gone"
    finally:
        disconnect("web")
        stopped(server)


def served(port: int) -> subprocess.Popen[bytes]:
    """The server of this test on a port, when it answers."""
    server = subprocess.Popen([sys.executable, str(SCRIPT), str(port)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        time.sleep(0.05)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server
    server.kill()
    raise AssertionError("the server of the test did not start")


def stopped(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def test_variables_reach_the_server_and_headers_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_TEST_KEY", "s3cret")
    connect({"env": {**HOW, "env": {"KEY": "$MMRL_TEST_KEY", "PRICE": "$$5"}}})
    read = [call_tool(ToolCall("env.variable", {"name": n}), ToolContext({})).text for n in ("KEY", "PRICE")]
    assert read == ["s3cret", "$5"]
    disconnect("env")
    assert "s3cret" not in repr(server_of("x", {"url": "http://x", "headers": {"A": "$MMRL_TEST_KEY"}}))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        how = {"url": url, "headers": {"Authorization": "Bearer ${MMRL_TEST_KEY}"}, "start_seconds": 0.5}
        asked = pool.submit(connect, {"head": how})
        connection, _ = listener.accept()
        with connection:
            assert b"\r\nauthorization: bearer s3cret\r\n" in connection.recv(8192).lower()
            with pytest.raises(ConnectionError, match="MCP server 'head'"):
                asked.result()


def test_calls_of_many_threads_share_one_server() -> None:
    killed(process()[0])
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: call("echo", text=str(n)).text, range(24)))
        pids = {pid for pid, _ in pool.map(lambda _: process(), range(8))}
    assert texts == [str(n) for n in range(24)]
    assert len(pids) == 1


def test_a_call_that_takes_too_long_is_a_fault_and_the_server_lives_on() -> None:
    connect({"brief": {**HOW, "seconds": 0.3}})
    before = call_tool(ToolCall("brief.echo", {"text": "a"}), ToolContext({}))
    assert before.text == "a"
    late = call_tool(ToolCall("brief.slow", {"seconds": 0.8}), ToolContext({}))
    assert late.fault is not None
    assert (late.fault.kind, late.fault.code) == (FaultKind.TOOL, "timeout")
    assert late.text == "Error: MCP server 'brief' took longer than 0.3 seconds"
    assert call_tool(ToolCall("brief.echo", {"text": "b"}), ToolContext({})).text == "b"
    disconnect("brief")


def test_disconnected_servers_end_and_come_back_on_demand() -> None:
    pid, _ = process()
    disconnect("it")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert process()[0] != pid


def test_servers_that_cannot_be_reached() -> None:
    with pytest.raises(ConnectionError, match="MCP server 'none' cannot be reached: FileNotFoundError"):
        register_server("none", command="/no/such/program")
    code = "import sys; print('no licence', file=sys.stderr); sys.exit(1)"
    with pytest.raises(ConnectionError, match=r"(?s)MCP server 'ends' .*; it wrote: no licence"):
        register_server("ends", command=sys.executable, args=["-c", code])
    with pytest.raises(ConnectionError, match=r"'mute' did not start within 0\.5 seconds"):
        register_server("mute", command=sys.executable, args=["-c", "import time; time.sleep(60)"], start_seconds=0.5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "give either command or url"),
        ({"command": "a", "url": "b"}, "give either command or url"),
        ({"comand": "a"}, "did you mean 'command'"),
        ({"command": "a", "args": "-x"}, "args is '-x': give a list of words"),
        ({"command": "a", "seconds": 0}, "seconds is 0"),
        ({"command": "a", "env": {"A": 1}}, "give a mapping of words to words"),
        ({"command": 3}, "command is 3: give a text"),
        ({"command": "a", "stateful": 1}, "give true or false"),
        ({"command": "a", "headers": {"A": "b"}}, "headers means nothing to a command"),
        ({"url": "a", "cwd": "b"}, "cwd means nothing to a url"),
        ({"command": "a", "env": {"A": "$MMRL_NOT_SET"}}, "env needs the environment variable MMRL_NOT_SET"),
        ({"command": "a", "env": {"A": "5$"}}, "write $$ for a $"),
        ("a", "give a mapping with command and args"),
    ],
)
def test_descriptions_that_are_wrong(how: Any, message: str) -> None:
    with pytest.raises(ValueError, match="MCP server 'x'") as error:
        server_of("x", how)
    assert message in str(error.value)
    for name in ("a b", "a-b", "1a", ""):
        with pytest.raises(ValueError, match="a name is made of"):
            server_of(name, {"command": "a"})


def test_schemas_of_servers_are_made_safe_to_check() -> None:
    schema = {
        "$schema": "x",
        "title": "Arguments",
        "properties": {
            "title": {"type": "string", "title": "Title"},
            "any": True,
            "pair": {"type": "array", "items": [{"type": "string"}]},
            "odd": {"type": "file"},
            "either": {"anyOf": [{"type": "integer", "title": "I"}, {"type": "null"}]},
        },
        "required": ["title"],
    }
    lean = parameters(schema)
    assert lean["properties"] == {
        "title": {"type": "string"},
        "any": {},
        "pair": {"type": "array"},
        "odd": {},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    check_arguments({"title": "a", "any": [1], "pair": [1, "b"], "odd": 3, "either": None}, lean)
    with pytest.raises(BadArguments, match="either"):
        check_arguments({"title": "a", "either": "b"}, lean)
    check_arguments({"whatever": 1}, parameters({"type": "object"}))
    check_arguments({"deep": {"a": 1}}, parameters({"properties": {"deep": {"type": "object", "properties": {}}}}))
    check_arguments({"a": 1, "x": 2}, parameters({"properties": {"a": {}}, "patternProperties": {"^x": {}}}))
    check_arguments({"a": 1, "x": 2}, parameters({"properties": {"a": {}}, "additionalProperties": {}}))
    check_arguments({"b": 2}, parameters({"properties": {"a": {}}, "required": ["b"]}))
    for closed in ({"properties": {"a": {}}}, {"additionalProperties": False}):
        with pytest.raises(BadArguments, match="unknown argument 'x'"):
            check_arguments({"x": 2}, parameters(closed))


def test_results_in_other_forms() -> None:
    from mcp.types import (
        BlobResourceContents,
        CallToolResult,
        EmbeddedResource,
        ResourceLink,
        TextContent,
        TextResourceContents,
    )

    def told(*content: Any, **more: Any) -> ToolResult:
        return result_of(CallToolResult(content=list(content), **more), ToolContext({}))

    assert told().text == "done"
    assert told(structured_content={"a": 1}).text == '{"a": 1}'
    long = told(TextContent(text="see"), structured_content={"a": "x" * 30_000})
    assert (long.text, long.data) == ("see", {"structured_left_out": 30_009})
    assert told(ResourceLink(name="map", uri="file:///map")).text == "[map: file:///map]"
    page = EmbeddedResource(resource=TextResourceContents(uri="file:///a", text="words"))
    blob = EmbeddedResource(resource=BlobResourceContents(uri="file:///b", blob="AAAA", mime_type="font/ttf"))
    assert told(page, blob).text == "words\n[left out: resource of type font/ttf]"
    with pytest.raises(ToolError) as error:
        told(TextContent(text="x" * 5000), is_error=True)
    assert error.value.message == "x" * 2000 + " [cut: 2000 of 5000 characters]"
    with pytest.raises(ToolError, match="does not say which"):
        told(is_error=True)


def test_a_server_that_writes_nonsense_and_much() -> None:
    """What is no message on its standard output is passed over; its error stream is kept within bounds."""
    code = f"""
import sys, runpy
print("Welcome!", flush=True)
sys.stderr.write("e" * 3_000_000)
sys.argv = ["server"]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    connect({"loud": {**HOW, "args": ["-c", code]}})
    assert call_tool(ToolCall("loud.echo", {"text": "a"}), ToolContext({})).text == "a"
    result = call_tool(ToolCall("loud.die", {}), ToolContext({}))
    assert result.fault is not None
    assert "out of paper" in result.fault.message
    assert len(result.fault.message) < 1000
    disconnect("loud")


# --- whatever a policy or a server may write --------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = "type enum required properties items anyOf oneOf allOf additionalProperties minimum maxLength minItems $ref"
SCHEMAS = st.recursive(
    st.sampled_from(["string", "object", "integer", "file", True, 3, None]) | st.just(["string", "null"]) | VALUES,
    lambda inner: (
        st.dictionaries(st.sampled_from(KEYWORDS.split()), inner, max_size=4)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)
NAMED = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(SCHEMAS, st.dictionaries(st.sampled_from("abc"), SCHEMAS, max_size=3), NAMED)
@settings(max_examples=150, deadline=None)
def test_no_schema_makes_the_check_fail(schema: Any, properties: dict[str, Any], arguments: dict[str, Any]) -> None:
    lean = parameters({**schema, "properties": properties} if isinstance(schema, dict) else schema)
    with contextlib.suppress(BadArguments):
        check_arguments(arguments, lean)
    assert parameters(lean) == lean
    json.dumps(lean)


@given(
    st.sampled_from(["echo", "square", "look_up", "variable", "refuse", "none"]),
    st.dictionaries(
        st.sampled_from(["text", "times", "width", "height", "what", "name"]),
        st.integers(-5, 60) | st.text(st.characters(), max_size=8) | VALUES,
        max_size=3,
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_arguments_make_a_call_fail(tool: str, arguments: dict[str, Any]) -> None:
    result = call_tool(ToolCall(f"it.{tool}", arguments), ToolContext({}))
    assert result.fault is None or result.fault.kind is FaultKind.POLICY, result.fault


def test_half_characters_are_refused() -> None:
    result = call("echo", text="a\ud800")
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "bad_arguments")
