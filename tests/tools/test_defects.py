"""The eight defects found in the tools and loops of others, each as a test of ours by its number in the list of them:
1 units guessed, 2 indices, 3 least sizes, 4 turning, 5 names and files, 6 turns, 7 boxes, 8 upright pictures."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media.clips import BIKES
from PIL import Image

from mmrl import registry
from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.media import file_ref, image_ref, load_image
from mmrl.policy.tiny import make_config, make_processor, train_tokenizer
from mmrl.registry import register
from mmrl.rollout import Request, Sampled, Tools, call_tool, rollout, schema
from mmrl.rollout.parsing import parse_turn
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.tools import ToolContext, tools_prompt
from mmrl.types import Answer, Origin, Prompt, Sample, StopReason, ToolCall, ToolResult
from mmrl_tools import annotations, board, clips, edits, marks, views

OURS = ("crop", "zoom", "rotate", "flip", "sharpen", "contrast", "super_resolution", "perspective_correct", "draw")
OTHERS = ("measure", "objects", "board", "video_info", "frame_select", "video_window")
assert {annotations, board, clips, edits, marks, views}  # importing them registers their tools


def places(width: int = 400, height: int = 200) -> Image.Image:
    """A picture in which every pixel says where it is: red x, green y (their last 8 bits), blue the others."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x % 256, y % 256, 16 * (x // 256) + y // 256], -1).astype(np.uint8))


def dialogue(*pictures: Image.Image) -> ToolContext:
    refs = [image_ref(f"img_{n}", p) for n, p in enumerate(pictures or (places(),), 1)]
    return ToolContext({r.id: r for r in refs})


def call(tool: str, where: ToolContext, **arguments: Any) -> ToolResult:
    return call_tool(ToolCall(tool, arguments), where)


def good(tool: str, where: ToolContext, **arguments: Any) -> ToolResult:
    result = call(tool, where, **arguments)
    assert result.fault is None, result.fault
    return result


def refused(tool: str, where: ToolContext, **arguments: Any) -> str:
    """The message to the policy, whose fault it must be."""
    before = dict(where.media)
    result = call(tool, where, **arguments)
    assert result.fault is not None
    assert result.fault.kind == "policy"
    assert (result.media, where.media) == ((), before)
    return result.text


def shown(result: ToolResult) -> np.ndarray:
    return np.asarray(load_image(result.media[0]))


@pytest.fixture
def tool() -> Iterator[Any]:
    """Registers a function as a tool for one test."""
    names: list[str] = []

    def add(function: Any, description: dict[str, Any]) -> None:
        register("tool", function.__name__, schema=description)(function)
        names.append(function.__name__)

    yield add
    for name in names:
        registry._entries.pop(("tool", name))


# --- 1: a unit is never guessed from the numbers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "region"),
    [
        ([0, 0, 1000, 1000], (0, 0, 400, 200)),
        ([500, 500, 1000, 1000], (200, 100, 400, 200)),
        ([0, 0, 999, 999], (0, 0, 400, 200)),
        ([0, 0, 1, 1], (0, 0, 28, 28)),  # a thousandth, not the whole picture
        ([0.25, 0.25, 0.75, 0.75], (0, 0, 28, 28)),
    ],
)
def test_1_a_box_to_the_far_edge_is_that_box(box: list[float], region: tuple[int, ...]) -> None:
    result = good("crop", dialogue(), image="img_1", box=box)
    assert result.media[0].region == region
    assert np.array_equal(shown(result), np.asarray(places())[region[1] : region[3], region[0] : region[2]])


def test_1_the_unit_of_every_coordinate_is_in_the_schema_and_the_same_for_all_tools() -> None:
    coordinates = {"box", "point", "points", "corners", "marks"}
    for name in (*OURS, *OTHERS):
        entry = registry.get("tool", name).info["schema"]
        if coordinates & set(entry["parameters"]["properties"]):
            assert "0-1000" in entry["description"], name
    where = dialogue()
    assert good("measure", where, image="img_1", what="distance", points=[[0, 0], [1, 0]]).data["value"] == 0.4
    assert good("measure", where, image="img_1", what="distance", points=[[0, 0], [1000, 0]]).data["value"] == 400


# --- 2: nothing is an index, and a nought is no last one --------------------------------------------------------------


