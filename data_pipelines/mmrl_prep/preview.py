"""A page that shows samples as the model will see them: sizes after resizing, frames with their times, boxes, answers,
and what it all costs in tokens."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from mmrl.media import MediaError, load_image, load_video
from mmrl.tokens import PROFILES, Profile, chosen_times, count_tokens, image_size, image_tokens, video_cost, video_grid
from mmrl.types import MediaRef, Sample
from mmrl.view import shown_media
from mmrl_prep.places import PrepError
from mmrl_prep.rewrite import question

SHOWN = 480  # pixels of the longer side on the page; the size that the model sees stands beside it
BOXES = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080")
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
article { border: 1px solid #8884; border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
h2 { font-size: 1rem; margin: 0 0 .5rem; word-break: break-all; }
.media { display: flex; flex-wrap: wrap; gap: .6rem; align-items: flex-start; }
figure { margin: 0; } figcaption { font-size: .8rem; opacity: .75; max-width: 30rem; }
img { max-width: 100%; height: auto; border-radius: 4px; background: #8882; }
pre { white-space: pre-wrap; margin: .6rem 0 .2rem; font: inherit; }
.answer { font-weight: 600; color: #2a8a3e; } .cost { font-size: .85rem; opacity: .8; } .bad { color: #c0392b; }
"""


def load_profile(model: str) -> Profile:
    """The sizes and tokens of a model: a built-in name, or the folder of a checkpoint. Raises PrepError."""
    if model in PROFILES:
        return PROFILES[model]
    try:
        return Profile.load(Path(model))
    except (OSError, ValueError) as error:
        raise PrepError(f"model {model}: one of {', '.join(PROFILES)}, or a checkpoint's folder: {error}") from error


def page(samples: Sequence[Sample], profile: Profile, *, title: str, fps: float = 2.0, max_frames: int = 16) -> str:
    """One HTML file, pictures inside."""
    cards = "\n".join(card(s, profile, fps=fps, max_frames=max_frames) for s in samples)
    head = (
        f"{len(samples)} samples as {profile.family} sees them; boxes and times are those of the stored media. "
        f"Clips: {fps:g} frames a second, at most {max_frames}."
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1><p>{head}</p>{cards}"
    )


def card(sample: Sample, profile: Profile, *, fps: float, max_frames: int) -> str:
    shown = sample.media
    try:
        shown = tuple(shown_media(sample, fps, max_frames).values())
        cost = count_tokens(profile, shown, video_fps=fps, video_frames=max_frames)
        tokens = f"{cost.total:,} tokens of media ({cost.vision:,} vision, {cost.text} marks and times)"
    except (MediaError, ValueError) as error:
        tokens = f'<span class="bad">{html.escape(str(error))}</span>'
    media = "".join(_media(ref, sample, profile, fps, max_frames) for ref in shown)
    meta = ", ".join(f"{k}={v}" for k, v in sample.meta.items() if isinstance(v, str | int | float))
    return (
        f"<article><h2>{html.escape(sample.key)} · {html.escape(sample.task)}</h2>"
        f'<div class="media">{media}</div><pre>{html.escape(question(sample))}</pre>'
        f'<div class="answer">{html.escape(answer(sample))}</div>'
        f'<div class="cost">{tokens}<br>{html.escape(meta)}</div></article>'
    )


def answer(sample: Sample) -> str:
    """The right answer in words."""
    value, options = sample.answer.value, sample.answer.options
    if sample.answer.kind in ("choice", "choices") and options:
        letters = [value] if isinstance(value, str) else value
        return "; ".join(f"{c}) {options[ord(c) - 65]}" for c in letters)
    return f"{sample.answer.kind}: {value}"


def _media(ref: MediaRef, sample: Sample, profile: Profile, fps: float, max_frames: int) -> str:
    try:
        if ref.kind == "image":
            return _picture(ref, sample, profile)
        return _clip(ref, profile, fps, max_frames)
    except MediaError as error:
        return f'<figure><figcaption class="bad">{html.escape(f"{ref.id}: {error}")}</figcaption></figure>'


