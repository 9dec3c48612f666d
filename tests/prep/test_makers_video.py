"""Makers on clips: pieces in their order again are the source, times begin at 0, the same bytes every time."""

from __future__ import annotations

import io
import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from mmrl.images import MediaError
from mmrl.rewards.accuracy import compare
from mmrl.video import probe_video, read_times
from mmrl_prep.pictures import demo_sources
from mmrl_prep.puzzles import PUZZLES, PuzzleOptions, Unpuzzling, video
from mmrl_prep.puzzles.clips import clip_ranges, encode, fit
from mmrl_prep.puzzles.puzzle import difference
from mmrl_prep.rng import generator

from .conftest import scene

MAKERS = ("video_jigsaw", "temporal_order")


def clip(pictures: Sequence[Image.Image], fps: int = 25, sound: bool = False) -> bytes:
    """An MP4 file of the pictures."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=fps, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        audio = out.add_stream("aac", rate=8000, layout="mono") if sound else None
        for picture in pictures:
            out.mux(stream.encode(av.VideoFrame.from_image(picture)))
        out.mux(stream.encode(None))
        if audio:
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            samples.sample_rate = 8000
            out.mux(audio.encode(samples))
            out.mux(audio.encode(None))
    return file.getvalue()


def moving(frames: int, width: int = 96, height: int = 72) -> list[Image.Image]:
    """A window that moves over a large picture."""
    field = scene(7, 6 * width, height)
    return [field.crop((x, 0, x + width, height)) for x in np.linspace(0, 5 * width, frames).astype(int).tolist()]


@pytest.fixture(scope="module")
def source() -> bytes:
    return clip(moving(90))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(demo_sources(tmp_path_factory.mktemp("demo"))[1].iterdir())


@pytest.mark.parametrize("name", MAKERS)
def test_same_key_same_bytes_and_a_proof(name: str, source: bytes, tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(source)
    answers = set()
    for number in range(12):
        options = PuzzleOptions(size=96, clips=3 + number % 3, style="choice" if number % 2 else "order")
        one, two = (PUZZLES[name].make(s, generator(0, str(number)), options) for s in (source, file))
        assert one.clips == two.clips
        assert [i.tobytes() for i in one.images] == [i.tobytes() for i in two.images]
        assert (one.question, one.answer, one.meta) == (two.question, two.answer, two.meta)
        assert PUZZLES[name].check(one, source, 0.0)
        assert json.loads(json.dumps(one.meta)) == one.meta
        assert one.meta["order"] != sorted(one.meta["order"])
        answers.add(str(one.answer.value))
        shown = one.clips or one.images
        turned = [*shown[1:], shown[0]]
        wrong = replace(one, clips=tuple(turned)) if one.clips else replace(one, images=tuple(turned))
        assert not PUZZLES[name].check(wrong, source, 8.0)
        if one.answer.kind == "order":
            assert compare(one.answer.value, one.answer) == 1.0
    assert len(answers) > 6


def test_every_number_stands_at_every_place() -> None:
    short = clip(moving(24), fps=8)
    options = PuzzleOptions(size=32, clips=3, trim=0.0)
    made = [PUZZLES["temporal_order"].make(short, generator(0, str(n)), options) for n in range(60)]
    assert len(Counter((k, slot) for p in made for k, slot in enumerate(p.answer.value))) == 9


def test_encoding_gives_the_same_bytes_every_time() -> None:
    """It did not with macroblock trees; 30 frames that move are enough to see it."""
    frames, times = [f.resize((224, 94)) for f in moving(30)], [n / 25 for n in range(30)]
    assert len({encode(frames, times) for _ in range(12)}) == 1


def test_real_clips_come_back_in_order(real: list[Path]) -> None:
    for path in real:
        puzzle = PUZZLES["video_jigsaw"].make(path, generator(0, path.name), PuzzleOptions(size=160, clips=4))
        assert PUZZLES["video_jigsaw"].check(puzzle, path, 0.0)
        info = probe_video(path)
        ranges = clip_ranges(info.frames, 4, 0.1)
        assert puzzle.meta["ranges"] == [list(r) for r in ranges]
        for piece, (start, end) in zip(video.undo_video(puzzle), ranges, strict=True):
            found = probe_video(piece)
            times = np.array(info.times[start:end])
            assert (found.width, found.height) == puzzle.sizes[0]
            assert np.allclose(found.times, times - times[0], atol=1e-4)
            original = [Image.fromarray(f).resize(puzzle.sizes[0]) for f in read_times(path, times.tolist()).frames]
            shown = [Image.fromarray(f) for f in read_times(piece, list(found.times)).frames]
            assert max(difference(a, b) for a, b in zip(original, shown, strict=True)) < video.CODING
        frames = PUZZLES["temporal_order"].make(path, generator(0, path.name), PuzzleOptions(size=160, clips=4))
        assert PUZZLES["temporal_order"].check(frames, path, 0.0)
        for time, (start, end) in zip(frames.meta["times"], ranges, strict=True):
            assert info.times[start] - 1e-5 <= time <= info.times[end - 1] + 1e-5


def test_clips_carry_pictures_only() -> None:
    noisy = clip(moving(90), sound=True)
    puzzle = PUZZLES["video_jigsaw"].make(noisy, generator(0, "x"), PuzzleOptions(size=96, clips=3))
    for data in puzzle.clips:
        with av.open(io.BytesIO(data)) as container:
            assert [s.type for s in container.streams] == ["video"]
            assert container.streams.video[0].codec_context.name == "h264"
            assert not {"creation_time", "encoder", "title", "comment"} & set(container.metadata)
            assert b"/tmp" not in data


def test_a_clip_of_a_phone_is_cut_in_upright_clips(source: bytes) -> None:
    at = source.rindex(b"tkhd") + 4 + 40  # the display matrix of the version 0 header of the only track
    quarter = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    phone = source[:at] + quarter + source[at + len(quarter) :]
    assert (probe_video(phone).width, probe_video(phone).height) == (72, 96)
    puzzle = PUZZLES["video_jigsaw"].make(phone, generator(0, "x"), PuzzleOptions(size=96, clips=3))
    assert puzzle.sizes == ((72, 96),) * 3
    assert PUZZLES["video_jigsaw"].check(puzzle, phone, 0.0)
    assert {probe_video(data).rotation for data in puzzle.clips} == {0}


def test_uneven_times_and_many_frames_keep_true_times() -> None:
    times = [0.0, 0.1, 0.15, 0.4, 0.9, 1.0]
    info = probe_video(encode(moving(6), [5 + t for t in times]))
    assert np.allclose(info.times, times, atol=1e-4)
    long = clip([f.resize((32, 24)) for f in moving(600)])
    puzzle = PUZZLES["video_jigsaw"].make(long, generator(0, "x"), PuzzleOptions(size=32, clips=3))
    assert PUZZLES["video_jigsaw"].check(puzzle, long, 0.0)
    for data in puzzle.clips:
        info = probe_video(data)
        assert 32 < info.frames <= video.MAX_FRAMES
        assert info.duration == pytest.approx(160 / 25, abs=0.2)  # thinned out, not cut short


def test_ranges_and_sizes() -> None:
    assert clip_ranges(100, 1, 0.0) == [(0, 100)]
    assert clip_ranges(30, 3, 0.0) == [(0, 10), (10, 20), (20, 30)]
    assert all(end <= start for start, end in clip_ranges(20, 4, 0.1))
    for frames in range(40, 400, 7):
        ranges = clip_ranges(frames, 4, 0.15)
        assert len({end - start for start, end in ranges}) == 1
        assert ranges[-1][1] <= frames
    assert fit(1280, 720, 224) == (224, 126)
    assert fit(33, 21, 224) == (32, 20)
    assert fit(1000, 3, 100) == (100, 2)


def test_clips_that_allow_no_puzzle_say_why() -> None:
    still, blank = [scene(0)] * 90, [Image.new("RGB", (96, 72), "gray")] * 90
    for name in MAKERS:
        for frames, code in ((still, "still"), (blank, "blank"), (moving(90)[:20], "too_short")):
            with pytest.raises(Unpuzzling) as error:
                PUZZLES[name].make(clip(frames), generator(0, "x"), PuzzleOptions(size=96))
            assert error.value.code == code
        with pytest.raises(MediaError):
            PUZZLES[name].make(b"not a clip", generator(0, "x"), PuzzleOptions())
