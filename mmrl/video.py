"""One video reader: true time stamps, upright frames, bad packets counted, frames chosen by time.

Times are seconds of presentation time from the first frame shown; a container's start offset does not appear in them.
No state is shared between calls, so clips may be read from many threads. PyAV decodes with one thread and leaves none
behind; torchcodec and decord may. Worker processes of a program that has read a clip are therefore started by spawn or
forkserver: a forked child can wait for ever for a lock that a thread held which it has not inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import PictureType

from mmrl.container import Media, Tally, decode, measure, open_video, packets_of, upright
from mmrl.images import MediaError
from mmrl.timeline import Timeline, compact, from_index
from mmrl.video_backends import Backend, decode_with

Window = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames of a clip with the times at which they are shown.

    `decoded` and `bad_packets` belong to the call: windows that were read together share them."""

    frames: np.ndarray  # [F, H, W, 3] uint8, upright RGB
    times: list[float]  # [F] seconds from the first frame shown, increasing
    bad_packets: int = 0  # met while reading these frames
    decoded: int = 0  # packets given to the decoder; 0 where the backend does not tell
    backend: str = "pyav"  # what decoded these frames: not always the one asked for, see `read_clip`


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
    timeline: Timeline
    codec: str  # FFmpeg's name of the format: h264, hevc, av1 ...

    @property
    def frames(self) -> int:
        return len(self.times)

    @property
    def fps(self) -> float:
        """Average rate over the frames shown; 0 for a single frame. `rate` is exact."""
        return (self.frames - 1) / (self.times[-1] - self.times[0]) if self.frames > 1 else 0.0

    @property
    def rate(self) -> Fraction:
        """Frames a second as the container states them where its stamps agree (30000/1001), else the exact average."""
        return self.timeline.rate

    @property
    def constant(self) -> bool:
        """Whether all frames are shown equally long."""
        return self.timeline.constant

    @property
    def start(self) -> float:
        """The container's own time of the first frame shown, seconds. Everything else here counts from it."""
        return self.timeline.start

    @property
    def keys(self) -> tuple[float, ...]:
        """Seconds at which decoding may start; under 0 for a key frame that is not shown."""
        return tuple(self.timeline.seconds(k) for k in self.timeline.keys)

    @property
    def missing(self) -> float:
        """Share of the announced frames that cannot be shown."""
        return max(0.0, 1 - self.frames / self.announced) if self.announced else 0.0

    def index(self) -> dict[str, Any]:
        """The timeline in JSON-able form, for `info["timeline"]` of a `MediaRef`."""
        return self.timeline.index()


class _Overshoot(Exception):
    """Decoding did not begin where it should have: the frame wanted lies before, or never came."""


def probe_video(source: bytes | Path) -> VideoInfo:
    """Decode a whole clip and tell what it holds. Raises MediaError."""
    with open_video(source) as media:
        line = measure(source, media)
    shown, keys, times, tally, first = set(line.stamps), set(line.keys), [], Tally(), None
    with open_video(source) as media:
        context = media.stream.codec_context
        announced, codec = media.stream.frames, context.codec.canonical_name
        for stamp, frame in decode(packets_of(media), context, tally, counted=line.counted):
            if stamp in shown:
                first = first or frame
                times.append(line.seconds(stamp))
            if stamp in keys and frame.pict_type != PictureType.I:
                keys.remove(stamp)
        if first is None:
            raise MediaError("broken", "no frame can be decoded")
        height, width = upright(first).shape[:2]
        rotation = -first.rotation % 360
    times.sort()
    if len(keys) < len(line.keys):  # periodic intra refresh: no seek leads to a whole picture
        line = replace(line, keys=compact(sorted(keys)), indexed=False)
    return VideoInfo(
        width=width,
        height=height,
        times=tuple(times),
        duration=times[-1] + float(line.last * line.tick),
        rotation=rotation,
        bad_packets=tally.bad,
        announced=max(0, announced - line.discarded),
        timeline=replace(line, bad=tally.bad),
        codec=codec,
    )


