"""video_info, frame_select, video_window: right frames by a search through all of them, on real and on odd clips."""

from __future__ import annotations

import bisect
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media.clips import BIKES, BUNNY, CARPHONE, VARIABLE, damaged, edited, encode, looped, moving, numbers, turned
from PIL import Image

from mmrl.media import MediaError, content_hash, file_ref, image_ref, load_image, load_video, media_info
from mmrl.registry import get
from mmrl.rollout import ToolContext, call_tool
from mmrl.rollout.calls import Tools
from mmrl.types import FaultKind, MediaRef, ToolCall, ToolResult
from mmrl.view import View, view_of, with_view
from mmrl_tools import views
from mmrl_tools.clips import told

X264 = "keyint=15:bframes=3:scenecut=0"
CLIPS: dict[str, Callable[[], bytes]] = {
    "bikes": BIKES.read_bytes,
    "ntsc": CARPHONE.read_bytes,
    "varying rate": lambda: encode(VARIABLE),
    "varying rate, B-frames": lambda: encode(VARIABLE, container="matroska", b_frames=2),
    "late start": lambda: encode([1000, 1040, 1500, 1540, 2500, 2540], container="matroska"),
    "open groups": lambda: moving(options={"x264-params": X264 + ":open-gop=1"}),
    "rotated": lambda: turned((0, 1, -1, 0)),
    "program stream": lambda: moving("mpeg2video", "mpeg", options={"bf": "2"}),
}


class Truth(NamedTuple):
    """A clip, and all of its frames with their times, decoded by PyAV from the first to the last."""

    ref: MediaRef
    times: list[float]
    frames: list[np.ndarray]


def clip_of(data: bytes) -> MediaRef:
    width, height, info = media_info(data, "video")
    return MediaRef("vid_1", "video", content_hash(data), width, height, data=data, info=info)


