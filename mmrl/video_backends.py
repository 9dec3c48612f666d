"""Optional decoders: torchcodec and decord give the pixels, never the choice of frames.

Each is asked for frames by presentation index and must count and stamp them as our timeline does. Where it does not, or
is known to give other frames than it says, PyAV decodes instead: decord ignores edit lists and misses in open groups of
pictures, torchcodec drops the first group of an MPEG transport stream, both fail at the first damaged packet.
Clips with periodic intra refresh are known only once `probe_video` has seen them: give the timeline from the index.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from mmrl.timeline import Timeline

log = logging.getLogger(__name__)

Backend = Literal["pyav", "torchcodec", "decord"]
TOLERANCE = 5e-4  # seconds; decord keeps its times as 32-bit floats

Decode = Callable[[bytes | Path, Timeline, list[int]], np.ndarray]


class _Differs(Exception):
    """The backend sees other frames, or the same at other times."""


def decode_with(backend: Backend, source: bytes | Path, line: Timeline, wanted: Sequence[int]) -> np.ndarray | None:
    """The frames with the wanted stamps (increasing) as upright RGB [F, H, W, 3] uint8, or None where this backend
    cannot be trusted with the clip, which is logged. Raises ImportError that says what to install."""
    decode = _load(backend)
    if not line.indexed or line.bad:
        log.info("%s: not for a clip without an index of its own, or with damaged packets: PyAV decodes it", backend)
        return None
    try:
        return decode(source, line, [line.place(s) for s in wanted])
    except Exception as error:  # whatever it raises, the clip may well be sound
        log.info("%s: %s: PyAV decodes the clip", backend, error)
        return None


def _load(backend: Backend) -> Decode:
    """The decode function of a backend, its package imported."""
    try:
        if backend == "torchcodec":
            import torchcodec

            if getattr(torchcodec, "ffmpeg_major_version", 0) is None:  # newer ones do not raise before the first use
                raise ImportError("no FFmpeg was found")
            return _torchcodec
        if backend == "decord":
            import decord  # noqa: F401

            return _decord
    except (ImportError, RuntimeError, OSError) as error:  # torchcodec raises RuntimeError where FFmpeg is not there
        needs = " and the shared libraries of FFmpeg 4 to 9" if backend == "torchcodec" else ""
        raise ImportError(
            f"the video backend {backend!r} needs the package {backend}{needs} (pip install {backend}): {error}"
        ) from error
    raise ValueError(f"unknown video backend {backend!r}: one of {', '.join(get_args(Backend))}")


def _torchcodec(source: bytes | Path, line: Timeline, places: list[int]) -> np.ndarray:
    from torchcodec.decoders import VideoDecoder

    data = source if isinstance(source, bytes) else str(source)
    decoder = VideoDecoder(data, seek_mode="exact", dimension_order="NHWC", num_ffmpeg_threads=1)
    _same_count(len(decoder), line)
    batch = decoder.get_frames_at(indices=places)
    _same_times(batch.pts_seconds.tolist(), [float(line.stamps[p] * line.tick) for p in places])
    return batch.data.numpy()


def _decord(source: bytes | Path, line: Timeline, places: list[int]) -> np.ndarray:
    import decord

    if line.open:
        raise _Differs("its seeks land beside the mark where groups of pictures are open")
    reader = decord.VideoReader(io.BytesIO(source) if isinstance(source, bytes) else str(source), num_threads=1)
    _same_count(len(reader), line)
    stamps = reader.get_frame_timestamp([0, *places])[:, 0].astype(float)
    _same_times((stamps[1:] - stamps[0]).tolist(), [line.seconds(line.stamps[p]) for p in places])
    return reader.get_batch(places).asnumpy()


def _same_count(count: int, line: Timeline) -> None:
    if count != len(line.stamps):
        raise _Differs(f"it counts {count} frames where {len(line.stamps)} are shown")


def _same_times(theirs: list[float], ours: list[float]) -> None:
    for a, b in zip(theirs, ours, strict=True):
        if not abs(a - b) <= TOLERANCE:
            raise _Differs(f"its frame of {a} s is the one of {b} s")
