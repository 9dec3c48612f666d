"""What a file really is, whatever it is called: `mmrl-prep probe`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.media import MediaError, content_hash, normalise_image, probe_video
from mmrl_prep.scan import header
from mmrl_prep.tables import kind_of, sniff

ENDINGS = {
    "JPEG": ("jpg", "jpeg"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm"),
}


def probe(path: Path) -> dict[str, Any]:
    """Facts of a file, or `code` and `message` where it cannot be used. Never raises for what is in it."""
    out: dict[str, Any] = {"file": str(path)}
    try:
        data = path.read_bytes()
    except OSError as error:
        return out | {"code": "missing", "message": f"cannot read it: {error.strerror}"}
    out |= {"bytes": len(data), "hash": content_hash(data)}
    kind = sniff(data[:16])
    try:
        return out | (_picture(path, data) if kind == "image" else _clip(data))
    except MediaError as error:
        first = error
    if kind == "image" and first.code == "not_media" and kind_of(path.name) == "video":
        try:  # a stream without a head of its own, such as raw H.264
            return out | _clip(data)
        except MediaError as error:
            first = error
    return out | {"kind": kind, "code": first.code, "message": first.message}


def _picture(path: Path, data: bytes) -> dict[str, Any]:
    picture, flags = normalise_image(data)
    found = header(data)
    with Image.open(io.BytesIO(data)) as image:
        frames = getattr(image, "n_frames", 1)
    form = str(found["format"])
    out: dict[str, Any] = {"kind": "image", "format": form, "mode": found["mode"]}
    out |= {"width": picture.width, "height": picture.height, "frames": frames, "normalise": list(flags)}
    if "orientation" in found:
        out |= {"orientation": found["orientation"], "stored": found["stored"]}
    ending = path.suffix.lower().lstrip(".")
    if ending and ending not in ENDINGS.get(form, (form.lower(),)):
        out["named"] = ending
    return out


def _clip(data: bytes) -> dict[str, Any]:
    video = probe_video(data)
    out: dict[str, Any] = {
        "kind": "video",
        "format": video.codec,
        "width": video.width,
        "height": video.height,
        "frames": video.frames,
        "announced": video.announced,
        "fps": f"{video.rate.numerator}/{video.rate.denominator}",
        "constant_rate": video.constant,
        "duration": round(video.duration, 6),
        "start": round(video.start, 6),
        "key_frames": [round(t, 6) for t in video.keys],
        "rotation": video.rotation,
        "undecodable_packets": video.bad_packets,
    }
    if video.missing > 0:
        out["missing"] = round(video.missing, 4)
    return out