def _picture(ref: MediaRef, sample: Sample, profile: Profile) -> str:
    picture = load_image(ref)
    seen = image_size(profile, ref.width, ref.height)
    if ref is next(m for m in sample.media if m.kind == "image"):
        picture = draw_boxes(picture, boxes(sample))
    flags = ", ".join(ref.info.get("flags", ()))
    tokens = image_tokens(profile, ref.width, ref.height)
    text = f"{ref.id}: {ref.width}x{ref.height}, seen as {seen[0]}x{seen[1]}, {tokens} tokens"
    return _figure(picture.resize(seen, Image.Resampling.BICUBIC), text + (f" ({flags})" if flags else ""))


def _clip(ref: MediaRef, profile: Profile, fps: float, max_frames: int) -> str:
    clip = load_video(ref, fps=fps, max_frames=max_frames)
    grid = video_grid(profile, ref.width, ref.height, len(clip.times))
    seen = (grid[2] * profile.patch, grid[1] * profile.patch)
    cost = video_cost(profile, ref.width, ref.height, clip.times)
    frames = "".join(
        _figure(Image.fromarray(f).resize(seen, Image.Resampling.BICUBIC), f"{t:.2f} s", 160)
        for f, t in zip(clip.frames, clip.times, strict=True)
    )
    text = (
        f"{ref.id}: {ref.width}x{ref.height}, {len(clip.times)} frames seen as {seen[0]}x{seen[1]}, {cost.total} tokens"
    )
    return f'<figure><div class="media">{frames}</div><figcaption>{html.escape(text)}</figcaption></figure>'


def _figure(picture: Image.Image, text: str, side: int = SHOWN) -> str:
    shown = picture.copy()
    shown.thumbnail((side, side))
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    escaped = html.escape(text)
    return (
        f'<figure><img alt="{escaped}" src="data:image/jpeg;base64,{data}"><figcaption>{escaped}</figcaption></figure>'
    )


def boxes(sample: Sample) -> list[Sequence[float]]:
    """Boxes and points of the answer and of `meta.boxes`, pixels of the stored picture."""
    value: Any = sample.answer.value
    found = {"box": [value], "boxes": value, "point": [value]}.get(sample.answer.kind, [])
    return [*found, *sample.meta.get("boxes", ())]


def draw_boxes(picture: Image.Image, found: Sequence[Sequence[float]]) -> Image.Image:
    out = picture.copy()
    draw = ImageDraw.Draw(out)
    width = max(2, round(max(out.size) / 200))
    for number, box in enumerate(found):
        colour = BOXES[number % len(BOXES)]
        if len(box) == 4:
            draw.rectangle([float(v) for v in box], outline=colour, width=width)
        else:
            x, y = float(box[0]), float(box[1])
            draw.ellipse((x - 3 * width, y - 3 * width, x + 3 * width, y + 3 * width), outline=colour, width=width)
    return out


def lines(
    samples: Sequence[Sample], profile: Profile, *, fps: float = 2.0, max_frames: int = 16
) -> list[dict[str, Any]]:
    """The same in words, for the terminal: one object a sample."""
    out = []
    for sample in samples:
        media = []
        for ref in sample.media:
            entry: dict[str, Any] = {"id": ref.id, "size": f"{ref.width}x{ref.height}"}
            if ref.kind == "image":
                entry["seen"] = "x".join(map(str, image_size(profile, ref.width, ref.height)))
            elif ref.info.get("frames") and ref.info.get("fps"):
                times = chosen_times(ref.info["frames"], ref.info["fps"], fps, max_frames)
                entry["times"] = [round(t, 3) for t in times]
            media.append(entry)
        try:
            tokens: int | None = count_tokens(profile, sample.media, video_fps=fps, video_frames=max_frames).total
        except (MediaError, ValueError):
            tokens = None
        words = question(sample)
        out.append({"key": sample.key, "task": sample.task, "media": media, "question": words, "tokens": tokens})
        out[-1]["answer"] = answer(sample)
    return out
