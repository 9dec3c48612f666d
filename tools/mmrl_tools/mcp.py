"""The tools of MCP servers (Model Context Protocol) as tools of a policy (extra `mmrl[mcp]`).

    connect({"maps": {"command": "maps-server", "args": ["--offline"]}, "wiki": {"url": "http://127.0.0.1:8000/mcp"}})

starts or reaches the servers and registers each of their tools as `server.tool`, with the server's own schema; what is
no letter, digit or _ in a tool's name becomes _, so that calls can be written in every form. Calls are checked against
the schema; results are text and pictures as those of any other tool. They are not cached, and calls of a turn run one
after the other, since a server may remember (`stateful`); what it remembers is not taken back when a dialogue branches.

A server that dies is started again by the next call. The call that it died amid is sent again where the server says
that the tool only reads or may be repeated, or the recipe that the server is not `stateful`; else it is a fault
(server_gone), as are a time-out (timeout) and an answer that makes no sense (server_error).
"""

from __future__ import annotations

import atexit
import base64
import binascii
import json
import math
import os
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from PIL import Image

from mmrl.media import MediaError, normalise_image
from mmrl.registry import nearest, register
from mmrl.rollout.tools import Limits, ToolContext, ToolError
from mmrl.types import Fault, FaultKind, MediaRef, ToolResult
from mmrl_tools.geometry import MAX_RATIO, MIN_SIDE
from mmrl_tools.mcp_schema import parameters
from mmrl_tools.mcp_session import Server, Session, drain

MOST_PICTURES = 8  # of one result
MOST_PIXELS = 4_194_304  # of one picture
MOST_ERROR = 2000  # characters of an error of a tool
MOST_VALUE = 20_000  # characters of a structured value that is kept in `data`
SLACK = 5.0  # seconds beyond its own limit after which a call is given up

_sessions: dict[str, Session] = {}


