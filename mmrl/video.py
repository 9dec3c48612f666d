"""One video reader on PyAV: true time stamps, upright frames, bad packets counted, frames chosen by time.

Times are seconds of presentation time from the first frame shown; a container's start offset does not appear in them.
No state is shared between calls, so clips may be read from many threads.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from mmrl.images import MediaError, check_size

EPSILON = 1e-6  # seconds; a time written as a decimal means the frame whose stamp it rounds to


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames of a clip with the times at which they are shown."""

    frames: np.ndarray  # [F, H, W, 3] uint8, upright RGB
    times: list[float]  # [F] seconds from the first frame shown, increasing
    bad_packets: int = 0  # met while reading these frames


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a clip really holds, found by decoding all of it."""

    width: int  # upright pixels
    height: int
    times: tuple[float, ...]  # of the presentable frames, seconds from the first
    duration: float  # seconds until the last frame ends
    rotation: int  # degrees clockwise by which stored frames are turned to be upright
    bad_packets: int
    announced: int  # frames that the container's header promises, 0 when it does not say

    @property
    def frames(self) -> int:
        return len(self.times)

    @property
    def fps(self) -> float:
        """Average rate over the frames shown; 0 for a single frame."""
        return (self.frames - 1) / (self.times[-1] - self.times[0]) if self.frames > 1 else 0.0

    @property
    def missing(self) -> float:
        """Share of the announced frames that cannot be shown."""
        return max(0.0, 1 - self.frames / self.announced) if self.announced else 0.0


@dataclass(frozen=True, slots=True)
class _Timeline:
    stamps: list[int]  # of the frames to show, in ticks, increasing
    keys: list[int]  # those at which decoding may start
    tick: Fraction  # seconds
    last: int  # how long the last frame is shown, ticks
    discarded: int  # decoded but not shown (edit lists)
    counted: bool  # the packets have no time stamps: frames are numbered in the order of decoding

    def seconds(self, stamp: int) -> float:
        return float((stamp - self.stamps[0]) * self.tick)

    def at(self, seconds: float) -> int:
        """The last frame shown at or before a time."""
        ticks = self.stamps[0] + (seconds + EPSILON) / self.tick
        return self.stamps[max(0, bisect.bisect_right(self.stamps, ticks) - 1)]


class _Overshoot(Exception):
    """A seek landed behind the frame that it was for."""


def probe_video(source: bytes | Path) -> VideoInfo:
    """Decode a whole clip and tell what it holds. Raises MediaError."""
    line = _timeline(source)
    shown, times, bad, first = set(line.stamps), [], 0, None
    with _open(source) as (container, stream):
        announced = stream.frames
        for stamp, frame in _decode(container, stream, counted=line.counted):
            if frame is None:
                bad += 1
            elif stamp in shown:
                first = first or frame
                times.append(line.seconds(stamp))
        if first is None:
            raise MediaError("broken", "no frame can be decoded")
        height, width = _upright(first).shape[:2]
        rotation = -first.rotation % 360
    times.sort()
    return VideoInfo(
        width=width,
        height=height,
        times=tuple(times),
        duration=times[-1] + float(line.last * line.tick),
        rotation=rotation,
        bad_packets=bad,
        announced=max(0, announced - line.discarded),
    )


def read_clip(
    source: bytes | Path,
    *,
    fps: float = 2.0,
    max_frames: int = 16,
    start: float | None = None,
    end: float | None = None,
) -> Clip:
    """Frames of the window [start, end] seconds: one every 1/fps from its start, spread evenly where that were more
    than `max_frames`. At each such time the frame that is on screen is taken, none twice, so a window shorter than a
    frame still gives one. Raises MediaError, with code `window` for a window outside the clip."""
    line = _timeline(source)
    last = line.seconds(line.stamps[-1])
    begin = 0.0 if start is None else max(0.0, start)
    stop = last if end is None else min(end, last)
    if begin >= last + float(line.last * line.tick) - EPSILON or (end is not None and end < begin):
        raise MediaError("window", f"no frame between {start} and {end} s: the clip ends at {last:.3f} s")
    stop = max(stop, begin)
    count = int((stop - begin) * fps + EPSILON) + 1
    times = begin + np.arange(count) / fps if count <= max_frames else np.linspace(begin, stop, max_frames)
    return read_times(source, times.tolist(), line)


def read_times(source: bytes | Path, times: list[float], line: _Timeline | None = None) -> Clip:
    """The frames that are on screen at the given seconds, sorted, none twice. Raises MediaError."""
    line = line or _timeline(source)
    wanted = sorted({line.at(t) for t in times})
    try:
        frames, bad = _pick(source, line, wanted, seek=not line.counted)
    except _Overshoot:
        frames, bad = _pick(source, line, wanted, seek=False)
    if not frames:
        raise MediaError("broken", f"none of the frames at {', '.join(f'{t:.3f}' for t in times)} s can be decoded")
    stamps = sorted(frames)
    return Clip(np.stack([frames[s] for s in stamps]), [line.seconds(s) for s in stamps], bad)


def _pick(source: bytes | Path, line: _Timeline, wanted: list[int], *, seek: bool) -> tuple[dict[int, np.ndarray], int]:
    """The wanted stamps (sorted) with their frames, and the number of bad packets met. Raises _Overshoot."""
    out: dict[int, np.ndarray] = {}
    bad = 0
    with _open(source) as (container, stream):
        for key, stamps in _runs(line, wanted) if seek else [(None, wanted)]:
            if key is not None:
                container.seek(key, stream=stream, backward=True)
            bad += _forward(_decode(container, stream, counted=line.counted), stamps, out, strict=key is not None)
    return out, bad


def _runs(line: _Timeline, wanted: list[int]) -> list[tuple[int | None, list[int]]]:
    """Wanted stamps in runs that are decoded without a break, each with the key frame to seek (None: go on from where
    the decoder is). A seek pays only where a key frame lies between two wanted frames: all else is decoded on."""
    runs: list[tuple[int | None, list[int]]] = []
    at = line.keys[0] if line.keys else line.stamps[-1]
    for stamp in wanted:
        found = bisect.bisect_right(line.keys, stamp) - 1
        if found >= 0 and line.keys[found] > at:
            runs.append((line.keys[found], [stamp]))
        elif runs:
            runs[-1][1].append(stamp)
        else:
            runs.append((None, [stamp]))
        at = max(at, stamp)
    return runs


def _forward(frames: Iterator[tuple[int, Any]], stamps: list[int], out: dict[int, np.ndarray], *, strict: bool) -> int:
    """Take the frames with the given stamps (sorted) into `out`; returns the number of bad packets met.

    In place of a frame that cannot be decoded stands the one shown before it, under its own stamp. Raises _Overshoot
    where there is none and `strict`: the decoder did not start at the beginning."""
    bad, todo = 0, list(stamps)
    before: tuple[int, Any] | None = None
    for stamp, frame in frames:
        if frame is None:
            bad += 1
            continue
        while todo and stamp >= todo[0]:
            if stamp > todo[0] and before is None and strict:
                raise _Overshoot
            shown, picture = (stamp, frame) if stamp == todo[0] or before is None else before
            out.setdefault(shown, _upright(picture))
            todo.pop(0)
        before = (stamp, frame)
        if not todo:
            return bad
    if before is None and strict:
        raise _Overshoot
    if before is not None:
        out.setdefault(before[0], _upright(before[1]))
    return bad


@contextmanager
def _open(source: bytes | Path) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream."""
    if isinstance(source, bytes) and not source:
        raise MediaError("empty", "no bytes")
    if isinstance(source, Path):
        if not source.is_file():
            raise MediaError("missing", f"no file {source}")
        if source.stat().st_size == 0:
            raise MediaError("empty", "no bytes")
    try:
        container = av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), metadata_errors="ignore")
    except (av.error.FFmpegError, ValueError) as error:
        head = source[:12] if isinstance(source, bytes) else source.open("rb").read(12)
        if head[4:8] == b"ftyp":  # an MP4 whose index, often its last part, is gone
            raise MediaError("truncated", f"an MP4 file without its index: {error}") from error
        raise MediaError("not_media", f"not a video: begins with {head!r}") from error
    with container:
        if not container.streams.video:
            raise MediaError("no_video", "the file has no video stream")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise MediaError("not_media", "no decoder for its video stream")
        check_size(stream.codec_context.width, stream.codec_context.height)
        stream.codec_context.thread_count = 1  # errors then belong to the packet that raised them
        try:
            yield container, stream
        except MediaError:
            raise
        except (av.error.FFmpegError, ValueError) as error:  # a seek, or a pixel format that cannot be converted
            raise MediaError("broken", f"does not decode: {error}") from error


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Packets to the end of the stream or to where the file is cut, and then the one that empties the decoder."""
    try:
        yield from container.demux(stream)
    except (av.error.FFmpegError, EOFError):
        yield av.Packet()


def _decode(container: Any, stream: Any, *, counted: bool) -> Iterator[tuple[int, Any]]:
    """(stamp, frame) in order of presentation, and (0, None) for each packet that does not decode."""
    number = 0
    for packet in _packets(container, stream):
        try:
            frames = stream.codec_context.decode(packet if packet.size else None)
        except (av.error.FFmpegError, EOFError) as error:
            if not isinstance(error, EOFError):
                yield 0, None
            continue
        for frame in frames:
            if counted:
                yield number, frame
                number += 1
            elif frame.pts is not None:
                yield frame.pts, frame


def _timeline(source: bytes | Path) -> _Timeline:
    """Time stamps of all frames from the packets alone, without decoding; by decoding where packets have none."""
    with _open(source) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        stamps: dict[int, int] = {}
        keys, discarded, counted = [], 0, False
        for packet in _packets(container, stream):
            if not packet.size:
                continue
            if packet.pts is None:
                counted = True
                break
            if packet.is_discard:
                discarded += 1
            else:
                stamps[packet.pts] = packet.duration or 0
            if packet.is_keyframe:
                keys.append(packet.pts)
        tick = stream.time_base
    if counted:
        with _open(source) as (container, stream):
            total = sum(frame is not None for _, frame in _decode(container, stream, counted=True))
        stamps, keys, tick = dict.fromkeys(range(total), 1), [], 1 / Fraction(rate)
    if not stamps:
        raise MediaError("broken", "the video stream has no frames")
    order = sorted(stamps)
    last = stamps[order[-1]] or round(1 / (rate * tick))
    return _Timeline(order, sorted(keys), Fraction(tick), last, discarded, counted)


def _upright(frame: Any) -> np.ndarray:
    """RGB [H, W, 3], turned by the display matrix (PyAV gives degrees counter-clockwise)."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90)))
