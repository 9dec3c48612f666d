"""An MCP server for test_mcp.py, over standard streams or on a port: echoes, counts, pictures, errors, ways to die."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import sys
import time

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import AudioContent, CallToolResult, ImageContent, TextContent, ToolAnnotations
from PIL import Image as Picture

server = MCPServer("test", log_level="CRITICAL")
count = waiting = 0


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Picture.new("RGB", (width, height), (10, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()


@server.tool()
def echo(text: str, times: int = 1) -> str:
    """Say a text again"""
    return " ".join([text] * times)


@server.tool()
def counted() -> str:
    """How often this process was asked"""
    global count
    count += 1
    return f"{os.getpid()} {count}"


@server.tool()
def square(width: int, height: int) -> Image:
    """A green picture"""
    return Image(data=png(width, height), format="png")


@server.tool()
def mixed() -> CallToolResult:
    """Text, a picture, a broken picture, sound"""
    good = base64.b64encode(png(40, 30)).decode()
    cut = base64.b64encode(png(40, 30)[:60]).decode()
    return CallToolResult(
        content=[
            TextContent(text="before"),
            ImageContent(data=good, mime_type="image/png"),
            ImageContent(data=cut, mime_type="image/png"),
            AudioContent(data="AAAA", mime_type="audio/wav"),
            TextContent(text="after"),
        ]
    )


@server.tool()
def refuse() -> CallToolResult:
    """An error of the tool"""
    return CallToolResult(content=[TextContent(text="no such place: Atlantis")], is_error=True)


@server.tool()
def slow(seconds: float) -> str:
    """Wait"""
    time.sleep(seconds)
    return "done"


async def held_up(file: str) -> None:
    global waiting
    waiting += 1
    while file and os.path.exists(file):
        await asyncio.sleep(0.01)
    waiting -= 1


@server.tool("look-up", annotations=ToolAnnotations(read_only_hint=True))
async def look_up(what: str, file: str = "") -> str:
    """Only read, when the file has gone"""
    await held_up(file)
    return f"{what} {os.getpid()}"


@server.tool()
async def wait(file: str) -> str:
    """Wait until the file has gone"""
    await held_up(file)
    return "done"


@server.tool()
async def held() -> str:
    """How many calls wait"""
    return str(waiting)


@server.tool()
def variable(name: str) -> str:
    """A variable of this process"""
    return os.environ.get(name, "")


@server.tool()
def die() -> str:
    """End the process in the middle of a call"""
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
