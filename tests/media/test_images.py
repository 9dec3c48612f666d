"""Pictures: upright, on white, 8 bit, decoded to the end; odd ones named by a reason."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mmrl import images, media
from mmrl.images import ORIENTATION, jpeg_pixels
from mmrl.media import (
    MediaError,
    content_hash,
    file_ref,
    image_ref,
    load_image,
    load_pixels,
    load_video,
    normalise_image,
    normalise_pixels,
    read_at,
    read_bytes,
)
from mmrl.types import MediaRef


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(width: int = 64, height: int = 48) -> Image.Image:
    """Smooth and without any symmetry, so that lossy formats keep it and every turn shows."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([4 * x % 256, 5 * y % 256, (x + 2 * y) % 256], -1).astype(np.uint8))


def close(a: Image.Image, b: Image.Image, levels: float = 6) -> bool:
    return a.size == b.size and bool(np.abs(np.asarray(a, int) - np.asarray(b, int)).mean() < levels)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_in_every_format(kind: str, orientation: int) -> None:
    upright = Image.new("RGB", (60, 40), "white")
    upright.paste("red", (0, 0, 30, 20))
    upright.paste("blue", (0, 20, 30, 40))
    # the stored picture is the upright one with the inverse of what a reader must do
    inverse = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]
    stored = upright if inverse is None else upright.transpose(Image.Transpose(inverse))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    out, flags = normalise_image(saved(stored, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {})))
    assert close(out, upright)
    assert ("rotated" in flags) == (orientation != 1)
    assert ImageOps.exif_transpose(out).size == out.size  # nobody turns it a second time
    assert out.getexif().get(ORIENTATION) is None


def alpha_cases() -> dict[str, Image.Image]:
    gray = Image.new("L", (8, 8), 0)
    clear = Image.new("L", (8, 8), 0)
    clear.paste(255, (0, 0, 4, 8))
    la = Image.merge("LA", (gray, clear))
    rgba = Image.merge("RGBA", (gray, gray, gray, clear))
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.paste(0, (0, 0, 4, 8))
    palette.info["transparency"] = 1
    entries = palette.copy()
    entries.info["transparency"] = bytes([255, 0])
    rgb = Image.new("RGB", (8, 8), (9, 9, 9))
    rgb.paste((0, 0, 0), (0, 0, 4, 8))
    rgb.info["transparency"] = (9, 9, 9)
    level = Image.new("L", (8, 8), 77)
    level.paste(0, (0, 0, 4, 8))
    level.info["transparency"] = 77
    return {"LA": la, "RGBA": rgba, "P": palette, "P entries": entries, "RGB tRNS": rgb, "L tRNS": level}


@pytest.mark.parametrize("name", alpha_cases())
@pytest.mark.parametrize("as_file", [True, False])
def test_alpha_is_laid_on_white_in_every_mode(name: str, as_file: bool) -> None:
    image = alpha_cases()[name]
    transparency = {"transparency": image.info["transparency"]} if "transparency" in image.info else {}
    out, flags = normalise_image(saved(image, "PNG", **transparency) if as_file else image)
    assert out.mode == "RGB"
    assert out.getpixel((1, 1)) == (0, 0, 0)
    assert out.getpixel((6, 6)) == (255, 255, 255)
    assert "alpha" in flags


def test_half_transparent_is_half_white() -> None:
    out, _ = normalise_image(Image.new("RGBA", (4, 4), (0, 100, 200, 128)))
    for got, colour in zip(out.getpixel((0, 0)), (0, 100, 200), strict=True):
        assert abs(got - (colour * 128 + 255 * 127) / 255) <= 1


def test_opaque_alpha_changes_nothing() -> None:
    rgba = photo().convert("RGBA")
    out, flags = normalise_image(rgba)
    assert flags == ()
    assert np.array_equal(np.asarray(out), np.asarray(photo()))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bits_are_scaled_not_clipped(kind: str) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    out, flags = normalise_image(saved(Image.fromarray(ramp), kind))
    assert "depth" in flags
    assert np.abs(np.asarray(out)[..., 0].astype(float) - ramp / 257).max() <= 0.51


def test_float_and_32_bit_ranges() -> None:
    unit = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    assert np.array_equal(np.asarray(normalise_image(Image.fromarray(unit))[0])[..., 0].ravel(), np.arange(256))
    wide = (np.arange(256, dtype=np.int32) * 1000 - 5000).reshape(16, 16)
    assert np.array_equal(np.asarray(normalise_image(Image.fromarray(wide))[0])[..., 0].ravel(), np.arange(256))
    nan = unit.copy()
    nan[0, 0] = np.nan
    assert normalise_image(Image.fromarray(nan))[0].getpixel((0, 0)) == (0, 0, 0)


