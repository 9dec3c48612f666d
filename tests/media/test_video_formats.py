"""Containers and codecs: a frame reached by a seek is the frame that linear reading gives, or no seek is made."""

from __future__ import annotations

import io
import re
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import mmrl
from mmrl.media import probe_video, read_times

from .clips import encode, linear, moving, numbers

X264, X265 = "keyint=15:bframes=3:scenecut=0", "keyint=15:bframes=3:scenecut=0:log-level=none"
FORMATS: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {
    "mp4": ("libx264", "mp4", {"x264-params": X264}, {}),
    "mp4 open groups": ("libx264", "mp4", {"x264-params": X264 + ":open-gop=1"}, {}),
    "mp4 fragments": ("libx264", "mp4", {"x264-params": X264}, {"movflags": "frag_keyframe+empty_moov"}),
    "mp4 intra refresh": ("libx264", "mp4", {"x264-params": "intra-refresh=1:keyint=15:bframes=0"}, {}),
    "matroska": ("libx264", "matroska", {"x264-params": X264}, {}),
    "flv": ("libx264", "flv", {"x264-params": X264}, {}),
    "mpegts": ("libx264", "mpegts", {"x264-params": X264}, {}),
    "avi h264": ("libx264", "avi", {"x264-params": X264}, {}),
    "avi mpeg4": ("mpeg4", "avi", {"bf": "2"}, {}),
    "mpeg": ("mpeg2video", "mpeg", {"bf": "2"}, {}),
    "hevc": ("libx265", "mp4", {"x265-params": X265}, {}),
    "hevc matroska": ("libx265", "matroska", {"x265-params": X265 + ":open-gop=0"}, {}),
    "vp9": ("libvpx-vp9", "webm", {"deadline": "realtime", "cpu-used": "8"}, {}),
}
SOUGHT = {"mp4", "mp4 open groups", "mp4 fragments", "matroska", "hevc", "hevc matroska", "vp9"}


@pytest.mark.parametrize("name", FORMATS)
def test_seeks_give_what_linear_reading_gives(name: str) -> None:
    codec, container, options, muxer = FORMATS[name]
    data = moving(codec, container, options=options, muxer=muxer)
    frames = linear(data)
    info = probe_video(data)
    assert (info.frames, info.bad_packets, info.constant, info.rate) == (60, 0, True, 25)
    assert info.times == pytest.approx([n / 25 for n in range(60)], abs=1e-3)
    assert info.timeline.indexed == (name in SOUGHT)
    for wanted in ([59], [3, 33], [14, 15, 16, 44, 45, 46], [17, 40, 58], [0]):
        for index in (None, info.index()):
            clip = read_times(data, [info.times[n] for n in wanted], index)
            assert clip.times == [info.times[n] for n in wanted]
            for frame, number in zip(clip.frames, wanted, strict=True):
                assert np.array_equal(frame, frames[number]), (name, wanted, number)


@pytest.mark.parametrize("name", ["mp4", "matroska", "hevc", "mpegts", "mpeg"])
def test_only_the_group_of_the_frame_is_decoded(name: str) -> None:
    codec, container, options, muxer = FORMATS[name]
    data = moving(codec, container, options=options, muxer=muxer)
    info = probe_video(data)
    assert read_times(data, [info.times[50]], info.timeline).decoded <= 15


def test_a_program_stream_starts_at_its_own_time() -> None:
    """It starts at 0.54 s, and its header knows no number of frames."""
    info = probe_video(moving("mpeg2video", "mpeg", options={"bf": "2"}))
    assert (info.start, info.times[0], info.codec) == (pytest.approx(0.54), 0.0, "mpeg2video")
    assert info.announced == 0
    assert info.missing == 0


def test_raw_h264_has_no_duration_and_is_counted() -> None:
    data = encode([40 * n for n in range(20)], container="h264", b_frames=2)
    info = probe_video(data)
    assert (info.frames, info.duration, info.timeline.counted) == (20, pytest.approx(0.8), True)
    for index in (None, info.index()):
        assert numbers(read_times(data, [0.76, 0.28, 0.0], index).frames) == [0, 7, 19]


def test_a_header_that_promises_too_many_frames() -> None:
    data = bytearray(moving("mpeg4", "avi", frames=30))
    place = data.index(b"strh") + 8 + 32  # dwLength, after the header of its chunk
    assert struct.unpack_from("<I", data, place) == (30,)
    struct.pack_into("<I", data, place, 32)
    info = probe_video(bytes(data))
    assert (info.frames, info.announced) == (30, 32)
    assert info.missing == pytest.approx(2 / 32)
    assert read_times(bytes(data), [1e9]).times == [info.times[-1]]


def test_dropped_frames_stretch_the_times_not_the_numbers() -> None:
    stamps = [40 * n for n in range(20) if n not in (5, 6, 13)]
    info = probe_video(encode(stamps, container="matroska"))
    assert info.times == pytest.approx([s / 1000 for s in stamps])
    assert (info.constant, info.rate) == (False, Fraction(16000, 760))


def test_sound_beside_the_picture_does_not_matter() -> None:
    buffer = io.BytesIO()
    with av.open(io.BytesIO(moving())) as source, av.open(buffer, "w", format="matroska") as out:
        sound = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        picture = out.add_stream_from_template(source.streams.video[0])
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 8000, -2000, Fraction(1, 8000)  # it starts earlier
        out.mux(sound.encode(frame))
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = picture
                out.mux(packet)
    clip = read_times(buffer.getvalue(), [0.0, 1.6])
    assert clip.times == pytest.approx([0.0, 1.6])
    assert np.array_equal(clip.frames[1], linear(moving())[40])


def test_no_package_imports_the_video_part_of_torchvision() -> None:
    """It is gone from torchvision 0.26 on."""
    root = Path(mmrl.__file__).parents[1]
    pattern = re.compile(r"torchvision\.io|from torchvision import .*\bio\b|torchvision.*\b(read_video|VideoReader)\b")
    files = [p for room in ("mmrl", "data_pipelines", "tools", "tasks", "eval") for p in (root / room).rglob("*.py")]
    assert len(files) > 20
    assert [str(p) for p in files if pattern.search(p.read_text())] == []
