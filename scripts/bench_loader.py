"""Reading samples: mmrl's loader against webdataset on the same shards, in one process, with and without decoding.

    python scripts/bench_loader.py --per-image 12

mmrl reads in shuffled order with exact resume and checks every record and hash; webdataset streams in file order.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import webdataset
from PIL import Image

from mmrl.media import load_image
from mmrl.shards import Loader, ShardSet
from mmrl_prep.build import build
from mmrl_prep.pictures import demo_sources


def ours(folder: Path, decode: bool) -> int:
    """One epoch through the loader; the number of samples."""
    data = ShardSet.open([folder])
    batches = iter(Loader(data, batch=64, seed=0, rank=0, world=1))
    seen = 0
    while seen < len(data):
        for sample in next(batches):
            seen += 1
            if decode:
                load_image(sample.media[0])
    return seen


def theirs(folder: Path, decode: bool) -> int:
    """One pass of webdataset; the number of samples."""
    seen = 0
    for sample in webdataset.WebDataset([str(p) for p in sorted(folder.glob("*.tar"))], shardshuffle=False):
        json.loads(sample["json"])
        seen += 1
        if decode:
            name = next(k for k in sample if k.endswith(("png", "jpg")))
            Image.open(io.BytesIO(sample[name])).convert("RGB").load()
    return seen


def rate(read: Callable[[Path, bool], int], folder: Path, decode: bool, repeats: int = 3) -> float:
    """Samples a second, the best of some passes."""
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        best = max(best, read(folder, decode) / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-image", type=int, default=12, help="puzzles made of each source picture")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "shards"
        build(demo_sources(Path(work)), "rotation", out, heldout=0, per_image=args.per_image, size=128)
        for decode in (False, True):
            mine, peer = (rate(read, out / "train", decode) for read in (ours, theirs))
            what = "decoded" if decode else "records only"
            print(f"{what}: mmrl {mine:.0f} samples/s, webdataset {peer:.0f} samples/s, ratio {mine / peer:.2f}")


if __name__ == "__main__":
    main()
