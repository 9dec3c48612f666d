"""Sizes and time stamps of Qwen-VL by arithmetic, against the installed programs and known values."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from qwen_vl_utils import vision_process as utils
from transformers import Qwen3VLVideoProcessor
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as hf_pil
from transformers.models.qwen2_vl import image_processing_qwen2_vl as hf_image
from transformers.models.qwen3_vl import video_processing_qwen3_vl as hf_video

from mmrl import qwen, tokens
from mmrl.media import MediaError
from mmrl.qwen import Rules, frame_indices, frame_size, smart_resize
from mmrl.tokens import PROFILES, video_grid, video_tokens

RULES: tuple[Rules, ...] = ("utils", "qwen2", "qwen3")
QWEN3 = Qwen3VLVideoProcessor()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or "refused"."""
    try:
        return call()
    except (ValueError, AssertionError, ZeroDivisionError):
        return "refused"


# --- sizes ----------------------------------------------------------------------------------------------------------

COLUMNS: list[tuple[Rules, int, int, int]] = [
    ("utils", 28, 3_136, 12_845_056),
    ("qwen2", 28, 3_136, 12_845_056),
    ("qwen2", 28, 3_136, 1_003_520),
    ("utils", 32, 4_096, 16_777_216),
    ("qwen3", 32, 65_536, 16_777_216),
]
GOLDEN = """
1080x1920 1092x1932 1092x1932 728x1316 1088x1920 1088x1920
427x640 420x644 420x644 420x644 416x640 416x640
512x512 504x504 504x504 504x504 512x512 512x512
8000x6000 4116x3080 4116x3080 1148x840 4704x3520 4704x3520
3024x4032 3024x4032 3024x4032 840x1148 3008x4032 3008x4032
27x332 28x336 28x336 28x336 32x320 96x928
13x500 28x504 28x364 28x364 32x512 64x1600
30x200 28x196 28x196 28x196 32x192 128x672
1x1 56x56 56x56 56x56 64x64 256x256
100x100 112x112 112x112 112x112 96x96 256x256
20x4000 28x4004 28x4004 28x4004 32x4000 32x4000
"""


def pair(text: str) -> tuple[int, int]:
    height, width = text.split("x")
    return int(height), int(width)


@pytest.mark.parametrize("line", GOLDEN.strip().splitlines())
def test_known_sizes(line: str) -> None:
    size, *wanted = line.split()
    for (rules, factor, low, high), want in zip(COLUMNS, wanted, strict=True):
        found = smart_resize(*pair(size), factor=factor, min_pixels=low, max_pixels=high, rules=rules)
        assert found == pair(want), (rules, factor, high)


@pytest.mark.parametrize(("side", "want"), [(14, 28), (42, 56), (70, 56), (98, 112)])
def test_sides_round_half_to_even(side: int, want: int) -> None:
    assert smart_resize(side, 280, factor=28)[0] == want


def test_a_given_size_passes_through_the_default_range() -> None:
    assert smart_resize(280, 420, factor=28) == (280, 420)
    assert smart_resize(280, 420, factor=32) == (288, 416)


@pytest.mark.parametrize("rules", RULES)
def test_too_long_a_picture_is_refused_and_exactly_200_is_not(rules: Rules) -> None:
    with pytest.raises(MediaError, match="200 times") as error:
        smart_resize(10, 2001, factor=28, rules=rules)
    assert error.value.code == "ratio"
    smart_resize(10, 2000, factor=28, rules=rules)
    with pytest.raises(MediaError, match="0x5"):
        smart_resize(5, 0, factor=28, rules=rules)


@pytest.mark.parametrize("rules", RULES)
def test_no_side_is_0_and_that_is_said_once(rules: Rules, caplog: pytest.LogCaptureFixture) -> None:
    assert utils.smart_resize(28, 5600, 28, 3136, 3136) == (0, 784)  # what would crash in the resize
    qwen._say_over.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert smart_resize(28, 5600, factor=28, min_pixels=3136, max_pixels=3136, rules=rules) == (28, 784)
    assert len(caplog.records) == 1
    assert "max_pixels 3136" in caplog.text


def test_a_range_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="min_pixels 9999 is over max_pixels 5000"):
        smart_resize(100, 100, factor=28, min_pixels=9999, max_pixels=5000)
    with pytest.raises(ValueError, match="max_pixels 0"):
        smart_resize(100, 100, factor=28, max_pixels=0, rules="qwen2")
    assert min(smart_resize(5, 900, factor=28, min_pixels=0, rules="qwen2")) == 28


sides = st.one_of(st.integers(1, 120), st.integers(1, 9000))
areas = st.integers(1, 1 << 25)


@given(sides, sides, st.sampled_from([28, 32]), areas, areas)
@example(28, 5600, 28, 3136, 3136)
@settings(max_examples=400)
def test_sizes_equal_both_programs(height: int, width: int, factor: int, low: int, high: int) -> None:
    same_sizes(height, width, factor, low, high)


def same_sizes(height: int, width: int, factor: int, low: int, high: int) -> None:
    ask = {"factor": factor, "min_pixels": low, "max_pixels": high}
    own = outcome(lambda: smart_resize(height, width, **ask))
    theirs = outcome(lambda: utils.smart_resize(height, width, factor, low, high))
    if theirs != "refused" and 0 in theirs:
        theirs = tuple(max(factor, x) for x in theirs)
    assert own == theirs
    for program in (hf_image, hf_pil):
        theirs = outcome(lambda program=program: program.smart_resize(height, width, factor, low, high))
        for rules in ("qwen2", "qwen3"):
            assert outcome(lambda rules=rules: smart_resize(height, width, **ask, rules=rules)) == theirs


