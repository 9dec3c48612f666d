"""Clips cut out of clips: which frames belong to which piece, and encoding them again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from mmrl.images import MediaError
from mmrl.video import read_times

TICK = Fraction(1, 90_000)  # seconds; the usual rates are whole numbers of it
STRIDE = 16  # frames decoded at a time: memory stays bounded
# Found by encoding the same frames often: with macroblock trees, bytes differ from call to call even on one thread; and
# without `cpu-independent` they differ between machines.
CODER = {"crf": "18", "preset": "veryfast", "threads": "1", "x264-params": "mbtree=0:cpu-independent=1"}


def clip_ranges(frames: int, clips: int, trim: float) -> list[tuple[int, int]]:
    """[start, end) of each of `clips` equal clips, `trim` of a clip cut off at both of its ends; frames left over are
    dropped at the start (card visual-jigsaw). Ranges are empty where there are too few frames."""
    share = Fraction(trim).limit_denominator(100)
    skip = frames % (clips * share.denominator) if clips > 1 else 0
    length = (frames - skip) // clips
    cut = length * share.numerator // share.denominator
    return [(skip + n * length + cut, skip + (n + 1) * length - cut) for n in range(clips)]


def fit(width: int, height: int, size: int) -> tuple[int, int]:
    """(width, height) with a longer side of at most `size`, both even as the codec needs them, never enlarged."""
    scale = min(1.0, size / max(width, height))
    wide, high = (max(2, round(side * scale) // 2 * 2) for side in (width, height))
    return wide, high


def read_frames(source: bytes | Path, times: Sequence[float], size: tuple[int, int]) -> list[Image.Image]:
    """The upright frames on screen at `times` (seconds, increasing), scaled to `size`. Raises MediaError."""
    frames: list[Image.Image] = []
    for start in range(0, len(times), STRIDE):
        for frame in read_times(source, list(times[start : start + STRIDE])).frames:
            frames.append(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
    if len(frames) != len(times):
        raise MediaError("broken", f"{len(times) - len(frames)} of {len(times)} frames do not decode")
    return frames


def encode(frames: Sequence[Image.Image], times: Sequence[float]) -> bytes:
    """An MP4 file (H.264) of frames of one even size shown at `times` (seconds, increasing; shifted to begin at 0).

    No sound, and nothing of where and when it was made; one thread, so that the same frames give the same bytes.
    """
    ticks = [round((t - times[0]) / TICK) for t in times]
    steps = [*np.diff(ticks).tolist(), int(np.median(np.diff(ticks))) if len(ticks) > 1 else 3600]
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as out:
        rate = Fraction(1 / (float(np.mean(steps)) * float(TICK))).limit_denominator(1001)
        stream = out.add_stream("libx264", rate=rate, options=CODER)
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = stream.time_base = TICK
        for frame, tick, step in zip(frames, ticks, steps, strict=True):
            picture = av.VideoFrame.from_ndarray(np.asarray(frame), format="rgb24")
            picture.pts, picture.time_base, picture.duration = tick, TICK, step
            out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    return file.getvalue()
