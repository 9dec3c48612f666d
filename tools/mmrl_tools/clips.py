"""video_info, frame_select and video_window: what a clip holds, single frames of it, and stretches of it in detail.

Times of calls and answers are seconds of the whole clip, from its first frame, also where a call names a window of it.
The frame of a time is the one on screen then: the last one shown at or before it. Times are told rounded up to
milliseconds, so that a time that was told means the same frame when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from mmrl.images import MediaError
from mmrl.media import load_times, timeline_of
from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.timeline import Timeline
from mmrl.types import Fault, FaultKind, MediaRef, ToolResult
from mmrl.view import MOST_FRAMES, View, view_of, with_view
from mmrl_tools import options

MOST_TIMES = 8  # frames or windows of one call
LISTED = 16  # times that are listed in a text; of more, the first and the last
MIN_SIDE = 28  # pixels: one vision token of Qwen2.5-VL
MIN_FRAMES = 4  # of a window that has so many, as in the models' own processors
FRAME_PIXELS = 1_048_576  # of a picture of frame_select, by default
ROUNDED = 0.001  # seconds by which a time that was told may lie after the end

Tool = Callable[[Mapping[str, Any], ToolContext], ToolResult]

_SPAN = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_VIDEO = {"type": "string"}


@dataclass(frozen=True)
class _Clip:
    """A clip that a call names: the stored one and the part of it that the medium shows, in seconds."""

    ref: MediaRef
    id: str  # of the whole clip, where the dialogue has it
    line: Timeline
    low: float
    high: float

    def outside(self, what: str) -> ToolError:
        part = f" of {self.id}" if self.ref.id != self.id else ""
        where = f"{self.ref.id}, which is {told(self.low)}-{told(self.high)} s{part}"
        return ToolError("outside_clip", f"{what} outside {where}")


def _open(context: ToolContext, id: str) -> _Clip:
    ref = context.video(id)
    line, view = timeline_of(ref), view_of(ref)
    length = float(line.duration)
    low = min(max(0.0, float(view.start or 0)), length)
    high = length if view.end is None else min(max(low, float(view.end)), length)
    whole = context.media.get(ref.parent)
    return _Clip(ref, ref.parent if whole is not None and whole.hash == ref.hash else ref.id, line, low, high)


def _of_media(tool: Tool) -> Tool:
    """A clip that cannot be read is no failure of the tool, which other dialogues still may call."""

    @wraps(tool)
    def run(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            return tool(arguments, context)
        except MediaError as error:
            message = f"{arguments['video']} cannot be read: {error.code}"
            return ToolResult(f"Error: {message}", fault=Fault(FaultKind.TASK, error.code, f"{message}: {error}"))

    return run


@register(
    "tool",
    "video_info",
    schema=schema(
        "Length, frame rate and size of a video, and the seconds of the frames shown", {"video": _VIDEO}, ["video"]
    ),
    limits=Limits(seconds=60, media=0),
)
@_of_media
def video_info(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """What a clip holds and which of its frames are shown now.

    `data`: of the whole clip `duration` (seconds), `frames`, `fps` (average), `constant` (whether all frames are shown
    equally long), `width`, `height` (pixels), `key_frames` and `key_spacing` (seconds, mean and largest, where there
    are two); `start`, `end` and `shown`, the seconds of the frames shown of this medium. Error: unknown_video.
    """
    clip = _open(context, arguments["video"])
    line, ref = clip.line, clip.ref
    keys = [line.seconds(k) for k in line.keys]
    gaps = [b - a for a, b in pairwise(keys)]
    view = view_of(ref)
    stamps = line.window(view.start, view.end, fps=view.fps, max_frames=view.max_frames, min_frames=view.min_frames)
    shown = [line.seconds(s) for s in stamps]
    data: dict[str, Any] = {
        "duration": float(line.duration),
        "frames": len(line.stamps),
        "fps": float(line.rate),
        "constant": line.constant,
        "width": ref.width,
        "height": ref.height,
        "key_frames": len(keys),
        "start": clip.low,
        "end": clip.high,
        "shown": shown,
    }
    cut = clip.id != ref.id or view.start is not None or view.end is not None
    part = f"{told(clip.low)}-{told(clip.high)} s of {clip.id}: " if cut else ""
    rate = f" at {'' if line.constant else 'a varying rate of '}{data['fps']:.4g} fps" if line.rate else ""
    held = f"{told(data['duration'])} s, {_count(len(line.stamps), 'frame')}{rate}, {ref.width}x{ref.height}"
    apart = ""
    if gaps:
        data["key_spacing"] = [sum(gaps) / len(gaps), max(gaps)]
        apart = f" up to {max(gaps):.2f} s apart"
    told_keys = f"{_count(len(keys), 'key frame')}{apart}"
    return ToolResult(f"{ref.id}: {part}{held}; {told_keys}; shown: {_listed(shown)}", data=data)


@register(
    "tool",
    "frame_select",
    schema=schema(
        "Frames of a video as images: for each time in seconds the frame on screen then, in order of time; times must "
        "lie in the video",
        {
            "video": _VIDEO,
            "times": {
                "type": "array",
                "items": {"type": "number", "minimum": 0},
                "minItems": 1,
                "maxItems": MOST_TIMES,
            },
        },
        ["video", "times"],
    ),
    limits=Limits(seconds=60, media=MOST_TIMES),
)
@_of_media
def frame_select(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The frames on screen at the given seconds, in order of time, none twice.

    `rollout.tool_options.frame_select`: `max_pixels`, the largest area of a picture (default 1,048,576).

    Errors: unknown_video, outside_clip (a time after the end, or outside of the window that the call names).
    """
    most = options.count(context, "max_pixels", FRAME_PIXELS, low=MIN_SIDE**2, high=4_194_304)
    clip = _open(context, arguments["video"])
    outside = [t for t in arguments["times"] if not clip.low <= t <= clip.high + ROUNDED]
    if outside:
        lie = "lies" if len(outside) == 1 else "lie"
        raise clip.outside(f"{', '.join(f'{t:g}' for t in outside)} s {lie}")
    found = load_times(clip.ref, arguments["times"])
    # a frame is no part of a picture: it has no parent, and views of it are cut from what is shown here
    refs = [context.add(_fitted(frame, int(most))) for frame in found.frames]
    texts = [f"{ref.id}: {told(time)} s" for ref, time in zip(refs, found.times, strict=True)]
    frames = [{"id": ref.id, "time": time} for ref, time in zip(refs, found.times, strict=True)]
    return ToolResult(f"{', '.join(texts)} of {clip.id}", tuple(refs), data={"video": clip.id, "frames": frames})


