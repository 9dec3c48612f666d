"""Reading samples: mmrl's loader against webdataset on the same tars, one process, files in memory.

    python scripts/bench_loader.py --passes 5

bytes: mmrl gives parsed records and the bytes of their pictures, in shuffled order; webdataset gives the bytes of both
in file order. arrays: both also decode the picture to RGB, [H, W, 3] of 8 bits; webdataset with Pillow, mmrl with
simplejpeg where that is installed and with Pillow otherwise. pictures: the same as Pillow images. Passes of the two
take turns, and the best of each counts.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

from mmrl.media import load_image, load_pixels, read_bytes
from mmrl.shards import Loader, ShardSet, ShardWriter

Decode = Callable[[bytes], Any]


def fill(out: Path, pictures: list[bytes], count: int) -> Path:
    """A shard set of `count` samples that show the given pictures in turn."""
    with ShardWriter(out) as writer:
        for number in range(count):
            record = {
                "key": f"sample-{number:06d}",
                "task": "bench",
                "media": [{"id": "img_1", "kind": "image", "name": "000.jpg", "width": 1, "height": 1}],
                "messages": [{"role": "user", "content": [{"type": "image", "id": "img_1"}]}],
                "answer": {"kind": "choice", "value": "B", "options": ["one", "two", "three", "four"]},
                "meta": {"number": number, "source": "noise"},
            }
            writer.write(record, {"000.jpg": pictures[number % len(pictures)]})
    return out


def photo(width: int, height: int) -> bytes:
    """A JPEG with about the detail of a photograph."""
    rng = np.random.default_rng(width)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = pixels + rng.integers(-9, 10, pixels.shape, dtype=np.int16)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def ours(folder: Path, use: Callable[[Any], Any]) -> float:
    """Samples a second of one epoch through the loader."""
    start = time.perf_counter()
    data, seen = ShardSet.open(folder), 0
    for batch in Loader(data, batch=50, seed=0):
        for sample in batch:
            use(sample.media[0])
            seen += 1
        if seen >= len(data):
            break
    return seen / (time.perf_counter() - start)


def theirs(folder: Path, use: Decode) -> float:
    """Samples a second of one pass of webdataset."""
    start, seen = time.perf_counter(), 0
    for sample in webdataset.WebDataset([str(p) for p in sorted(folder.glob("*.tar"))], shardshuffle=False):
        use(sample["000.jpg"])
        seen += 1
    return seen / (time.perf_counter() - start)


def pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5, help="passes of each side")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        small, large = ([os.urandom(size)] for size in (5_000, 200_000))
        web, big = ([photo(*size)] for size in ((640, 427), (3000, 2000)))
        bytes_only: tuple[Any, Decode] = (read_bytes, len)
        arrays: tuple[Any, Decode] = (load_pixels, lambda data: np.asarray(pillow(data)))
        cases = [
            ("bytes, 5 kB members", small, 4000, *bytes_only),
            ("bytes, 200 kB members", large, 1000, *bytes_only),
            ("arrays, 640x427 JPEG", web, 300, *arrays),
            ("arrays, 3000x2000 JPEG", big, 12, *arrays),
            ("pictures, 640x427 JPEG", web, 300, load_image, pillow),
            ("pictures, 3000x2000 JPEG", big, 12, load_image, pillow),
        ]
        for number, (name, pictures, count, mine, peer) in enumerate(cases):
            folder = fill(Path(work) / str(number), pictures, count)
            turns = [(ours(folder, mine), theirs(folder, peer)) for _ in range(args.passes)]
            a, b = (max(rates) for rates in zip(*turns, strict=True))
            print(f"{name}: mmrl {a:.0f} samples/s, webdataset {b:.0f} samples/s, ratio {a / b:.2f}", flush=True)


if __name__ == "__main__":
    main()