@pytest.mark.parametrize("image", [0, -1, 1.5, "0", "-1", "img_0", "img_-1", None, ["img_1"]])
def test_2_no_number_stands_for_a_picture(image: Any) -> None:
    where = dialogue(places(), places(60, 60))
    message = refused("crop", where, image=image, box=[0, 0, 500, 500])
    if isinstance(image, str):
        assert message.endswith("there are: img_1, img_2")


def test_2_second_nought_is_the_first_frame() -> None:
    where = ToolContext({"vid_1": file_ref("vid_1", BIKES, "video")})
    first = good("frame_select", where, video="vid_1", times=[0])
    last = good("frame_select", where, video="vid_1", times=[9.97])
    assert first.data["frames"] == [{"id": "img_1", "time": 0.0}]
    assert last.data["frames"][0]["time"] == pytest.approx(9.96)
    assert not np.array_equal(shown(first), shown(last))


@pytest.mark.parametrize("times", [[-1], [10.5], [], ["0"], [None], [float("nan")]])
def test_2_frames_that_are_not_there_are_refused(times: list[Any]) -> None:
    refused("frame_select", ToolContext({"vid_1": file_ref("vid_1", BIKES, "video")}), video="vid_1", times=times)


def test_2_as_many_frames_as_there_are_are_told() -> None:
    """A second of 25 frames at 2 a second has 2, and is shown more closely as 4: not the 16 that are allowed."""
    where = ToolContext({"vid_1": file_ref("vid_1", BIKES, "video")})
    result = good("video_window", where, video="vid_1", start=1, end=2)
    assert result.text.endswith(", 4 frames")
    assert len(result.data["windows"][0]["times"]) == 4


# --- 3: small boxes grow inside the picture, and crops of crops are possible ------------------------------------------


@pytest.mark.parametrize("box", [[0, 0, 10, 10], [990, 990, 1000, 1000], [495, 0, 505, 3], [0, 500, 1000, 501]])
def test_3_small_boxes_grow_and_stay_inside(box: list[float]) -> None:
    result = good("crop", dialogue(), image="img_1", box=box)
    x1, y1, x2, y2 = result.media[0].region or ()
    assert 0 <= x1 <= box[0] * 0.4
    assert box[2] * 0.4 <= x2 <= 400
    assert 0 <= y1 <= box[1] * 0.2
    assert box[3] * 0.2 <= y2 <= 200
    assert min(x2 - x1, y2 - y1) >= 28
    assert shown(result).shape == (y2 - y1, x2 - x1, 3)


