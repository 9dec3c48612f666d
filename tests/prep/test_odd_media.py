"""The public bug reports about pictures and clips, each built here: what comes out is upright, true, and counted."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from mmrl.media import load_image
from mmrl.shards import ShardSet
from mmrl_prep.build import build
from mmrl_prep.pictures import demo_sources
from mmrl_prep.probe import probe

from .conftest import scene
from .test_build import clip


def ask(folder: Path, names: list[str], **settings: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Samples by file, and the reason code of each file that is left out."""
    rows = [{"question": f"What is {n}?", "answer": n, "image": n} for n in names]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = folder / "out"
    build(folder / "q.jsonl", "qa", out, heldout=0, **settings)
    left = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    return {s.meta["files"][0]: s for s in ShardSet.open(out / "train")}, {r["file"]: r["code"] for r in left}


def test_orientation_of_every_format_and_whatever_the_tag(tmp_path: Path) -> None:
    """Reports 1 to 3: the same photograph, turned by its tag, is the same picture from JPEG, PNG, WebP and TIFF."""
    picture = scene(0, 96, 64)
    names = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for ending in ("jpg", "png", "webp", "tif"):
            names.append(f"{orientation}.{ending}")
            picture.save(tmp_path / names[-1], exif=exif, quality=95)
    found, left = ask(tmp_path, names)
    assert left == {}
    for orientation in range(1, 9):
        upright = [np.asarray(load_image(found[f"{orientation}.{e}"].media[0]), int) for e in ("jpg", "png", "webp")]
        shape = (64, 96, 3) if orientation < 5 else (96, 64, 3)
        assert {a.shape for a in upright} == {shape}
        assert np.abs(upright[0] - upright[1]).mean() < 6
        assert np.abs(upright[2] - upright[1]).mean() < 6
        ref = found[f"{orientation}.png"].media[0]
        assert (ref.height, ref.width) == shape[:2]


