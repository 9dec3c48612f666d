"""When each frame of a clip is shown, where decoding may start, and which frames a window means: arithmetic alone.

Inside are integers (ticks of the container) and Fractions; seconds appear as floats only on the way out. A timeline is
small and JSON-able, so it is found once, kept in the index of a data set, and read back in place of the whole file.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from mmrl.images import MediaError

EPSILON = Fraction(1, 10**6)  # seconds; a time written as a decimal means the frame whose stamp it rounds to
AHEAD = 3  # frames that a decoder holds back anyway: a seek over fewer costs more than it saves


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stamps of a video stream as its packets tell them: those of packets that do not decode are among them."""

    stamps: Sequence[int]  # of the frames to show, in ticks, increasing; a range where the steps are equal
    keys: Sequence[int]  # those at which decoding may start, ticks; they need not be shown
    tick: Fraction  # seconds
    last: int  # how long the last frame is shown, ticks
    rate: Fraction  # frames a second: what the container states where that is true, else the average; 0 for one frame
    discarded: int = 0  # decoded but not shown (edit lists)
    counted: bool = False  # there are no true time stamps: frames are numbered in the order of decoding
    indexed: bool = False  # the container has an index of its own, so that a seek lands where it should
    open: bool = False  # some frames come after a key frame in the file but are shown before it
    bad: int = 0  # packets known not to decode; 0 too where nobody has decoded the clip yet

    def seconds(self, stamp: int) -> float:
        """Time of a stamp in seconds from the first frame shown."""
        return float((stamp - self.stamps[0]) * self.tick)

    @property
    def start(self) -> float:
        """The container's own time of the first frame shown, seconds."""
        return float(self.stamps[0] * self.tick)

    @property
    def duration(self) -> Fraction:
        """Seconds from the first frame shown until the last one ends."""
        return (self.stamps[-1] + self.last - self.stamps[0]) * self.tick

    @property
    def constant(self) -> bool:
        """Whether all frames are shown equally long, up to the rounding to ticks of a container with fine ticks."""
        steps = {b - a for a, b in pairwise(self.stamps)}
        return len(steps) < 2 or (max(steps) - min(steps) == 1 and min(steps) >= 10)

    def place(self, stamp: int) -> int:
        """Presentation index of the first frame at or after a stamp."""
        return bisect.bisect_left(self.stamps, stamp)

    def shows(self, stamp: int) -> bool:
        place = self.place(stamp)
        return place < len(self.stamps) and self.stamps[place] == stamp

    def at(self, seconds: float | Fraction) -> int:
        """Stamp of the last frame shown at or before a time; of the first frame for a time before it."""
        ticks = self.stamps[0] + math.floor((Fraction(seconds) + EPSILON) / self.tick)
        return self.stamps[max(0, bisect.bisect_right(self.stamps, ticks) - 1)]

    def window(
        self,
        start: float | None,
        end: float | None,
        *,
        fps: float | Fraction,
        max_frames: int,
        min_frames: int = 1,
    ) -> list[int]:
        """Stamps for [start, end] seconds, increasing: one every 1/fps from its start, spread evenly over the whole
        window, its end included, where that were more than `max_frames` or fewer than `min_frames`. Raises MediaError
        `window` for one outside the clip."""
        if not 0 < fps < math.inf or max_frames < 1:
            raise ValueError(f"fps {fps} and max_frames {max_frames} must be above 0")
        last = (self.stamps[-1] - self.stamps[0]) * self.tick
        low: float = max(0.0, start or 0.0)
        high: float = math.inf if end is None else end
        if not (low < self.duration - EPSILON and high >= low) or start != start:  # so that NaN is refused too
            raise MediaError("window", f"no frame between {start} and {end} s: the clip ends at {float(last):.3f} s")
        begin = Fraction(low)
        stop = max(last if high >= last else Fraction(high), begin)
        rate = Fraction(fps).limit_denominator(10**4) or Fraction(fps)  # 29.97002997 means 30000/1001

        def spread(count: int) -> set[int]:
            return {self.at(begin + k * (stop - begin) / max(1, count - 1)) for k in range(count)}

        count = math.floor((stop - begin) * rate + EPSILON) + 1
        chosen = spread(max_frames) if count > max_frames else {self.at(begin + k / rate) for k in range(count)}
        if len(chosen) < min_frames:
            chosen = max(chosen, spread(min(max(count, min_frames), max_frames)), key=len)
        return sorted(chosen)

    def runs(self, wanted: Sequence[int]) -> list[tuple[int | None, list[int]]]:
        """Wanted stamps (increasing) in runs that are decoded without a break, each with the key frame to start from.

        A new run pays only where a key frame lies between two wanted frames: all else is decoded on. None: there is no
        key frame before, so from the beginning."""
        runs: list[tuple[int | None, list[int]]] = []
        for stamp in wanted:
            found = bisect.bisect_right(self.keys, stamp) - 1
            key = self.keys[found] if found >= 0 else None
            if runs and (key is None or self.place(key) - self.place(runs[-1][1][-1]) <= AHEAD):
                runs[-1][1].append(stamp)
            else:
                runs.append((key, [stamp]))
        return runs

    def index(self) -> dict[str, Any]:
        """JSON-able form, a few dozen bytes where the rate is constant; see `from_index`.

        `tick` and `rate` are [numerator, denominator]; `stamps` and `keys` are {first, step, count} where the steps are
        equal, else {first, deltas}; then `last`, and `discarded`, `counted`, `indexed`, `open`, `bad` where true."""
        out: dict[str, Any] = {
            "tick": list(self.tick.as_integer_ratio()),
            "rate": list(self.rate.as_integer_ratio()),
            "stamps": _pack(self.stamps),
            "keys": _pack(self.keys),
            "last": self.last,
        }
        flags = ("discarded", "counted", "indexed", "open", "bad")
        return out | {name: value for name in flags if (value := getattr(self, name))}


