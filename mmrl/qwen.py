"""The arithmetic of Qwen2.5-VL and Qwen3-VL inputs: sizes, frame counts, frame indices, time stamps.

Nothing is decoded here and torch is not imported. Three public programs disagree in places; `rules` names the one
that is followed, and the results are equal to its own except where a docstring says so:

    utils   qwen-vl-utils 0.0.14 (`qwen_vl_utils.vision_process`)
    qwen2   transformers 5.19, processors of Qwen2-VL and Qwen2.5-VL
    qwen3   transformers 5.19, processors of Qwen3-VL

Sizes are pixels, (height, width) as in those programs; times are seconds; rates are frames a second.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from mmrl.images import MAX_RATIO, MediaError

Rules = Literal["utils", "qwen2", "qwen3"]
Number = int | float | str | Fraction

FRAME_TOKENS = 768  # utils: the most tokens of one video frame
CONTEXT_TOKENS = 128_000  # utils and qwen2: 9/10 of it is the budget of a whole clip

log = logging.getLogger(__name__)


class Window(NamedTuple):
    """First and last frame of a stretch of a clip, both included."""

    first: int
    last: int
    widened: bool = False  # the stretch asked for held no two frames: the nearest one stands for it

    @property
    def total(self) -> int:
        return self.last - self.first + 1


# --- sizes ----------------------------------------------------------------------------------------------------------


def smart_resize(
    height: int,
    width: int,
    *,
    factor: int,
    min_pixels: int | None = None,
    max_pixels: float | None = None,
    rules: Rules = "utils",
) -> tuple[int, int]:
    """The size that a picture or frame is resized to: sides are multiples of `factor`, the area lies in
    [min_pixels, max_pixels] where it can, the shape is kept as nearly as possible.

    `factor` is patch size times spatial merge: 28 for Qwen2.5-VL, 32 for Qwen3-VL. The defaults of the range are
    those of utils, 4 and 16,384 tokens. A side is never 0, where utils returns 0 for a long picture under a small
    `max_pixels`: it is one `factor` then, the area is over `max_pixels`, and this is logged once.

    Raises MediaError `ratio` where one side is more than 200 times the other and `broken` where a side is under 1;
    ValueError for a range that cannot be (under `utils` also where min_pixels is over max_pixels, which transformers
    lets pass).
    """
    low = 4 * factor**2 if min_pixels is None else min_pixels
    high = 16_384 * factor**2 if max_pixels is None else max_pixels
    if factor < 1 or high < 1:
        raise ValueError(f"factor {factor} and max_pixels {high} must be at least 1")
    if rules == "utils" and low > high:
        raise ValueError(f"min_pixels {low} is over max_pixels {high}: lower the one or raise the other")
    _check_sides(height, width)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rules == "utils":  # transformers leaves 0 here, which sends thin pictures to the branch that grows them
        rows, columns = max(factor, rows), max(factor, columns)
    return _into_range(height, width, rows, columns, factor, low, high)


def frame_size(
    frames: int,
    height: int,
    width: int,
    *,
    factor: int,
    min_pixels: int,
    max_pixels: int | None = None,
    rules: Rules = "utils",
    temporal: int = 2,
    total_pixels: float | None = None,
    cap_frames: bool = False,
    max_video_tokens: int | None = None,
) -> tuple[int, int]:
    """The size that each of `frames` frames is resized to, once, whether they come from a file or as a list.

    utils: `min_pixels` and `max_pixels` are of one frame; `total_pixels` (0.9 x 128,000 tokens) is shared by all.
    qwen2: of one frame too; `cap_frames` (`cap_pixels_per_frame`) adds an even share of 0.9 x `max_video_tokens`.
    qwen3: of all frames together; `cap_frames` bounds a frame by `max_video_tokens` (768) and by its even share.

    Raises what `smart_resize` raises, and MediaError `tiny` under `qwen3` for fewer frames than a temporal patch has.
    """
    if frames < 1:
        raise MediaError("tiny", "a clip of no frames")
    area = factor**2
    if rules == "utils":
        budget = CONTEXT_TOKENS * area * 0.9 if total_pixels is None else total_pixels
        most = max(min(FRAME_TOKENS * area, budget / frames * 2), int(min_pixels * 1.05))
        high = most if max_pixels is None else min(max_pixels, most)
        return smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=high, rules=rules)
    if max_pixels is None:
        raise ValueError(f"max_pixels must be given under the rules {rules!r}: a checkpoint's files name it")
    if rules == "qwen2":
        if cap_frames:
            budget = int((max_video_tokens or CONTEXT_TOKENS) * area * 0.9)
            max_pixels = max(min(max_pixels, budget * temporal // frames), int(min_pixels * 1.05))
        return smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels, rules=rules)
    if cap_frames:
        most = (max_video_tokens or FRAME_TOKENS) * area
        max_pixels = max(min(most, max_pixels // frames), int(min_pixels * 1.05)) * frames
    return _volume_size(frames, height, width, factor, min_pixels, max_pixels, temporal)


def _volume_size(
    frames: int, height: int, width: int, factor: int, low: int, high: int, temporal: int
) -> tuple[int, int]:
    if frames < temporal:
        raise MediaError("tiny", f"{frames} frame(s) do not fill a temporal patch of {temporal}: repeat the last one")
    if height < 1 or width < 1:
        raise MediaError("broken", f"frames of {width}x{height} pixels")
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_sides(height, width)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    return _into_range(height, width, rows, columns, factor, low, high, frames, round(frames / temporal) * temporal)


def _check_sides(height: int, width: int) -> None:
    """Raise MediaError; other than `images.check_size` it sets no limit to the area, which resizing brings down."""
    short, long = (height, width) if height < width else (width, height)
    if short < 1:
        raise MediaError("broken", f"a picture of {width}x{height} pixels")
    if long / short > MAX_RATIO:
        raise MediaError(
            "ratio", f"{width}x{height}: one side is more than {MAX_RATIO} times the other; crop or pad the picture"
        )


def _into_range(
    height: int,
    width: int,
    rows: int,
    columns: int,
    factor: int,
    low: float,
    high: float,
    frames: int = 1,
    depth: int = 1,
) -> tuple[int, int]:
    """Rounded sides brought into a range of depth x rows x columns pixels, from the sides before rounding."""
    if depth * rows * columns > high:
        shrink = math.sqrt((frames * height * width) / high)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
        if depth * rows * columns > high and min(rows, columns) == factor:
            _say_over(high, factor)
    elif depth * rows * columns < low:
        grow = math.sqrt(low / (frames * height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return max(factor, rows), max(factor, columns)


@cache
def _say_over(high: float, factor: int) -> None:
    log.warning("some pictures are too long to be kept under max_pixels %g: their short side is %d", high, factor)


# --- frames ---------------------------------------------------------------------------------------------------------


def frame_count(
    total: int,
    fps_source: Number | None,
    *,
    fps: Number | None = None,
    nframes: int | None = None,
    min_frames: int = 4,
    max_frames: int = 768,
    rules: Rules = "utils",
    temporal: int = 2,
    strict: bool = True,
) -> int:
    """How many of the `total` frames of a clip (or of a window of it) are used, by a rate or as a fixed number.

    `fps` (2 where neither is given) and `nframes` exclude each other. utils and qwen2 round to even numbers; qwen3
    does not, takes a source without a rate (`fps_source` None) as one of 24 fps, and repeats frames where `nframes`
    is over `total`. With `strict` off a clip that is too short gives what it has, the largest even number up to
    `total`, and a clip of one frame gives 2: that frame, doubled.

    Raises ValueError for a request that no clip could fulfil (nframes 0 or 1, a rate that is no positive number) and
    MediaError `tiny` for one that this clip is too short for.
    """
    if total < 1:
        raise MediaError("broken", f"a clip of {total} frames")
    if fps is not None and nframes is not None:
        raise ValueError(f"fps {fps} and nframes {nframes} exclude each other: give one of them")
    step = 2 if rules == "utils" else temporal
    if nframes is not None:
        count = int(nframes) if rules == "qwen3" else step * round(nframes / step)
        if count < 2:
            raise ValueError(f"nframes {nframes} is too few: a clip is used with at least 2 frames")
        asked = f"nframes {nframes}"
    else:
        if fps_source is None and rules != "qwen3":
            raise ValueError("the rate of the source must be known to choose frames by fps; give nframes instead")
        rate = 2.0 if fps is None else _positive("fps", fps)
        raw = total / _positive("fps_source", 24 if fps_source is None else fps_source) * rate
        if rules == "qwen3":
            count = min(max(int(raw), min_frames), max_frames, total)
        else:
            low = step * math.ceil(min_frames / step) if rules == "utils" else min_frames
            count = step * math.floor(min(max(raw, low), step * (max_frames // step), total) / step)
        if max_frames < 2:
            raise ValueError(f"max_frames {max_frames} is too few: a clip is used with at least 2 frames")
        asked = f"{rate:g} frames a second"
    fits = count >= 2 and (count <= total or rules == "qwen3")
    if strict and not fits:
        possible = f"2 to {total - total % step} are possible" if total >= step else "it is too short for any"
        raise MediaError("tiny", f"{asked} asked of a clip of {total} frame(s): {possible}; strict=False takes those")
    if not strict and count > total:
        count = total - total % step
    return max(2, count)


def frame_window(
    total: int,
    fps_source: Number,
    start: Number | None = None,
    end: Number | None = None,
    *,
    strict: bool = True,
) -> Window:
    """The frames between two times (`video_start` and `video_end` of utils), reckoned with fractions.

    utils reckons with floats: 8.12 s at 25 fps is frame 202.99... there and 203 here, and 29.97003 fps means
    30000/1001. It refuses a window that holds fewer than two frames; with `strict` off the nearest frame stands for
    such a window, which says so by `widened`.

    Raises MediaError `window` for what utils refuses; with `strict` off only where the window begins at or after the
    end of the clip, or ends before it begins.
    """
    if total < 1:
        raise MediaError("broken", f"a clip of {total} frames")
    rate = exact_rate(fps_source)
    length = total / rate
    begin = Fraction(0) if start is None else min(max(Fraction(0), _decimal(start)), length)
    stop = length if end is None else min(max(Fraction(0), _decimal(end)), length)
    first, last = math.ceil(begin * rate), min(math.floor(stop * rate), total - 1)
    if first < last or (start is None and end is None):
        return Window(first, last)
    backwards = end is not None and _decimal(end) < begin
    if strict or begin >= length or backwards:
        why = "it ends before it begins" if backwards else "it holds fewer than two frames"
        raise MediaError(
            "window",
            f"the window from {0 if start is None else start} to {float(length) if end is None else end} s: {why}; "
            f"the clip has {total} frames in {float(length):.3f} s",
        )
    nearest = min(round((begin + stop) / 2 * rate), total - 1)
    return Window(nearest, nearest, widened=True)


def frame_indices(total: int, count: int, *, first: int = 0, rules: Rules = "utils") -> list[int]:
    """Which frames of a stretch of `total` that begins at frame `first` are used, `count` of them, in order.

    utils and qwen3 spread them from the first to the last, rounding half to even; each rounds as its program does
    (utils in 32 bits, with the one rounding of a product and sum that torch has on machines with vector instructions).
    qwen2 takes every (total / count)-th, so that the last is never used; it is reckoned with whole numbers here.
    transformers' 32-bit floats agree up to 10,000 frames and are one off in places beyond 17,000; and where they
    overshoot, it asks for a frame more, which the clip does not have and which is left out here.
    """
    if total < 1 or count < 1:
        raise ValueError(f"{count} frames of a clip of {total}: both must be at least 1")
    if rules == "qwen2":
        return [first + k * total // count for k in range(count)]
    if count == 1:
        return [first]
    if rules == "qwen3":
        return [first + int(x) for x in np.linspace(0, total - 1, count).round()]
    k, last = np.arange(count, dtype=np.float64), first + total - 1
    step = float(np.float32(total - 1) / np.float32(count - 1))
    spread = np.where(k < count // 2, first + step * k, last - step * (count - 1 - k))
    return [int(x) for x in np.rint(spread.astype(np.float32))]


# --- time -----------------------------------------------------------------------------------------------------------


def exact_rate(fps: Number) -> Fraction:
    """A rate as the fraction that it stands for: 29.97003 and 30000/1001 as a float are 30000/1001; 29.97 stays."""
    given = _decimal(fps)
    if given <= 0:
        raise ValueError(f"a rate of {fps} frames a second: it must be positive")
    ntsc = Fraction(1000 * round(given * Fraction(1001, 1000)), 1001)
    return ntsc if abs(ntsc - given) <= Fraction(5, 10_000_000) else given


def sample_fps(count: int, total: int, fps_source: Number) -> float:
    """The rate at which `count` frames chosen among `total` follow one another; utils hands it on as `fps`."""
    return count / max(total, 1e-6) * _positive("fps_source", fps_source)


def seconds_per_grid(source: Number | Sequence[float], temporal: int = 2) -> float:
    """Seconds of one temporal patch (`second_per_grid_ts` of Qwen2.5-VL), from the rate of the frames used or from
    their true times; from times it is the average, as `families.video_input` gives it."""
    if isinstance(source, (int, float, str, Fraction)):
        return temporal / _positive("sample fps", source)
    if not source:
        raise ValueError("a clip of no frames has no seconds per temporal patch")
    return (source[-1] - source[0]) / max(1, len(source) - 1) * temporal


def frame_times(indices: Sequence[int], fps_source: Number) -> list[float]:
    """Seconds at which frames are shown, from their numbers in the source and the rate of the source.

    Never the numbers after sampling or the sampled rate: times are then wrong by 10 to 15 times."""
    rate = _positive("fps_source", fps_source)
    return [i / rate for i in indices]


def patch_times(times: Sequence[float], temporal: int = 2) -> list[float]:
    """The time of each temporal patch: half way between its first and last frame; the last frame fills the last."""
    filled = [*times, *[times[-1]] * (-len(times) % temporal)] if times else []
    return [(filled[i] + filled[i + temporal - 1]) / 2 for i in range(0, len(filled), temporal)]


def time_stamps(times: Sequence[float], temporal: int = 2) -> list[str]:
    """The text in front of each temporal patch in Qwen3-VL: `<0.3 seconds>`. `times` are those of the frames."""
    return [f"<{t:.1f} seconds>" for t in patch_times(times, temporal)]


def _decimal(value: Number) -> Fraction:
    """A number as it is written: 8.12 is 812/100."""
    try:
        return value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a number") from error


def _positive(name: str, value: Number) -> float:
    """A rate as a float, also where a file has it as text. Raises ValueError."""
    try:
        number = float(value)
    except ValueError as error:
        raise ValueError(f"{name} {value!r} is not a number") from error
    if not 0 < number < math.inf:
        raise ValueError(f"{name} {value!r} must be a positive number")
    return number
