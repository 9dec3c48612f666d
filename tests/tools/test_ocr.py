"""ocr: words and boxes of text drawn at known places, of a photograph of a page, and of nothing."""

from __future__ import annotations

import builtins
import difflib
import queue
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from mmrl.media import image_ref
from mmrl.rollout import ToolContext
from mmrl.rollout.calls import Tools
from mmrl.types import FaultKind, ToolCall, ToolResult
from mmrl_tools import ocr as module
from mmrl_tools.ocr import Line, read_lines, reading_order

pytest.importorskip("rapidocr")

TEXTS = {
    "Invoice 2041": (40, 30),
    "Total: 37.50 EUR": (40, 260),
    "Paid": (430, 262),
    "Harbour station": (220, 150),
}


def drawn(texts: dict[str, tuple[int, int]], size: tuple[int, int], font: int = 28) -> tuple[Image.Image, dict]:
    """A white picture with texts, and where each one's ink is, xyxy in pixels."""
    image, face = Image.new("RGB", size, "white"), ImageFont.load_default(font)
    draw = ImageDraw.Draw(image)
    for text, at in texts.items():
        draw.text(at, text, fill="black", font=face)
    return image, {text: draw.textbbox(at, text, font=face) for text, at in texts.items()}


def context(image: Image.Image, **options: Any) -> ToolContext:
    return ToolContext({"img_1": image_ref("img_1", image)}, settings={"ocr": options} if options else {})


def read(where: ToolContext, **arguments: Any) -> ToolResult:
    with Tools() as tools:  # its own: failures in a row make a tool rest
        return tools.submit([ToolCall("ocr", {"image": "img_1", **arguments})], where).result()[0]


@pytest.fixture(scope="module")
def page() -> tuple[Image.Image, dict]:
    return drawn(TEXTS, (640, 400))


def test_drawn_lines_in_reading_order_with_their_boxes(page: tuple[Image.Image, dict]) -> None:
    image, ink = page
    result = read(context(image))
    assert result.fault is None
    lines = result.data["lines"]
    assert [line["text"] for line in lines] == ["Invoice 2041", "Harbour station", "Total: 37.50 EUR", "Paid"]
    for line in lines:
        want = [v * 1000 / s for v, s in zip(ink[line["text"]], (640, 400, 640, 400), strict=True)]
        assert line["box"] == pytest.approx(want, abs=20)
        assert 0.9 <= line["confidence"] <= 1
    told = ["{} [{}]".format(d["text"], ",".join(f"{v:.0f}" for v in d["box"])) for d in lines]
    assert result.text == "\n".join(told)
    assert result.media == ()


def test_a_box_is_read_alone_and_told_in_the_whole_picture(page: tuple[Image.Image, dict]) -> None:
    image, _ = page
    whole = {line["text"]: line["box"] for line in read(context(image)).data["lines"]}
    for box in ([0, 550, 600, 900], [600, 900, -50, 550]):  # corners in either order
        lines = read(context(image), box=box).data["lines"]
        assert [line["text"] for line in lines] == ["Total: 37.50 EUR"]
        assert lines[0]["box"] == pytest.approx(whole["Total: 37.50 EUR"], abs=10)


def test_text_of_eleven_pixels_in_a_picture_of_twenty() -> None:
    image, ink = drawn({"Quay 718": (6, 4)}, (70, 20), font=11)
    (line,) = read(context(image)).data["lines"]
    assert line["text"].replace(" ", "") == "Quay718"
    pixels = [v * s / 1000 for v, s in zip(line["box"], (70, 20, 70, 20), strict=True)]
    assert pixels == pytest.approx(ink["Quay 718"], abs=4)


def test_large_pictures_are_reduced_and_boxes_stay() -> None:
    image, ink = drawn({"Harbour": (1200, 2000)}, (3000, 2400), font=120)
    (line,) = read(context(image, max_side=1000)).data["lines"]
    assert line["text"] == "Harbour"
    want = [v * 1000 / s for v, s in zip(ink["Harbour"], (3000, 2400, 3000, 2400), strict=True)]
    assert line["box"] == pytest.approx(want, abs=20)


@pytest.mark.parametrize("turn", [False, True])
def test_long_pictures(turn: bool) -> None:
    """One side a hundred times the other: neither stretched nor enlarged without bounds."""
    image, _ = drawn({"Mill": (900, 2)}, (1900, 19), font=13)
    lines = read(context(image.transpose(Image.Transpose.ROTATE_90) if turn else image)).data["lines"]
    assert turn or [line["text"] for line in lines] == ["Mill"]


def test_a_photograph_of_a_page() -> None:
    from skimage import data

    gray = data.page()
    result = read(context(Image.fromarray(gray).convert("RGB")))
    written = (
        "Region-based segmentation Let us first determine markers of the coins and the background. These markers are "
        "pixels that we can label unambiguously as either object or background. Here, the markers are found at the two "
        "extreme parts of the histogram of grey values:"
    )
    lines = result.data["lines"]
    found = " ".join(line["text"] for line in lines)
    assert difflib.SequenceMatcher(None, written, found, autojunk=False).find_longest_match().a == 0
    ratio = difflib.SequenceMatcher(None, written, found[: len(written)], autojunk=False).ratio()
    assert ratio > 0.95
    tops = [line["box"][1] for line in lines]
    assert tops == sorted(tops)
    for line in lines:  # the ink of a line is in its box: it is darker than the paper there
        x1, y1, x2, y2 = (int(v * s / 1000) for v, s in zip(line["box"], (384, 191, 384, 191), strict=True))
        assert np.ptp(gray[y1 : y2 + 1, x1 : x2 + 1]) > 60