def test_cmyk_and_bilevel() -> None:
    cmyk = photo().convert("CMYK")
    out, flags = normalise_image(saved(cmyk, "JPEG", quality=98))
    assert close(out, cmyk.convert("RGB"))
    assert "colour" in flags
    assert normalise_image(Image.new("1", (20, 20), 1))[0].getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_give_the_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (20, 20), c) for c in ("red", "lime", "blue")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
    out, flags = normalise_image(data)
    assert close(out, frames[0])
    assert "first_frame" in flags


def test_hidden_default_picture_of_an_apng_is_not_shown() -> None:
    frames = [Image.new("RGB", (20, 20), c) for c in ("red", "lime", "blue")]
    data = saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    assert normalise_image(data)[0].getpixel((3, 3)) == (0, 255, 0)


def test_source_is_left_as_it_was() -> None:
    image = Image.new("RGBA", (10, 20), (1, 2, 3, 4))
    image.info["note"] = "mine"
    normalise_image(image)
    assert (image.mode, image.size, image.info) == ("RGBA", (10, 20), {"note": "mine"})


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_cut_files_are_found(kind: str, share: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 300, 3), dtype=np.uint8))
    data = saved(noise, kind)
    with pytest.raises(MediaError) as caught:
        normalise_image(data[: int(len(data) * share)])
    assert caught.value.code == "truncated"