def read_clip(
    source: bytes | Path,
    *,
    fps: float | Fraction = 2.0,
    max_frames: int = 16,
    start: float | None = None,
    end: float | None = None,
    timeline: Timeline | Mapping[str, Any] | None = None,
    backend: Backend = "pyav",
) -> Clip:
    """Frames of the window [start, end] seconds: one every 1/fps from its start, spread evenly where that were more
    than `max_frames`. At each such time the frame that is on screen is taken, none twice, so a window shorter than a
    frame still gives one.

    `timeline`: as found before (`VideoInfo.timeline`, or its `index()`), which saves reading the whole file.
    `backend`: who decodes; "torchcodec" and "decord" are optional packages. The timeline chooses the frames whatever
    the backend; where a backend numbers them differently or fails, PyAV decodes, and `Clip.backend` says so.

    Raises MediaError, with code `window` for a window outside the clip; ImportError for a backend that is not there;
    ValueError for fps or max_frames not above 0.
    """
    windows = [(start, end)]
    return read_windows(source, windows, fps=fps, max_frames=max_frames, timeline=timeline, backend=backend)[0]


def read_windows(
    source: bytes | Path,
    windows: Sequence[Window],
    *,
    fps: float | Fraction = 2.0,
    max_frames: int = 16,
    min_frames: int = 1,
    timeline: Timeline | Mapping[str, Any] | None = None,
    backend: Backend = "pyav",
) -> list[Clip]:
    """A clip for each window (start, end), as `read_clip` gives it, all in one pass over one open container: what two
    windows share is decoded once. `fps`, `max_frames` and `min_frames` (see `Timeline.window`) are of each window.
    Raises as `read_clip`."""

    def choose(line: Timeline) -> list[list[int]]:
        many = {"max_frames": max_frames, "min_frames": min_frames}
        return [line.window(start, end, fps=fps, **many) for start, end in windows]

    return _read(source, choose, timeline, backend)


def read_times(
    source: bytes | Path,
    times: Iterable[float | Fraction],
    timeline: Timeline | Mapping[str, Any] | None = None,
    *,
    backend: Backend = "pyav",
) -> Clip:
    """The frames that are on screen at the given seconds, sorted, none twice. Raises as `read_clip`."""
    asked = list(times)
    if not asked:
        raise MediaError("window", "no time is asked for")
    return _read(source, lambda line: [sorted({line.at(t) for t in asked})], timeline, backend)[0]


def read_timeline(source: bytes | Path) -> Timeline:
    """When the frames of a clip are shown, from its packets without decoding them (with it where their stamps are of
    no use). Raises MediaError."""
    with open_video(source) as media:
        return measure(source, media)


def _read(
    source: bytes | Path,
    choose: Callable[[Timeline], list[list[int]]],
    known: Timeline | Mapping[str, Any] | None,
    backend: Backend,
) -> list[Clip]:
    """A clip for each list of stamps that `choose` makes of the timeline."""
    given = from_index(known) if isinstance(known, Mapping) else known
    frames: dict[int, tuple[int, np.ndarray]] | None = None
    tally, used = Tally(), "pyav"
    with open_video(source) as media:
        line = given or measure(source, media)
        chosen = choose(line)
        wanted = sorted({stamp for stamps in chosen for stamp in stamps})
        if not wanted:
            return []
        ready = given is not None or line.indexed  # else the container has been read to its end, for good
        if backend != "pyav" and (pictures := decode_with(backend, source, line, wanted)) is not None:
            frames, used = {s: (s, p) for s, p in zip(wanted, pictures, strict=True)}, backend
        elif ready:
            frames = _pick(media, line, wanted, tally, skip=True)
    for skip in (False,) if ready else (True, False):
        if frames is None:
            with open_video(source) as media:
                frames = _pick(media, line, wanted, tally, skip=skip)
    if not frames:
        at = ", ".join(f"{line.seconds(s):.3f}" for s in wanted)
        raise MediaError("broken", f"none of the frames at {at} s can be decoded")
    for shown, _ in frames.values() if given else ():
        if not line.shows(shown):
            raise MediaError("broken", f"the timeline in the index is of another file: it lacks the stamp {shown}")
    return [_clip(frames, stamps, line, tally, used) for stamps in chosen]