def test_thousands_of_sizes_equal_both_programs() -> None:
    rng = random.Random(0)
    for _ in range(6000):
        top = rng.choice([40, 400, 8000])
        low, high = sorted(rng.choice([4, 64, 128, 768, 1280, 16384]) * 784 + rng.randint(0, 99) for _ in range(2))
        same_sizes(rng.randint(1, top), rng.randint(1, 8000), rng.choice([28, 32]), low, high)


# --- pixels of frames -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "want"),
    [(2, "704x1280"), (4, "704x1280"), (16, "704x1280"), (64, "448x832"), (768, "128x224")],
)
def test_known_volumes(count: int, want: str) -> None:
    _, rows, columns = video_grid(PROFILES["qwen3-vl"], 1280, 720, count)
    assert (rows * 16, columns * 16) == pair(want)


@pytest.mark.parametrize(("count", "most"), [(2, 768), (300, 768), (768, 300)])
def test_utils_caps_the_tokens_of_a_frame(count: int, most: int) -> None:
    for profile in PROFILES.values():
        depth, rows, columns = video_grid(profile.as_utils(), 3840, 2160, count)
        assert depth == count / 2
        assert 0.9 * most <= rows * columns / 4 <= most


@given(st.integers(1, 800), sides, sides, areas, areas, st.sampled_from([28, 32]))
@settings(max_examples=300)
def test_volumes_equal_transformers(count: int, height: int, width: int, low: int, high: int, factor: int) -> None:
    own = outcome(
        lambda: frame_size(count, height, width, factor=factor, min_pixels=low, max_pixels=high, rules="qwen3")
    )
    assert own == outcome(lambda: hf_video.smart_resize(count, height, width, 2, factor, low, high))


def test_thousands_of_volumes_equal_transformers() -> None:
    rng = random.Random(3)
    profile = PROFILES["qwen3-vl"]
    capped = tokens.replace(profile, cap_frames=True)
    QWEN3.size = {"shortest_edge": 4096, "longest_edge": 25_165_824}
    for _ in range(3000):
        count, height, width = rng.randint(1, 768), rng.randint(1, 3000), rng.randint(1, 3000)
        for own, cap in ((profile, None), (capped, True)):
            ask = {"cap_pixels_per_frame": cap}
            theirs = outcome(lambda: QWEN3.get_num_of_video_patches(count, height, width, ask) // 4)  # noqa: B023
            assert outcome(lambda: video_tokens(own, width, height, count, pad=False)) == theirs  # noqa: B023


def test_frame_sizes_equal_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through its whole `fetch_video`, with a decoder that gives black frames."""
    monkeypatch.setattr(utils, "get_video_reader_backend", lambda: "black")
    monkeypatch.setattr(utils, "MODEL_SEQ_LEN", 2000)
    rng = random.Random(4)
    for _ in range(25):
        count, height, width = rng.choice([2, 4, 6]), rng.randint(20, 300), rng.randint(20, 300)
        video = torch.zeros(count, 3, height, width, dtype=torch.uint8)
        monkeypatch.setitem(utils.VIDEO_READER_BACKENDS, "black", lambda ele, video=video: (video, {}, 2.0))
        patch = rng.choice([14, 16])
        area = (2 * patch) ** 2
        limits = {"min_pixels": rng.randint(4, 60) * area, "total_pixels": rng.randint(60, 500) * area}
        if rng.random() < 0.5:
            limits["max_pixels"] = rng.randint(60, 90) * area
        theirs = utils.fetch_video({"video": "none", **limits}, image_patch_size=patch)
        own = frame_size(count, height, width, factor=2 * patch, **limits)
        assert own == tuple(theirs.shape[-2:])  # type: ignore[union-attr]
    frames = torch.zeros(8, 3, 360, 640, dtype=torch.uint8)  # with its own budget, here of 2,000 tokens
    monkeypatch.setitem(utils.VIDEO_READER_BACKENDS, "black", lambda ele: (frames, {}, 2.0))
    theirs = utils.fetch_video({"video": "none", "min_pixels": 784})
    own = frame_size(8, 360, 640, factor=28, min_pixels=784, total_pixels=2000 * 784 * 0.9)
    assert own == tuple(theirs.shape[-2:])  # type: ignore[union-attr]


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "count", "want"),
    [(132, 10, "0.3 1.5 2.6 3.8 4.9"), (250, 20, "0.3 1.3 2.4 3.4 4.5 5.5 6.5 7.6 8.7 9.7")],
)
def test_known_time_stamps(total: int, count: int, want: str) -> None:
    stamps = qwen.time_stamps(qwen.frame_times(frame_indices(total, count), 25))
    assert stamps == [f"<{t} seconds>" for t in want.split()]


def test_true_times_of_a_clip_of_varying_rate() -> None:
    times = [0, 0.04, 0.08, 0.12, 1.12, 2.12, 2.16, 2.2, 2.24, 5.24, 6.0]
    assert qwen.patch_times(times) == pytest.approx([0.02, 0.1, 1.62, 2.18, 3.74, 6.0])  # the last frame is repeated
    assert qwen.time_stamps([]) == []


def test_seconds_of_a_temporal_patch() -> None:
    assert qwen.seconds_per_grid(qwen.sample_fps(20, 250, 25)) == 1.0
    assert qwen.seconds_per_grid("4") == 0.5
    assert qwen.seconds_per_grid([0, 0.5, 1.0, 1.5]) == 1.0
    assert qwen.seconds_per_grid([3.0]) == 0.0
    with pytest.raises(ValueError, match="no frames"):
        qwen.seconds_per_grid([])