@pytest.fixture(scope="module", params=list(CLIPS))
def clip(request: pytest.FixtureRequest) -> Truth:
    data = CLIPS[request.param]()
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        found = [(f.pts, np.rot90(f.to_ndarray(format="rgb24"), f.rotation // 90)) for f in container.decode(stream)]
        tick = float(stream.time_base or 0)
    assert [p for p, _ in found] == sorted(p for p, _ in found)
    return Truth(clip_of(data), [(p - found[0][0]) * tick for p, _ in found], [f for _, f in found])


def context(ref: MediaRef, **options: Any) -> ToolContext:
    names = ("video_info", "frame_select", "video_window")
    return ToolContext({ref.id: ref}, settings=dict.fromkeys(names, options) if options else {})


def call(where: ToolContext, name: str, video: str = "vid_1", **arguments: Any) -> ToolResult:
    return call_tool(ToolCall(name, {"video": video, **arguments}), where)


def at(times: list[float], second: float | Fraction) -> int:
    """Number of the frame on screen: the last one shown at or before."""
    return max(0, bisect.bisect_right(times, float(second) + 1e-6) - 1)


# --- frame_select -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [True, False])
def test_frames_are_those_on_screen(clip: Truth, indexed: bool) -> None:
    times = clip.times
    inner = np.random.default_rng(7).uniform(0, times[-1], 4)
    asked = [times[-1], 0, times[len(times) // 2], *inner.tolist()]
    where = context(clip.ref if indexed else replace(clip.ref, info={}))
    result = call(where, "frame_select", times=asked)
    assert result.fault is None
    right = sorted({at(times, t) for t in asked})
    assert [m.id for m in result.media] == [f"img_{i + 1}" for i in range(len(right))]
    for medium, number in zip(result.media, right, strict=True):
        assert np.array_equal(np.asarray(load_image(medium)), clip.frames[number])
        assert where.media[medium.id] == medium
    data = result.data["frames"]
    assert [f["time"] for f in data] == pytest.approx([times[n] for n in right], abs=1e-6)
    assert [f["id"] for f in data] == [m.id for m in result.media]
    assert result.text == ", ".join(f"{f['id']}: {told(f['time'])} s" for f in data) + " of vid_1"


def test_a_time_that_was_told_means_the_same_frame(clip: Truth) -> None:
    times = clip.times
    for number in sorted({0, 1, len(times) // 3, len(times) - 2, len(times) - 1}):
        first = call(context(clip.ref), "frame_select", times=[times[number]])
        said = float(first.text.split()[1])
        again = call(context(clip.ref), "frame_select", times=[said])
        assert again.media[0].hash == first.media[0].hash
        assert np.array_equal(np.asarray(load_image(again.media[0])), clip.frames[number])


@given(st.integers(0, 10**6), st.sampled_from([Fraction(25), Fraction(30000, 1001), Fraction(24000, 1001)]))
def test_told_times_are_within_their_frame(number: int, rate: Fraction) -> None:
    exact = number / rate
    assert exact - Fraction(1, 10**6) <= Fraction(told(float(exact))) < exact + Fraction(1, 500)


def test_times_on_one_frame_are_merged_and_sorted() -> None:
    result = call(context(clip_of(encode(VARIABLE))), "frame_select", times=[3.0, 0.5, 2.3, 0.12, 1.119, 5.2])
    assert result.text == "img_1: 0.12 s, img_2: 2.24 s of vid_1"
    assert numbers(np.stack([np.asarray(load_image(m)) for m in result.media])) == [3, 8]


@pytest.mark.parametrize(("times", "said"), [([10.01], "10.01 s lies"), ([1, 1e9, 11], "1e+09, 11 s lie")])
def test_times_outside_are_errors(times: list[float], said: str) -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    result = call(where, "frame_select", times=times)
    assert result.fault is not None
    assert (result.fault.code, result.media, list(where.media)) == ("outside_clip", (), ["vid_1"])
    assert result.text == f"Error: {said} outside vid_1, which is 0-10 s"
    assert call(where, "frame_select", times=[10]).text == "img_1: 9.96 s of vid_1"


def test_pictures_are_bounded_and_large_enough() -> None:
    ref = file_ref("vid_1", BUNNY, "video")
    (whole,) = call(context(ref), "frame_select", times=[1]).media
    assert load_image(whole).size == (1280, 720)
    (small,) = call(context(ref, max_pixels=100_000), "frame_select", times=[1]).media
    assert load_image(small).size == (small.width, small.height) == (421, 237)
    (as_it_is,) = call(context(clip_of(encode([0]))), "frame_select", times=[0]).media
    assert load_image(as_it_is).size == (64, 48)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 16, 8, "yuv420p"
        out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((8, 16, 3), 90, np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    (grown,) = call(context(clip_of(buffer.getvalue())), "frame_select", times=[0]).media
    assert load_image(grown).size == (56, 28)


def test_a_frame_is_a_picture_that_can_be_cropped() -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    call(where, "frame_select", times=[2])
    crop = call_tool(ToolCall("crop", {"image": "img_1", "box": [0, 0, 500, 1000]}), where)
    assert views.crop is get("tool", "crop").obj
    assert (crop.fault, crop.media[0].parent, crop.media[0].region) == (None, "img_1", (0, 0, 320, 272))


# --- video_window -----------------------------------------------------------------------------------------------------


def expected(times: list[float], start: float, end: float, fps: float, most: int) -> list[int]:
    """Numbers of the frames of a window, by the words of the tool."""
    low, high = Fraction(start), min(Fraction(end), Fraction(times[-1]))
    every = math.floor((high - low) * Fraction(fps) + Fraction(1, 10**6)) + 1
    steps = [low + k / Fraction(fps) for k in range(every)]
    even = [low + k * (high - low) / max(1, min(max(every, 4), most) - 1) for k in range(min(max(every, 4), most))]
    chosen = {at(times, t) for t in (even if every > most else steps)}
    return sorted(max(chosen, {at(times, t) for t in even}, key=len) if len(chosen) < 4 else chosen)


@pytest.mark.parametrize("indexed", [True, False])
def test_windows_show_the_right_frames(clip: Truth, indexed: bool) -> None:
    times = clip.times
    last = times[-1]
    windows = [
        [0, last],
        [0.3 * last, 0.7 * last],
        [0.5 * last, last + 50],
        [-4, 0.45 * last],
        [0.61 * last, 0.9 * last],
    ]
    where = context(clip.ref if indexed else replace(clip.ref, info={}), fps=3, max_frames=7)
    result = call(where, "video_window", windows=windows)
    assert result.fault is None
    assert [m.id for m in result.media] == [f"vid_{n}" for n in range(2, 7)]
    for ref, (start, end), data, line in zip(
        result.media, windows, result.data["windows"], result.text.splitlines(), strict=True
    ):
        assert (ref.hash, ref.data, ref.parent, ref.width) == (clip.ref.hash, clip.ref.data, "vid_1", clip.ref.width)
        right = expected(times, max(start, 0), end, 3, 7)
        if len({at(times, start), at(times, end)}) == 1:  # within one frame: it has grown
            right = expected(times, data["start"], data["end"], 3, 7)
            assert len(right) == 2
        shown = load_video(ref)
        assert shown.times == pytest.approx([times[n] for n in right], abs=1e-6)
        assert data["times"] == shown.times
        assert all(np.array_equal(f, clip.frames[n]) for f, n in zip(shown.frames, right, strict=True))
        assert line.startswith(f"{ref.id}: {told(data['start'])}-{told(data['end'])} s of vid_1, {len(right)} frame")


@pytest.mark.parametrize(
    ("start", "end", "window", "frames"),
    [
        (3, 3.01, "3-3.04", [3.0, 3.04]),
        (3.01, 3.02, "3.01-3.04", [3.0, 3.04]),
        (3, 3.04, "3-3.04", [3.0, 3.04]),
        (9.97, 9.98, "9.92-9.98", [9.92, 9.96]),
        (9.99, 80, "9.92-10", [9.92, 9.96]),
        (-5, 0.01, "0-0.04", [0.0, 0.04]),
        (1, 1.5, "1-1.5", [1.0, 1.16, 1.32, 1.48]),
        (1, 3, "1-3", [1.0, 1.48, 2.0, 2.48, 3.0]),
        (0, 10, "0-10", 16),
    ],
)
def test_short_windows_grow_to_a_pair(start: float, end: float, window: str, frames: Any) -> None:
    result = call(context(file_ref("vid_1", BIKES, "video")), "video_window", start=start, end=end)
    shown = load_video(result.media[0])
    count = frames if isinstance(frames, int) else len(frames)
    assert result.text == f"vid_2: {window} s of vid_1, {count} frames"
    assert len(shown.times) == count
    assert isinstance(frames, int) or shown.times == pytest.approx(frames)


def test_a_clip_of_one_frame_has_windows_of_one_frame() -> None:
    result = call(context(clip_of(encode([0]))), "video_window", start=0, end=1)
    assert result.text.endswith("s of vid_1, 1 frame")
    assert numbers(load_video(result.media[0]).frames) == [0]


def test_a_window_of_a_window_is_a_window_of_the_clip() -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    call(where, "video_window", start=4, end=6)
    inner = call(where, "video_window", video="vid_2", start=5, end=99)
    assert inner.text == "vid_3: 5-6 s of vid_1, 4 frames"
    assert inner.media[0].parent == "vid_1"
    same = call(where, "video_window", start=5, end=6).media[0]
    assert np.array_equal(load_video(inner.media[0]).frames, load_video(same).frames)
    edge = call(where, "video_window", video="vid_2", start=5.99, end=6)
    assert load_video(edge.media[0]).times == pytest.approx([5.96, 6.0])
    frame = call(where, "frame_select", video="vid_3", times=[5.5])
    assert frame.text == "img_1: 5.48 s of vid_1"
    for name, arguments in [
        ("video_window", {"start": 0, "end": 4}),
        ("video_window", {"start": 6, "end": 7}),
        ("frame_select", {"times": [3.9]}),
        ("frame_select", {"times": [6.1]}),
    ]:
        result = call(where, name, video="vid_2", **arguments)
        assert result.fault is not None
        assert result.fault.code == "outside_clip"
        assert result.text.endswith("outside vid_2, which is 4-6 s of vid_1")


def test_a_sample_clip_whose_parent_is_elsewhere_is_a_whole_clip() -> None:
    ref = replace(file_ref("vid_1", BIKES, "video"), parent="film")
    assert call(context(ref), "video_window", start=1, end=2).media[0].parent == "vid_1"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "bad_arguments"),
        ({"start": 1}, "bad_arguments"),
        ({"end": 1}, "bad_arguments"),
        ({"start": 1, "end": 2, "windows": [[1, 2]]}, "bad_arguments"),
        ({"windows": []}, "bad_arguments"),
        ({"windows": [[1, 2]] * 9}, "bad_arguments"),
        ({"windows": [[1, 2, 3]]}, "bad_arguments"),
        ({"start": "1", "end": 2}, "bad_arguments"),
        ({"start": 2, "end": 2}, "bad_window"),
        ({"start": 3, "end": 2}, "bad_window"),
        ({"start": 10, "end": 12}, "outside_clip"),
        ({"start": -3, "end": 0}, "outside_clip"),
        ({"windows": [[3, 2], [50, 60]]}, "bad_window"),
    ],
)
def test_errors(arguments: dict[str, Any], code: str) -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    result = call(where, "video_window", **arguments)
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, code)
    assert list(where.media) == ["vid_1"]


def test_a_bad_window_does_not_spoil_the_others() -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    result = call(where, "video_window", windows=[[1, 2], [50, 60], [3, 4]])
    assert result.text.splitlines() == [
        "vid_2: 1-2 s of vid_1, 4 frames",
        "Error: window 2: 50-60 s lies outside vid_1, which is 0-10 s",
        "vid_3: 3-4 s of vid_1, 4 frames",
    ]
    assert [m.id for m in result.media] == [w["id"] for w in result.data["windows"]] == ["vid_2", "vid_3"]
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "outside_clip")


def test_only_the_window_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key frame every 3 s: a window costs what lies in it, and at most a group before and a frame pair of delay."""
    looped(tmp_path / "long.mp4", seconds=30)
    ref = file_ref("vid_1", tmp_path / "long.mp4", "video")
    whole = load_video(ref, max_frames=768).decoded
    assert whole > 600

    def refuse(*_: object) -> None:
        raise AssertionError("the file was read through to find its timeline")

    monkeypatch.setattr("mmrl.video.measure", refuse)
    for start, end in ((0.5, 1), (14.2, 15), (24, 26), (29, 30)):
        window = call(context(ref), "video_window", start=start, end=end).media[0]
        assert load_video(window).decoded <= 75 + 25 * (end - start) + 3
        frames = call(context(ref), "frame_select", times=[start])
        assert frames.fault is None


def test_a_clip_without_a_timeline_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new medium carries what was found, so that its window is reached by a seek."""
    bare = replace(file_ref("vid_1", BIKES, "video"), info={})
    window = call(context(bare), "video_window", start=8, end=9).media[0]
    by_reading = load_video(bare, start=8, end=9)
    monkeypatch.setattr("mmrl.video.measure", None)
    shown = load_video(window)
    assert shown.decoded <= 45
    assert set(by_reading.times) <= {8.0, 8.48, 9.0}
    assert shown.times == pytest.approx([8.0, 8.32, 8.64, 9.0])
    assert np.array_equal(shown.frames[0], by_reading.frames[0])


def test_settings_of_the_recipe() -> None:
    ref = file_ref("vid_1", BIKES, "video")
    window = call(context(ref, fps=5, max_frames=8, max_pixels=50_176), "video_window", start=0, end=2).media[0]
    assert view_of(window) == View(0.0, 2.0, 5, 8, 4, 50_176)
    assert len(load_video(window).times) == 8
    assert json.loads(json.dumps(dict(window.info))) == window.info
    with Tools() as tools:  # its own: failures in a row make a tool rest
        for wrong in ({"fps": 0}, {"fps": "2"}, {"max_frames": 1}, {"max_frames": 1e6}, {"max_pixels": 1}):
            asked = ToolCall("video_window", {"video": "vid_1", "start": 0, "end": 2})
            (result,) = tools.submit([asked], context(ref, **wrong)).result()
            assert result.fault is not None
            assert result.fault.kind is FaultKind.TOOL
            assert f"rollout.tool_options.video_window.{next(iter(wrong))} is" in result.fault.message


# --- video_info -------------------------------------------------------------------------------------------------------


def test_info_of_a_real_clip() -> None:
    result = call(context(file_ref("vid_1", BIKES, "video")), "video_info")
    shown = [0, 0.64, 1.32, 1.96, 2.64, 3.32, 3.96, 4.64, 5.28, 5.96, 6.64, 7.28, 7.96, 8.6, 9.28, 9.96]
    assert result.text == (
        "vid_1: 10 s, 250 frames at 25 fps, 640x272; 6 key frames up to 2.44 s apart; "
        f"shown: 16 frames at {', '.join(map(str, shown))} s"
    )
    data = dict(result.data)
    assert data.pop("shown") == pytest.approx(shown)
    assert data.pop("key_spacing") == pytest.approx([9.68 / 5, 2.44])
    assert data == {
        "duration": 10.0,
        "frames": 250,
        "fps": 25.0,
        "constant": True,
        "width": 640,
        "height": 272,
        "key_frames": 6,
        "start": 0.0,
        "end": 10.0,
    }


def test_info_is_true_of_odd_clips() -> None:
    odd = call(context(clip_of(encode(VARIABLE))), "video_info")
    assert "10 frames at a varying rate of 1.718 fps, 64x48" in odd.text
    assert "3 key frames" in odd.text
    one = call(context(clip_of(encode([0]))), "video_info")
    assert one.text == "vid_1: 0.04 s, 1 frame, 64x48; 1 key frame; shown: 1 frame at 0 s"
    turn = call(context(clip_of(turned((0, 1, -1, 0)))), "video_info")
    assert "272x640" in turn.text
    cut = call(context(clip_of(edited())), "video_info")
    assert "9.72 s, 243 frames" in cut.text
    bare = call(context(replace(clip_of(encode(VARIABLE)), info={})), "video_info")
    assert bare.data == odd.data


def test_info_tells_which_frames_are_shown_now(clip: Truth) -> None:
    for view in (View(max_frames=3), View(fps=5, max_frames=40), View(0.1, clip.times[-1], max_frames=5, min_frames=4)):
        ref = with_view(clip.ref, view)
        result = call(context(ref), "video_info")
        assert result.data["shown"] == load_video(ref).times
        assert f"shown: {len(result.data['shown'])} frame" in result.text


def test_info_of_a_window() -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    call(where, "video_window", start=1, end=2)
    result = call(where, "video_info", video="vid_2")
    assert result.text == (
        "vid_2: 1-2 s of vid_1: 10 s, 250 frames at 25 fps, 640x272; 6 key frames up to 2.44 s apart; "
        "shown: 4 frames at 1, 1.32, 1.64, 2 s"
    )
    assert (result.data["start"], result.data["end"]) == (1.0, 2.0)


def test_long_lists_are_shortened_in_the_text() -> None:
    result = call(context(with_view(file_ref("vid_1", BIKES, "video"), View(max_frames=64))), "video_info")
    assert result.text.endswith("shown: 20 frames from 0 to 9.48 s")
    assert len(result.data["shown"]) == 20


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        (MediaRef("vid_1", "video", "a", 64, 48, data=b"no clip at all"), "not_media"),
        (MediaRef("vid_1", "video", "b", 64, 48, data=b""), "empty"),
        (MediaRef("vid_1", "video", "c", 64, 48, path="/nowhere/at all.mp4"), "missing"),
        (MediaRef("vid_1", "video", "d", 64, 48, data=BUNNY.read_bytes()[:90_000]), "truncated"),
        (MediaRef("vid_1", "video", "e", 64, 48, data=b"x", info={"timeline": {"tick": 3}}), "broken"),
        (MediaRef("vid_1", "video", "f", 64, 48, data=b"x", info={"window": {"fps": -1}}), "not_media"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_clip_that_cannot_be_read_is_a_fault_of_the_data(ref: MediaRef, code: str) -> None:
    """Not of the tool: its circuit breaker would keep it from other dialogues."""
    for name, arguments in [
        ("video_info", {}),
        ("frame_select", {"times": [0]}),
        ("video_window", {"start": 0, "end": 1}),
    ]:
        result = call(context(ref), name, **arguments)
        assert result.fault is not None
        assert (result.fault.kind, result.fault.code) == (FaultKind.TASK, code)
        assert result.text == f"Error: vid_1 cannot be read: {code}"


def test_views_of_the_record_that_no_clip_can_be_shown_by() -> None:
    good = file_ref("vid_1", BIKES, "video")
    for window in ({"fps": 0}, {"max_frames": 0}, {"max_frames": 2.5}, {"start": "1"}, {"size": 3}, [1, 2], 5):
        ref = replace(good, info={**good.info, "window": window})
        assert call(context(ref), "video_info").fault.code == "window"  # type: ignore[union-attr]
        with pytest.raises(MediaError, match="vid_1"):
            load_video(ref)


def test_a_frame_that_does_not_decode_gives_the_one_before_under_its_own_time() -> None:
    ref = clip_of(damaged(60))
    bad = 60 * 1001 / 30000
    result = call(context(ref), "frame_select", times=[bad])
    assert result.fault is None
    assert result.data["frames"][0]["time"] <= bad
    window = call(context(ref), "video_window", start=1.8, end=2.2).media[0]
    assert 1 <= len(load_video(window).times) <= 4


def test_ids_of_clips_are_not_those_of_pictures() -> None:
    where = context(file_ref("vid_1", BIKES, "video"))
    where.media["img_1"] = image_ref("img_1", Image.new("RGB", (30, 30)))
    for name, arguments in [
        ("video_info", {}),
        ("frame_select", {"times": [0]}),
        ("video_window", {"windows": [[0, 1]]}),
    ]:
        for video in ("img_1", "vid_2", "", "1"):
            result = call(where, name, video=video, **arguments)
            assert result.fault is not None
            assert result.fault.code == "unknown_video"
            assert result.text.endswith("there are: vid_1")


NUMBER = st.one_of(
    st.floats(-20, 30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**12), 10**12),
    st.sampled_from([True, "1", None, [], 1e-300, -0.0, 10, 9.96, 9.999999999]),
)
ARGUMENTS = st.fixed_dictionaries(
    {"video": st.sampled_from(["vid_1", "vid_1", "vid_1", "vid_2", "", 1])},
    optional={
        "start": NUMBER,
        "end": NUMBER,
        "times": st.one_of(NUMBER, st.lists(NUMBER, max_size=9)),
        "windows": st.one_of(NUMBER, st.lists(st.lists(NUMBER, min_size=1, max_size=3), max_size=9)),
    },
)
FUZZED = {"bikes": file_ref("vid_1", BIKES, "video"), "odd": clip_of(encode(VARIABLE, b_frames=2))}


@settings(max_examples=150)
@given(st.sampled_from(["video_info", "frame_select", "video_window"]), ARGUMENTS, st.sampled_from(list(FUZZED)))
def test_any_arguments(name: str, arguments: dict[str, Any], which: str) -> None:
    _fuzz(name, arguments, which)


@settings(max_examples=100)
@given(
    st.sampled_from(list(FUZZED)),
    st.lists(st.tuples(st.floats(-2, 12), st.floats(-2, 12)).map(list), min_size=1, max_size=8),
    st.lists(st.floats(0, 12), min_size=1, max_size=8),
)
def test_any_windows_and_times(which: str, windows: list[list[float]], times: list[float]) -> None:
    _fuzz("video_window", {"video": "vid_1", "windows": windows}, which)
    _fuzz("frame_select", {"video": "vid_1", "times": times}, which)


def _fuzz(name: str, arguments: dict[str, Any], which: str) -> None:
    """Never a fault but the policy's; what comes back is what the text says, within the clip and the limits."""
    ref = FUZZED[which]
    where = context(ref)
    result = call_tool(ToolCall(name, arguments), where)
    assert result.fault is None or result.fault.kind is FaultKind.POLICY
    assert len(result.media) <= 8
    assert len(result.text) <= 4000
    assert set(where.media) == {"vid_1", *(m.id for m in result.media)}
    for new, window in zip(result.media, result.data.get("windows", ()), strict=False):
        assert new.id in result.text
        assert 0 <= window["start"] < window["end"] <= ref.info["duration"]
        assert 2 <= len(window["times"]) <= 16
        assert load_video(new).times == window["times"]
    for new in result.media:
        assert new.kind == ("image" if name == "frame_select" else "video")
        assert min(new.width, new.height) >= 28


def test_schemas_state_the_unit() -> None:
    for name in ("frame_select", "video_window"):
        assert "seconds" in get("tool", name).info["schema"]["description"]
