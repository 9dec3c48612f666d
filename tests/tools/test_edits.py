"""rotate, flip, sharpen, contrast, super_resolution, perspective_correct: pixels end where they must."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from skimage import data

from mmrl.media import image_ref, load_image
from mmrl.registry import get
from mmrl.rollout import call_tool
from mmrl.rollout.arguments import check_arguments
from mmrl.rollout.tools import ToolContext, ToolError
from mmrl.types import MediaRef, ToolCall, ToolResult
from mmrl_tools import superres
from mmrl_tools.edits import contrast, flip, perspective_correct, rotate, sharpen, super_resolution
from mmrl_tools.page import find_page
from mmrl_tools.views import crop

RED, GREEN, BLUE, YELLOW = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)
CORNERS = {"top left": RED, "top right": GREEN, "bottom right": BLUE, "bottom left": YELLOW}


def cornered(width: int = 120, height: int = 80, patch: int = 20) -> Image.Image:
    """Gray, with a patch of another colour in each corner."""
    image = Image.new("RGB", (width, height), (100, 100, 100))
    right, low = width - patch, height - patch
    for colour, place in zip(CORNERS.values(), [(0, 0), (right, 0), (right, low), (0, low)], strict=True):
        image.paste(colour, (*place, place[0] + patch, place[1] + patch))
    return image


def context(image: Image.Image) -> ToolContext:
    return ToolContext({"img_1": image_ref("img_1", image)})


def edited(tool: str, image: Image.Image, *, options: dict[str, Any] | None = None, **arguments: Any) -> ToolResult:
    """Result of a call through the whole path of calls."""
    where = ToolContext({"img_1": image_ref("img_1", image)}, settings={tool: options or {}})
    result = call_tool(ToolCall(tool, {"image": "img_1", **arguments}), where)
    assert result.fault is None, result.fault
    (ref,) = result.media
    assert (ref.id, ref.parent, ref.region) == ("img_2", "", None)
    assert (result.data["id"], result.data["of"]) == ("img_2", "img_1")
    assert list(load_image(ref).size) == [ref.width, ref.height] == result.data["size"]
    assert result.text.startswith("img_2: img_1 ")
    return result


def pixels(result: ToolResult) -> np.ndarray:
    return np.asarray(load_image(result.media[0])).astype(int)


def photo() -> Image.Image:
    return Image.fromarray(data.astronaut()).resize((256, 256))


# --- rotate and flip --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "order", "turns"),
    [
        (90, (YELLOW, RED, GREEN, BLUE), -1),
        (-270, (YELLOW, RED, GREEN, BLUE), -1),
        (180, (BLUE, YELLOW, RED, GREEN), 2),
        (270, (GREEN, BLUE, YELLOW, RED), 1),
        (-90, (GREEN, BLUE, YELLOW, RED), 1),
        (450, (YELLOW, RED, GREEN, BLUE), -1),
        (0, (RED, GREEN, BLUE, YELLOW), 0),
        (360, (RED, GREEN, BLUE, YELLOW), 0),
    ],
)
def test_quarter_turns_are_exact_and_clockwise(degrees: int, order: tuple[Any, ...], turns: int) -> None:
    image = cornered()
    found = pixels(edited("rotate", image, degrees=degrees))
    assert np.array_equal(found, np.rot90(np.asarray(image), turns))
    assert [tuple(found[y, x]) for y, x in [(0, 0), (0, -1), (-1, -1), (-1, 0)]] == list(order)


@given(st.floats(-720, 720), st.integers(40, 200), st.integers(40, 200))
@settings(max_examples=40)
def test_no_corner_is_cut_and_each_is_where_it_must_be(degrees: float, width: int, height: int) -> None:
    result = edited("rotate", cornered(width, height, 16), degrees=degrees)
    found = pixels(result)
    t = math.radians(degrees)
    middle = (found.shape[1] / 2, found.shape[0] / 2)
    # the middle of each patch: x to the right, y down, so a clockwise turn is (cos, -sin; sin, cos)
    for colour, (sx, sy) in zip(CORNERS.values(), [(-1, -1), (1, -1), (1, 1), (-1, 1)], strict=True):
        x, y = sx * (width / 2 - 8), sy * (height / 2 - 8)
        at = (middle[0] + x * math.cos(t) - y * math.sin(t), middle[1] + x * math.sin(t) + y * math.cos(t))
        assert np.abs(found[int(at[1]), int(at[0])] - colour).max() <= 8
    # all of it is there: a canvas that holds the four turned corners, and hardly more
    wide = abs(width * math.cos(t)) + abs(height * math.sin(t))
    high = abs(width * math.sin(t)) + abs(height * math.cos(t))
    assert wide - 1e-6 <= found.shape[1] <= wide + 3
    assert high - 1e-6 <= found.shape[0] <= high + 3


def test_new_parts_are_white_and_nothing_is_lost() -> None:
    dark = Image.new("RGB", (100, 60), (0, 0, 0))
    found = pixels(edited("rotate", dark, degrees=30))
    assert all(tuple(found[y, x]) == (255, 255, 255) for y, x in [(0, 0), (0, -1), (-1, 0), (-1, -1)])
    assert abs((255 - found[..., 0]).sum() / 255 - 6000) < 60  # the area of the picture, within 1 %


def test_turning_there_and_back_gives_the_picture_in_the_middle() -> None:
    image = photo()
    where = context(image)
    there = rotate({"image": "img_1", "degrees": 20}, where)
    back = rotate({"image": there.media[0].id, "degrees": -20}, where)
    found = np.asarray(load_image(back.media[0])).astype(int)
    y, x = ((side - 256) // 2 for side in found.shape[:2])
    inner = found[y + 8 : y + 248, x + 8 : x + 248]
    assert np.abs(inner - np.asarray(image).astype(int)[8:248, 8:248]).mean() < 8


@pytest.mark.parametrize(("direction", "axis"), [("horizontal", 1), ("vertical", 0)])
def test_flip(direction: str, axis: int) -> None:
    image = cornered()
    assert np.array_equal(pixels(edited("flip", image, direction=direction)), np.flip(np.asarray(image), axis))


def test_a_crop_of_a_turned_picture_is_cut_from_what_it_shows() -> None:
    """Clockwise by 90, the bottom left corner comes to the top left; a crop of a crop stays in the turned picture."""
    where = context(cornered(120, 80, 30))
    turned = rotate({"image": "img_1", "degrees": 90}, where).media[0]
    view = crop({"image": turned.id, "box": [0, 0, 375, 250]}, where).media[0]  # 30 of 80, 30 of 120 pixels
    assert (view.parent, view.region) == (turned.id, (0, 0, 30, 30))
    assert set(load_image(view).getdata()) == {YELLOW}
    again = crop({"image": view.id, "box": [0, 0, 1000, 1000]}, where).media[0]
    assert (again.parent, again.region) == (turned.id, (0, 0, 30, 30))


def test_an_edit_of_a_crop_shows_the_crop_and_is_its_own_original() -> None:
    where = context(cornered(120, 80, 30))
    part = crop({"image": "img_1", "box": [750, 0, 1000, 375]}, where).media[0]  # the green patch
    mirrored = flip({"image": part.id, "direction": "horizontal"}, where).media[0]
    assert (mirrored.parent, mirrored.region, mirrored.width, mirrored.height) == ("", None, 30, 30)
    view = crop({"image": mirrored.id, "box": [0, 0, 1000, 1000]}, where).media[0]
    assert set(load_image(view).getdata()) == {GREEN}
    assert view.parent == mirrored.id


# --- sharpen and contrast ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [0, 0.5, 1.5, 5])
def test_sharpen_adds_what_a_blur_takes_away(amount: float) -> None:
    image = photo()
    before = np.asarray(image).astype(float)
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(2))).astype(float)
    wanted = np.clip(before + amount * (before - blurred), 0, 255)
    assert np.abs(pixels(edited("sharpen", image, amount=amount)) - wanted).max() <= 1 + amount


def test_sharpen_has_a_default() -> None:
    assert edited("sharpen", photo()).data["amount"] == 1.5


@pytest.mark.parametrize(("factor", "brightness"), [(1, 1), (2, 1), (0.5, 1), (1, 1.4), (1.5, 0.7)])
def test_contrast_moves_levels_from_the_mean_gray(factor: float, brightness: float) -> None:
    image = photo()
    bright = np.clip(np.asarray(image).astype(float) * brightness, 0, 255)
    mean = (bright @ [0.299, 0.587, 0.114]).mean()
    wanted = np.clip(mean + factor * (bright - mean), 0, 255)
    found = pixels(edited("contrast", image, factor=factor, brightness=brightness))
    assert np.abs(found - wanted).max() <= 3


def test_contrast_needs_something_to_do() -> None:
    with pytest.raises(ToolError, match="give factor for contrast, brightness, or both"):
        contrast({"image": "img_1"}, context(photo()))


# --- super_resolution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2, 2.5, 4])
def test_super_resolution_enlarges_and_says_how(scale: float) -> None:
    image = photo()
    result = edited("super_resolution", image, scale=scale)
    side = math.floor(256 * scale)
    assert (result.media[0].width, result.media[0].height) == (side, side)
    assert "Lanczos and unsharp mask" in result.text
    assert result.data["method"] == "Lanczos and unsharp mask"
    again = load_image(result.media[0]).resize(image.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(again).astype(int) - np.asarray(image)).mean() < 6


def test_super_resolution_is_sharper_than_interpolation() -> None:
    image = photo()
    plain = np.asarray(image.resize((512, 512), Image.Resampling.BICUBIC).convert("L")).astype(float)
    found = np.asarray(load_image(edited("super_resolution", image).media[0]).convert("L")).astype(float)
    assert cv2.Laplacian(found, cv2.CV_64F).var() > 1.5 * cv2.Laplacian(plain, cv2.CV_64F).var()


def test_super_resolution_is_bounded_and_says_so() -> None:
    result = edited("super_resolution", photo(), options={"max_pixels": 160_000}, scale=4)
    assert (result.media[0].width, result.media[0].height) == (400, 400)
    assert "enlarged 1.56 times (not 4 times: at most 160000 pixels)" in result.text
    full = ToolContext(context(photo()).media, settings={"super_resolution": {"max_pixels": 256 * 256}})
    fault = call_tool(ToolCall("super_resolution", {"image": "img_1"}), full).fault
    assert fault is not None
    assert (fault.kind, fault.code) == ("policy", "too_large")
    assert "256x256 pixels: crop a part" in fault.message


def weights(path: Path, channels: int = 3) -> torch.nn.Module:
    """A small super-resolution network with random weights (SRVGG: convolutions, then a pixel shuffle), x2."""
    from spandrel.architectures.Compact import Compact

    torch.manual_seed(0)
    net = Compact(num_in_ch=channels, num_out_ch=channels, num_feat=8, num_conv=2, upscale=2)
    torch.save(net.state_dict(), path)
    return net.eval()


def test_super_resolution_with_weights_is_what_the_model_makes(tmp_path: Path) -> None:
    """Also over the borders of the pieces in which it is computed."""
    net = weights(tmp_path / "net.pth")
    image = Image.fromarray(data.astronaut()[:290, :300])
    result = edited("super_resolution", image, options={"weights": str(tmp_path / "net.pth")})
    with torch.no_grad():
        whole = net(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255)[0].clamp(0, 1)
    wanted = (whole * 255).round().permute(1, 2, 0).numpy()
    assert np.abs(pixels(result) - wanted).max() <= 1
    assert "by the model RealESRGAN Compact x2" in result.text
    larger = edited("super_resolution", image, options={"weights": str(tmp_path / "net.pth")}, scale=3)
    assert (larger.media[0].width, larger.media[0].height) == (900, 870)


def test_weights_that_cannot_be_used_are_faults_of_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(path: Path) -> str:
        where = ToolContext(context(photo()).media, settings={"super_resolution": {"weights": str(path)}})
        found = call_tool(ToolCall("super_resolution", {"image": "img_1"}), where).fault
        assert found is not None
        assert found.code == "tool_failed"
        return found.message

    assert "no file" in fault(tmp_path / "none.pth")
    (tmp_path / "junk.pth").write_bytes(b"junk")
    assert "spandrel reads no model from it" in fault(tmp_path / "junk.pth")
    weights(tmp_path / "gray.pth", channels=1)
    assert "RGB" in fault(tmp_path / "gray.pth")
    weights(tmp_path / "net.pth")
    monkeypatch.setitem(sys.modules, "spandrel", None)
    superres._model.cache_clear()
    assert "install mmrl[superres]" in fault(tmp_path / "net.pth")


# --- perspective_correct ----------------------------------------------------------------------------------------------

PAGE_QUAD = [(120.0, 60.0), (420.0, 100.0), (450.0, 560.0), (80.0, 500.0)]


def checkerboard(width: int = 300, height: int = 400, cell: int = 50) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    level = np.where((x // cell + y // cell) % 2, 190, 255)
    level[:cell, :cell] = 140  # so that its top left is known
    return np.stack([level] * 3, -1).astype(np.uint8)


def seen(page: np.ndarray, quad: list[tuple[float, float]], size: tuple[int, int] = (560, 700)) -> Image.Image:
    """The page in a dark picture of `size`, its corners at `quad`: each pixel looked up through the plane's mapping,
    solved here from the eight equations of the four corners."""
    height, width = page.shape[:2]
    rows, right = [], []
    for (x, y), (u, v) in zip(quad, [(0, 0), (width, 0), (width, height), (0, height)], strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    a = [*np.linalg.solve(np.array(rows), np.array(right)), 1.0]
    out = np.full((size[1], size[0], 3), 30, np.uint8)
    y, x = np.mgrid[: size[1], : size[0]] + 0.5
    w = a[6] * x + a[7] * y + a[8]
    u, v = (a[0] * x + a[1] * y + a[2]) / w, (a[3] * x + a[4] * y + a[5]) / w
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    out[inside] = page[v[inside].astype(int), u[inside].astype(int)]
    return Image.fromarray(out)


def as_thousandths(quad: list[tuple[float, float]], size: tuple[int, int] = (560, 700)) -> list[list[float]]:
    return [[x / size[0] * 1000, y / size[1] * 1000] for x, y in quad]


@pytest.mark.parametrize("given_corners", [True, False])
def test_a_page_seen_at_an_angle_comes_back(given_corners: bool) -> None:
    page = checkerboard()
    chosen = {"corners": as_thousandths(PAGE_QUAD)} if given_corners else {}
    result = edited("perspective_correct", seen(page, PAGE_QUAD), **chosen)
    # the longer ones of the opposite sides, worked out by hand: |(450,560)-(80,500)| and |(450,560)-(420,100)|
    size = (round(math.hypot(370, 60)), round(math.hypot(30, 460)))
    assert max(abs(result.media[0].width - size[0]), abs(result.media[0].height - size[1])) <= 2 * (not given_corners)
    found = np.asarray(load_image(result.media[0]).resize((300, 400), Image.Resampling.BOX)).astype(int)
    middle = [(slice(50 * r + 12, 50 * r + 38), slice(50 * c + 12, 50 * c + 38)) for r in range(8) for c in range(6)]
    assert all(np.abs(found[cell] - page[cell]).max() <= 4 for cell in middle)
    assert np.abs(found - page).mean() < 4
    told = result.data["corners"]
    assert np.abs(np.array(told) - as_thousandths(PAGE_QUAD)).max() < (0.1 if given_corners else 4)
    assert result.data["found"] is not given_corners


def test_the_whole_picture_as_corners_is_the_picture() -> None:
    image = photo()
    result = edited("perspective_correct", image, corners=[[0, 0], [1000, 0], [1000, 1000], [0, 1000]])
    assert np.array_equal(pixels(result), np.asarray(image))


def test_corners_decide_what_is_up() -> None:
    """Named from another corner, the page comes out turned, never mirrored."""
    image = cornered(100, 100, 30)
    result = edited("perspective_correct", image, corners=[[0, 1000], [0, 0], [1000, 0], [1000, 1000]])
    assert np.array_equal(pixels(result), np.rot90(np.asarray(image), -1))


@pytest.mark.parametrize(
    ("corners", "code", "words"),
    [
        ([[100, 100], [900, 900], [900, 100], [100, 900]], "bad_corners", "must go round"),
        ([[100, 100], [100, 900], [900, 900], [900, 100]], "bad_corners", "counter-clockwise"),
        ([[100, 100], [900, 100], [300, 300], [100, 900]], "bad_corners", "not convex"),
        ([[0, 0], [500, 10], [1000, 0], [500, 800]], "bad_corners", "not convex or too thin"),
        ([[100, 100], [110, 100], [110, 900], [100, 900]], "bad_corners", "at least 28 pixels"),
        ([[500, 500]] * 4, "bad_corners", "at least 28 pixels"),
        ([[0, 0], [1001, 0], [1000, 1000], [0, 1000]], "outside_picture", "corner 2 1001,0 is outside"),
    ],
)
def test_corners_that_are_no_page(corners: Any, code: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as error:
        perspective_correct({"image": "img_1", "corners": corners}, context(photo()))
    assert error.value.code == code


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "coins", "page", "brick"])
def test_pictures_without_a_page(name: str) -> None:
    image = Image.fromarray(getattr(data, name)()).convert("RGB")
    with pytest.raises(ToolError, match="give its corners") as error:
        perspective_correct({"image": "img_1"}, context(image))
    assert error.value.code == "no_page"


def test_pages_too_small_or_too_odd_are_not_found() -> None:
    assert find_page(seen(checkerboard(), [(100, 100), (200, 100), (200, 230), (100, 230)])) is None  # 3 % of it
    assert find_page(seen(checkerboard(), [(100, 100), (500, 330), (500, 350), (100, 600)])) is None  # a wedge
    assert find_page(Image.new("RGB", (400, 300), "white")) is None


# --- all of them ------------------------------------------------------------------------------------------------------

POINTS = st.lists(st.floats(-50, 1050), min_size=2, max_size=2)
EDITS = {
    "rotate": st.fixed_dictionaries({"degrees": st.floats(-1e9, 1e9)}),
    "flip": st.fixed_dictionaries({"direction": st.sampled_from(["horizontal", "vertical"])}),
    "sharpen": st.fixed_dictionaries({}, optional={"amount": st.floats(0, 5)}),
    "contrast": st.fixed_dictionaries({"factor": st.floats(0.1, 5)}, optional={"brightness": st.floats(0.1, 5)}),
    "super_resolution": st.fixed_dictionaries({}, optional={"scale": st.floats(2, 4)}),
    "perspective_correct": st.fixed_dictionaries({}, optional={"corners": st.lists(POINTS, min_size=4, max_size=4)}),
}


@given(st.data(), st.sampled_from(list(EDITS)), st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=150)
def test_any_call_on_any_picture(draw: Any, tool: str, width: int, height: int) -> None:
    """Never a fault of the tool, never more than its bound, never a picture that a processor refuses."""
    assume(max(width, height) <= 200 * min(width, height))
    arguments = {"image": "img_1", **draw.draw(EDITS[tool])}
    check_arguments(arguments, get("tool", tool).info["schema"]["parameters"])
    image = Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))
    where = ToolContext(context(image).media, settings={tool: {"max_pixels": 100_000}})
    result = call_tool(ToolCall(tool, arguments), where)
    if result.fault is not None:
        assert result.fault.kind == "policy", result.fault
        return
    (ref,) = result.media
    assert min(ref.width, ref.height) >= 28
    assert max(ref.width, ref.height) <= 200 * min(ref.width, ref.height)
    assert ref.width * ref.height <= 100_000


def test_scaling_is_told() -> None:
    result = edited("flip", photo(), options={"max_pixels": 16_384}, direction="vertical")
    assert (result.media[0].width, result.media[0].height) == (128, 128)
    assert result.text.endswith("128x128 pixels, scaled from 256x256")
    assert "scaled from 10x20" in edited("flip", cornered(10, 20, 4), direction="vertical").text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_pixels": "many"}, "max_pixels is 'many': set it to a"),
        ({"max_pixel": 5000}, "max_pixel: unknown setting"),
    ],
)
def test_a_wrong_setting_is_a_fault_of_the_tool(setting: dict[str, Any], words: str) -> None:
    where = ToolContext(context(photo()).media, settings={"flip": setting})
    fault = call_tool(ToolCall("flip", {"image": "img_1", "direction": "vertical"}), where).fault
    assert fault is not None
    assert f"rollout.tool_options.flip.{words}" in fault.message


def test_same_call_same_bytes_and_the_picture_stays_as_it_was() -> None:
    where = context(photo())
    before = np.asarray(where.load(where.media["img_1"])).copy()
    calls: list[tuple[Any, dict[str, Any]]] = [
        (rotate, {"degrees": 33}),
        (sharpen, {}),
        (contrast, {"factor": 2}),
        (super_resolution, {}),
        (flip, {"direction": "vertical"}),
    ]
    for tool, arguments in calls:
        one, two = (_first(tool({"image": "img_1", **arguments}, where)) for _ in range(2))
        assert one.data == two.data
    assert np.array_equal(np.asarray(where.load(where.media["img_1"])), before)


def _first(result: ToolResult) -> MediaRef:
    return result.media[0]
