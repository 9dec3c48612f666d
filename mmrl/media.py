"""Media by reference: bytes stay where they are (a shard, a file, memory) until they are decoded here.

Pictures are defined in `mmrl/images.py`, clips in `mmrl/video.py`, windows of clips in `mmrl/view.py`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from mmrl.images import FAST_PIXELS, MediaError, check_size, jpeg_pixels, normalise_image, normalise_pixels
from mmrl.timeline import Timeline, from_index
from mmrl.types import Box, MediaKind, MediaRef
from mmrl.video import Clip, VideoInfo, Window, probe_video, read_clip, read_timeline, read_times, read_windows
from mmrl.video_backends import Backend
from mmrl.view import View, view_of

__all__ = [
    "Clip",
    "MediaError",
    "VideoInfo",
    "check_size",
    "content_hash",
    "file_ref",
    "image_ref",
    "load_image",
    "load_pixels",
    "load_times",
    "load_video",
    "load_windows",
    "media_facts",
    "media_info",
    "normalise_image",
    "normalise_pixels",
    "probe_video",
    "read_at",
    "read_bytes",
    "read_clip",
    "read_times",
    "read_windows",
    "timeline_of",
]


def content_hash(data: bytes) -> str:
    """xxh3-128 of bytes, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


class _Open:
    """A file open for reading. It is closed when nobody holds it any more, so never under a thread that reads."""

    __slots__ = ("number",)

    def __init__(self, path: str, device: int, inode: int) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone at the end of the process
        if hasattr(self, "number"):
            close(self.number)


# device and inode are part of the question, so a file that was replaced is opened anew
_opened = lru_cache(maxsize=128)(_Open)


def read_at(path: str, offset: int, size: int) -> bytes:
    """`size` bytes at `offset` of a file, fewer where it ends before. Files stay open for the next call, the 128 last
    used ones. Safe in threads and after a fork, since no position is shared. Raises OSError."""
    status = os.stat(path)
    file = _opened(path, status.st_dev, status.st_ino)
    data = os.pread(file.number, size, offset)
    while len(data) < size and (more := os.pread(file.number, size - len(data), offset + len(data))):
        data += more  # one call reads no more than 2 GiB
    return data


def read_bytes(ref: MediaRef) -> bytes:
    """The stored bytes of a medium. Raises MediaError where its file is gone or ends before them."""
    if ref.data is not None:
        return ref.data
    try:
        if ref.size is None:
            return Path(ref.path).read_bytes()[ref.offset :]
        data = read_at(ref.path, ref.offset, ref.size)
    except OSError as error:
        raise MediaError("missing", f"medium {ref.id!r}: cannot read {ref.path!r}: {error.strerror}") from error
    if len(data) != ref.size:
        raise MediaError("truncated", f"medium {ref.id!r}: {ref.path} ends {ref.size - len(data)} bytes too early")
    return data


def load_image(ref: MediaRef) -> Image.Image:
    """The picture, normalised (see `normalise_image`). Raises MediaError.

    Pillow decodes it, save big JPEGs where simplejpeg is installed and gives the same (see `images.jpeg_pixels`)."""
    data = _picture(ref)
    pixels = jpeg_pixels(data, least=FAST_PIXELS)
    return normalise_image(data)[0] if pixels is None else Image.fromarray(pixels)


def load_pixels(ref: MediaRef) -> np.ndarray:
    """The picture as an array, [H, W, 3] uint8, the same as `load_image` shows but faster to get. Raises MediaError."""
    return normalise_pixels(_picture(ref))


def _picture(ref: MediaRef) -> bytes:
    if ref.kind != "image":
        raise MediaError("not_media", f"medium {ref.id!r} is a {ref.kind}, not an image")
    return read_bytes(ref)


def load_video(
    ref: MediaRef,
    *,
    fps: float | Fraction = 2.0,
    max_frames: int = 16,
    start: float | None = None,
    end: float | None = None,
    backend: Backend = "pyav",
) -> Clip:
    """Frames of a clip or of a window of it, in seconds (see `mmrl.video.read_clip`). Raises as that does.

    Where neither start nor end is given, what `ref.info["window"]` says comes before `fps` and `max_frames`. A timeline
    in `ref.info` saves reading the whole file; without one the same frames come out."""
    view = view_of(ref, fps, max_frames) if start is None and end is None else View(start, end, fps, max_frames)
    return load_windows(
        ref,
        [(view.start, view.end)],
        fps=view.fps,
        max_frames=view.max_frames,
        min_frames=view.min_frames,
        backend=backend,
    )[0]


def load_windows(
    ref: MediaRef,
    windows: Sequence[Window],
    *,
    fps: float | Fraction = 2.0,
    max_frames: int = 16,
    min_frames: int = 1,
    backend: Backend = "pyav",
) -> list[Clip]:
    """A clip for each window (start, end) in seconds of the stored clip, read in one pass (see
    `mmrl.video.read_windows`)."""
    source, timeline = _clip(ref), ref.info.get("timeline")
    return read_windows(
        source,
        windows,
        fps=fps,
        max_frames=max_frames,
        min_frames=min_frames,
        timeline=timeline,
        backend=backend,
    )


def load_times(ref: MediaRef, times: Iterable[float | Fraction]) -> Clip:
    """The frames on screen at these seconds of the stored clip, sorted, none twice (see `mmrl.video.read_times`)."""
    return read_times(_clip(ref), times, ref.info.get("timeline"))


def timeline_of(ref: MediaRef) -> Timeline:
    """When the frames of a clip are shown: from `ref.info`, else from the packets of its file. Raises MediaError."""
    known = ref.info.get("timeline")
    return read_timeline(_clip(ref)) if known is None else from_index(known)


def _clip(ref: MediaRef) -> bytes | Path:
    if ref.kind != "video":
        raise MediaError("not_media", f"medium {ref.id!r} is an {ref.kind}, not a video")
    whole_file = ref.data is None and ref.offset == 0 and ref.size is None
    return Path(ref.path) if whole_file else read_bytes(ref)


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


def media_info(data: bytes, kind: MediaKind) -> tuple[int, int, dict[str, Any]]:
    """Upright (width, height) and what is worth knowing of a medium, found by decoding all of it. Raises MediaError.

    Pictures: `flags` of the normalisation. Videos: frames, fps, duration, timeline (`mmrl.timeline.Timeline.index`)
    and, where they are not 0, rotation and bad_packets."""
    if kind == "image":
        image, flags = normalise_image(data)
        return image.width, image.height, {"flags": list(flags)} if flags else {}
    video = probe_video(data)
    return video.width, video.height, media_facts(video)


def media_facts(video: VideoInfo) -> dict[str, Any]:
    """What `MediaRef.info` holds of a clip, see `media_info`."""
    facts = {
        "frames": video.frames,
        "fps": round(video.fps, 6),
        "duration": round(video.duration, 6),
        "timeline": video.index(),
    }
    return facts | {k: v for k, v in (("rotation", video.rotation), ("bad_packets", video.bad_packets)) if v}


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
