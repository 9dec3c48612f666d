"""Puzzles about the order of time: the pieces of a clip as clips (`video_jigsaw`), or as single frames
(`temporal_order`). Both after Visual Jigsaw (card visual-jigsaw)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.video import VideoInfo, probe_video
from mmrl_prep.puzzles import orders
from mmrl_prep.puzzles.clips import clip_ranges, encode, fit, read_frames
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import MIN_SPREAD, TRIES, Puzzle, Unpuzzling, difference, least_difference, spread

MAX_FRAMES = 64  # of one clip; more are thinned out evenly, times stay true
MIN_FRAMES = 2  # of one clip: under that it shows no course of time (card visual-jigsaw-frames)
MIN_CHANGE = 4.0  # levels by which pieces must differ; coding changes about 2
CODING = 8.0  # levels on average that coding may change


@dataclass(frozen=True, slots=True)
class _Cut:
    """A clip with its pieces: [start, end) in frames of each."""

    info: VideoInfo
    size: tuple[int, int]
    ranges: list[tuple[int, int]]

    def kept(self, piece: int) -> list[int]:
        """Numbers of the frames of a piece that are kept."""
        start, end = self.ranges[piece]
        return list(range(start, end, ceil((end - start) / MAX_FRAMES)))

    def times(self, frames: list[int]) -> list[float]:
        return [self.info.times[n] for n in frames]


def _cut(source: bytes | Path, clips: int, trim: float, size: int) -> _Cut:
    """Raises Unpuzzling "too_short", and MediaError where the clip does not decode."""
    info = probe_video(source)
    ranges = clip_ranges(info.frames, clips, trim)
    if min(end - start for start, end in ranges) < MIN_FRAMES:
        raise Unpuzzling("too_short", f"{info.frames} frames are too few for {clips} clips of {MIN_FRAMES} or more")
    return _Cut(info, fit(info.width, info.height, size), ranges)


def video_jigsaw(source: bytes | Path, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """The whole clip cut into `options.clips` equal clips, each trimmed at both ends, shuffled and encoded again.

    Raises Unpuzzling: "too_short", "blank", "still" (two pieces look the same); MediaError for a clip that is broken.
    """
    cut = _cut(source, options.clips, options.trim, options.size)
    pieces = [read_frames(source, cut.times(cut.kept(n)), cut.size) for n in range(options.clips)]
    _tell_apart([_digest(frames) for frames in pieces])
    order = orders.shuffle(options.clips, rng)
    files = [encode(frames, cut.times(cut.kept(n))) for n, frames in enumerate(pieces)]
    sentence = (
        f"A video was cut into {options.clips} clips, and the clips were shuffled. In the order in which they are shown"
        f" here they are numbered from 0 to {options.clips - 1}. Which is the true order of the clips, from the "
        "earliest to the latest?"
    )
    question, answer = orders.ask(sentence, order, rng, options)
    meta = {"order": order, "ranges": [list(r) for r in cut.ranges], "trim": options.trim}
    return Puzzle((), question, answer, meta, tuple(orders.show(files, order)), (cut.size,) * options.clips)


def undo_video(puzzle: Puzzle) -> list[bytes]:
    """The clips from the earliest to the latest by the stated answer."""
    return [puzzle.clips[slot] for slot in orders.stated(puzzle.answer)]


def check_video(puzzle: Puzzle, source: bytes | Path, tolerance: float = 0.0) -> bool:
    """Whether each clip, put where the answer says, shows the frames of the source there, and no other piece's."""
    meta, size = puzzle.meta, puzzle.sizes[0]
    cut = _cut(source, len(puzzle.clips), meta["trim"], max(size))
    if not orders.proves(puzzle.answer, meta["order"]) or [list(r) for r in cut.ranges] != meta["ranges"]:
        return False
    truth = [_probe(source, cut.times(cut.kept(n)), size) for n in range(len(cut.ranges))]
    for place, clip in enumerate(undo_video(puzzle)):
        info, times = probe_video(clip), cut.times(cut.kept(place))
        if (info.width, info.height) != size or not np.allclose(info.times, np.array(times) - times[0], atol=1e-4):
            return False
        seen = _probe(clip, list(info.times), size)
        errors = [difference(seen, frames) for frames in truth]
        if int(np.argmin(errors)) != place or errors[place] > max(tolerance, CODING):
            return False
    return True


def temporal_order(source: bytes | Path, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """One frame from each of `options.clips` trimmed parts of the clip, as pictures in shuffled order.

    Raises Unpuzzling: "too_short", "blank", "still" (two frames look the same); MediaError for a clip that is broken.
    """
    cut = _cut(source, options.clips, options.trim, options.size)
    for attempt in range(TRIES // 4):  # each costs decoding
        numbers = [int(rng.integers(start, end)) for start, end in cut.ranges]
        frames = read_frames(source, cut.times(numbers), cut.size)
        try:
            _tell_apart(frames)
            break
        except Unpuzzling:
            if attempt == TRIES // 4 - 1:
                raise
    order = orders.shuffle(options.clips, rng)
    sentence = (
        f"These {options.clips} pictures are frames of one video, shuffled. In the order in which they are shown here "
        f"they are numbered from 0 to {options.clips - 1}. Which is their true order, from the earliest to the latest?"
    )
    question, answer = orders.ask(sentence, order, rng, options)
    times = [round(t, 6) for t in cut.times(numbers)]
    return Puzzle(tuple(orders.show(frames, order)), question, answer, {"order": order, "times": times})


def undo_temporal(puzzle: Puzzle) -> list[Image.Image]:
    """The frames from the earliest to the latest by the stated answer."""
    return [puzzle.images[slot] for slot in orders.stated(puzzle.answer)]


def check_temporal(puzzle: Puzzle, source: bytes | Path, tolerance: float = 0.0) -> bool:
    """Whether the frames, put in the stated order, are those of the source at increasing times."""
    times = puzzle.meta["times"]
    truth = read_frames(source, times, puzzle.images[0].size)
    if not orders.proves(puzzle.answer, puzzle.meta["order"]) or sorted(set(times)) != times:
        return False
    return all(difference(a, b) <= tolerance for a, b in zip(undo_temporal(puzzle), truth, strict=True))


def _digest(frames: list[Image.Image]) -> Image.Image:
    """First, middle and last frame side by side: what pieces are compared by."""
    picked = [frames[0], frames[len(frames) // 2], frames[-1]]
    width, height = picked[0].size
    strip = Image.new("RGB", (3 * width, height))
    for n, frame in enumerate(picked):
        strip.paste(frame, (n * width, 0))
    return strip


def _probe(source: bytes | Path, times: list[float], size: tuple[int, int]) -> Image.Image:
    """The digest, without decoding more than it needs."""
    picked = sorted({times[0], times[len(times) // 2], times[-1]})
    frames = read_frames(source, picked, size)
    return _digest(frames if len(frames) == 3 else [frames[0], frames[-1], frames[-1]])


def _tell_apart(pieces: list[Image.Image]) -> None:
    """Raises Unpuzzling where a piece shows nothing, or two show the same."""
    if min(map(spread, pieces)) < MIN_SPREAD:
        raise Unpuzzling("blank", "a piece is nearly one colour")
    change = least_difference(pieces)
    if change < MIN_CHANGE:
        raise Unpuzzling("still", f"two pieces differ by {change:.1f} levels only, under {MIN_CHANGE:g}")