def test_reasons() -> None:
    def code(source: bytes | Path | Image.Image) -> str:
        with pytest.raises(MediaError) as caught:
            normalise_image(source)
        assert f"[{caught.value.code}]" in str(caught.value)
        return caught.value.code

    assert code(b"") == "empty"
    assert code(b"<html>not found</html>") == "not_media"
    assert code(Path("no/such/file.png")) == "missing"
    assert code(Image.new("RGB", (2001, 10))) == "ratio"
    assert normalise_image(Image.new("RGB", (2000, 10)))[0].size == (2000, 10)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    # refused by its header: the pixels that it promises are never allocated
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    bomb = head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    assert code(bomb) == "too_many_pixels"
    good = bytearray(saved(photo(), "PNG"))
    good[len(good) // 2] ^= 255
    assert code(bytes(good)) in ("broken", "truncated")


def survives(data: bytes) -> bool:
    """A picture, or an error with a reason, and nothing else."""
    try:
        return normalise_image(data)[0].mode == "RGB"
    except MediaError as error:
        return error.code in ("empty", "not_media", "truncated", "broken", "ratio", "too_many_pixels")


@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF"]),
)
def test_any_bytes_give_a_picture_or_a_reason(data: bytes, head: bytes) -> None:
    assert survives(head + data)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of the EXIF blocks that this breaks
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), kind=st.sampled_from(["JPEG", "PNG", "GIF", "WEBP"]))
def test_any_damage_gives_a_picture_or_a_reason(place: int, value: int, kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = bytearray(saved(photo(), kind, **({} if kind == "GIF" else {"exif": exif})))
    data[place % len(data)] = value
    assert survives(bytes(data))


def test_broken_exif_keeps_the_picture() -> None:
    data = saved(photo(), "JPEG", exif=b"Exif\0\0garbage that is no TIFF header")
    out, flags = normalise_image(data)
    assert out.size == (64, 48)
    assert flags == ()


def test_references(tmp_path: Path) -> None:
    data = saved(photo(), "PNG")
    path = tmp_path / "p.png"
    path.write_bytes(data)
    ref = file_ref("img_1", path, "image")
    assert (ref.width, ref.height, ref.hash, ref.kind) == (64, 48, content_hash(data), "image")
    assert read_bytes(ref) == data
    assert np.array_equal(np.asarray(load_image(ref)), np.asarray(photo()))

    box = (1.0, 2.0, 30.0, 40.0)
    part = image_ref("img_2", photo().crop((1, 2, 30, 40)), parent="img_1", region=box)
    assert (part.width, part.height, part.parent, part.region) == (29, 38, "img_1", box)
    assert np.array_equal(np.asarray(load_image(part)), np.asarray(photo().crop((1, 2, 30, 40))))
    assert part.hash == content_hash(read_bytes(part))

    inside = MediaRef("x", "image", "", 1, 1, path=str(path), offset=8, size=5)
    assert read_bytes(inside) == data[8:13]
    with pytest.raises(MediaError, match="ends"):
        read_bytes(MediaRef("x", "image", "", 1, 1, path=str(path), offset=8, size=len(data)))
    with pytest.raises(MediaError, match="'gone'"):
        read_bytes(MediaRef("gone", "image", "", 1, 1, path=str(tmp_path / "none")))
    with pytest.raises(MediaError, match="not a video"):
        load_video(ref)


def test_files_stay_open_until_they_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old bytes")
    assert read_at(str(path), 4, 5) == b"bytes"
    assert read_at(str(path), 4, 50) == b"bytes"
    other = tmp_path / "b.bin"
    other.write_bytes(b"new words")
    other.replace(path)
    assert read_at(str(path), 4, 5) == b"words"
    path.unlink()
    with pytest.raises(MediaError, match="missing"):
        read_bytes(MediaRef("x", "image", "", 1, 1, path=str(path), offset=4, size=5))
    path.write_bytes(b"back")
    assert read_bytes(MediaRef("x", "image", "", 1, 1, path=str(path), offset=1)) == b"ack"


def test_no_more_than_128_files_stay_open_and_none_closes_under_a_reader(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.bin" for n in range(200)]
    for n, path in enumerate(paths):
        path.write_bytes(b"%03d" % n)
    wrong: list[int] = []

    def work(start: int) -> None:
        wrong.extend(n for n in [*range(start, 200), *range(start)] if read_at(str(paths[n]), 0, 3) != b"%03d" % n)

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=work, args=(n * 25,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(os.listdir("/proc/self/fd")) - before <= 128


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """load_image goes the fast way with small pictures, too."""
    pytest.importorskip("simplejpeg")
    monkeypatch.setattr(media, "FAST_PIXELS", 0)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", [{"quality": 75}, {"quality": 98, "subsampling": 0}, {"progressive": True}])
def test_fast_jpegs_are_the_same_pictures(orientation: int, options: dict[str, int]) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = saved(photo(61, 43), "JPEG", exif=exif, **options)
    reference = np.asarray(normalise_image(data)[0]).astype(int)
    pixels = jpeg_pixels(data)
    assert pixels is not None
    assert (pixels.dtype, pixels.shape, pixels.flags.c_contiguous) == (np.uint8, reference.shape, True)
    assert np.abs(pixels - reference).max() <= 2
    ref = MediaRef("x", "image", "", 61, 43, data=data)
    image = load_image(ref)
    assert (image.mode, image.info) == ("RGB", {})
    assert np.array_equal(np.asarray(image), pixels)
    assert np.array_equal(load_pixels(ref), pixels)


@pytest.mark.usefixtures("fast")
def test_what_is_not_plain_goes_the_reference_way() -> None:
    for data in (
        saved(photo().convert("CMYK"), "JPEG"),
        saved(photo().convert("L"), "JPEG"),
        saved(photo(), "JPEG", keep_rgb=True),
        saved(photo(), "MPO", save_all=True, append_images=[photo()]),
        saved(photo(), "PNG"),
        saved(photo(), "JPEG")[:-3],
        b"",
    ):
        assert jpeg_pixels(data) is None
    data = saved(photo().convert("CMYK"), "JPEG", quality=98)
    assert np.array_equal(normalise_pixels(data), np.asarray(normalise_image(data)[0]))
    assert jpeg_pixels(saved(photo(), "JPEG"), least=64 * 48 + 1) is None
    assert jpeg_pixels(saved(photo(), "JPEG"), least=64 * 48) is not None


@pytest.mark.usefixtures("fast")
@pytest.mark.filterwarnings("ignore")  # Pillow warns of the EXIF blocks that this breaks
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), share=st.sampled_from([1.0, 1.0, 0.99, 0.7]))
def test_damage_has_the_same_name_on_both_ways(place: int, value: int, share: float) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = bytearray(saved(photo(), "JPEG", exif=exif))
    data[place % len(data)] = value
    data = data[: int(len(data) * share)]

    def verdict(read: Callable[[bytes], object]) -> object:
        try:
            return read(bytes(data))
        except MediaError as error:
            return error.code

    reference, pixels = verdict(lambda d: np.asarray(normalise_image(d)[0])), verdict(normalise_pixels)
    if isinstance(reference, str) or isinstance(pixels, str):
        assert isinstance(reference, str) == isinstance(pixels, str)
        assert reference == pixels
    else:
        assert np.abs(reference.astype(int) - pixels).max() <= 2  # type: ignore[attr-defined]


def test_without_simplejpeg_everything_goes_the_reference_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "simplejpeg", None)
    data = saved(photo(), "JPEG")
    assert jpeg_pixels(data) is None
    assert np.array_equal(normalise_pixels(data), np.asarray(normalise_image(data)[0]))


def test_hash_is_xxh3_128() -> None:
    assert content_hash(b"") == "99aa06d3014798d86001c324468d497f"


def test_threads_do_not_disturb_each_other() -> None:
    images = [photo(40 + n, 30) for n in range(16)]
    files = [saved(i, "PNG") for i in images]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(10):
            if not np.array_equal(np.asarray(normalise_image(files[n])[0]), np.asarray(images[n])):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
