"""draw, measure and objects: marks where they were asked for, right lengths, and boxes in the picture named."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.media import image_ref, load_image
from mmrl.registry import get
from mmrl.rollout import call_tool
from mmrl.rollout.arguments import BadArguments, check_arguments
from mmrl.rollout.tools import ToolContext, ToolError
from mmrl.types import Answer, MediaRef, Sample, ToolCall, ToolResult
from mmrl_tools.annotations import objects
from mmrl_tools.edits import rotate
from mmrl_tools.geometry import angle_at, clockwise_convex, scaled_size, sides_cross, signed_area
from mmrl_tools.marks import draw, measure
from mmrl_tools.views import crop

GRAY = (100, 100, 100)


def context(width: int = 400, height: int = 200, meta: dict[str, Any] | None = None) -> ToolContext:
    ref = image_ref("img_1", Image.new("RGB", (width, height), GRAY))
    sample = None if meta is None else Sample(repr(meta), (ref,), (), Answer("text", "x"), "qa", meta)
    return ToolContext({"img_1": ref}, sample=sample)


def code(tool: Any, where: ToolContext, **arguments: Any) -> str:
    with pytest.raises(ToolError) as error:
        tool({"image": "img_1", **arguments}, where)
    return error.value.code


# --- draw -------------------------------------------------------------------------------------------------------------


def drawn(*marks: dict[str, Any], where: ToolContext | None = None) -> np.ndarray:
    result = draw({"image": "img_1", "marks": list(marks)}, where or context())
    return np.asarray(load_image(result.media[0]))


def changed(pixels: np.ndarray) -> tuple[int, int, int, int]:
    """Box xyxy of what is not gray any more."""
    y, x = np.nonzero((pixels != GRAY).any(-1))
    return x.min(), y.min(), x.max(), y.max()


def test_a_box_is_drawn_on_its_edges_only() -> None:
    pixels = drawn({"box": [250, 250, 750, 750]})  # 100,50 to 300,150
    assert changed(pixels) == (100, 50, 300, 150)
    assert tuple(pixels[50, 200]) == tuple(pixels[100, 100]) == (255, 0, 0)
    assert tuple(pixels[100, 200]) == GRAY


def test_points_and_lines_and_colours_in_turn() -> None:
    marks = [{"point": [250, 500]}, {"line": [500, 0, 500, 1000]}, {"point": [750, 500]}]
    pixels = drawn(*marks)
    assert tuple(pixels[100, 100]) == (255, 0, 0)
    assert tuple(pixels[20, 200]) == tuple(pixels[190, 200]) == (0, 0, 255)
    assert tuple(pixels[100, 300]) == (0, 255, 0)
    ones = drawn({"point": [250, 500]})
    x1, y1, x2, y2 = changed(ones)
    assert ((x1 + x2) / 2, (y1 + y2) / 2) == (100, 100)


def test_marks_at_the_far_edge_are_seen() -> None:
    pixels = drawn({"box": [0, 0, 1000, 1000]})
    assert changed(pixels) == (0, 0, 399, 199)
    assert tuple(pixels[199, 399]) == tuple(pixels[0, 0]) == (255, 0, 0)
    assert changed(drawn({"line": [1000, 0, 1000, 1000]}))[2] == 399


def test_labels_lie_in_the_picture_beside_their_mark() -> None:
    for place in ([0, 0, 100, 100], [900, 0, 1000, 100], [900, 900, 1000, 1000], [400, 400, 600, 600]):
        plain, labelled = drawn({"box": place}), drawn({"box": place, "label": "cup"})
        y, x = np.nonzero((plain != labelled).any(-1))
        assert (labelled[y, x] == 255).all(-1).any()  # its ground
        assert (labelled[y, x] < 80).all(-1).any()  # its letters
        assert abs(y.mean() - place[1] / 5) < 40


def test_the_text_and_the_data_say_what_was_drawn_in_which_colour() -> None:
    where = context()
    marks = [{"box": [1000, 500, -20, 0], "label": "a  cup"}, {"line": [0, 0, 10, 10]}, {"point": [5, 6]}]
    result = call_tool(ToolCall("draw", {"image": "img_1", "marks": marks}), where)
    assert result.text == "img_2: img_1 with red box 0,0,1000,500 'a cup'; blue line 0,0,10,10; lime point 5,6"
    assert result.data["marks"][0] == {"form": "box", "place": [0, 0, 1000, 500], "colour": "red", "label": "a cup"}
    assert (result.data["id"], result.data["of"]) == ("img_2", "img_1")
    assert "font lacks" in draw({"image": "img_1", "marks": [{"point": [5, 5], "label": "猫"}]}, where).text


def test_the_picture_stays_as_it_was_and_views_of_the_copy_show_the_marks() -> None:
    where = context()
    before = where.load(where.media["img_1"]).copy()
    copy = draw({"image": "img_1", "marks": [{"box": [250, 250, 750, 750]}]}, where).media[0]
    assert where.load(where.media["img_1"]) == before
    assert (copy.parent, copy.region) == ("", None)
    view = crop({"image": copy.id, "box": [200, 200, 500, 500]}, where).media[0]
    assert view.parent == copy.id
    assert (255, 0, 0) in set(load_image(view).getdata())
    again = draw({"image": copy.id, "marks": [{"point": [500, 500]}]}, where).media[0]
    colours = set(load_image(again).getdata())
    assert (255, 0, 0) in colours


@pytest.mark.parametrize(
    ("mark", "wanted"),
    [
        ({}, "bad_arguments"),
        ({"label": "x"}, "bad_arguments"),
        ({"box": [0, 0, 9, 9], "point": [0, 0]}, "bad_arguments"),
        ({"point": [1001, 5]}, "outside_picture"),
        ({"line": [0, 0, 5, -1]}, "outside_picture"),
        ({"box": [1001, 0, 1200, 50]}, "outside_picture"),
    ],
)
def test_marks_that_cannot_be_drawn(mark: dict[str, Any], wanted: str) -> None:
    assert code(draw, context(), marks=[{"point": [1, 1]}, mark]) == wanted


@pytest.mark.parametrize("marks", [[], [{"circle": [1, 2]}], [{"box": [1, 2, 3]}], [{"point": "here"}], [[1, 2]]])
def test_marks_of_another_form_are_told_by_the_schema(marks: Any) -> None:
    with pytest.raises(BadArguments):
        check_arguments({"image": "img_1", "marks": marks}, get("tool", "draw").info["schema"]["parameters"])


# --- measure ----------------------------------------------------------------------------------------------------------


def measured(what: str, *points: list[float], where: ToolContext | None = None, image: str = "img_1") -> ToolResult:
    result = measure({"image": image, "what": what, "points": list(points)}, where or context())
    assert not result.media
    return result


def test_distances_are_in_pixels_not_in_thousandths() -> None:
    assert measured("distance", [0, 0], [750, 500]).data["value"] == math.hypot(300, 100)
    found = measured("distance", [100, 500], [850, 500])
    assert found.text == "distance: 300.0 pixels of img_1, which is 400x200 pixels"
    assert found.data["unit"] == "pixels"
    assert found.data["points"] == [[40, 100], [340, 100]]


@pytest.mark.parametrize(
    ("points", "area"),
    [
        ([[0, 0], [1000, 1000]], 80_000),  # a box by two corners
        ([[500, 500], [250, 0]], 10_000),
        ([[0, 0], [1000, 0], [1000, 1000], [0, 1000]], 80_000),
        ([[0, 0], [1000, 0], [0, 1000]], 40_000),
        ([[0, 1000], [1000, 0], [0, 0]], 40_000),  # either way round
        ([[0, 0], [1000, 0], [1000, 1000], [500, 500], [0, 1000]], 60_000),  # a notch of 400 x 100 / 2
    ],
)
def test_areas(points: list[list[float]], area: float) -> None:
    found = measured("area", *points)
    assert found.data["value"] == pytest.approx(area)
    assert found.data["unit"] == "square pixels"


def test_angles_are_those_of_the_picture_whatever_its_shape() -> None:
    """In thousandths of a 2:1 picture these would be 45 degrees."""
    assert measured("angle", [1000, 0], [0, 0], [1000, 1000]).data["value"] == pytest.approx(
        math.degrees(math.atan(0.5))
    )
    assert measured("angle", [500, 0], [500, 500], [750, 500]).data["value"] == pytest.approx(90)
    assert measured("angle", [0, 500], [500, 500], [1000, 500]).text == "angle: 180.0 degrees"
    assert measured("angle", [700, 500], [500, 500], [900, 500]).data["value"] == 0


def test_lengths_in_a_crop_are_those_of_the_original() -> None:
    where = context()
    part = crop({"image": "img_1", "box": [250, 0, 750, 500]}, where).media[0]  # 200 x 100 pixels
    assert measured("distance", [0, 0], [1000, 0], where=where, image=part.id).data["value"] == 200
    assert measured("area", [0, 0], [1000, 1000], where=where, image=part.id).data["value"] == 20_000


@pytest.mark.parametrize(
    ("what", "points", "wanted"),
    [
        ("distance", [[0, 0], [1, 1], [2, 2]], "bad_arguments"),
        ("angle", [[0, 0], [1, 1]], "bad_arguments"),
        ("angle", [[5, 5], [5, 5], [9, 9]], "bad_arguments"),
        ("area", [[0, 0], [500, 500], [500, 0], [0, 500]], "bad_arguments"),  # sides cross
        ("area", [[0, 0], [1000, 0], [1000, 1000], [500, 0]], "bad_arguments"),  # a corner lies on a side
        ("area", [[0, 0], [900, 0], [900, 900], [0, 0], [0, 900]], "bad_arguments"),  # a corner comes twice
        ("distance", [[0, 0], [1000.1, 0]], "outside_picture"),
    ],
)
def test_what_cannot_be_measured(what: str, points: Any, wanted: str) -> None:
    assert code(measure, context(), what=what, points=points) == wanted


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=8, unique=True),
    st.integers(-100, 100),
    st.floats(0, 6.28),
)
def test_areas_and_angles_do_not_depend_on_where_a_shape_lies(points: Any, shift: int, turn: float) -> None:
    moved = [(x + shift, y - shift) for x, y in points]
    turned = [(x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)) for x, y in points]
    assert signed_area(moved) == signed_area(points)
    assert signed_area(turned) == pytest.approx(signed_area(points), abs=1e-6)
    assert signed_area(points[::-1]) == -signed_area(points)
    assert angle_at(*turned[:3]) == pytest.approx(angle_at(*points[:3]), abs=1e-6)
    assert sides_cross(moved) == sides_cross(points)


@given(st.lists(st.floats(0.3, 1), min_size=4, max_size=4), st.floats(0, 6.28))
def test_a_shape_round_a_middle_does_not_cross_itself(radii: list[float], turn: float) -> None:
    """Corners in the order of their angles, less than half a turn apart."""
    around = [(r * math.cos(turn + n * math.pi / 2), r * math.sin(turn + n * math.pi / 2)) for n, r in enumerate(radii)]
    assert not sides_cross(around)
    assert sides_cross([around[0], around[2], around[1], around[3]])
    assert not clockwise_convex(around[::-1])  # y goes down: growing angles are clockwise as seen
    assert signed_area(around) > 0


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.01, 40), st.integers(4096, 100_000))
@settings(max_examples=200)
def test_scaled_sizes_stay_in_bounds_and_in_shape(width: int, height: int, scale: float, most: int) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    wide, high = scaled_size((width, height), scale, most)
    assert min(wide, high) >= 1
    assert wide * high <= most
    assert max(wide, high) <= 200 * min(wide, high)


# --- objects ----------------------------------------------------------------------------------------------------------

ANNOTATED = [
    {"label": "cup", "box": [40, 20, 80, 60]},
    {"label": "Black cat", "box": [100, 50, 300, 150]},
    {"label": "cup", "box": [360, 180, 400, 200]},
]


def listed(where: ToolContext, image: str = "img_1", **arguments: Any) -> ToolResult:
    return call_tool(ToolCall("objects", {"image": image, **arguments}), where)


def test_objects_are_told_in_thousandths_of_the_picture() -> None:
    result = listed(context(meta={"objects": ANNOTATED}))
    text = "3 objects in img_1: cup [100,100,200,300]; Black cat [250,250,750,750]; cup [900,900,1000,1000]"
    assert result.text == text
    assert result.data["annotated"] is True
    assert result.data["objects"][1] == {"label": "Black cat", "box": [250, 250, 750, 750], "cut": False}


def test_objects_by_label() -> None:
    where = context(meta={"objects": ANNOTATED})
    assert (
        listed(where, label=" CUP ").text
        == "2 ' CUP ' objects in img_1: cup [100,100,200,300]; cup [900,900,1000,1000]"
    )
    assert [o["label"] for o in listed(where, label="black  cat").data["objects"]] == ["Black cat"]
    assert listed(where, label="dog").text == "no annotated object 'dog' in img_1; annotated there: Black cat, cup"


def test_objects_of_a_crop_are_cut_to_it_and_told_in_its_thousandths() -> None:
    where = context(meta={"objects": ANNOTATED})
    view = crop({"image": "img_1", "box": [0, 0, 500, 500]}, where).media[0]  # 200 x 100 pixels
    assert (
        listed(where, view.id).text
        == f"2 objects in {view.id}: cup [200,200,400,600]; Black cat [500,500,1000,1000] cut"
    )
    inner = crop({"image": view.id, "box": [500, 500, 1000, 1000]}, where).media[0]  # 100,50 to 200,100 of the original
    (cat,) = listed(where, inner.id).data["objects"]
    assert cat == {"label": "Black cat", "box": [0, 0, 1000, 1000], "cut": True}
    empty = crop({"image": "img_1", "box": [0, 600, 200, 1000]}, where).media[0]
    assert listed(where, empty.id).text == f"no annotated object in {empty.id}"


def test_pictures_without_annotations_say_so() -> None:
    for meta in (None, {}, {"objects": None}):
        result = listed(context(meta=meta))
        assert (result.text, result.data["annotated"], result.fault) == ("no annotations for img_1", False, None)
    assert listed(context(meta={"objects": []})).text == "no annotated object in img_1"


def test_an_edited_picture_has_no_annotations() -> None:
    """They would lie elsewhere in it."""
    where = context(meta={"objects": ANNOTATED})
    turned = rotate({"image": "img_1", "degrees": 90}, where).media[0]
    result = listed(where, turned.id)
    assert result.text == f"no annotations for {turned.id}: it is neither a picture of the task nor a crop of one"
    part = crop({"image": turned.id, "box": [0, 0, 500, 500]}, where).media[0]
    assert not listed(where, part.id).data["annotated"]


def test_annotations_name_their_picture_where_there_are_several() -> None:
    refs: tuple[MediaRef, ...] = tuple(image_ref(f"img_{n}", Image.new("RGB", (100, 100 * n), GRAY)) for n in (1, 2))
    rows = [{"label": "a", "box": [0, 0, 50, 50]}, {"label": "b", "box": [0, 100, 100, 200], "image": "img_2"}]
    where = ToolContext(
        {r.id: r for r in refs}, sample=Sample("k", refs, (), Answer("text", "x"), "qa", {"objects": rows})
    )
    assert [o["label"] for o in listed(where, "img_1").data["objects"]] == ["a"]
    assert listed(where, "img_2").data["objects"] == [{"label": "b", "box": [0, 500, 1000, 1000], "cut": False}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("cup", "give a list"),
        ([["cup", 1, 2, 3, 4]], r"objects\[0\] is"),
        ([{"label": "cup"}], r"objects\[0\]\.box is None"),
        ([{"label": "cup", "box": [5, 5, 5, 9]}], "x1 < x2"),
        ([{"label": "cup", "box": ["a", 5, 5, 9]}], r"box is \['a'"),
        ([{"label": "cup", "box": [1, 2, 3, 4], "image": "img_7"}], "image is 'img_7'"),
    ],
)
def test_broken_annotations_are_a_fault_of_the_task(rows: Any, words: str) -> None:
    result = objects({"image": "img_1"}, context(meta={"objects": rows}))
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == ("task", "bad_objects")
    assert re.search(words, result.fault.message)


def test_long_lists_say_what_they_leave_out() -> None:
    rows = [{"label": "x", "box": [n, 0, n + 5, 5]} for n in range(90)]
    result = listed(context(meta={"objects": rows}))
    assert result.text.endswith("; and 30 more: ask for a label")
    assert len(result.data["objects"]) == 90
