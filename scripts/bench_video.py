"""Sparse video reading: mmrl's reader, with and without the timeline of the index, against decord and linear PyAV.

    python scripts/bench_video.py --seconds 60 --gop 75

Time of each reader over that of mmrl with the index (above 1: mmrl is faster), and packets given to the decoder. All
must give the same pixels. The clip is a real one over and over, encoded with a key frame every `--gop` frames.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import decord
import numpy as np

from mmrl.timeline import Timeline
from mmrl.video import Window, probe_video, read_windows
from mmrl_prep.pictures import demo_sources

Frames = dict[int, np.ndarray]
CASES: dict[str, tuple[list[Window], int]] = {  # windows as shares of the clip, frames of each
    "8 uniform frames": ([(None, None)], 8),
    "1 window": ([(0.85, 0.88)], 8),
    "3 windows": ([(0.12, 0.14), (0.52, 0.54), (0.97, 0.99)], 8),
}


def make(source: Path, out: Path, *, seconds: int, gop: int) -> None:
    """The source over and over at 25 fps, without cuts at its joints."""
    with av.open(str(source)) as container:
        pictures = list(container.decode(video=0))
    with av.open(str(out), "w") as target:
        stream = target.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = pictures[0].width, pictures[0].height, "yuv420p"
        stream.options = {"preset": "veryfast", "g": str(gop), "sc_threshold": "0"}
        for number in range(25 * seconds):
            picture = pictures[number % len(pictures)]
            picture.pts, picture.time_base, picture.pict_type = number, Fraction(1, 25), 0
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))


def best(read: Callable[[], tuple[Frames, int]], repeats: int) -> tuple[float, Frames, int]:
    """Milliseconds of CPU time of the fastest of some runs, and what it read."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        frames, decoded = read()
        times.append(1000 * (time.process_time() - start))
    return min(times), frames, decoded


def ours(path: Path, windows: list[Window], most: int, line: Timeline | None, rate: float) -> tuple[Frames, int]:
    clips = read_windows(path, windows, fps=4, max_frames=most, timeline=line)
    frames = {round(t * rate): f for clip in clips for t, f in zip(clip.times, clip.frames, strict=True)}
    return frames, clips[0].decoded


def theirs(path: Path, places: list[int]) -> tuple[Frames, int]:
    """decord; how many frames it decodes it does not tell."""
    reader = decord.VideoReader(str(path), num_threads=1)
    return dict(zip(places, reader.get_batch(places).asnumpy(), strict=True)), 0


def linear(path: Path, places: list[int]) -> tuple[Frames, int]:
    """PyAV from the first frame to the last wanted; colours are converted for the wanted ones alone."""
    wanted, frames = set(places), {}
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                frames[number] = frame.to_ndarray(format="rgb24")
            if len(frames) == len(wanted):
                break
    return frames, number + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="length of the clip")
    parser.add_argument("--gop", type=int, default=75, help="frames from key frame to key frame")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest run counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "long.mp4"
        make(demo_sources(Path(work))[1] / "bikes.mp4", path, seconds=args.seconds, gop=args.gop)
        info = probe_video(path)
        rate, end = float(info.rate), info.duration
        print(f"{info.frames} frames of {info.width}x{info.height}, {len(info.keys)} key frames")
        for name, (shares, most) in CASES.items():
            windows: list[Window] = [
                (None if a is None else a * end, None if b is None else b * end) for a, b in shares
            ]
            base, frames, decoded = best(partial(ours, path, windows, most, info.timeline, rate), args.repeats)
            places = sorted(frames)
            mixed = np.random.default_rng(0).permutation(places).tolist()
            print(f"{name} ({len(places)}): mmrl with index {base:.0f} ms, {decoded} decoded")
            others: dict[str, Callable[[], tuple[Frames, int]]] = {
                "mmrl without index": partial(ours, path, windows, most, None, rate),
                "decord, sorted": partial(theirs, path, places),
                "decord, unsorted": partial(theirs, path, mixed),
                "PyAV, linear": partial(linear, path, places),
            }
            for label, read in others.items():
                took, got, count = best(read, args.repeats)
                same = sorted(got) == places and all(np.array_equal(got[n], frames[n]) for n in places)
                fewer = f", {count} decoded, ratio {count / decoded:.2f}" if count else ""
                print(f"  {label}: {took:.0f} ms, ratio {took / base:.2f}{fewer}{'' if same else ', OTHER FRAMES'}")
                if not same:
                    raise SystemExit(f"{label} gives other frames")


if __name__ == "__main__":
    main()
