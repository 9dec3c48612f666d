"""An open video file: its packets one by one, its frames, and the timeline that its packets tell."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

from mmrl.images import MediaError, check_size
from mmrl.timeline import Timeline, compact

# Formats with time stamps of their own and an index of them: others are read forward, and only skipped through.
INDEXED = {"mov", "mp4", "matroska", "webm"}
UNSTAMPED = {"avi"}  # its packets are only in the order of decoding; stamps are made up by FFmpeg


class Media(NamedTuple):
    """An open container and its first video stream."""

    container: Any
    stream: Any

    @property
    def formats(self) -> set[str]:
        return set(self.container.format.name.split(","))


@dataclass(slots=True)
class Tally:
    """What decoding met."""

    decoded: int = 0
    bad: int = 0


@contextmanager
def open_video(source: bytes | Path) -> Iterator[Media]:
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
        # One thread: errors then belong to the packet that raised them, and few frames are in flight. Many clips are
        # read in parallel instead.
        stream.codec_context.thread_count = 1
        try:
            yield Media(container, stream)
        except MediaError:
            raise
        except (av.error.FFmpegError, ValueError) as error:  # a pixel format that cannot be converted
            raise MediaError("broken", f"does not decode: {error}") from error


def packets_of(media: Media) -> Iterator[Any]:
    """Packets to the end of the stream or to where the file is cut, and then the one that empties the decoder."""
    try:
        yield from media.container.demux(media.stream)
    except (av.error.FFmpegError, EOFError):
        yield av.Packet()


def decode(packets: Iterable[Any], context: Any, tally: Tally, *, counted: bool) -> Iterator[tuple[int, Any]]:
    """(stamp, frame) in order of presentation; packets that do not decode are tallied."""
    number = 0
    for packet in packets:
        tally.decoded += bool(packet.size)
        try:
            frames = context.decode(packet if packet.size else None)
        except EOFError:
            continue
        except av.error.FFmpegError:
            tally.bad += 1
            continue
        for frame in frames:
            if counted:
                yield number, frame
                number += 1
            elif frame.pts is not None:
                yield frame.pts, frame


def measure(source: bytes | Path, media: Media) -> Timeline:
    """The timeline from the packets alone, without decoding; by decoding where their stamps are missing or made up."""
    nominal = Fraction(media.stream.average_rate or media.stream.guessed_rate or 25)
    tick = Fraction(media.stream.time_base)
    stamps: dict[int, int] = {}
    keys: list[int] = []
    discarded, true, leading = 0, not media.formats & UNSTAMPED, False
    for packet in packets_of(media):
        if not packet.size:
            continue
        if packet.pts is None:
            true, keys = False, []
            break
        if packet.is_discard:
            discarded += 1
        else:
            stamps[packet.pts] = packet.duration or 0
        if packet.is_keyframe:
            keys.append(packet.pts)
        leading = leading or bool(keys and packet.pts < keys[-1])
    counted = False
    if not true:
        with open_video(source) as again:
            decoded = decode(packets_of(again), again.stream.codec_context, Tally(), counted=True)
            shown = [frame.pts for _, frame in decoded]
        counted = None in shown or any(b <= a for a, b in pairwise(shown))
        stamps = dict.fromkeys(range(len(shown)) if counted else shown, 0)
        keys, tick = ([], 1 / nominal) if counted else (keys, tick)
    if not stamps:
        raise MediaError("broken", "the video stream has no frames")
    order = compact(sorted(stamps))
    span, steps = order[-1] - order[0], len(order) - 1
    agrees = abs(span - steps / (nominal * tick)) <= 1
    return Timeline(
        stamps=order,
        keys=compact(sorted(keys)),
        tick=tick,
        last=stamps[order[-1]] or max(1, round(1 / (nominal * tick))),
        rate=Fraction(0) if not steps else nominal if agrees else steps / (span * tick),
        discarded=discarded,
        counted=counted,
        open=leading,
        indexed=not counted and bool(media.formats & INDEXED),
    )


def upright(frame: Any) -> np.ndarray:
    """RGB [H, W, 3], turned by the display matrix (PyAV gives degrees counter-clockwise)."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90)))
