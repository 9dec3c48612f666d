"""What a policy is shown of a clip: which stretch, how many frames, how large.

A window of a clip is a medium of its own that holds the bytes of the whole clip: `info["window"]` says which frames of
it are shown (the fields of a `View`), and their times stay seconds of the stored clip. Nothing is encoded anew.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from mmrl.images import MediaError
from mmrl.qwen import smart_resize
from mmrl.types import MediaRef, Sample

if TYPE_CHECKING:
    from mmrl.tokens import Medium

MOST_FRAMES = 768  # of one clip, as in the models' own processors


@dataclass(frozen=True, slots=True)
class View:
    """Which frames of a stored clip are shown, and how large. Raises ValueError for what no clip can be shown by."""

    start: float | None = None  # seconds of the stored clip
    end: float | None = None
    fps: float | Fraction = 2.0
    max_frames: int = 16
    min_frames: int = 1  # where the window has so many (see `Timeline.window`)
    max_pixels: int | None = None  # area of a frame

    def __post_init__(self) -> None:
        counts = (self.max_frames, self.min_frames, 1 if self.max_pixels is None else self.max_pixels)
        if not 0 < self.fps < math.inf or not all(isinstance(n, int) and n >= 1 for n in counts):
            raise ValueError("fps must be above 0 and the counts whole numbers above 0")
        if not all(t is None or isinstance(t, int | float | Fraction) for t in (self.start, self.end)):
            raise ValueError("start and end must be numbers")


def view_of(ref: Medium, fps: float | Fraction = 2.0, max_frames: int = 16) -> View:
    """How a clip is shown: as `ref.info["window"]` says, what that leaves open as given. Raises MediaError `window`."""
    own = ref.info.get("window", {})
    try:
        return View(**{"fps": fps, "max_frames": max_frames, **own})
    except (TypeError, ValueError) as error:
        raise MediaError("window", f"medium {ref.id!r}: its info holds the window {own!r}: {error}") from error


def with_view(ref: MediaRef, view: View) -> MediaRef:
    """The same clip, shown like this."""
    return replace(ref, info={**ref.info, "window": {k: v for k, v in asdict(view).items() if v is not None}})


def shown_media(sample: Sample, fps: float, max_frames: int, frame_budget: int | None = None) -> dict[str, MediaRef]:
    """The media of a sample by id; each clip says how it is shown.

    Args:
        sample: its `meta.frame_budget`, where there is one, goes before `max_frames`.
        fps, max_frames: how clips are sampled.
        frame_budget: the most frames of each clip, in place of both.

    Raises MediaError `frame_budget` for one that is not 1 to 768.
    """
    most = sample.meta.get("frame_budget", max_frames) if frame_budget is None else frame_budget
    out = {}
    for ref in sample.media:
        if ref.kind == "video":
            if type(most) is not int or not 1 <= most <= MOST_FRAMES:
                raise MediaError("frame_budget", f"a frame budget of {most!r}: it must be 1 to {MOST_FRAMES}")
            view = view_of(ref, fps, most)
            ref = with_view(ref, replace(view, max_frames=min(view.max_frames, most)))
        out[ref.id] = ref
    return out


def shrink(frames: np.ndarray, factor: int, max_pixels: int | None) -> np.ndarray:
    """Frames [F, H, W, 3] uint8 within an area of `max_pixels`, their sides multiples of `factor` so that a processor
    need not resize them again; as they are where they are not larger."""
    height, width = frames.shape[1:3]
    if max_pixels is None or height * width <= max_pixels:
        return frames
    height, width = smart_resize(height, width, factor=factor, min_pixels=0, max_pixels=max_pixels, rules="qwen2")
    size = (width, height)
    return np.stack([np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BICUBIC)) for f in frames])
