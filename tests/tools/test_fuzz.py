"""Random calls of every tool: a result each time, within the limits of the tool, that both model families can read."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fuzzing import Scene, arguments, deep, objects, scenes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

import mmrl_tools  # noqa: F401  registers the tools
from mmrl.chat import Chat
from mmrl.media import load_image, load_video
from mmrl.policy.tiny import make_config, make_processor, train_tokenizer
from mmrl.registry import Entry, entries, get
from mmrl.rollout import Tools, call_tool, observation
from mmrl.rollout.tools import ToolContext, clean, limits_of, tools_prompt
from mmrl.types import FaultKind, MediaRef, ToolCall, ToolResult

# calls of each tool: many where a call costs little
CALLS = {
    "ask_user": 720,
    "back": 240,
    "board": 280,
    "calculate": 960,
    "contrast": 240,
    "crop": 400,
    "document_crop": 200,
    "document_rerank": 400,
    "document_retrieve": 120,
    "draw": 320,
    "flip": 160,
    "frame_select": 320,
    "image_search": 200,
    "measure": 1000,
    "move": 560,
    "objects": 880,
    "ocr": 60,
    "page_fetch": 760,
    "perspective_correct": 400,
    "python": 100,
    "rotate": 160,
    "sharpen": 200,
    "super_resolution": 80,
    "tap": 240,
    "text_search": 480,
    "type": 240,
    "video_info": 400,
    "video_window": 280,
    "zoom": 400,
}
OF_DIALOGUE = 4  # calls of the tool in a dialogue
REPEATED = {"python": 4, "ocr": 4}  # one of so many dialogues is repeated, of other tools one of 8
ANYWHERE = {"bad_arguments"}  # codes of faults that tools need not name: the schema does
MEDIA = {
    "empty",
    "missing",
    "not_media",
    "truncated",
    "broken",
    "ratio",
    "tiny",
    "too_many_pixels",
    "no_video",
    "window",
}
CUT = re.compile(r"( \[cut: \d+ of \d+ characters\])?( \[only the first \d+ of \d+ pictures are shown\])?\Z")


SCENES = ("full", "full", "full", "parts", "pages", "clips", "spoilt", "dots", "strips", "crowd", "empty")
FAMILIES = {"tap": ("tap", "type", "back"), "type": ("tap", "type", "tap"), "back": ("tap", "type", "back")}
BEFORE = ("crop", "rotate", "zoom", "video_window", "frame_select")  # what they add is called upon by the next calls


@dataclass(frozen=True)
class Dialogue:
    """Calls one after the other in a scene; `again`: they are made a second time in another dialogue."""

    scene: str
    calls: tuple[ToolCall, ...]
    again: bool


@st.composite
def dialogues(draw: st.DrawFn, name: str, schemas: Mapping[str, Mapping[str, Any]], calls: int, every: int) -> Dialogue:
    """Dialogues with `calls` calls of a tool, some with calls of others before them; one of `every` is repeated."""
    sees = {"image", "images", "video", "code"} & set(schemas[name].get("properties", {}))
    others, rare = FAMILIES.get(name, BEFORE), 2 if name in FAMILIES else 5 if sees else 6
    made = []
    for _ in range(calls):
        if draw(st.integers(0, 5)) >= rare:
            other = draw(st.sampled_from(others))
            made.append(ToolCall(other, draw(objects(schemas[other]))))
        made.append(ToolCall(name, draw(arguments(schemas[name]))))
    return Dialogue(draw(st.sampled_from(SCENES)), tuple(made), draw(st.integers(1, every)) == every)


def ours() -> list[Entry]:
    """The tools of this package: not those of plugins, of MCP servers and of other tests."""
    return [
        e
        for e in entries("tool")
        if e.obj.__module__.startswith("mmrl_tools.") and "<locals>" not in e.obj.__qualname__
    ]


def schemas() -> dict[str, Any]:
    return {e.name: e.info["schema"]["parameters"] for e in ours()}


@functools.cache
def chats() -> tuple[Chat, Chat]:
    """The two families with one tokenizer."""
    tokenizer = train_tokenizer([tools_prompt([e.name for e in ours()]), "img_2: region of img_1"], 700)
    made = []
    for family in ("qwen2_5_vl", "qwen3_vl"):
        made.append(Chat(make_processor(family, tokenizer), make_config(family, tokenizer)))  # type: ignore[arg-type]
    return made[0], made[1]


@functools.cache
def frame(chat: Chat) -> Counter[int]:
    """How often each control token stands in an observation of a text alone."""
    return controls(chat, chat.encode_observation("x", {}, closed=True).tokens)


def controls(chat: Chat, tokens: Sequence[int]) -> Counter[int]:
    banned = {*chat.banned_ids, chat.end_of_turn}
    return Counter(t for t in tokens if t in banned)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    return scenes(tmp_path_factory.mktemp("fuzz"))


def test_every_tool_is_called_and_ten_thousand_times_in_all() -> None:
    assert sorted(CALLS) == sorted(e.name for e in ours())
    assert sum(CALLS.values()) >= 10_000


@pytest.mark.parametrize("name", sorted(CALLS))
def test_no_call_breaks_a_tool(name: str, stage: dict[str, Scene]) -> None:
    made = 0

    @settings(
        max_examples=-(-CALLS[name] // OF_DIALOGUE),
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(dialogues(name, schemas(), OF_DIALOGUE, REPEATED.get(name, 8)))
    def run(dialogue: Dialogue) -> None:
        nonlocal made
        scene = stage[dialogue.scene]
        results, media = hold(scene, dialogue.calls, decoded)
        made += sum(c.name == name for c in dialogue.calls)
        if dialogue.again:
            assert hold(scene, dialogue.calls, {}) == (results, media)

    decoded: dict[str, Image.Image] = {}
    run()
    assert made >= CALLS[name]


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), [10**5000], deep(3000)], ids=["int", "negative", "list", "deep"]
)
def test_values_that_python_cannot_spell_are_the_policys_fault(value: Any) -> None:
    for name, schema in schemas().items():
        for key in [*schema["properties"], "more"]:
            result = call_tool(ToolCall(name, {key: value}), ToolContext({}))
            assert result.fault is not None
            assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "bad_arguments")


def hold(scene: Scene, calls: Sequence[ToolCall], decoded: dict[str, Image.Image]) -> tuple[list[Any], list[Any]]:
    """Make the calls of a dialogue, each checked; what must be the same when it is held again."""
    where = scene.context(dict(decoded))
    told = []
    with Tools(failures=1 << 30) as tools:  # nothing is remembered of another dialogue
        for call in calls:
            before, state, spelled = dict(where.media), copy.deepcopy(where.state), repr_of(call.arguments)
            (result,) = tools.submit([call], where).result()
            check_result(call, result, scene)
            check_left(result, before, state, where)
            assert repr_of(call.arguments) == spelled
            check_media(result, before, where)
            check_observation(result, where)
            told.append((result.text, result.fault, json.dumps(result.data)))
    decoded.update((m.hash, where.decoded[m.hash]) for m in scene.media if m.hash in where.decoded)
    return told, [(m.id, m.hash, m.parent, m.region, m.info.get("window")) for m in where.media.values()]


def repr_of(value: Any) -> str:
    """A value spelt, however deep it is."""
    return json.dumps(value, default=repr) if depth(value) < 100 else str(depth(value))


def depth(value: Any) -> int:
    level, found = [value], 0
    while level:
        found += 1
        level = [w for v in level if isinstance(v, list | dict) for w in (v.values() if isinstance(v, dict) else v)]
    return found


def check_result(call: ToolCall, result: ToolResult, scene: Scene) -> None:
    """A result within the limits of its tool, whose fault is one that the tool names."""
    entry, fault = get("tool", call.name), result.fault
    limits = limits_of(entry)
    assert isinstance(result, ToolResult)
    assert result.seconds < limits.seconds
    assert len(result.text) - len(CUT.search(result.text)[0]) <= limits.text  # type: ignore[index]
    assert len(result.media) <= limits.media
    json.dumps(result.data, allow_nan=False)
    if fault is None:
        assert not result.text.startswith("Error")
        return
    if fault.code == "tool_failed" and call.name in scene.lacks:  # the settings are at fault, and it says which
        assert "rollout.tool_options." in fault.message
        return
    assert fault.kind in (FaultKind.POLICY, FaultKind.TASK), fault
    assert (
        fault.code in ANYWHERE or fault.code in entry.doc or (fault.kind is FaultKind.TASK and fault.code in MEDIA)
    ), fault
    assert "Error: " in result.text


def check_left(result: ToolResult, before: dict[str, MediaRef], state: Any, where: ToolContext) -> None:
    """The dialogue holds what the result gives and nothing else; a fault leaves no state behind."""
    assert where.media == {**before, **{m.id: m for m in result.media}}
    assert len({m.id for m in result.media} - before.keys()) == len(result.media)
    assert result.fault is None or where.state == state


def check_media(result: ToolResult, before: dict[str, MediaRef], where: ToolContext) -> None:
    """New media are what they say they are, and both families take them with as many tokens as features."""
    for ref in result.media:
        if ref.kind == "image":
            assert (ref.width, ref.height) == load_image(ref).size
        else:
            shown = load_video(ref)
            assert shown.frames.shape[1:] == (ref.height, ref.width, 3)
            assert len(shown.times) == len(shown.frames) > 0
        assert not ref.region or ref.parent
        for chat in chats():
            seen = chat.vision(ref)
            assert seen.n_tokens * seen.merge**2 == len(seen.patches)
            assert seen.n_tokens > 0


def check_observation(result: ToolResult, where: ToolContext) -> None:
    """The text reaches the policy as it is, and no control token comes from it."""
    for chat in chats() if result.media else chats()[:1]:
        seen = chat.encode_observation(observation([result]), where.media, closed=True)
        said = chat.escape(f"<tool_response>{clean(result.text)}</tool_response>")
        assert said in chat.decode(seen.tokens)
        want = Counter(frame(chat))
        for item in seen.vision:
            pad = chat.config.image_token_id if item.kind == "image" else chat.config.video_token_id
            wraps = max(1, item.text.count(chat.tokenizer.convert_ids_to_tokens(chat.config.vision_start_token_id)))
            want.update({pad: item.n_tokens, chat.config.vision_start_token_id: wraps})
            want.update({chat.config.vision_end_token_id: wraps})
        assert controls(chat, seen.tokens) == want
