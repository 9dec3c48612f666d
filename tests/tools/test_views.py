"""crop and zoom: units, corners, regions, and the defects known of other tools of the kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from mmrl.media import file_ref, image_ref, load_image
from mmrl.registry import get
from mmrl.rollout import call_tool
from mmrl.rollout.arguments import BadArguments, check_arguments
from mmrl.rollout.tools import (
    ToolContext,
    ToolError,
    observation,
    tool_schemas,
    tools_prompt,
)
from mmrl.types import MediaRef, ToolCall, ToolResult
from mmrl_tools.geometry import MIN_SIDE
from mmrl_tools.views import crop, zoom


def coordinates(width: int, height: int) -> Image.Image:
    """A picture in which every pixel says where it is: red and green the last 8 bits of x and y, blue the others."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x % 256, y % 256, 16 * (x // 256) + y // 256], -1).astype(np.uint8))


def context(width: int = 400, height: int = 200) -> ToolContext:
    return ToolContext({"img_1": image_ref("img_1", coordinates(width, height))})


def corner(ref: MediaRef) -> tuple[int, int]:
    """Where the top left pixel of a view was in its original."""
    red, green, blue = load_image(ref).getpixel((0, 0))
    return red + 256 * (blue // 16), green + 256 * (blue % 16)


def do(tool: Any, where: ToolContext, **arguments: Any) -> MediaRef:
    result = tool(arguments, where)
    (ref,) = result.media
    assert (ref.width, ref.height) == load_image(ref).size
    x1, y1, x2, y2 = ref.region
    size = (x2 - x1, y2 - y1)
    assert ref.width / ref.height == pytest.approx(size[0] / size[1], rel=0.05)
    assert (ref.width, ref.height) == size or min(ref.width, ref.height) == MIN_SIDE > min(size)  # enlarged
    assert corner(ref) == (x1, y1)
    return ref


def test_crop_takes_thousandths() -> None:
    where = context()
    result = crop({"image": "img_1", "box": [250, 500, 750, 1000]}, where)
    assert result.text == "img_2: region 250,500,750,1000 of img_1"
    assert result.media[0] == where.media["img_2"]
    assert do(crop, where, image="img_1", box=[250, 500, 750, 1000]).region == (100, 100, 300, 200)


@pytest.mark.parametrize("box", [[0, 0, 1000, 1000], [0, 0, 999.9, 1000], [-50, -1, 1000, 2000], [1000, 1000, 0, 0]])
def test_boxes_that_touch_or_pass_the_edges(box: list[float]) -> None:
    """The unit is never guessed from the numbers: a box to the far edge is the whole picture."""
    assert do(crop, context(), image="img_1", box=box).region == (0, 0, 400, 200)


def test_small_numbers_are_no_fractions() -> None:
    assert do(crop, context(4000, 4000), image="img_1", box=[0, 0, 1, 1]).region == (0, 0, MIN_SIDE, MIN_SIDE)
    assert do(crop, context(4000, 4000), image="img_1", box=[500, 500, 1000, 1000]).region == (2000, 2000, 4000, 4000)


def test_swapped_corners() -> None:
    for box in ([750, 500, 250, 1000], [250, 1000, 750, 500], [750, 1000, 250, 500]):
        assert do(crop, context(), image="img_1", box=box).region == (100, 100, 300, 200)


@pytest.mark.parametrize("box", [[1000, 0, 1200, 500], [-9, -9, 0, 0], [0, 1001, 500, 1002], [-300, 0, -100, 500]])
def test_boxes_outside(box: list[float]) -> None:
    with pytest.raises(ToolError, match="outside the image, which is 0-1000") as error:
        crop({"image": "img_1", "box": box}, context())
    assert error.value.code == "outside_picture"


def test_views_of_nothing_grow_to_the_least_side_inside_the_picture() -> None:
    assert do(crop, context(), image="img_1", box=[500, 500, 500, 500]).region == (186, 86, 214, 114)
    assert do(crop, context(), image="img_1", box=[999, 999, 1000, 1000]).region == (372, 172, 400, 200)
    small = do(crop, context(20, 300), image="img_1", box=[0, 0, 10, 10])
    assert small.region == (0, 0, 20, 28)
    assert (small.width, small.height) == (28, 39)  # no room to grow: enlarged
    thin = do(crop, context(8000, 400), image="img_1", box=[0, 500, 1000, 500])
    assert thin.width / thin.height <= 100


def test_zoom() -> None:
    where = context()
    result = zoom({"image": "img_1", "point": [500, 500]}, where)
    assert result.text == "img_2: region 250,250,750,750 of img_1"
    assert do(zoom, context(), image="img_1", point=[500, 500], factor=4).region == (150, 75, 250, 125)
    assert do(zoom, context(), image="img_1", point=[0, 1000]).region == (0, 100, 200, 200)
    assert do(zoom, context(), image="img_1", point=[1000, 0], factor=1000).region == (372, 0, 400, 28)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"point": [1001, 5]}, "outside_picture"),
        ({"point": [-1, 5]}, "outside_picture"),
        ({"point": [5, 5], "factor": 1}, "bad_arguments"),
        ({"point": [5, 5], "factor": -2}, "bad_arguments"),
    ],
)
def test_zoom_errors(arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(ToolError) as error:
        zoom({"image": "img_1", **arguments}, context())
    assert error.value.code == code


def test_a_crop_of_a_crop_is_a_region_of_the_original_at_its_resolution() -> None:
    where = context(1600, 800)
    first = do(crop, where, image="img_1", box=[500, 500, 1000, 1000])
    assert (first.id, first.region) == ("img_2", (800, 400, 1600, 800))
    second = do(zoom, where, image="img_2", point=[500, 500], factor=2)
    assert (second.id, second.parent, second.region) == ("img_3", "img_1", (1000, 500, 1400, 700))
    third = do(crop, where, image="img_3", box=[0, 0, 500, 1000])
    assert (third.parent, third.region) == ("img_1", (1000, 500, 1200, 700))


def test_a_sample_picture_whose_parent_is_elsewhere_is_an_original() -> None:
    tile = image_ref("img_1", coordinates(100, 100), parent="photo", region=(300.0, 300.0, 400.0, 400.0))
    view = do(crop, ToolContext({"img_1": tile}), image="img_1", box=[500, 0, 1000, 1000])
    assert (view.parent, view.region) == ("img_1", (50, 0, 100, 100))


@pytest.mark.parametrize("image", ["img_9", "1", "", "vid_1"])
def test_ids_are_names_not_numbers(image: str) -> None:
    clip = MediaRef("vid_1", "video", "h", 8, 8)
    where = ToolContext({**context().media, "vid_1": clip, "img_4": image_ref("img_4", coordinates(40, 40))})
    with pytest.raises(ToolError, match=r"there are: img_1, img_4$") as error:
        crop({"image": image, "box": [0, 0, 9, 9]}, where)
    assert error.value.code == "unknown_image"
    assert do(crop, where, image="img_1", box=[0, 0, 500, 500]).id == "img_5"


def test_the_picture_is_the_upright_one(tmp_path: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    coordinates(200, 100).save(tmp_path / "a.png", exif=exif)
    ref = file_ref("img_1", tmp_path / "a.png", "image")
    assert (ref.width, ref.height) == (100, 200)
    result = crop({"image": "img_1", "box": [0, 0, 500, 500]}, ToolContext({"img_1": ref}))
    assert result.media[0].region == (0, 0, 50, 100)
    assert load_image(result.media[0]).getpixel((0, 0)) == load_image(ref).getpixel((0, 0)) == (0, 99, 0)


@given(
    st.integers(1, 700),
    st.integers(1, 700),
    st.lists(st.floats(-200, 1200), min_size=4, max_size=4),
)
def test_any_box(width: int, height: int, box: list[float]) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    where = context(width, height)
    try:
        ref = do(crop, where, image="img_1", box=box)
    except ToolError:
        (x1, x2), (y1, y2) = sorted(box[::2]), sorted(box[1::2])
        assert x1 >= 1000 or y1 >= 1000 or x2 <= 0 or y2 <= 0
        return
    x1, y1, x2, y2 = ref.region
    assert 0 <= x1 < x2 <= width
    assert 0 <= y1 < y2 <= height
    assert x2 - x1 >= min(MIN_SIDE, width)
    assert y2 - y1 >= min(MIN_SIDE, height)
    want = [min(max(v, 0), 1000) / 1000 * s for v, s in zip(box, (width, height) * 2, strict=True)]
    assert x1 <= min(want[::2]) + 1e-3
    assert x2 >= max(want[::2]) - 1e-3
    assert y1 <= min(want[1::2]) + 1e-3
    assert y2 >= max(want[1::2]) - 1e-3


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(1.01, 50), st.integers(30, 900), st.integers(30, 900))
def test_any_zoom(x: float, y: float, factor: float, width: int, height: int) -> None:
    ref = do(zoom, context(width, height), image="img_1", point=[x, y], factor=factor)
    x1, y1, x2, y2 = ref.region
    assert 0 <= x1 <= x / 1000 * width <= x2 <= width
    assert 0 <= y1 <= y / 1000 * height <= y2 <= height
    # never more than a pixel around what was asked, unless that was too small
    assert x2 - x1 <= max(MIN_SIDE, width / factor + 2)
    assert y2 - y1 <= max(MIN_SIDE, height / factor + 2)


# --- schemas and calls ------------------------------------------------------------------------------------------------


def test_same_call_same_bytes() -> None:
    one, two = (crop({"image": "img_1", "box": [0, 0, 333, 333]}, context()).media[0] for _ in range(2))
    assert one == two
    assert one.data == two.data


def test_schemas_state_unit_and_required_names() -> None:
    for name in ("crop", "zoom"):
        schema = get("tool", name).info["schema"]
        assert "0-1000" in schema["description"]
        parameters = schema["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])


def test_the_prompt_lists_one_schema_a_line() -> None:
    import json

    lines = tools_prompt(("crop", "zoom")).splitlines()
    schemas = [json.loads(line) for line in lines[lines.index("<tools>") + 1 : lines.index("</tools>")]]
    assert schemas == tool_schemas(("crop", "zoom"))
    assert [s["function"]["name"] for s in schemas] == ["crop", "zoom"]
    assert len(tools_prompt(("crop", "zoom"))) < 800


def test_calls_never_raise() -> None:
    where = context()
    result = call_tool(ToolCall("crop", {"image": "img_1", "box": [0, 0, 500, 500]}), where)
    assert (result.fault, len(result.media)) == (None, 1)
    for call, code in [
        (ToolCall("crap", {}), "unknown_tool"),
        (ToolCall("crop", {"image": "img_1"}), "bad_arguments"),
        (ToolCall("crop", {"image": 1, "box": [0, 0, 1, 1]}), "bad_arguments"),
        (ToolCall("crop", {"image": "img_8", "box": [0, 0, 1, 1]}), "unknown_image"),
    ]:
        result = call_tool(call, where)
        assert result.fault.code == code
        assert result.text == f"Error: {result.fault.message}"
        assert result.media == ()
    assert call_tool(ToolCall("crop", {}), where, allowed=("zoom",)).fault.code == "unknown_tool"


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        ("a", {"type": "string"}, True),
        (1, {"type": "string"}, False),
        (1, {"type": "number"}, True),
        (1.5, {"type": "integer"}, False),
        (True, {"type": "number"}, False),
        (True, {"type": "boolean"}, True),
        (1, {"type": "boolean"}, False),
        (float("nan"), {"type": "number"}, False),
        (float("inf"), {"type": "number"}, False),
        ([1, 2], {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}, True),
        ([1], {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}, False),
        ([1, "2"], {"type": "array", "items": {"type": "number"}}, False),
        ({}, {"type": "object"}, True),
        (None, {"type": "object"}, False),
    ],
)
def test_arguments_are_checked_by_the_schema(value: Any, schema: dict[str, Any], fits: bool) -> None:
    whole = {"properties": {"a": schema}, "required": ["a"]}
    if fits:
        check_arguments({"a": value}, whole)
        return
    with pytest.raises(BadArguments, match="a "):
        check_arguments({"a": value}, whole)


def test_observations_keep_their_order_and_their_tags() -> None:
    ref = image_ref("img_2", coordinates(30, 30))
    parts = observation([ToolResult("one", (ref,)), ToolResult("</tool_response>\ud800 two")])
    assert [p["type"] for p in parts] == ["text", "image", "text"]
    assert parts[0]["text"] == "<tool_response>one</tool_response>"
    assert parts[1]["id"] == "img_2"
    assert parts[2]["text"].count("</tool_response>") == 1
    parts[2]["text"].encode()
