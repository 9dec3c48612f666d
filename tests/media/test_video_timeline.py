"""Timelines: what they tell, that they survive the index, and that reading with one changes nothing but the cost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.media import MediaError, file_ref, load_video, load_windows, media_info, probe_video, read_times
from mmrl.timeline import Timeline, compact, from_index
from mmrl.video import read_clip, read_windows

from .clips import BIKES, BUNNY, CARPHONE, VARIABLE, edited, encode, linear, looped

increasing = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=50, unique=True).map(sorted)


@given(stamps=increasing, keys=st.lists(st.integers(-99, 99), unique=True).map(sorted), bad=st.integers(0, 3))
def test_index_round_trip(stamps: list[int], keys: list[int], bad: int) -> None:
    line = Timeline(compact(stamps), compact(keys), Fraction(1, 30000), 1001, Fraction(30000, 1001), bad=bad)
    assert from_index(json.loads(json.dumps(line.index()))) == line


def test_index_is_small_and_says_what_it_must() -> None:
    index = probe_video(CARPHONE).index()
    assert index == {
        "tick": [1, 30000],
        "rate": [30000, 1001],
        "stamps": {"first": 0, "step": 1001, "count": 120},
        "keys": {"first": 0, "step": 1, "count": 1},
        "last": 1001,
        "indexed": True,
    }
    hour = Timeline(range(0, 90_000 * 512, 512), compact([0]), Fraction(1, 12800), 512, Fraction(25))
    assert len(json.dumps(hour.index())) < 200


@pytest.mark.parametrize(
    "change",
    [{"tick": [1, 0]}, {"tick": [-1, 5]}, {"stamps": {"first": 0, "deltas": [3, 0]}}, {"stamps": None}, {"last": "x"}],
)
def test_a_broken_index_is_named(change: dict[str, object]) -> None:
    index = probe_video(encode(VARIABLE)).index()
    with pytest.raises(MediaError, match="timeline"):
        read_clip(encode(VARIABLE), timeline=index | change)
    with pytest.raises(MediaError, match="timeline"):
        from_index({})


def test_the_timeline_of_another_file_is_noticed() -> None:
    with pytest.raises(MediaError, match="another file"):
        read_times(encode(VARIABLE), [1.0], probe_video(BUNNY).index())


def test_facts() -> None:
    bikes, phone = probe_video(BIKES), probe_video(CARPHONE)
    assert bikes.keys == pytest.approx((0, 1.2, 3.04, 5.48, 7.48, 9.68))
    assert (bikes.rate, bikes.constant, bikes.start, bikes.codec) == (25, True, 0.0, "h264")
    assert (phone.rate, phone.constant) == (Fraction(30000, 1001), True)
    odd = probe_video(encode(VARIABLE))
    assert (odd.rate, odd.constant) == (Fraction(9000, 5240), False)
    assert float(odd.rate) == pytest.approx(odd.fps)
    late = probe_video(encode([1000, 1040, 1080], container="matroska"))
    assert (late.start, late.times[0]) == (1.0, 0.0)
    assert probe_video(encode([0])).rate == 0


def test_rounding_to_ticks_is_no_variable_rate() -> None:
    clip = encode([round(1000 * n * 1001 / 30000) for n in range(25)], container="matroska")
    info = probe_video(clip)
    assert info.constant
    assert {b - a for a, b in zip(info.timeline.stamps, info.timeline.stamps[1:], strict=False)} == {33, 34}
    assert not replace(info.timeline, stamps=(0, 1, 3)).constant  # ticks as long as frames: one is missing


def test_edit_lists_hide_frames_but_not_their_key() -> None:
    info = probe_video(edited())
    assert (info.frames, info.announced, info.start, info.timeline.discarded) == (243, 243, 0.0, 7)
    assert info.keys[0] == pytest.approx(-0.28)
    frames = linear(BIKES)
    for index in (None, info.index()):
        clip = read_times(edited(), [0.0, 0.4, 5.0], index)
        assert clip.times == pytest.approx([0, 0.4, 5.0])
        assert all(np.array_equal(f, frames[n]) for f, n in zip(clip.frames, (7, 17, 132), strict=True))


@pytest.mark.parametrize("path", [BIKES, CARPHONE, BUNNY])
def test_same_frames_with_and_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = file_ref("vid_1", path, "video")
    old = replace(ref, info={k: v for k, v in ref.info.items() if k != "timeline"})  # an index of an earlier version
    before = load_video(old, fps=3, start=1.0, end=3.5)

    def refuse(*_: object) -> None:
        raise AssertionError("the file was read through to find its timeline")

    monkeypatch.setattr("mmrl.video.measure", refuse)
    after = load_video(ref, fps=3, start=1.0, end=3.5)
    assert after.times == before.times
    assert np.array_equal(after.frames, before.frames)
    with pytest.raises(AssertionError, match="read through"):
        load_video(old)


def test_info_keeps_its_keys_and_is_json() -> None:
    _, _, info = media_info(BIKES.read_bytes(), "video")
    assert set(info) == {"frames", "fps", "duration", "timeline"}
    assert json.loads(json.dumps(info)) == info


def test_windows() -> None:
    line = Timeline(range(0, 250 * 512, 512), compact([0]), Fraction(1, 12800), 512, Fraction(25))

    def window(start: float | None, end: float | None, fps: float | Fraction = 25, max_frames: int = 999) -> list[int]:
        return [s // 512 for s in line.window(start, end, fps=fps, max_frames=max_frames)]

    assert window(8.11, 8.115) == [202]  # between two frames: the one on screen
    assert window(8.11, 8.12) == [202]
    assert window(8.12, 8.12) == [203]
    assert window(2, 4, fps=25, max_frames=3) == [50, 75, 100]  # a cap thins the window, it does not cut it
    assert window(None, None, fps=Fraction(1, 3)) == [0, 75, 150, 225]
    for start, end in ((10.0, 11.0), (99.0, None), (3.0, 2.0), (math.nan, None), (0.0, math.nan), (math.inf, None)):
        with pytest.raises(MediaError) as caught:
            window(start, end)
        assert caught.value.code == "window"
    assert window(-math.inf, math.inf, fps=1, max_frames=2) == [0, 249]
    for fps, most in ((0, 4), (-1, 4), (math.inf, 4), (math.nan, 4), (2, 0)):
        with pytest.raises(ValueError, match="above 0"):
            window(0, 1, fps, most)


@given(number=st.integers(0, 10**6), rate=st.sampled_from([Fraction(30000, 1001), Fraction(24000, 1001), Fraction(25)]))
def test_fractions_do_not_drift(number: int, rate: Fraction) -> None:
    """Every frame of a day of NTSC video is found by its time, written as a float."""
    line = Timeline(range(0, 1001 * (10**6 + 1), 1001), compact([0]), 1 / rate / 1001, 1001, rate)
    assert line.at(float(number / rate)) == 1001 * number
    found = line.window(float(number / rate), float(min(number + 5, 10**6) / rate), fps=float(rate), max_frames=99)
    assert found == [1001 * n for n in range(number, min(number + 5, 10**6) + 1)]


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clips") / "minute.mp4"
    looped(path, seconds=60)
    return path


def test_sparse_reading_decodes_a_third_at_most(minute: Path) -> None:
    info = probe_video(minute)
    assert (info.frames, len(info.keys)) == (1500, 20)
    three = [(7.1, 8.1), (31.0, 32.0), (58.2, 59.2)]
    uniform = [read_clip(minute, max_frames=8, timeline=info.timeline)]
    one = [read_clip(minute, start=50, end=52, timeline=info.timeline)]
    several = read_windows(minute, three, timeline=info.timeline)
    frames = linear(minute)
    for clips in (uniform, one, several):
        places = [[round(t * 25) for t in clip.times] for clip in clips]
        assert 3 * clips[0].decoded <= max(max(p) for p in places) + 1
        for clip, place in zip(clips, places, strict=True):
            assert all(np.array_equal(f, frames[n]) for f, n in zip(clip.frames, place, strict=True))
    assert [len(c.times) for c in (*uniform, *one, *several)] == [8, 5, 3, 3, 3]


def test_windows_read_together_are_those_read_alone(minute: Path) -> None:
    ref = file_ref("vid_1", minute, "video")
    windows = [(31.0, 33.0), (7.1, 8.1), (32.0, 32.5), (None, 1.0)]  # any order, two that overlap
    together = load_windows(ref, windows)
    alone = [load_video(ref, start=start, end=end) for start, end in windows]
    for a, b in zip(together, alone, strict=True):
        assert a.times == b.times
        assert np.array_equal(a.frames, b.frames)
    assert together[0].decoded < sum(c.decoded for c in alone)
    assert load_windows(ref, []) == []
    with pytest.raises(MediaError) as caught:
        load_windows(ref, [(0.0, 1.0), (60.5, 61.0)])
    assert caught.value.code == "window"


def test_neighbours_are_decoded_on_not_sought() -> None:
    line = Timeline(range(20), range(20), Fraction(1, 25), 1, Fraction(25))  # every frame a key frame
    assert line.runs([3, 4, 6, 15]) == [(3, [3, 4, 6]), (15, [15])]
    late = Timeline(range(20), (5, 10), Fraction(1, 25), 1, Fraction(25))
    assert late.runs([2, 6, 12]) == [(None, [2, 6]), (10, [12])]


def test_the_container_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = av.open
    monkeypatch.setattr(av, "open", lambda *a, **k: opened.append(a) or real(*a, **k))
    read_times(BIKES, [9.7, 0.5])
    assert len(opened) == 1


def test_no_time_is_an_error() -> None:
    with pytest.raises(MediaError) as caught:
        read_times(BIKES, [])
    assert caught.value.code == "window"