def connect(servers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Register the tools of servers, each given by its name with the fields of `Server`. Returns the tools' names.

    Raises ValueError for a wrong description, ConnectionError for a server that cannot be reached.
    """
    described = [server_of(name, how) for name, how in servers.items()]
    return [tool for server in described for tool in _register(server)]


def register_server(name: str, **how: Any) -> list[str]:
    """`connect` for one server: register_server("maps", command="maps-server", args=["--offline"])."""
    return connect({name: how})


def disconnect(name: str | None = None) -> None:
    """End the session of one server, or all sessions. A later call of one of its tools opens a new one."""
    for server, session in list(_sessions.items()):
        if name in (None, server):
            session.close()
    if name is None and _sessions:
        drain()


atexit.register(disconnect)


def server_of(name: str, how: Mapping[str, Any]) -> Server:
    """A server as a recipe describes it. In `env` and `headers`, $NAME stands for a variable of this process (and $$
    for $), so that recipes need hold no secrets. Raises ValueError."""
    where = f"MCP server {name!r}"
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{where}: a name is made of letters, digits and _, a letter first")
    if not isinstance(how, Mapping):
        raise ValueError(f"{where}: give a mapping with command and args, or with url")
    known = [f.name for f in fields(Server) if f.name != "name"]
    for key, value in how.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}: {nearest(str(key), known)}")
        wrong = _wrong(key, value)
        if wrong:
            raise ValueError(f"{where}: {key} is {value!r}: {wrong}")
    if bool(how.get("command")) == bool(how.get("url")):
        raise ValueError(f"{where}: give either command or url")
    fixed = ("env", "args", "cwd") if how.get("url") else ("headers",)
    if idle := [key for key in fixed if how.get(key)]:
        raise ValueError(f"{where}: {idle[0]} means nothing to a {'url' if how.get('url') else 'command'}: remove it")
    filled = {key: _filled(where, key, how[key]) for key in ("env", "headers") if key in how}
    return Server(name, **{**how, "args": tuple(how.get("args", ())), **filled})


def _filled(where: str, key: str, texts: Mapping[str, str]) -> dict[str, str]:
    try:
        return {name: string.Template(text).substitute(os.environ) for name, text in texts.items()}
    except KeyError as error:
        raise ValueError(f"{where}: {key} needs the environment variable {error.args[0]}: set it") from None
    except ValueError as error:
        raise ValueError(f"{where}: {key}: {error}; write $$ for a $ of its own") from None


def _wrong(key: str, value: Any) -> str:
    """What a field of a server's description should be, where it is not."""
    if key in ("seconds", "start_seconds"):
        right = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= 3600
        return "" if right else "give a number over 0, up to 3600"
    if key == "stateful":
        return "" if isinstance(value, bool) else "give true or false"
    if key == "args":
        right = isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        return "" if right else "give a list of words"
    if key in ("env", "headers"):
        right = isinstance(value, Mapping) and all(isinstance(v, str) for v in (*value, *value.values()))
        return "" if right else "give a mapping of words to words"
    return "" if isinstance(value, str) else "give a text"


def _register(server: Server) -> list[str]:
    session = Session(server)
    try:
        listed = session.tools()
        tools = {_tool_name(server, tool.name): tool for tool in listed}
        if len(tools) < len(listed):
            raise ValueError(f"MCP server {server.name!r}: two of its tools have the same name: {', '.join(tools)}")
    except BaseException:
        session.close()
        raise
    old, _sessions[server.name] = _sessions.get(server.name), session
    if old is not None:
        old.close()
    for name, tool in tools.items():
        shape = {"description": tool.description or tool.title or "", "parameters": parameters(tool.input_schema)}
        hints = tool.annotations
        again = not server.stateful or bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        seconds = (server.start_seconds + server.seconds) * (1 + again) + SLACK
        call = _caller(server.name, tool.name, again)
        limits = Limits(seconds=seconds, media=MOST_PICTURES)
        register("tool", name, schema=shape, limits=limits, stateful=server.stateful)(call)
    return list(tools)


def _tool_name(server: Server, tool: str) -> str:
    return f"{server.name}.{re.sub('[^A-Za-z0-9_]', '_', tool)}"


def _caller(server: str, tool: str, again: bool) -> Callable[[Mapping[str, Any], ToolContext], ToolResult]:
    def call(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            json.dumps(arguments, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ToolError("bad_arguments", "a text holds half of a character (\\ud800 to \\udfff)") from None
        try:
            return result_of(_sessions[server].call(tool, arguments, again=again), context)
        except TimeoutError as error:
            return _fault("timeout", str(error), error)
        except ConnectionAbortedError as error:
            return _fault("server_gone", f"MCP server {server!r} went away; what the call did is not known", error)
        except ConnectionError as error:
            return _fault("server_gone", f"MCP server {server!r} cannot be reached now", error)
        except RuntimeError as error:
            return _fault("server_error", f"MCP server {server!r} failed", error)

    call.__doc__ = f"`{tool}` of the MCP server {server!r}."
    return call


def _fault(code: str, told: str, error: Exception) -> ToolResult:
    return ToolResult(f"Error: {told}", fault=Fault(FaultKind.TOOL, code, str(error)))


def result_of(found: Any, context: ToolContext) -> ToolResult:
    """What a server gave (an `mcp.CallToolResult`): its texts in order, its pictures as new media. What cannot be
    shown is named in the text.

    `data`: `structured`, where the server gave a value beside the text that is not too long. Raises ToolError
    tool_error where the tool reports an error.
    """
    if found.is_error:
        text = "\n".join(t for block in found.content if (t := _text(block)))
        cut = f" [cut: {MOST_ERROR} of {len(text)} characters]" if len(text) > MOST_ERROR else ""
        raise ToolError("tool_error", text[:MOST_ERROR] + cut or "the tool reports an error and does not say which")
    texts: list[str] = []
    refs: list[MediaRef] = []
    for block in found.content:
        text, ref = _picture(block.data, context) if block.type == "image" else (_text(block), None)
        texts += [text] if text else []
        refs += [ref] if ref is not None else []
    value = found.structured_content
    if value is None:
        return ToolResult("\n".join(texts) or "done", tuple(refs))
    written = json.dumps(value, ensure_ascii=False)
    data = {"structured": value} if len(written) <= MOST_VALUE else {"structured_left_out": len(written)}
    return ToolResult("\n".join(texts) or written, tuple(refs), data=data)


def _text(block: Any) -> str:
    """A part of a result that is no picture."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    inner = getattr(block, "resource", block)
    if getattr(inner, "text", None) is not None:
        return str(inner.text)
    return f"[left out: {block.type} of type {getattr(inner, 'mime_type', None) or 'unknown'}]"


def _picture(encoded: str, context: ToolContext) -> tuple[str, MediaRef | None]:
    """A picture of a result as a new one of the dialogue, in a size that processors take, and what is told of it."""
    try:
        image, _ = normalise_image(base64.b64decode(encoded, validate=True))
    except (binascii.Error, MediaError) as error:
        reason = error.code if isinstance(error, MediaError) else "not base64"
        return f"[left out: a picture that cannot be read ({reason})]", None
    width, height = image.size
    if max(image.size) > MAX_RATIO * min(image.size):
        return f"[left out: a picture of {width}x{height} pixels, one side over {MAX_RATIO} times the other]", None
    scale = max(min(1.0, math.sqrt(MOST_PIXELS / (width * height))), MIN_SIDE / min(image.size))
    if scale == 1:
        ref = context.add(image)
        return f"{ref.id}: {width}x{height}", ref
    size = (max(MIN_SIDE, math.floor(width * scale)), max(MIN_SIDE, math.floor(height * scale)))
    ref = context.add(image.resize(size, Image.Resampling.BICUBIC))
    return f"{ref.id}: {ref.width}x{ref.height}, resized from {width}x{height}", ref
