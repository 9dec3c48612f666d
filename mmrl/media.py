"""Media by reference: bytes stay where they are (a shard, a file, memory) until they are decoded here.

Pictures are defined in `mmrl/images.py`, clips in `mmrl/video.py`.
"""

from __future__ import annotations

import io
from pathlib import Path

import xxhash
from PIL import Image

from mmrl.images import MediaError, check_size, normalise_image
from mmrl.types import Box, MediaKind, MediaRef
from mmrl.video import Clip, VideoInfo, probe_video, read_clip, read_times

__all__ = [
    "Clip",
    "MediaError",
    "VideoInfo",
    "check_size",
    "content_hash",
    "file_ref",
    "image_ref",
    "load_image",
    "load_video",
    "media_info",
    "normalise_image",
    "probe_video",
    "read_bytes",
    "read_times",
]


def content_hash(data: bytes) -> str:
    """xxh3-128 of bytes, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def read_bytes(ref: MediaRef) -> bytes:
    """The stored bytes of a medium. Raises MediaError where its file is gone or ends before them."""
    if ref.data is not None:
        return ref.data
    try:
        with open(ref.path, "rb") as file:
            file.seek(ref.offset)
            data = file.read() if ref.size is None else file.read(ref.size)
    except OSError as error:
        raise MediaError("missing", f"medium {ref.id!r}: cannot read {ref.path!r}: {error.strerror}") from error
    if ref.size is not None and len(data) != ref.size:
        raise MediaError("truncated", f"medium {ref.id!r}: {ref.path} ends {ref.size - len(data)} bytes too early")
    return data


def load_image(ref: MediaRef) -> Image.Image:
    """The picture, normalised (see `normalise_image`). Raises MediaError."""
    if ref.kind != "image":
        raise MediaError("not_media", f"medium {ref.id!r} is a {ref.kind}, not an image")
    return normalise_image(read_bytes(ref))[0]


def load_video(
    ref: MediaRef, *, fps: float = 2.0, max_frames: int = 16, start: float | None = None, end: float | None = None
) -> Clip:
    """Frames of a clip or of a window of it, in seconds (see `mmrl.video.read_clip`). Raises MediaError."""
    if ref.kind != "video":
        raise MediaError("not_media", f"medium {ref.id!r} is an {ref.kind}, not a video")
    whole_file = ref.data is None and ref.offset == 0 and ref.size is None
    source = Path(ref.path) if whole_file else read_bytes(ref)
    return read_clip(source, fps=fps, max_frames=max_frames, start=start, end=end)


def image_ref(id: str, image: Image.Image, *, parent: str = "", region: Box | None = None) -> MediaRef:
    """A picture in memory, kept as PNG so that no pixel changes. `region` is where it lies in `parent`, xyxy pixels."""
    upright, _ = normalise_image(image)
    buffer = io.BytesIO()
    upright.save(buffer, "PNG", compress_level=1)
    data = buffer.getvalue()
    return MediaRef(
        id=id,
        kind="image",
        hash=content_hash(data),
        width=upright.width,
        height=upright.height,
        data=data,
        parent=parent,
        region=region,
    )


def media_info(data: bytes, kind: MediaKind) -> tuple[int, int, dict[str, float | int | list[str]]]:
    """Upright (width, height) and what is worth knowing of a medium, found by decoding all of it. Raises MediaError.

    Pictures: `flags` of the normalisation. Videos: frames, fps, duration and, where they are not 0, rotation and
    bad_packets."""
    if kind == "image":
        image, flags = normalise_image(data)
        return image.width, image.height, {"flags": list(flags)} if flags else {}
    video = probe_video(data)
    info: dict[str, float | int | list[str]] = {
        "frames": video.frames,
        "fps": round(video.fps, 6),
        "duration": round(video.duration, 6),
    }
    if video.rotation:
        info["rotation"] = video.rotation
    if video.bad_packets:
        info["bad_packets"] = video.bad_packets
    return video.width, video.height, info


def file_ref(id: str, path: Path, kind: MediaKind) -> MediaRef:
    """A whole file as a medium; decoded once to check it. Raises MediaError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MediaError("missing", f"cannot read {path}: {error.strerror}") from error
    width, height, info = media_info(data, kind)
    return MediaRef(
        id=id,
        kind=kind,
        hash=content_hash(data),
        width=width,
        height=height,
        path=str(path.absolute()),
        info=info,
    )
