"""`mmrl tools`: the schemas of tools, and one call from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmrl.config import ConfigError, RolloutConfig, key_value, load_config
from mmrl.registry import UnknownName, entries, get, load_plugins, nearest

if TYPE_CHECKING:
    from mmrl.types import MediaRef

app = typer.Typer(help="The tools that a policy may call.", no_args_is_help=True)


Recipe = Annotated[str | None, typer.Option("--recipe", "-r", help="a recipe, for its MCP servers and tool settings")]


def connect_servers(servers: dict[str, dict[str, Any]]) -> None:
    """Start or reach the MCP servers of a recipe, so that their tools are known by name. Raises ConfigError."""
    if not servers:
        return
    load_plugins()
    from mmrl_tools.mcp import connect

    try:
        connect(servers)
    except (ValueError, ConnectionError, TimeoutError, RuntimeError) as error:
        raise ConfigError(f"rollout.mcp: {error}") from error


@app.command("list")
def list_tools(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="only these")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="their JSON schemas, one a line, as a prompt shows them")
    ] = False,
    recipe: Recipe = None,
) -> None:
    """List tools with their arguments and limits.

    Example: mmrl tools list crop zoom --schema
    """
    if recipe:
        connect_servers(load_config(recipe).rollout.mcp)
    known = [e.name for e in entries("tool")]
    for name in names or []:
        if name not in known:
            raise UnknownName(f"no tool named {name!r}: {nearest(name, known)}")
    shown = sorted(names or known)
    if schema:
        from mmrl.rollout import tool_schemas

        for line in tool_schemas(shown):
            print(json.dumps(line, ensure_ascii=False))
        return
    from mmrl.rollout.tools import limits_of

    table = Table("tool", "arguments", "limits", "what it does", box=None, header_style="bold")
    for name in shown:
        entry = get("tool", name)
        parameters = entry.info["schema"]["parameters"]
        required = parameters.get("required", ())
        arguments = [n if n in required else f"[{n}]" for n in parameters.get("properties", {})]
        limits = limits_of(entry)
        bounds = f"{limits.seconds:g} s, {limits.text} chars, {limits.media} media"
        table.add_row(name, escape(" ".join(arguments)), bounds, escape(entry.info["schema"]["description"]))
    Console(width=None if Console().is_terminal else 200).print(table)


@app.command("call")
def call(
    name: Annotated[str, typer.Argument(help="name of the tool")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="arguments of the call")] = "{}",
    media: Annotated[
        list[Path] | None,
        typer.Option("--media", "-m", help="pictures (img_1, img_2 ...) and clips (vid_1 ...), in order"),
    ] = None,
    meta: Annotated[str, typer.Option(help="annotations of the sample as JSON, or a file of it")] = "{}",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="settings of the tool")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the pictures that the tool makes")] = Path(),
    seed: Annotated[int, typer.Option(help="for tools that draw random numbers")] = 0,
    recipe: Recipe = None,
) -> None:
    r"""Run one call: the observation as the policy reads it, then the result as JSON; pictures are written to files.

    Exit code 1 when the call went wrong.

    Example: mmrl tools call crop '{"image": "img_1", "box": \[0, 0, 500, 500]}' --media photo.jpg
    """
    from mmrl.rollout import ToolContext, call_tool
    from mmrl.rollout.events import media_event
    from mmrl.types import Answer, Sample, ToolCall

    rollout = load_config(recipe).rollout if recipe else RolloutConfig()
    connect_servers(rollout.mcp)
    known = [e.name for e in entries("tool")]
    if name not in known:
        raise UnknownName(f"no tool named {name!r}: {nearest(name, known)}")
    given = _object("JSON", arguments)
    notes = _object("--meta", Path(meta).read_text() if Path(meta).is_file() else meta)
    options = dict(key_value(o, "--option") for o in option or [])
    refs = _media(media or [])
    sample = Sample("shell", tuple(refs), (), Answer("text", ""), "", notes)
    context = ToolContext(
        {r.id: r for r in refs},
        seed,
        sample=sample,
        settings={**rollout.tool_options, name: {**rollout.tool_options.get(name, {}), **options}},
    )
    result = call_tool(ToolCall(name, given), context)
    files = {ref.id: _written(ref, out) for ref in result.media}
    print(result.text)
    record = {
        "error": result.fault.code if result.fault else None,
        "message": result.fault.message if result.fault else None,
        "data": dict(result.data),
        "media": [media_event(ref) | ({"file": path} if (path := files[ref.id]) else {}) for ref in result.media],
        "seconds": round(result.seconds, 4),
    }
    print(json.dumps({k: v for k, v in record.items() if v is not None}, ensure_ascii=False, default=str))
    if result.fault is not None:
        raise typer.Exit(1)


def _object(what: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: an object {{...}} is wanted, got {text[:60]}")
    return value


def _media(paths: list[Path]) -> list[MediaRef]:
    """The files as media, each under the next id of its kind."""
    from mmrl.media import MediaError, file_ref

    refs: list[MediaRef] = []
    for path in paths:
        try:
            refs.append(file_ref(f"img_{1 + sum(r.kind == 'image' for r in refs)}", path, "image"))
        except MediaError as no_picture:
            try:
                refs.append(file_ref(f"vid_{1 + sum(r.kind == 'video' for r in refs)}", path, "video"))
            except MediaError as no_video:
                reason = no_picture if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".gif") else no_video
                raise ConfigError(f"--media {path}: {reason}") from reason
    return refs


def _written(ref: MediaRef, out: Path) -> str | None:
    """The file of a new picture; a window of a clip has none."""
    if ref.kind != "image" or ref.data is None:
        return None
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{ref.id}.png"
    path.write_bytes(ref.data)
    return str(path)
