"""Tools as the policy meets them: schemas in the system message, calls, and observations.

A tool is a function registered under its name with the JSON schema of its arguments and its limits:

    @register("tool", "flip", schema=schema("Mirror an image", {...}, ["image"]), limits=Limits(seconds=20))
    def flip(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult

It raises ToolError for what the policy did wrong. Every other exception is a fault of the tool. Neither leaves anything
behind: no media, no state. Tools are functions of their arguments, the dialogue's media and their settings, so results
are cached; one that keeps something in `context.state` is registered with `stateful=True`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from mmrl.media import image_ref, load_image
from mmrl.registry import Entry, get
from mmrl.rollout.arguments import short
from mmrl.types import Box, MediaRef, Sample, ToolResult

# ids that a running call gives to its new media, until the calls of its turn are put in order
_PENDING = re.compile("\ue000(image|video)([0-9]+)\ue001")
_PREFIX = {"image": "img", "video": "vid"}


class ToolError(Exception):
    """A call that the policy got wrong. `code` is short and stable; the message is read by the policy."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may take: seconds of wall time, characters of text, new pictures and clips."""

    seconds: float = 20.0
    text: int = 4000
    media: int = 8


@dataclass
class ToolContext:
    """What a tool may see and add to: the media of one dialogue.

    Args:
        media: all media of the dialogue by id; grows by `add`.
        seed: for tools that draw random numbers.
        decoded: decoded pictures by content hash, may be shared by the dialogues of a prompt.
        sample: what the dialogue is about, with its annotations in `meta`.
        state: what stateful tools remember in this dialogue, by tool; plain values, copied when a dialogue branches.
        settings: options of each tool, as a recipe sets them under `rollout.tool_options`.
        name: the tool that is running; its new media get their ids when all calls of the turn have ended.
    """

    media: dict[str, MediaRef]
    seed: int = 0
    decoded: dict[str, Image.Image] = field(default_factory=dict, repr=False)
    sample: Sample | None = None
    state: dict[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""

    @property
    def options(self) -> Mapping[str, Any]:
        """The settings of the tool that is running."""
        return self.settings.get(self.name, {})

    def image(self, id: Any) -> MediaRef:
        """The picture of this id. Raises ToolError that lists the ids there are."""
        return self._medium(id, "image")

    def video(self, id: Any) -> MediaRef:
        """The clip of this id. Raises ToolError that lists the ids there are."""
        return self._medium(id, "video")

    def _medium(self, id: Any, kind: str) -> MediaRef:
        ref = self.media.get(id) if isinstance(id, str) else None
        if ref is None or ref.kind != kind:
            ids = ", ".join(m.id for m in self.media.values() if m.kind == kind)
            raise ToolError(f"unknown_{kind}", f"no {kind} {short(id)}; there are: {ids or 'none'}")
        return ref

    def load(self, ref: MediaRef) -> Image.Image:
        """The picture as stored, upright RGB, decoded once."""
        if ref.hash not in self.decoded:
            self.decoded[ref.hash] = load_image(ref)
        return self.decoded[ref.hash]

    def add(self, image: Image.Image, parent: str = "", region: Box | None = None) -> MediaRef:
        """A new picture of the dialogue under the next free id; `region` is in pixels of the original `parent`."""
        ref = image_ref(self._free("image"), image, parent=parent, region=region)
        self.media[ref.id] = ref
        return ref

    def add_video(self, ref: MediaRef) -> MediaRef:
        """A clip (or a window of one, see `mmrl.media`) as a new medium under the next free id."""
        new = replace(ref, id=self._free("video"))
        self.media[new.id] = new
        return new

    def _free(self, kind: str) -> str:
        if not self.name:
            return f"{_PREFIX[kind]}_{_highest(self.media, kind) + 1}"
        return f"\ue000{kind}{sum(i.startswith(chr(0xE000)) for i in self.media)}\ue001"


def schema(description: str, properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """Description and parameters of a tool; units of coordinates belong into the words."""
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"description": description, "parameters": parameters}


def limits_of(entry: Entry) -> Limits:
    """The limits that a tool was registered with."""
    limits: Limits = entry.info.get("limits") or Limits()
    return limits


def settle(result: ToolResult, media: dict[str, MediaRef]) -> ToolResult:
    """Give the new media of a finished call their ids in the dialogue, in its text, its data and its media alike."""
    taken = {kind: _highest(media, kind) for kind in _PREFIX}
    named: dict[str, str] = {}
    for ref in result.media:
        if _PENDING.fullmatch(ref.id) and ref.id not in named:
            taken[ref.kind] += 1
            named[ref.id] = f"{_PREFIX[ref.kind]}_{taken[ref.kind]}"

    def final(text: str) -> str:
        return _PENDING.sub(lambda m: named.get(m.group(), "(not shown)"), text)

    refs = tuple(replace(r, id=final(r.id), parent=final(r.parent)) for r in result.media)
    media.update((r.id, r) for r in refs)
    return replace(result, text=final(result.text), media=refs, data=_renamed(result.data, final))


def _highest(media: Mapping[str, MediaRef], kind: str) -> int:
    pattern = re.compile(_PREFIX[kind] + "_([0-9]{1,9})")
    return max((int(m[1]) for i in media if (m := pattern.fullmatch(i))), default=0)


def _renamed(value: Any, final: Any) -> Any:
    if isinstance(value, str):
        return final(value)
    if isinstance(value, Mapping):
        return {k: _renamed(v, final) for k, v in value.items()}
    return [_renamed(v, final) for v in value] if isinstance(value, list | tuple) else value


def tool_schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """Name, description and parameters of each tool, in the function form of the Qwen chat templates."""
    return [{"type": "function", "function": {"name": n, **get("tool", n).info["schema"]}} for n in names]


def tools_prompt(names: Sequence[str]) -> str:
    """The part of the system message that offers tools: one schema a line, then the form of a call (Hermes, Qwen)."""
    lines = "\n".join(json.dumps(s) for s in tool_schemas(names))
    form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
    return f"<tools>\n{lines}\n</tools>\nCall a tool: {form}"


def observation(results: Sequence[ToolResult]) -> list[dict[str, Any]]:
    """The content of the user turn that answers calls: for each, in order, a <tool_response> and then its media."""
    parts: list[dict[str, Any]] = []
    for result in results:
        parts.append({"type": "text", "text": f"<tool_response>{clean(result.text)}</tool_response>"})
        parts += [{"type": ref.kind, "id": ref.id} for ref in result.media]
    return parts


def clean(text: str) -> str:
    """Text that can be encoded and that does not end its own <tool_response>: it may quote the policy."""
    text = text.encode("utf-8", "replace").decode()
    return re.sub(r"<(?=/?tool_(?:response|call)>)", "<\u200b", text)