def from_index(index: Mapping[str, Any]) -> Timeline:
    """The timeline that `Timeline.index` wrote. Raises MediaError `broken` for anything else."""
    try:
        line = Timeline(
            stamps=_unpack(index["stamps"]),
            keys=_unpack(index["keys"]),
            tick=Fraction(*index["tick"]),
            last=int(index["last"]),
            rate=Fraction(*index["rate"]),
            discarded=int(index.get("discarded", 0)),
            counted=bool(index.get("counted", False)),
            indexed=bool(index.get("indexed", False)),
            open=bool(index.get("open", False)),
            bad=int(index.get("bad", 0)),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise MediaError("broken", f"the index holds no timeline: {error!r}") from error
    if not line.stamps or line.tick <= 0:
        raise MediaError("broken", "the index holds a timeline without frames")
    return line


def compact(values: Sequence[int]) -> Sequence[int]:
    """Increasing integers as a range where their steps are equal, else as a tuple."""
    step = values[1] - values[0] if len(values) > 1 else 1
    even = range(values[0], values[-1] + 1, step) if values else range(0)
    return (
        even if len(even) == len(values) and all(a == b for a, b in zip(even, values, strict=True)) else tuple(values)
    )


def _pack(values: Sequence[int]) -> dict[str, Any]:
    """A range as {first, step, count}, other integers as {first, deltas}."""
    if isinstance(values, range):
        return {"first": values.start, "step": values.step, "count": len(values)}
    return {"first": values[0], "deltas": [b - a for a, b in pairwise(values)]}


def _unpack(packed: Mapping[str, Any]) -> Sequence[int]:
    first = int(packed["first"])
    if "deltas" in packed:
        out = [first]
        for delta in packed["deltas"]:
            if delta <= 0:
                raise ValueError(f"a step of {delta}")
            out.append(out[-1] + int(delta))
        return compact(out)
    step, count = int(packed["step"]), int(packed["count"])
    if step < 1 or count < 0:
        raise ValueError(f"{count} stamps with a step of {step}")
    return range(first, first + step * count, step)