def test_3_crops_and_zooms_of_crops() -> None:
    where = dialogue(places(1600, 800))
    good("crop", where, image="img_1", box=[500, 500, 1000, 1000])  # from 800, 400
    good("zoom", where, image="img_2", point=[500, 500], factor=4)  # 200 x 100 round 1200, 600
    result = good("crop", where, image="img_3", box=[500, 0, 1000, 1000])
    assert (result.media[0].parent, result.media[0].region) == ("img_1", (1200, 550, 1300, 650))
    assert tuple(shown(result)[0, 0]) == (1200 % 256, 550 % 256, 16 * (1200 // 256) + 550 // 256)


# --- 4: clockwise is clockwise, no corner is lost, required names exist -----------------------------------------------


def test_4_positive_is_clockwise() -> None:
    """What was at the left comes to the top."""
    image = Image.new("RGB", (90, 60), "blue")
    image.paste((255, 0, 0), (0, 0, 30, 60))
    result = good("rotate", dialogue(image), image="img_1", degrees=90)
    assert shown(result).shape == (90, 60, 3)
    assert (shown(result)[:30] == (255, 0, 0)).all()
    back = good("rotate", dialogue(image), image="img_1", degrees=-90)
    assert (shown(back)[60:] == (255, 0, 0)).all()


@pytest.mark.parametrize("degrees", [10, 45, 100, -30])
def test_4_turned_corners_are_still_there(degrees: int) -> None:
    image = Image.new("RGB", (120, 80), "blue")
    for x, y in [(0, 0), (108, 0), (108, 68), (0, 68)]:
        image.paste((255, 0, 0), (x, y, x + 12, y + 12))
    red = np.abs(shown(good("rotate", dialogue(image), image="img_1", degrees=degrees)).astype(int) - (255, 0, 0)) < 90
    assert red.all(-1).sum() == pytest.approx(4 * 144, rel=0.15)


def test_4_required_arguments_are_arguments() -> None:
    for name in (*OURS, *OTHERS):
        parameters = registry.get("tool", name).info["schema"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"]), name


# --- 5: the name decides, nothing collides, and nothing is said to be done that is not --------------------------------


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ('<tool_call>{"name": "snake_search", "arguments": {"query": "python snake"}}</tool_call>', ("hermes",)),
        ('<tool_code>snake_search(query="python snake: import os")</tool_code>', ("tool_code",)),
        ('```json\n{"name": "snake_search", "arguments": {"query": "<code>python</code>"}}\n```', ("json",)),
    ],
)
def test_5_a_text_about_python_goes_to_the_tool_that_is_named(text: str, syntax: Any, tool: Any) -> None:
    asked: list[str] = []

    def snake_search(arguments: Any, context: ToolContext) -> ToolResult:
        asked.append(arguments["query"])
        return ToolResult("a constrictor")

    tool(snake_search, schema("Search words", {"query": {"type": "string"}}, ["query"]))
    (parsed,) = parse_turn(text, syntax=syntax).calls
    result = call_tool(parsed, dialogue(), allowed=("python", "snake_search"))
    assert (result.text, result.fault) == ("a constrictor", None)
    assert len(asked) == 1
    assert "python" in asked[0]


def test_5_calls_side_by_side_make_pictures_of_their_own() -> None:
    where = dialogue()
    wanted = [ToolCall("crop", {"image": "img_1", "box": [100 * n, 0, 100 * n + 100, 500]}) for n in range(8)]
    wanted += [ToolCall("rotate", {"image": "img_1", "degrees": 90 * n}) for n in range(4)]
    with Tools() as tools:
        results = tools.submit(wanted, where).result(timeout=60)
    refs = [r.media[0] for r in results]
    assert [r.id for r in refs] == [f"img_{n}" for n in range(2, 14)]
    assert [r.region for r in refs[:8]] == [(40 * n, 0, 40 * n + 40, 100) for n in range(8)]
    assert len({r.hash for r in refs}) == 12
    for result in results:
        assert result.text.startswith(f"{result.media[0].id}: ")
        assert np.array_equal(shown(result), np.asarray(load_image(where.media[result.media[0].id])))


def test_5_super_resolution_without_a_model_still_enlarges_and_says_by_what() -> None:
    result = good("super_resolution", dialogue(), image="img_1", scale=4)
    assert shown(result).shape == (800, 1600, 3)
    assert "by Lanczos and unsharp mask" in result.text


def test_5_not_every_four_corners_are_a_page() -> None:
    image = places()
    image.paste((255, 255, 255), (180, 80, 220, 120))  # a square, but a small one
    assert "give its corners" in refused("perspective_correct", dialogue(image), image="img_1")
    thin = [[0, 0], [1000, 0], [1000, 20], [0, 20]]
    assert "at least 28 pixels" in refused("perspective_correct", dialogue(), image="img_1", corners=thin)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "I;16", "RGBA", "CMYK"])
