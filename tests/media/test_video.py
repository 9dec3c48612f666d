"""Clips: frames by their time stamps, upright, with everything odd counted. The clips are real, or made here."""

from __future__ import annotations

import bisect
import io
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import MediaError, file_ref, load_video, probe_video, read_times
from mmrl.video import read_clip

from .clips import BIKES, BUNNY, CARPHONE, VARIABLE, damaged, encode, linear, numbers, remux, turned


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_variable_rate_is_chosen_by_time(container: str, b_frames: int) -> None:
    data = encode(VARIABLE, container=container, b_frames=b_frames)
    info = probe_video(data)
    assert info.times == pytest.approx([t / 1000 for t in VARIABLE], abs=1e-3)
    clip = read_clip(data, fps=1, max_frames=16)
    # at 0, 1, 2, 3, 4, 5 s: the frames on screen, none twice
    assert numbers(clip.frames) == [0, 3, 4, 8]
    assert clip.times == pytest.approx([0, 0.12, 1.12, 2.24], abs=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.integers(20, 900), min_size=1, max_size=20),
    wanted=st.lists(st.floats(0, 8), min_size=1, max_size=6),
    gop=st.integers(1, 8),
    b_frames=st.integers(0, 2),
)
def test_frames_equal_a_linear_search(gaps: list[int], wanted: list[float], gop: int, b_frames: int) -> None:
    stamps = np.cumsum([0, *gaps]).tolist()
    data = encode(stamps, gop=gop, b_frames=b_frames)
    clip = read_times(data, wanted)
    times = probe_video(data).times
    assert list(times) == pytest.approx([s / 1000 for s in stamps], abs=1e-3)
    right = sorted({bisect.bisect_right(times, t + 1e-6) - 1 for t in wanted})
    assert numbers(clip.frames) == right
    assert clip.times == [times[n] for n in right]


def test_real_clip_seeking_gives_what_linear_reading_gives() -> None:
    with av.open(str(BIKES)) as container:
        linear = {round(f.time, 6): f.to_ndarray(format="rgb24") for f in container.decode(video=0)}
    for wanted in ([0.5], [9.7], [0.0, 1.2, 1.19, 5.5, 9.96], [3.1, 7.2, 7.3, 9.9]):
        clip = read_times(BIKES, wanted)
        assert len(clip.times) == len(wanted)
        for time, frame in zip(clip.times, clip.frames, strict=True):
            assert np.array_equal(frame, linear[round(time, 6)])


def test_real_facts() -> None:
    bikes, phone, bunny = probe_video(BIKES), probe_video(CARPHONE), probe_video(BUNNY)
    assert (bikes.frames, bikes.width, bikes.height, bikes.duration, bikes.rotation) == (250, 640, 272, 10.0, 0)
    assert (phone.frames, phone.width, phone.height) == (120, 176, 144)
    assert phone.fps == pytest.approx(30000 / 1001)
    assert phone.duration == pytest.approx(4.004)
    assert (bunny.frames, bunny.duration) == (132, pytest.approx(5.28))
    assert bikes.missing == phone.missing == bunny.missing == 0


def test_number_of_frames_and_windows() -> None:
    ref = file_ref("vid_1", BIKES, "video")
    assert {k: v for k, v in ref.info.items() if k != "timeline"} == {"frames": 250, "fps": 25.0, "duration": 10.0}
    clip = load_video(ref, fps=2, max_frames=100)
    assert clip.times == pytest.approx([int(k * 12.5) * 0.04 for k in range(20)])
    few = load_video(ref, fps=2, max_frames=5)
    assert few.times == pytest.approx([0, 2.48, 4.96, 7.44, 9.96])
    assert load_video(ref, start=2.0, end=4.0, fps=1).times == pytest.approx([2, 3, 4])
    # windows that hold no frame of their own give the one on screen
    assert load_video(ref, start=8.11, end=8.115).times == pytest.approx([8.08])
    assert load_video(ref, start=2.0, end=2.0).times == pytest.approx([2.0])
    assert load_video(ref, start=9.98, end=20).times == pytest.approx([9.96])
    assert load_video(ref, start=-3, end=0.01).times == [0.0]
    for start, end in ((20.0, 30.0), (10.0, None), (3.0, 2.0)):
        with pytest.raises(MediaError) as caught:
            load_video(ref, start=start, end=end)
        assert caught.value.code == "window"


def test_times_count_from_the_first_frame_shown() -> None:
    data = encode([1000, 1040, 1500], container="matroska")
    assert probe_video(data).times == pytest.approx([0, 0.04, 0.5])
    assert numbers(read_clip(data, start=0.1, end=0.6, fps=10).frames) == [1, 2]


def test_one_frame() -> None:
    data = encode([0])
    info = probe_video(data)
    assert (info.frames, info.fps, info.times) == (1, 0.0, (0.0,))
    assert info.duration > 0
    clip = read_clip(data)
    assert (clip.frames.shape, clip.times) == ((1, 48, 64, 3), [0.0])


