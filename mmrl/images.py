"""One definition of a picture: upright, alpha on white, 8-bit RGB, decoded to the last byte.

Every later room works on what `normalise_image` returns, so sizes, boxes and tokens all speak of the same picture.
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

try:
    import simplejpeg
except ImportError:  # optional: the fast way to the same pixels
    simplejpeg = None

MAX_PIXELS = 89_478_485  # Pillow's own warning level: 256 MiB of RGB
MAX_RATIO = 200  # the processors of Qwen-VL refuse longer pictures
ORIENTATION = 0x0112  # EXIF tag

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# below that, making a Pillow image of the pixels costs what the faster decoding gains
FAST_PIXELS = 4_000_000


class MediaError(ValueError):
    """A medium that cannot be used. `code` is a short stable reason: empty, missing, not_media, truncated, broken,
    ratio, tiny, too_many_pixels, no_video, window, frame_budget."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[MediaError], tuple[str, str]]:
        return MediaError, (self.code, self.message)  # crosses process borders


def check_size(width: int, height: int) -> None:
    """Raise MediaError where a picture or frame of this size could not be handled, before it is decoded."""
    if width < 1 or height < 1:
        raise MediaError("broken", f"a picture of {width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise MediaError("too_many_pixels", f"{width}x{height} pixels are more than {MAX_PIXELS}")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise MediaError("ratio", f"{width}x{height}: one side is more than {MAX_RATIO} times the other")


def normalise_image(source: bytes | Path | Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """The picture upright, on white, in 8-bit RGB, with flags of what was done to it.

    Flags: `first_frame` (more were there), `rotated` (by EXIF), `depth` (scaled to 8 bits), `alpha` (laid on
    white), `colour` (another colour model). An unreadable EXIF block counts as upright. The source is left as it was.
    Raises MediaError. Everything is decoded: `Image.verify` passes JPEG files cut in half.
    """
    if isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise MediaError("missing", f"cannot read {source!s}: {error.strerror}") from error
    try:
        if isinstance(source, Image.Image):
            return _normalise(source)
        if not source:
            raise MediaError("empty", "no bytes")
        with Image.open(io.BytesIO(source)) as image:
            if image.format == "PNG":
                _check_png(source)
            return _normalise(image)
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaError("too_many_pixels", str(error)) from error
    except UnidentifiedImageError as error:
        raise MediaError("not_media", "no picture format that Pillow knows") from error
    except Exception as error:  # on damaged input Pillow raises nearly every type there is
        text = str(error).lower()
        cut = any(word in text for word in ("truncated", "premature", "unexpected end", "not enough"))
        raise MediaError("truncated" if cut else "broken", f"does not decode: {error}") from error


def normalise_pixels(data: bytes) -> np.ndarray:
    """The pixels of `normalise_image`, [H, W, 3] uint8, contiguous. Raises MediaError.

    JPEGs of three components go through simplejpeg where it is installed (see `jpeg_pixels`), which saves copies."""
    pixels = jpeg_pixels(data)
    return np.array(normalise_image(data)[0]) if pixels is None else pixels


def jpeg_pixels(data: bytes, least: int = 0) -> np.ndarray | None:
    """Upright RGB pixels of a JPEG, [H, W, 3] uint8, decoded by simplejpeg; None where the reference has to decide.

    That is without simplejpeg, for pictures of fewer than `least` pixels, for all but plain YCbCr (gray, CMYK, YCCK,
    several pictures in a file), and for damaged files. Both libraries use libjpeg-turbo with the same exact transform
    and upsampling, so that pixels agree to 2 of 255 levels whatever their versions, and are equal with the same one.
    """
    if simplejpeg is None or not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            check_size(*image.size)
            if image.format != "JPEG" or image.mode != "RGB" or image.width * image.height < least:
                return None
            turn = _orientation(image)
        if simplejpeg.decode_jpeg_header(data)[2] != "YCbCr":
            return None
        pixels = simplejpeg.decode_jpeg(data, "RGB")
    except Exception:  # what the damage is called is said in one place only
        return None
    if turn > 4:
        pixels = pixels.swapaxes(0, 1)
    # what is left of each orientation is a mirror: of rows, of columns or of both
    rows, columns = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return np.ascontiguousarray(pixels[:: -1 if rows else 1, :: -1 if columns else 1])


def _normalise(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    check_size(*image.size)
    flags = []
    if getattr(image, "n_frames", 1) > 1:
        flags.append("first_frame")
        # an APNG may carry a still picture for readers without animation: it is not the first frame shown
        image.seek(1 if image.info.get("default_image") else 0)
    before = _orientation(image)
    image.load()
    after = _orientation(image)  # Pillow turns TIFF files upright by itself while it decodes
    out = image
    if before != 1:
        flags.append("rotated")
    if image.mode.startswith(("I", "F")):
        out = _to_8_bits(image)
        flags.append("depth")
    if out.has_transparency_data:
        rgba = out.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            flags.append("alpha")
        out = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    elif out.mode not in ("RGB", "L", "1", "P"):
        flags.append("colour")
    out = out.convert("RGB") if out.mode != "RGB" or out is image else out
    if after != 1:
        out = out.transpose(_UPRIGHT[after])
    out.info.clear()  # an orientation tag must not be applied a second time by a later reader
    return out, tuple(flags)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8."""
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except Exception:  # a broken text block must not cost the picture
        return 1
    return value if value in _UPRIGHT else 1


def _check_png(data: bytes) -> None:
    """Raise MediaError where a chunk of pixels differs from its checksum: Pillow shows what is left of them."""
    at = 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body, end = data[at + 4 : at + 8 + size], at + 12 + size
        read = end <= len(data) and body[:4] in (b"IHDR", b"PLTE", b"IDAT")
        if read and zlib.crc32(body) != int.from_bytes(data[end - 4 : end], "big"):
            raise MediaError("broken", f"the PNG chunk at byte {at} differs from its checksum")
        at = end


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Gray pictures of 16 or 32 bits by their range: Pillow's own conversion clips a 16-bit picture to white."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if image.mode == "F" and low >= 0 and high <= 255:
        scaled = values * 255 if high <= 1 else values
    elif low >= 0 and high <= 65535:
        scaled = values / 257
    else:
        scaled = (values - low) * (255 / max(high - low, 1e-12))
    gray = Image.fromarray(np.rint(scaled).astype(np.uint8))
    clear = image.info.get("transparency")
    if not isinstance(clear, int):
        return gray
    gray.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return gray
