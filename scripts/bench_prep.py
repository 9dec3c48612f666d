"""Building shards against the bare decode rate of this machine, on the same pictures with the same number of processes.

    python scripts/bench_prep.py --megapixels 1000

The build decodes every picture fully, measures and hashes it, copies its original bytes into shards, and syncs them to
disk; the bare rate is only decoding, with the decoder that the build uses. Both start their own processes. img2dataset
and datatrove are not compared: they download, or handle no pictures.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.media import normalise_pixels
from mmrl_prep.build import build
from mmrl_prep.pictures import demo_sources
from mmrl_prep.workers import Crew


def make_pictures(folder: Path, count: int, size: tuple[int, int] = (640, 427)) -> tuple[Path, int]:
    """Crops of real photographs as JPEG files: the table that asks about them, and their bytes."""
    photos = [Image.open(p).convert("RGB") for p in sorted(demo_sources(folder / "sources")[0].iterdir())]
    rng = np.random.default_rng(0)
    total = 0
    with (folder / "rows.jsonl").open("w") as table:
        for number in range(count):
            photo = photos[number % len(photos)]
            x, y = (int(rng.integers(0, side // 4)) for side in photo.size)
            crop = photo.crop((x, y, photo.width - x // 2, photo.height - y // 2)).resize(size)
            buffer = io.BytesIO()
            crop.save(buffer, "JPEG", quality=90)
            total += buffer.tell()
            (folder / f"{number:06d}.jpg").write_bytes(buffer.getvalue())
            row = {"question": f"Which number is on picture {number}?", "answer": number, "image": f"{number:06d}.jpg"}
            table.write(json.dumps(row) + "\n")
    return folder / "rows.jsonl", total


def decode(path: Path) -> int:
    """Decode a picture, and nothing else."""
    return normalise_pixels(path.read_bytes()).shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megapixels", type=float, default=1000, help="of all pictures of a size together")
    parser.add_argument("--sizes", default="640x427,1600x1200", help="of the pictures")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--passes", type=int, default=3, help="the best of so many is taken")
    args = parser.parse_args()
    for size in args.sizes.split(","):
        width, height = (int(n) for n in size.split("x"))
        compare((width, height), round(args.megapixels * 1e6 / (width * height)), args.workers, args.passes)


def compare(size: tuple[int, int], count: int, workers: int, passes: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        table, total = make_pictures(folder, count, size)
        paths = sorted(folder.glob("*.jpg"))
        bare = ours = float("inf")
        for number in range(passes):
            start = time.perf_counter()
            with Crew(workers) as crew:
                assert sum(1 for _ in crew.map(decode, paths, len(paths))) == count
            bare = min(bare, time.perf_counter() - start)
            out = folder / f"out{number}"
            start = time.perf_counter()
            result = build(table, "qa", out, workers=workers, max_samples_per_shard=max(1, count // (2 * workers)))
            ours = min(ours, time.perf_counter() - start)
            assert sum(result.samples.values()) + result.duplicates == count
            shutil.rmtree(out)
    print(f"{count} JPEG of {size[0]}x{size[1]}, {total / count / 1000:.0f} kB each, {workers} processes")
    print(f"  bare decode: {count / bare:.0f} pictures/s, {total / bare / 1e6:.0f} MB/s")
    print(f"  mmrl-prep build: {count / ours:.0f} pictures/s, {total / ours / 1e6:.0f} MB/s")
    print(f"  ratio: {bare / ours:.2f}")


if __name__ == "__main__":
    main()