def test_depth_colour_and_alpha(tmp_path: Path) -> None:
    """Reports 4 to 8: 16 bits scale, CMYK converts, alpha of every kind lies on white."""
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    scene(1).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    for mode, colour in (("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))):
        blank = Image.new(mode, (64, 64), colour)
        blank.paste(scene(2, 32, 32).convert(mode), (0, 0))
        blank.save(tmp_path / f"{mode}.png")
    indexed = scene(3, 64, 64).quantize(16)
    indexed.info["transparency"] = bytes([0] * 8 + [255] * 8)
    indexed.save(tmp_path / "P.png", transparency=bytes([0] * 8 + [255] * 8))
    found, left = ask(tmp_path, ["ramp.png", "cmyk.jpg", "RGBA.png", "LA.png", "P.png"])
    assert left == {}
    assert np.asarray(load_image(found["ramp.png"].media[0])).mean() == pytest.approx(127.5, abs=1)
    assert found["ramp.png"].media[0].info["flags"] == ["depth"]
    assert load_image(found["cmyk.jpg"].media[0]).mode == "RGB"
    for name in ("RGBA.png", "LA.png"):
        assert load_image(found[name].media[0]).getpixel((60, 60)) == (255, 255, 255)
    pixels = np.asarray(load_image(found["P.png"].media[0]))
    assert (pixels[np.asarray(indexed) < 8] == 255).all()


def bomb(path: Path, side: int = 20_000) -> None:
    """One colour, 20000 x 20000 pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 + side // 8)) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def test_reason_codes(tmp_path: Path) -> None:
    """Reports 9 to 15, 18 and 24: each bad file has its reason, none costs another one its place."""
    bomb(tmp_path / "bomb.png")
    scene(0).save(tmp_path / "good.png")
    scene(0, 4020, 20).save(tmp_path / "ratio201.png")
    scene(0, 4000, 20).save(tmp_path / "ratio200.png")
    scene(0, 12, 30).save(tmp_path / "tiny.png")
    scene(0, 332, 27).save(tmp_path / "thin.png")
    (tmp_path / "html.jpg").write_text("<html>404</html>")
    (tmp_path / "empty.jpg").write_bytes(b"")
    buffer = io.BytesIO()
    scene(1, 400, 300).save(buffer, "JPEG", quality=90)
    whole = buffer.getvalue()
    for share in (50, 99):
        (tmp_path / f"cut{share}.jpg").write_bytes(whole[: len(whole) * share // 100])
    names = sorted(p.name for p in tmp_path.glob("*.*g"))
    found, left = ask(tmp_path, names)
    assert left == {
        "bomb.png": "too_many_pixels",
        "ratio201.png": "ratio",
        "tiny.png": "tiny",
        "html.jpg": "not_media",
        "empty.jpg": "empty",
        "cut50.jpg": "truncated",
        "cut99.jpg": "truncated",
    }
    assert set(found) == {"good.png", "ratio200.png", "thin.png"}


def test_cut_pictures_are_kept_only_when_asked_for_and_marked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    scene(1, 400, 300).save(buffer, "JPEG", quality=90)
    (tmp_path / "cut.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) * 3 // 4])
    found, left = ask(tmp_path, ["cut.jpg"], allow_truncated=True)
    assert left == {}
    ref = found["cut.jpg"].media[0]
    assert ref.info["flags"] == ["truncated"]
    assert load_image(ref).size == (400, 300)  # decodes without any switch


def test_animated_pictures_are_their_first_frame_or_a_clip(tmp_path: Path) -> None:
    """Report 16."""
    frames = [scene(n) for n in range(36)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=[100, 300, 200, 400] * 9)
    found, _ = ask(tmp_path, ["a.gif"])
    assert found["a.gif"].media[0].info["flags"] == ["first_frame"]
    result = build(
        tmp_path, "temporal_order", tmp_path / "clip", animated=True, heldout=0, clips=3, per_image=1, size=64
    )
    assert result.samples == {"train": 1}
    assert probe(tmp_path / "a.gif")["frames"] == 36


def test_probe_tells_what_a_file_really_is(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    scene(0).save(buffer, "GIF")
    (tmp_path / "bus.png").write_bytes(buffer.getvalue())
    found = probe(tmp_path / "bus.png")
    assert (found["kind"], found["format"], found["named"]) == ("image", "GIF", "png")
    exif = Image.Exif()
    exif[0x0112] = 6
    scene(0).save(tmp_path / "turned.jpg", exif=exif)
    found = probe(tmp_path / "turned.jpg")
    assert (found["width"], found["height"], found["stored"], found["normalise"]) == (72, 96, [96, 72], ["rotated"])
    clips = demo_sources(tmp_path / "demo")[1]
    found = probe(clips / "carphone_pristine.mp4")
    assert (found["fps"], found["frames"], found["duration"]) == ("30000/1001", 120, 4.004)
    found = probe(clips / "bikes.mp4")
    assert found["key_frames"] == [0.0, 1.2, 3.04, 5.48, 7.48, 9.68]
    (tmp_path / "zero.mp4").write_bytes(b"")
    assert probe(tmp_path / "zero.mp4")["code"] == "empty"
    assert probe(tmp_path / "none.mp4")["code"] == "missing"
    data = (clips / "bikes.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    assert probe(tmp_path / "cut.mp4")["code"] == "truncated"


def test_clips_that_end_early_are_left_out_with_the_share(tmp_path: Path) -> None:
    """Report 24: with its index in front, a cut clip still announces all frames."""
    clip(tmp_path / "whole.mp4", list(range(40)))
    with (
        av.open(str(tmp_path / "whole.mp4")) as source,
        av.open(str(tmp_path / "fast.mp4"), "w", options={"movflags": "faststart"}) as out,
    ):
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    data = (tmp_path / "fast.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) * 6 // 10])
    rows = [{"question": n, "answer": "x", "video": n} for n in ("whole.mp4", "cut.mp4")]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(tmp_path / "q.jsonl", "qa", tmp_path / "out", heldout=0)
    (left,) = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert left["code"] == "truncated"
    assert "of 40 announced" in left["message"]
    (sample,) = ShardSet.open(tmp_path / "out" / "train")
    assert sample.media[0].info["frames"] == 40


def corpus(folder: Path) -> Path | None:
    """The pictures that Pillow is tested with, from its source archive; None where no registry can be reached."""
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--no-input", "-q"]
    # pip asks the archive for its metadata, for which it needs what builds it
    wanted = ["--no-deps", "--no-binary", "pillow", "--no-build-isolation", f"pillow=={Image.__version__}"]
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, capture_output=True, timeout=120)
        for command in (["install", "-U", "setuptools>=77", "pybind11"], ["download", "-d", folder, *wanted]):
            subprocess.run([*pip, *command], check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError):
        return None
    archives = sorted(folder.glob("[pP]illow-*.tar.gz"))
    if not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder / "source", filter="data")
    return next((folder / "source").glob("*/Tests/images"))


def test_a_thousand_odd_files(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Report 20b: no crash, each failure has a reason, and memory stays bounded."""
    images = corpus(tmp_path_factory.mktemp("pillow"))
    if images is None:
        pytest.skip("no registry can be reached to fetch Pillow's source archive from")
    files = [p for p in sorted(images.rglob("*")) if p.is_file()]
    assert len(files) > 900
    rows = [{"question": f"What is {n}?", "answer": 1, "image": str(p)} for n, p in enumerate(files)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    script = (
        "import resource, sys\nfrom mmrl_prep.build import build\n"
        f"r = build({str(tmp_path / 'q.jsonl')!r}, 'qa', {str(tmp_path / 'out')!r}, heldout=0)\n"
        "print(sum(r.samples.values()), sum(r.quarantined.values()), r.duplicates,"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True)
    samples, quarantined, duplicates, peak = map(int, done.stdout.split())
    listed = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    print(f"{samples} samples, {Counter(r['code'] for r in listed)}, peak memory {peak} MB")
    assert samples + quarantined + duplicates == len(files)
    assert samples > 700
    assert all(r["code"] and r["message"] for r in listed)
    assert peak < 1500