def test_text_that_is_not_there() -> None:
    result = read(context(Image.new("RGB", (300, 200), "white")))
    assert (result.text, result.fault) == ("no text found in img_1", None)
    assert result.data == {"image": "img_1", "lines": [], "left_out": 0}


def test_unclear_lines_are_left_out_and_counted(
    page: tuple[Image.Image, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = page
    found = [Line("clear", (0, 0, 64, 40), 0.9), Line("unclear", (0, 100, 64, 140), 0.4)]
    monkeypatch.setattr(module, "read_lines", lambda *_, **__: found)
    result = read(context(image, confidence=0.5))
    assert result.text == "clear [0,0,100,100]\n(1 unclear line left out)"
    assert ([line["text"] for line in result.data["lines"]], result.data["left_out"]) == (["clear"], 1)
    assert read(context(image, confidence=0.3)).data["left_out"] == 0
    nothing = read(context(image, confidence=0.95))
    assert nothing.text == "no text found in img_1\n(2 unclear lines left out)"


def test_same_picture_same_lines_from_many_threads(page: tuple[Image.Image, dict]) -> None:
    image, _ = page
    other, _ = drawn({"Orchard 55": (30, 20)}, (300, 90))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(read_lines, [image, other, other, image]))
    assert found[0] == found[3] == read_lines(image)
    assert found[1] == found[2]
    assert [line.text for line in found[1]] == ["Orchard 55"]


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, page: tuple[Image.Image, dict]) -> None:
    import socket

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    fresh: queue.LifoQueue[Any] = queue.LifoQueue()
    fresh.put(None)
    monkeypatch.setattr(module, "_engines", fresh)
    assert len(read_lines(page[0])) == 4


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, page: tuple[Image.Image, dict]
) -> None:
    fresh: queue.LifoQueue[Any] = queue.LifoQueue()
    fresh.put(None)
    monkeypatch.setattr(module, "_engines", fresh)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "rapidocr":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "rapidocr")
    monkeypatch.setattr(builtins, "__import__", without)
    result = read(context(page[0], confidence=0.51))
    assert result.fault is not None
    assert (result.fault.kind, "mmrl[ocr]" in result.fault.message) == (FaultKind.TOOL, True)
    assert fresh.qsize() == 1  # the next call may try again


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"image": "img_7"}, "unknown_image"),
        ({"box": [1000, 0, 1200, 10]}, "outside_picture"),
        ({"box": [0, 0, 10]}, "bad_arguments"),
        ({"boxes": [0, 0, 10, 10]}, "bad_arguments"),
    ],
)
def test_errors(page: tuple[Image.Image, dict], arguments: dict[str, Any], code: str) -> None:
    result = read(context(page[0]), **arguments)
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, code)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"confidence": 2}, "confidence is 2"),
        ({"confidence": True}, "confidence is True"),
        ({"max_side": "big"}, "max_side is 'big'"),
        ({"max_side": 10}, "max_side is 10"),
        ({"max_side": 999.5}, "max_side is 999.5"),
        ({"max_sides": 999}, "max_sides: unknown setting: did you mean 'max_side'?"),
    ],
)
def test_wrong_settings_name_themselves(page: tuple[Image.Image, dict], wrong: dict[str, Any], message: str) -> None:
    result = read(context(page[0], **wrong))
    assert result.fault is not None
    assert f"rollout.tool_options.ocr.{message}" in result.fault.message


@given(st.permutations(range(6)))
def test_rows_are_read_from_top_to_bottom_and_left_to_right(order: list[int]) -> None:
    """Two columns, three rows, uneven by a third of a line's height."""
    lines = [
        Line(str(n), (200.0 * (n % 2), 30.0 * (n // 2) + 3 * (n % 2), 90, 30.0 * (n // 2) + 12), 1) for n in range(6)
    ]
    assert [line.text for line in reading_order([lines[n] for n in order])] == list("012345")


NUMBERS = st.integers(-20, 1020) | st.floats(-50, 1100) | st.sampled_from([0, 1e9, -1e9, 1e-9, 999.9999999])
BOXES = st.lists(NUMBERS, min_size=4, max_size=4) | st.lists(NUMBERS, max_size=5) | st.none() | st.text(max_size=3)


@given(st.tuples(st.integers(1, 90), st.integers(1, 90)), BOXES)
@settings(max_examples=25, deadline=None)
def test_no_box_of_any_small_picture_makes_it_fail(size: tuple[int, int], box: Any) -> None:
    image, _ = drawn({"ab 12": (1, 1)}, (max(size[0], size[1] // 99 + 1), max(size[1], size[0] // 99 + 1)), font=12)
    result = read(context(image), box=box)
    assert result.fault is None or result.fault.kind is FaultKind.POLICY
    for line in result.data.get("lines", ()):
        x1, y1, x2, y2 = line["box"]
        assert 0 <= x1 <= x2 <= 1000
        assert 0 <= y1 <= y2 <= 1000