@pytest.mark.parametrize(("matrix", "turn"), [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)])
def test_phone_video_is_upright(matrix: tuple[int, int, int, int], turn: int) -> None:
    data = turned(matrix)
    plain, upright = read_times(BIKES, [2.0]), read_times(data, [2.0])
    assert np.array_equal(upright.frames[0], np.rot90(plain.frames[0], turn))
    info = probe_video(data)
    assert (info.width, info.height) == ((272, 640) if turn % 2 else (640, 272))
    assert info.rotation == -90 * turn % 360


@pytest.mark.parametrize("indexed", [False, True])
def test_a_bad_packet_is_counted_and_costs_one_frame(indexed: bool) -> None:
    data = damaged()
    info = probe_video(data)
    assert (info.frames, info.bad_packets, info.timeline.bad) == (119, 1, 1)
    assert info.missing == pytest.approx(1 / 120)
    gone = (set(probe_video(CARPHONE).times) - set(info.times)).pop()
    clip = read_times(data, [gone, gone + 0.5], info.index() if indexed else None)
    assert clip.times[0] == max(t for t in info.times if t < gone)  # the one before, under its own time
    assert (len(clip.times), clip.bad_packets) == (2, 1)


def test_damage_to_a_key_frame_gives_an_earlier_frame_under_its_own_time() -> None:
    with av.open(str(BIKES)) as container:
        packets = [p for p in container.demux(container.streams.video[0]) if p.size]
    key = [p for p in packets if p.is_keyframe][2]
    data = bytearray(BIKES.read_bytes())
    assert key.pos is not None
    data[key.pos : key.pos + key.size] = bytes(key.size)
    clip = read_times(bytes(data), [3.04])  # a seek leads to nothing: it is read from the start instead
    assert 2.9 < clip.times[0] < 3.04
    assert np.array_equal(clip.frames[0], linear(BIKES)[round(clip.times[0] * 25)])


def test_cut_files_say_so(tmp_path: Path) -> None:
    whole = BIKES.read_bytes()
    for share in (0.1, 0.5, 0.9):  # its index comes last
        with pytest.raises(MediaError) as caught:
            probe_video(whole[: int(len(whole) * share)])
        assert caught.value.code == "truncated"
    fast = tmp_path / "fast.mp4"
    remux(BIKES, fast, muxer="faststart")
    whole = fast.read_bytes()
    assert whole.index(b"moov") < whole.index(b"mdat")
    frames = linear(BIKES)
    for share, left in ((0.9, 209), (0.5, 116), (0.1, 31)):
        cut = whole[: int(len(whole) * share)]
        info = probe_video(cut)
        assert (info.announced, info.frames) == (250, pytest.approx(left, abs=2))
        assert info.missing == pytest.approx(1 - info.frames / 250)
        clip = read_clip(cut, max_frames=4)
        assert len(clip.times) >= 3
        for time, frame in zip(clip.times, clip.frames, strict=True):
            assert np.array_equal(frame, frames[round(time * 25)])


def test_reasons() -> None:
    def code(source: bytes | Path) -> str:
        with pytest.raises(MediaError) as caught:
            read_clip(source)
        return caught.value.code

    assert code(b"") == "empty"
    assert code(b"no video at all, only words") == "not_media"
    assert code(Path("no/such/clip.mp4")) == "missing"
    sound = io.BytesIO()
    with av.open(sound, "w", format="wav") as out:
        stream = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
    assert code(sound.getvalue()) == "no_video"


def test_raw_stream_without_time_stamps_is_numbered() -> None:
    data = encode([40 * n for n in range(10)], container="h264")
    info = probe_video(data)
    assert info.frames == 10
    steps = np.diff(info.times)
    assert steps == pytest.approx([steps[0]] * 9)
    assert numbers(read_times(data, [info.times[7], info.times[2]]).frames) == [2, 7]


def survives(data: bytes) -> bool:
    """A clip, or an error with a reason, and nothing else."""
    try:
        return probe_video(data).frames > 0 and len(read_clip(data).frames) > 0
    except MediaError as error:
        return error.code in ("not_media", "truncated", "broken", "ratio", "too_many_pixels", "no_video")


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 10**6), values=st.binary(min_size=1, max_size=40))
def test_any_damage_gives_a_clip_or_a_reason(place: int, values: bytes) -> None:
    data = bytearray(encode(VARIABLE))
    at = place % len(data)
    data[at : at + len(values)] = values[: len(data) - at]
    assert survives(bytes(data))


def test_threads_do_not_disturb_each_other() -> None:
    data = encode(VARIABLE)
    results: list[list[int]] = []

    def work(number: int) -> None:
        results.append([*numbers(read_times(data, [VARIABLE[number] / 1000]).frames), number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [[n, n] for n in range(10)]
