"""How many and which frames Qwen-VL uses, against the installed programs and known values."""

from __future__ import annotations

import random
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from qwen_vl_utils import vision_process as utils
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata

from mmrl import qwen
from mmrl.media import MediaError
from mmrl.qwen import Rules, frame_count, frame_indices, frame_window

from .test_qwen import RULES, outcome

NTSC = 30000 / 1001
VECTOR = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "fps", "want"),
    [
        (2, 25, 2),
        (3, 25, 2),
        (4, 25, 4),
        (5, 25, 4),
        (29, 29.97, 4),
        (90, 29.97, 6),
        (120, NTSC, 8),
        (250, 25, 20),
        (132, 25, 10),
        (100_000, 30, 768),
    ],
)
def test_known_counts_by_rate(total: int, fps: float, want: int) -> None:
    assert frame_count(total, fps) == want
    assert frame_count(total, fps, rules="qwen2") == want
    assert frame_count(total, str(fps), fps="2") == want  # numbers as text


@pytest.mark.parametrize(("nframes", "want"), [(2, 2), (3, 4), (5, 4), (7, 8)])
def test_known_counts_by_number(nframes: int, want: int) -> None:
    assert frame_count(100, 25, nframes=nframes) == want
    assert frame_count(100, 25, nframes=nframes, rules="qwen3") == nframes


@pytest.mark.parametrize("rules", RULES)
def test_short_clips_and_odd_requests(rules: Rules) -> None:
    """A clip of one frame is doubled, 32 of 31 frames are 30; 0 or 1 frames cannot be asked for."""
    with pytest.raises(MediaError, match="too short for any") as error:
        frame_count(1, 25, rules=rules)
    assert error.value.code == "tiny"
    assert frame_count(1, 25, rules=rules, strict=False) == 2
    assert frame_indices(1, 2, rules=rules) == [0, 0]
    assert frame_count(31, 25, nframes=32, rules=rules, strict=False) == 30
    if rules == "qwen3":  # which repeats frames
        assert frame_count(31, 25, nframes=32, rules=rules) == 32
    else:
        with pytest.raises(MediaError, match=r"nframes 32 asked of a clip of 31 frame.*2 to 30 are possible"):
            frame_count(31, 25, nframes=32, rules=rules)
    for asked in (0, 1):
        with pytest.raises(ValueError, match=f"nframes {asked} is too few"):
            frame_count(31, 25, nframes=asked, rules=rules, strict=False)
    with pytest.raises(ValueError, match="exclude each other"):
        frame_count(31, 25, nframes=8, fps=1, rules=rules)
    with pytest.raises(ValueError, match="fps_source"):
        frame_count(31, 0, rules=rules)
    with pytest.raises(ValueError, match="'many' is not a number"):
        frame_count(31, 25, fps="many", rules=rules)


def test_a_source_without_a_rate() -> None:
    assert frame_count(240, None, rules="qwen3") == 20  # taken as 24 fps
    with pytest.raises(ValueError, match="give nframes"):
        frame_count(240, None, rules="qwen2")


def test_known_indices() -> None:
    bikes = [0, 13, 26, 39, 52, 66, 79, 92, 105, 118, 131, 144, 157, 170, 183, 197, 210, 223, 236, 249]
    assert frame_indices(250, 20) == bikes
    assert frame_indices(132, 10) == [0, 15, 29, 44, 58, 73, 87, 102, 116, 131]
    late = frame_indices(250, 20, rules="qwen2")
    assert late[:4] == [0, 12, 25, 37]
    assert late[-1] == 237


@pytest.mark.parametrize(
    ("total", "fps", "window", "want"),
    [(250, 25, (0, 0.04), (0, 1)), (250, 25, (5, None), (125, 249)), (120, NTSC, (1, 2), (30, 59))],
)
def test_known_windows(total: int, fps: float, window: tuple[Any, Any], want: tuple[int, int]) -> None:
    for strict in (True, False):
        assert frame_window(total, fps, *window, strict=strict) == (*want, False)


@pytest.mark.parametrize(
    ("window", "nearest"), [((2, 2), 50), ((8.11, 8.12), 203), ((9.98, 10), 249), ((0, 0.03), 0), ((20, 30), None)]
)
def test_windows_without_two_frames(window: tuple[float, float], nearest: int | None) -> None:
    with pytest.raises(MediaError, match=r"250 frames in 10\.000 s") as error:
        frame_window(250, 25, *window)
    assert error.value.code == "window"
    if nearest is None:
        with pytest.raises(MediaError):
            frame_window(250, 25, *window, strict=False)
    else:
        assert frame_window(250, 25, *window, strict=False) == (nearest, nearest, True)
    with pytest.raises(MediaError, match="ends before it begins"):
        frame_window(250, 25, 3, 2, strict=False)


def test_windows_are_reckoned_with_fractions() -> None:
    assert utils.calculate_video_frame_range({"video_end": 8.12}, 250, 25)[1] == 202  # 8.12 * 25 = 202.99999999999997
    assert frame_window(250, 25, None, 8.12).last == 203
    for written in (NTSC, 29.97003, "30000/1001", Fraction(30000, 1001)):
        assert qwen.exact_rate(written) == Fraction(30000, 1001)
    assert qwen.exact_rate(29.97) == Fraction(2997, 100)
    assert qwen.exact_rate(25) == 25