def test_5_pictures_of_other_colour_models(mode: str, tmp_path: Path) -> None:
    gray = np.full((200, 400), 40, np.uint8)
    gray[40:160, 80:320] = 230  # a page
    image = Image.fromarray(gray.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(gray).convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image.save(path)
    where = ToolContext({"img_1": file_ref("img_1", path, "image")})
    page = good("perspective_correct", where, image="img_1")
    assert shown(page).shape[2] == 3
    assert np.abs(np.array(shown(page).shape[:2]) - (120, 240)).max() <= 2
    for name, arguments in [("rotate", {"degrees": 30}), ("sharpen", {}), ("contrast", {"factor": 2}), ("flip", {})]:
        arguments = {"direction": "vertical"} if name == "flip" else arguments
        assert shown(good(name, where, image="img_1", **arguments)).shape[2] == 3


# --- 6: one bad call of a turn, seeds, and what follows a failed call -------------------------------------------------

CROP = '<tool_call>{"name": "crop", "arguments": {"image": "img_1", "box": [0, 0, 500, 500]}}</tool_call>'
BROKEN = '<tool_call>{"name": "crop", "arguments": {"image": </tool_call>'
OUTSIDE = CROP.replace("[0, 0, 500, 500]", "[2000, 0, 3000, 10]")
ANSWER = "<think>x</think><answer>A</answer>"
DRAWN = 1490888619557236402


class Script:
    """An engine that writes the given turns, letter by letter."""

    def __init__(self, chat: Chat, turns: Sequence[str]) -> None:
        self.chat, self.turns = chat, list(turns)
        self.asked: list[list[int]] = []

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        out = []
        for request in requests:
            self.asked.append(list(request.tokens))
            ids = self.chat.tokenizer(self.turns.pop(0), add_special_tokens=False, split_special_tokens=True)[
                "input_ids"
            ]
            tokens = [*ids, self.chat.end_of_turn]
            out.append([Sampled(tokens, [0.0] * len(tokens), True)] * request.n)
        return out


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def chat(request: pytest.FixtureRequest) -> Chat:
    tokenizer = train_tokenizer([CROP, ANSWER, tools_prompt(("crop",)), "img_2: region of"], 400)
    config = make_config(request.param, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    return Chat(make_processor(request.param, tokenizer), config)


def play(chat: Chat, *turns: str) -> tuple[Any, Script]:
    ref = image_ref("img_1", places(112, 112))
    user = {"role": "user", "content": [{"type": "image", "id": "img_1"}, {"type": "text", "text": "which?"}]}
    sample = Sample("k", (ref,), (user,), Answer("choice", "A"), "mcq")
    prompt = Prompt(sample, ({"role": "system", "content": tools_prompt(("crop",))}, user), ("crop",))
    engine = Script(chat, turns)
    config = RolloutConfig(group=1, max_new_tokens=300, max_turns=4, max_context=4000)
    (trajectory,) = rollout(engine, chat, [prompt], config, seed=0)
    return trajectory, engine


def test_6_a_malformed_call_spoils_none_of_its_turn(chat: Chat) -> None:
    trajectory, _ = play(chat, CROP + BROKEN + OUTSIDE + CROP.replace("500, 500]", "1000, 1000]"), ANSWER)
    results = trajectory.turns[0].results
    assert [r.fault.code if r.fault else "" for r in results] == ["", "bad_json", "outside_picture", ""]
    assert [m.id for r in results for m in r.media] == ["img_2", "img_3"]
    assert trajectory.stop is StopReason.FINISHED


@pytest.mark.parametrize("bad", [BROKEN, OUTSIDE, CROP.replace("crop", "crap")])
def test_6_after_a_failed_call_the_policy_speaks_in_a_turn_of_its_own(chat: Chat, bad: str) -> None:
    """The engine is asked to go on from the open head of an assistant turn, as after a call that went well."""
    failed, asked = play(chat, bad, ANSWER)
    _, went_well = play(chat, CROP, ANSWER)
    heads = [chat.tokenizer.decode(tokens[-12:]) for tokens in (asked.asked[1], went_well.asked[1], asked.asked[0])]
    assert all(head.endswith("<|im_start|>assistant\n") for head in heads)
    assert failed.answer_text == ANSWER
    assert [t.origin for t in failed.turns] == [Origin.POLICY, Origin.OBSERVATION, Origin.POLICY]
    assert failed.turns[1].text.startswith("Error: ")


def test_6_what_was_sampled_is_never_written_anew(chat: Chat) -> None:
    trajectory, engine = play(chat, CROP + BROKEN, CROP, ANSWER)
    for earlier, later in zip(engine.asked, [*engine.asked[1:], trajectory.tokens], strict=True):
        assert later[: len(earlier)] == earlier
    for turn in trajectory.turns:
        own = {Origin.POLICY} if turn.origin is Origin.POLICY else {Origin.OBSERVATION}
        assert set(trajectory.origin[turn.start : turn.stop]) == own


def test_6_what_a_key_draws_is_the_same_in_every_process() -> None:
    """Python's own hash of a string is not; this number is that of blake2b, worked out by hand."""
    digest = hashlib.blake2b(b"str:frame_budget\x1fstr:k\x1fint:3", digest_size=8).digest()
    assert derive_seed("frame_budget", "k", 3) == int.from_bytes(digest, "big") == DRAWN


# --- 7: corners in any order, boxes of nothing ------------------------------------------------------------------------


def test_7_swapped_corners_are_put_right() -> None:
    for box in ([750, 1000, 250, 500], [250, 1000, 750, 500], [750, 500, 250, 1000]):
        assert good("crop", dialogue(), image="img_1", box=box).media[0].region == (100, 100, 300, 200)
    drawn = [
        shown(good("draw", dialogue(), image="img_1", marks=[{"box": box}]))
        for box in ([250, 500, 750, 900], [750, 900, 250, 500])
    ]
    assert np.array_equal(*drawn)


@pytest.mark.parametrize("point", [[0, 0], [500, 500], [1000, 1000]])
def test_7_boxes_of_no_area(point: list[float]) -> None:
    where = dialogue()
    assert good("draw", where, image="img_1", marks=[{"line": [*point, *point]}]).media
    assert good("measure", where, image="img_1", what="area", points=[point, point]).data["value"] == 0
    assert "must lie elsewhere" in refused("measure", where, image="img_1", what="angle", points=[point] * 3)
    assert "at least 28 pixels" in refused("perspective_correct", where, image="img_1", corners=[point] * 4)


def test_7_a_crop_of_a_point_is_the_least_view_round_it() -> None:
    result = good("crop", dialogue(), image="img_1", box=[500, 500, 500, 500])
    assert result.media[0].region == (186, 86, 214, 114)


@pytest.mark.parametrize("factor", [0, 1, -3, float("inf"), float("nan")])
def test_7_zooms_that_are_none(factor: float) -> None:
    refused("zoom", dialogue(), image="img_1", point=[500, 500], factor=factor)


# --- 8: one upright picture for all, and what a view is of is recorded ------------------------------------------------

# how a stored picture must be turned to be upright, by its EXIF orientation, with numpy
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_8_all_tools_mean_the_upright_picture(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    places(200, 100).save(tmp_path / "a.png", exif=exif)
    upright = UPRIGHT[orientation](np.asarray(places(200, 100)))
    height, width = upright.shape[:2]
    where = ToolContext({"img_1": file_ref("img_1", tmp_path / "a.png", "image")})
    view = good("crop", where, image="img_1", box=[500, 0, 1000, 500])
    assert view.media[0].region == (width / 2, 0, width, height / 2)
    assert np.array_equal(shown(view), upright[: height // 2, width // 2 :])
    turned = good("rotate", where, image="img_1", degrees=90)
    assert np.array_equal(shown(turned), np.rot90(upright, -1))
    flat = good("perspective_correct", where, image="img_1", corners=[[0, 0], [500, 0], [500, 500], [0, 500]])
    assert np.array_equal(shown(flat), upright[: height // 2, : width // 2])
    assert np.array_equal(shown(good("flip", where, image="img_1", direction="vertical")), upright[::-1])
    length = good("measure", where, image="img_1", what="distance", points=[[0, 0], [1000, 1000]])
    assert length.data["value"] == pytest.approx(math.hypot(200, 100))
    assert f"{width}x{height}" in length.text
    drawn = shown(good("draw", where, image="img_1", marks=[{"point": [1000, 0]}]))
    assert drawn.shape == upright.shape
    assert tuple(drawn[0, -1]) == (255, 0, 0)


def test_8_every_view_records_what_it_is_of() -> None:
    where = dialogue()
    good("crop", where, image="img_1", box=[0, 0, 500, 1000])
    good("flip", where, image="img_2", direction="horizontal")
    good("crop", where, image="img_3", box=[0, 0, 500, 1000])
    assert [(m.parent, m.region) for m in where.media.values()] == [
        ("", None),
        ("img_1", (0, 0, 200, 200)),
        ("", None),
        ("img_3", (0, 0, 100, 200)),
    ]
    assert good("flip", where, image="img_2", direction="horizontal").data["of"] == "img_2"


def test_8_the_record_is_plain_json() -> None:
    where = dialogue()
    for name, arguments in [
        ("rotate", {"degrees": 12.5}),
        ("contrast", {"factor": 2}),
        ("super_resolution", {}),
        ("perspective_correct", {"corners": [[0, 0], [1000, 0], [1000, 1000], [0, 1000]]}),
        ("draw", {"marks": [{"box": [0, 0, 9, 9], "label": "a"}]}),
        ("measure", {"what": "area", "points": [[0, 0], [9, 9]]}),
    ]:
        result = good(name, where, image="img_1", **arguments)
        assert json.loads(json.dumps(dict(result.data))) == result.data