def _clip(
    frames: dict[int, tuple[int, np.ndarray]], stamps: list[int], line: Timeline, tally: Tally, backend: str
) -> Clip:
    """The clip of some of the frames that were read."""
    found = dict(frames[s] for s in stamps if s in frames)
    if not found:
        raise MediaError("broken", f"no frame from {line.seconds(stamps[0]):.3f} s on can be decoded")
    order = sorted(found)
    return Clip(
        frames=np.stack([found[s] for s in order]),
        times=[line.seconds(s) for s in order],
        bad_packets=tally.bad,
        decoded=tally.decoded,
        backend=backend,
    )


def _pick(
    media: Media, line: Timeline, wanted: list[int], tally: Tally, *, skip: bool
) -> dict[int, tuple[int, np.ndarray]] | None:
    """For each wanted stamp the stamp and frame that is shown then. `skip`: from key frame to key frame, and None where
    that does not lead to the frames; else forward from where the container is."""
    context = media.stream.codec_context
    out: dict[int, tuple[int, np.ndarray]] = {}
    try:
        for key, stamps in line.runs(wanted) if skip else [(None, wanted)]:
            packets = packets_of(media) if key is None else _from_key(media, key, seek=line.indexed)
            frames = decode(packets, context, tally, counted=line.counted)
            _forward(frames if key is None else _whole(frames, line, key), stamps, out, strict=skip)
    except _Overshoot:
        return None
    return out


def _from_key(media: Media, key: int, *, seek: bool) -> Iterator[Any]:
    """Packets from that of a key frame on; those before it are not decoded. Raises _Overshoot.

    A seek is believed only where this very packet then comes: containers without an index land anywhere."""
    try:
        if seek:
            media.container.seek(key, stream=media.stream, backward=True)
        else:
            media.stream.codec_context.flush_buffers()
    except (av.error.FFmpegError, ValueError):
        raise _Overshoot from None
    packets = packets_of(media)
    for packet in packets:
        if packet.pts == key and packet.is_keyframe:
            yield packet
            yield from packets
            return
        if packet.pts is None or packet.pts > key:
            break
    raise _Overshoot


def _whole(frames: Iterator[tuple[int, Any]], line: Timeline, key: int) -> Iterator[tuple[int, Any]]:
    """Frames from a key frame on; those shown before it may lean on what came earlier in the file.

    Raises _Overshoot where it is no picture of its own: encoders that refresh a picture part by part mark such frames
    as keys, and the decoder then gives half a picture without a word."""
    later = (item for item in frames if item[0] >= key)
    if line.shows(key):
        first = next(later, None)
        if first is None or first[0] != key or first[1].pict_type != PictureType.I:
            raise _Overshoot
        yield first
    yield from later


def _forward(
    frames: Iterator[tuple[int, Any]], stamps: list[int], out: dict[int, tuple[int, np.ndarray]], *, strict: bool
) -> None:
    """Take the frames of the given stamps (increasing) into `out`.

    In place of a frame that cannot be decoded stands the one shown before it, under its own stamp. Raises _Overshoot
    where there is none and `strict`: the decoder did not start at the beginning."""
    todo = list(stamps)
    before: tuple[int, Any] | None = None
    taken: dict[int, np.ndarray] = {}

    def take(stamp: int, frame: Any) -> None:
        if stamp not in taken:
            taken[stamp] = upright(frame)
        out[todo.pop(0)] = (stamp, taken[stamp])

    for stamp, frame in frames:
        while todo and stamp >= todo[0]:
            if stamp > todo[0] and before is None and strict:
                raise _Overshoot
            take(*((stamp, frame) if stamp == todo[0] or before is None else before))
        if not todo:
            return
        before = (stamp, frame)
    if before is None and strict:
        raise _Overshoot
    while before is not None and todo:
        take(*before)