def utils_reading(ele: dict[str, Any], total: int, fps: float) -> tuple[list[int], float]:
    """What the reader of utils asks its decoder for, and the rate that it hands on."""
    reader = SimpleNamespace(VideoReader=lambda path: FakeReader(total, fps))
    before = sys.modules.get("decord")
    sys.modules["decord"] = reader  # type: ignore[assignment]
    try:
        _, metadata, rate = utils._read_video_decord({"video": "none", **ele})
    finally:
        sys.modules.pop("decord")
        if before is not None:
            sys.modules["decord"] = before
    return metadata["frames_indices"], rate


class FakeReader:
    def __init__(self, total: int, fps: float) -> None:
        self.total, self.fps = total, fps

    def __len__(self) -> int:
        return self.total

    def get_avg_fps(self) -> float:
        return self.fps

    def get_batch(self, indices: list[int]) -> Any:
        return SimpleNamespace(asnumpy=lambda: np.zeros((len(indices), 1, 1, 3), np.uint8))


totals = st.one_of(st.integers(1, 40), st.integers(1, 20_000))
rates = st.one_of(st.sampled_from([24000 / 1001, 25.0, NTSC, 30.0, 60.0]), st.floats(0.5, 120))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"nframes": draw(st.integers(0, 900))}
    ask: dict[str, Any] = {"fps": draw(st.floats(0.1, 30))} if draw(st.booleans()) else {}
    bounds = {"min_frames": st.integers(1, 30), "max_frames": st.integers(1, 900)}
    return ask | {key: draw(bounds[key]) for key in draw(st.sets(st.sampled_from(sorted(bounds))))}


@given(totals, rates, requests(), st.one_of(st.none(), st.floats(0, 60)), st.one_of(st.none(), st.floats(0, 60)))
@settings(max_examples=400)
def test_reading_equals_utils(total: int, fps: float, ask: dict[str, Any], start: Any, end: Any) -> None:
    for time in (start, end):  # where a float lands on the wrong side of a frame, ours is right
        assume(time is None or abs(time * fps - round(time * fps)) > 1e-4 or time == 0)
    same_reading(total, fps, ask, start, end)


def same_reading(total: int, fps: float, ask: dict[str, Any], start: Any = None, end: Any = None) -> None:
    def own() -> tuple[list[int], float]:
        window = frame_window(total, fps, start, end)
        count = frame_count(window.total, fps, **ask)
        return frame_indices(window.total, count, first=window.first), qwen.sample_fps(count, window.total, fps)

    times = {k: v for k, v in (("video_start", start), ("video_end", end)) if v is not None}
    found, theirs = outcome(own), outcome(lambda: utils_reading(ask | times, total, fps))
    if VECTOR or theirs == "refused":
        assert found == theirs
    else:  # torch without vector instructions rounds twice
        assert found[1] == theirs[1]
        assert np.abs(np.subtract(found[0], theirs[0])).max() <= 1


def test_thousands_of_readings_equal_utils() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        total = rng.randint(1, rng.choice([40, 2000, 100_000]))
        ask = {"nframes": rng.randint(0, 900)} if rng.random() < 0.5 else {"fps": rng.choice([0.5, 1, 2, 3.7, 10])}
        same_reading(total, rng.choice([23.976, 24.0, 25.0, NTSC, rng.uniform(1, 120)]), ask)


QWEN2, QWEN3 = Qwen2VLVideoProcessor(), Qwen3VLVideoProcessor()


def same_sampling(total: int, fps: float, ask: dict[str, Any], rules: Rules) -> None:
    def own() -> list[int]:
        return frame_indices(total, frame_count(total, fps, **ask, rules=rules), rules=rules)

    def theirs() -> list[int]:
        renamed = {"num_frames" if k == "nframes" else k: v for k, v in ask.items()}
        if "nframes" not in ask:
            renamed.setdefault("fps", 2)
        metadata = VideoMetadata(total_num_frames=total, fps=fps)
        if rules == "qwen2":
            found = QWEN2.sample_frames(metadata, **renamed).tolist()
            return found[:-1] if found[-1] == total else found  # `arange` overshot: the clip has no such frame
        QWEN3.min_frames, QWEN3.max_frames = ask.get("min_frames", 4), ask.get("max_frames", 768)
        found = QWEN3.sample_frames(metadata, **renamed).tolist()
        if len(found) < 2:  # passes here, and is refused when the frames are resized
            raise ValueError("refused later")
        return found

    found, wanted = outcome(own), outcome(theirs)
    if rules == "qwen2" and total > 10_000 and wanted != "refused":  # 32-bit floats lose single frames
        assert len(found) == len(wanted)
        assert np.abs(np.subtract(found, wanted)).max() <= 1
    else:
        assert found == wanted


@given(totals, rates, requests(), st.sampled_from(["qwen2", "qwen3"]))
@settings(max_examples=400)
def test_sampling_equals_transformers(total: int, fps: float, ask: dict[str, Any], rules: Rules) -> None:
    same_sampling(total, fps, ask, rules)


def test_thousands_of_samplings_equal_transformers() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        total = rng.randint(1, rng.choice([40, 2000, 100_000]))
        ask = {"nframes": rng.randint(0, 900)} if rng.random() < 0.5 else {"fps": rng.choice([0.5, 1, 2, 3.7, 10])}
        for rules in ("qwen2", "qwen3"):
            same_sampling(total, rng.choice([24.0, NTSC, rng.uniform(1, 120)]), ask, rules)