@register(
    "tool",
    "video_window",
    schema=schema(
        "Stretches of a video in more detail, as new videos: start to end, or several windows [start, end], in seconds "
        "of the whole video; what lies outside is cut off",
        {
            "video": _VIDEO,
            "start": {"type": "number"},
            "end": {"type": "number"},
            "windows": {"type": "array", "items": _SPAN, "minItems": 1, "maxItems": MOST_TIMES},
        },
        ["video"],
    ),
    limits=Limits(seconds=60, media=MOST_TIMES),
)
@_of_media
def video_window(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Windows of a clip as new clips, in the order asked for; a bad one is told of and does not spoil the others.

    A window is cut to the clip. One that lies within a single frame grows to the next frame, at the end of the clip to
    the one before. Frames are shown at `fps`, more closely where a window would have fewer than 4, and spread evenly
    where it would have more than `max_frames`; Qwen3-VL reads their times, as seconds of the whole clip.

    `rollout.tool_options.video_window`: `fps` (default 2), `max_frames` (default 16), `max_pixels`, the largest area of
    a frame (default: what the model's processor allows).

    Errors: unknown_video, bad_arguments, bad_window (start not before end), outside_clip (no part lies in the clip, or
    in the window that the call names).
    """
    windows = _windows(arguments)
    fps = options.number(context, "fps", 2.0, low=0.01, high=120)
    most = options.count(context, "max_frames", 16, low=2, high=MOST_FRAMES)
    limited = "max_pixels" in context.options
    pixels = options.count(context, "max_pixels", 0, low=MIN_SIDE**2, high=2**26) if limited else None
    clip = _open(context, arguments["video"])
    info = {**clip.ref.info, "timeline": clip.line.index()}  # so that only the window is read
    refs, lines, data = [], [], []
    errors: list[ToolError] = []
    for number, (start, end) in enumerate(windows, 1):
        try:
            low, high = _part(clip, start, end)
        except ToolError as error:
            errors.append(error)
            lines.append(f"Error: window {number}: {error.message}")
            continue
        view = View(low, high, fps, most, min(MIN_FRAMES, most), pixels)
        stamps = clip.line.window(low, high, fps=fps, max_frames=most, min_frames=view.min_frames)
        ref = context.add_video(with_view(replace(clip.ref, parent=clip.id, info=info), view))
        refs.append(ref)
        lines.append(f"{ref.id}: {told(low)}-{told(high)} s of {clip.id}, {_count(len(stamps), 'frame')}")
        data.append({"id": ref.id, "start": low, "end": high, "times": [clip.line.seconds(s) for s in stamps]})
    if not refs:
        raise errors[0]
    fault = Fault(FaultKind.POLICY, errors[0].code, errors[0].message) if errors else None
    return ToolResult("\n".join(lines), tuple(refs), fault, {"video": clip.id, "windows": data})


def told(seconds: float) -> str:
    """A time as a text shows it: in milliseconds, rounded up, so that it still means the frame shown from it on."""
    return f"{math.ceil(round(seconds * 1000, 3)) / 1000:.3f}".rstrip("0").rstrip(".")


def _windows(arguments: Mapping[str, Any]) -> list[tuple[float, float]]:
    """What a call of video_window asks for, in either form."""
    single = [name for name in ("start", "end") if name in arguments]
    if "windows" in arguments:
        if single:
            raise ToolError("bad_arguments", "give either start and end, or windows")
        return [(start, end) for start, end in arguments["windows"]]
    if len(single) < 2:
        raise ToolError("bad_arguments", "give start and end in seconds, or windows: [[start, end], ...]")
    return [(arguments["start"], arguments["end"])]


def _part(clip: _Clip, start: float, end: float) -> tuple[float, float]:
    """[start, end] cut to the clip and grown to a pair of frames where the clip has one."""
    if start >= end:
        raise ToolError("bad_window", f"start {start:g} is not before end {end:g}")
    if start >= clip.high or end <= clip.low:
        raise clip.outside(f"{start:g}-{end:g} s lies")
    line, low, high = clip.line, max(float(start), clip.low), min(float(end), clip.high)
    first = line.at(low)
    if line.at(high) != first or len(line.stamps) == 1:
        return low, high
    place = line.place(first)
    if place + 1 < len(line.stamps) and line.seconds(line.stamps[place + 1]) <= clip.high:
        return low, line.seconds(line.stamps[place + 1])
    return line.seconds(line.stamps[max(0, place - 1)]), high


def _fitted(frame: np.ndarray, max_pixels: int) -> Image.Image:
    """A frame [H, W, 3] as a picture within an area of `max_pixels`, at least 28 pixels on each side."""
    height, width = frame.shape[:2]
    scale = max(min(1.0, math.sqrt(max_pixels / (height * width))), MIN_SIDE / min(height, width))
    image = Image.fromarray(frame)
    if scale == 1:
        return image
    size = (max(MIN_SIDE, math.floor(width * scale)), max(MIN_SIDE, math.floor(height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _listed(times: Sequence[float]) -> str:
    count = _count(len(times), "frame")
    if len(times) > LISTED:
        return f"{count} from {told(times[0])} to {told(times[-1])} s"
    return f"{count} at {', '.join(map(told, times))} s"
