"""Tools as the policy meets them: schemas in the system message, calls, and observations.

A tool is a function registered under its name with the JSON schema of its arguments:

    @register("tool", "crop", schema={"description": ..., "parameters": {...}})
    def crop(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult

It raises ToolError for what the policy did wrong. Every other exception is a fault of the tool.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from mmrl.media import image_ref, load_image
from mmrl.registry import UnknownName, get, nearest
from mmrl.types import Box, Fault, FaultKind, MediaRef, ToolCall, ToolResult


class ToolError(Exception):
    """A call that the policy got wrong. `code` is short and stable; the message is read by the policy."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class ToolContext:
    """What a tool may see and add to: the media of one dialogue.

    Args:
        media: all media of the dialogue by id; grows by `add`.
        seed: for tools that draw random numbers.
        decoded: decoded pictures by content hash, may be shared by the dialogues of a prompt.
    """

    media: dict[str, MediaRef]
    seed: int = 0
    decoded: dict[str, Image.Image] = field(default_factory=dict, repr=False)

    def image(self, id: Any) -> MediaRef:
        """The picture of this id. Raises ToolError that lists the ids there are."""
        ref = self.media.get(id) if isinstance(id, str) else None
        if ref is None or ref.kind != "image":
            ids = ", ".join(m.id for m in self.media.values() if m.kind == "image")
            raise ToolError("unknown_image", f"no image {_short(id)}; there are: {ids or 'none'}")
        return ref

    def load(self, ref: MediaRef) -> Image.Image:
        """The picture as stored, upright RGB, decoded once."""
        if ref.hash not in self.decoded:
            self.decoded[ref.hash] = load_image(ref)
        return self.decoded[ref.hash]

    def add(self, image: Image.Image, parent: str = "", region: Box | None = None) -> MediaRef:
        """A new picture of the dialogue under the next free id; `region` is in pixels of the original `parent`."""
        taken = [int(m[1]) for i in self.media if (m := re.fullmatch(r"img_([0-9]{1,9})", i))]
        ref = image_ref(f"img_{max(taken, default=0) + 1}", image, parent=parent, region=region)
        self.media[ref.id] = ref
        return ref


def tool_schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """Name, description and parameters of each tool, in the function form of the Qwen chat templates."""
    return [{"type": "function", "function": {"name": n, **get("tool", n).info["schema"]}} for n in names]


def tools_prompt(names: Sequence[str]) -> str:
    """The part of the system message that offers tools: one schema a line, then the form of a call (Hermes, Qwen)."""
    lines = "\n".join(json.dumps(schema) for schema in tool_schemas(names))
    form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
    return f"<tools>\n{lines}\n</tools>\nCall a tool: {form}"


def call_tool(call: ToolCall, context: ToolContext, allowed: Sequence[str] | None = None) -> ToolResult:
    """Run one call. Never raises for what policy or tool did wrong: the result's text says it and `fault` records it.

    allowed: the tools on offer (None: every registered one).
    """
    if call.error is not None:
        return ToolResult(f"Error: {call.error.message}", fault=call.error)
    before = dict(context.media)
    try:
        if allowed is not None and call.name not in allowed:
            raise UnknownName(f"no tool named {_short(call.name)}: {nearest(call.name, list(allowed))}")
        entry = get("tool", call.name)
        check_arguments(call.arguments, entry.info["schema"]["parameters"])
        result: ToolResult = entry.obj(call.arguments, context)
        return result
    except UnknownName as error:
        fault = Fault(FaultKind.POLICY, "unknown_tool", str(error))
    except ToolError as error:
        fault = Fault(FaultKind.POLICY, error.code, error.message)
    except Exception as error:
        context.media.clear()  # half a result must not stay
        context.media.update(before)
        detail = f"{call.name} failed: {type(error).__name__}: {error}"
        return ToolResult(f"Error: {call.name} failed", fault=Fault(FaultKind.TOOL, "tool_failed", detail))
    return ToolResult(f"Error: {fault.message}", fault=fault)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise ToolError where arguments do not fit the schema: missing or unknown names, types, lengths, items."""
    properties = schema["properties"]
    for name in schema.get("required", ()):
        if name not in arguments:
            raise ToolError("bad_arguments", f"argument {name!r} is missing")
    for name, value in arguments.items():
        if name not in properties:
            raise ToolError("bad_arguments", f"unknown argument {_short(name)}; known: {', '.join(properties)}")
        _check_value(name, value, properties[name])


def _check_value(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    kind = schema["type"]
    fits = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits or (kind in ("number", "integer") and not abs(value) <= 1e9):  # nan fails too
        raise ToolError("bad_arguments", f"{name} must be of type {kind}, got {_short(value)}")
    if kind == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not low <= len(value) <= high:
            count = str(low) if low == high else f"{low} to {high}"
            raise ToolError("bad_arguments", f"{name} must have {count} items, got {len(value)}")
        for item in value:
            _check_value(f"each item of {name}", item, schema["items"])


def observation(results: Sequence[ToolResult]) -> list[dict[str, Any]]:
    """The content of the user turn that answers calls: for each, in order, a <tool_response> and then its media."""
    parts: list[dict[str, Any]] = []
    for result in results:
        parts.append({"type": "text", "text": f"<tool_response>{_clean(result.text)}</tool_response>"})
        parts += [{"type": ref.kind, "id": ref.id} for ref in result.media]
    return parts


def _clean(text: str) -> str:
    """Text that can be encoded and that does not end its own <tool_response>: it may quote the policy."""
    text = text.encode("utf-8", "replace").decode()
    return re.sub(r"<(?=/?tool_(?:response|call)>)", "<\u200b", text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
