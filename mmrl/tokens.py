"""What pictures and clips cost in tokens, by arithmetic on their sizes: no file is opened and nothing is decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mmrl.images import MediaError
from mmrl.qwen import Rules, exact_rate, frame_size, smart_resize, time_stamps
from mmrl.timeline import from_index
from mmrl.view import view_of

EPSILON = 1e-6  # seconds, as in mmrl.video: a time written as a decimal means the frame whose stamp it rounds to
ROUNDED = 5e-7  # by so much the rate in `MediaRef.info` may be off, frames a second

CLASSES = {"Qwen3VL": "qwen3_vl", "Qwen2_5_VL": "qwen2_5_vl", "Qwen2VL": "qwen2_vl"}  # in names of classes: family

Encode = Callable[[str], Sequence[int]]  # plain text to token ids, as `Chat.encode_text`


class Medium(Protocol):
    """What is read of a `MediaRef`."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def info(self) -> Mapping[str, Any]: ...


class Cost(NamedTuple):
    """Tokens that media add to a text without them."""

    vision: int  # placeholders, one for each feature of the vision tower
    text: int  # vision_start and vision_end around them, and time stamps

    @property
    def total(self) -> int:
        return self.vision + self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """The numbers of one checkpoint that decide how large its pictures and clips become."""

    family: str  # qwen2_vl | qwen2_5_vl | qwen3_vl
    rules: Rules
    patch: int  # pixels of a side
    image_pixels: tuple[int, int]  # smallest and largest area of a picture
    video_pixels: tuple[int, int]  # of one frame; under the rules qwen3 of all frames together
    merge: int = 2  # patches of a side that make a token
    temporal: int = 2  # frames of a patch
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    cap_frames: bool = False  # `cap_pixels_per_frame` of transformers
    max_video_tokens: int | None = None  # with it; None: the class default of transformers

    @property
    def factor(self) -> int:
        """Pixels by which sides can be divided: those of a token's side."""
        return self.patch * self.merge

    @property
    def stamped(self) -> bool:
        """Whether clips carry their times as text."""
        return self.family.startswith("qwen3")

    @classmethod
    def load(cls, model_dir: str | Path) -> Profile:
        """From the files of a checkpoint, in the order in which transformers prefers them: the parts of
        processor_config.json, then video_preprocessor_config.json for clips, then preprocessor_config.json (for
        clips too, so an old Qwen2.5-VL folder gives its frames the range of its pictures). Numbers that the files
        leave out are the class defaults of transformers.

        Raises FileNotFoundError without any of them, ValueError for a family that is not Qwen-VL.
        """
        folder = Path(model_dir)
        whole, old, own = (
            json.loads((folder / name).read_text()) if (folder / name).is_file() else None
            for name in ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
        )
        whole = whole or {}
        image = whole.get("image_processor", old)
        video = whole.get("video_processor", old if own is None else own)
        if image is None or video is None:
            raise FileNotFoundError(f"{folder} has no preprocessor_config.json, nor a processor_config.json with parts")
        family = _family(folder, whole, video, image)
        made_for = video.get("video_processor_type")
        three = "Qwen3" in made_for if made_for else family == "qwen3_vl"
        sides = [
            (part.get("patch_size", patch), part.get("merge_size", 2), part.get("temporal_patch_size", 2))
            for part, patch in ((image, 14), (video, 16 if three else 14))
        ]
        if sides[0] != sides[1]:
            raise ValueError(f"{folder}: patch, merge, temporal are {sides[0]} for pictures but {sides[1]} for clips")
        patch, merge, temporal = sides[0]
        return cls(
            family=family,
            rules="qwen3" if three else "qwen2",
            patch=patch,
            merge=merge,
            temporal=temporal,
            image_pixels=_pixels(image, (3_136, 1_003_520)),
            video_pixels=_pixels(video, (131_072, 786_432) if three else (100_352, 602_112), old_names=not three),
            fps=video.get("fps") or 2.0,
            min_frames=video.get("min_frames", 4),
            max_frames=video.get("max_frames", 768),
            cap_frames=bool(video.get("cap_pixels_per_frame")),
            max_video_tokens=video.get("max_video_tokens"),
        )

    def with_pixels(self, min_pixels: int | None = None, max_pixels: int | None = None) -> Profile:
        """With another area of pictures: what `model.min_pixels` and `model.max_pixels` do (`families.set_pixels`)."""
        if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
            raise ValueError(f"min_pixels {min_pixels} is over max_pixels {max_pixels}")
        low, high = self.image_pixels
        low = min_pixels if min_pixels is not None else min(low, max_pixels or low)
        return replace(self, image_pixels=(low, max_pixels if max_pixels is not None else max(high, low)))

    def as_utils(self) -> Profile:
        """The same model fed by qwen-vl-utils with its own ranges."""
        area = self.factor**2
        return replace(
            self, rules="utils", image_pixels=(4 * area, 16_384 * area), video_pixels=(128 * area, 768 * area)
        )


# As the checkpoints' own files have them; where a folder is at hand, `Profile.load` reads what it really says.
PROFILES = {
    "qwen2.5-vl": Profile("qwen2_5_vl", "qwen2", 14, (3_136, 12_845_056), (100_352, 602_112)),
    "qwen3-vl": Profile("qwen3_vl", "qwen3", 16, (65_536, 16_777_216), (4_096, 25_165_824)),
}


def image_size(profile: Profile, width: int, height: int) -> tuple[int, int]:
    """(width, height) in pixels that the model sees of a picture. Raises MediaError."""
    low, high = profile.image_pixels
    rows, columns = smart_resize(
        height, width, factor=profile.factor, min_pixels=low, max_pixels=high, rules=profile.rules
    )
    return columns, rows


def image_tokens(profile: Profile, width: int, height: int) -> int:
    """Vision tokens of a picture. Raises MediaError."""
    columns, rows = image_size(profile, width, height)
    return columns * rows // profile.factor**2


def video_grid(profile: Profile, width: int, height: int, frames: int, *, pad: bool = True) -> tuple[int, int, int]:
    """Temporal patches, rows and columns of patches of a clip of which `frames` frames are used. Raises MediaError.

    mmrl repeats the last frame until the temporal patches are full before it hands a clip to the processor; without
    `pad` the clip is as a caller of the processor itself gives it, which for odd numbers can give another size.
    """
    frames += -frames % profile.temporal if pad else 0
    low, high = profile.video_pixels
    rows, columns = frame_size(
        frames,
        height,
        width,
        factor=profile.factor,
        min_pixels=low,
        max_pixels=high,
        rules=profile.rules,
        temporal=profile.temporal,
        cap_frames=profile.cap_frames,
        max_video_tokens=profile.max_video_tokens,
    )
    return -(-frames // profile.temporal), rows // profile.patch, columns // profile.patch


def video_tokens(profile: Profile, width: int, height: int, frames: int, *, pad: bool = True) -> int:
    """Vision tokens of a clip of which `frames` frames are used (see `video_grid`). Raises MediaError."""
    depth, rows, columns = video_grid(profile, width, height, frames, pad=pad)
    return depth * rows * columns // profile.merge**2


@lru_cache(maxsize=4096)
def chosen_times(frames: int, fps: float, video_fps: float = 2.0, max_frames: int = 16) -> tuple[float, ...]:
    """Seconds of the frames that `mmrl.video.read_clip` takes of a whole clip of `frames` frames at a steady `fps`."""
    if video_fps <= 0 or max_frames < 1:
        raise ValueError(f"video_fps {video_fps} and max_frames {max_frames} must be above 0")
    if frames < 1:
        raise MediaError("broken", f"a clip of {frames} frames")
    if frames == 1:
        return (0.0,)
    exact = exact_rate(fps)
    rate = float(exact)
    last = (frames - 1) / rate
    drift = 0.0 if 1001 % exact.denominator == 0 else last * ROUNDED / rate  # seconds that `last` may be off
    count = int((last + drift) * video_fps + EPSILON) + 1
    step = 1 / video_fps if count <= max_frames else last / max(1, max_frames - 1)
    picked = {min(frames - 1, int((k * step + EPSILON + drift) * rate)) for k in range(min(count, max_frames))}
    return tuple(k / rate for k in sorted(picked))


def video_cost(profile: Profile, width: int, height: int, times: Sequence[float], encode: Encode | None = None) -> Cost:
    """Tokens of a clip whose frames are shown at `times` seconds, with its markers and time stamps.

    Stamps are counted by `encode` where given, else as the tokenizers of Qwen split them: one token for each
    character of the number, and 3 for `<`, ` seconds` and `>`. A stamp that follows text without a line break may
    share its first token with it, which is not counted. Raises MediaError.
    """
    vision = video_tokens(profile, width, height, len(times))
    if not profile.stamped:
        return Cost(vision, 2)
    stamps = time_stamps(times, profile.temporal)
    return Cost(vision, sum(2 + (len(encode(s)) if encode else len(s) - len("< seconds>") + 3) for s in stamps))


def count_tokens(
    profile: Profile,
    media: Iterable[Medium],
    *,
    video_fps: float = 2.0,
    video_frames: int = 16,
    encode: Encode | None = None,
) -> Cost:
    """What the media of a sample cost as `mmrl.chat.Chat` feeds them, from width, height and `info` alone.

    Vision tokens are exact for pictures, for clips with a timeline in `info` and for those of a steady rate. Without a
    timeline a clip of a varying rate may cost less than this, never more: where one frame stays on screen over several
    of the times asked for it is used once. A frame that does not decode is not foreseen. `text`
    counts vision_start, vision_end and time stamps (see `video_cost`), which replace the markers that a chat template
    writes. Raises MediaError, and ValueError for a clip whose `info` lacks frames or rate; both name the medium.
    """
    vision = text = 0
    for ref in media:
        try:
            if ref.kind == "image":
                vision += image_tokens(profile, ref.width, ref.height)
                text += 2
            else:
                times = _times(ref, video_fps, video_frames)
                cost = video_cost(profile, ref.width, ref.height, times, encode)
                vision, text = vision + cost.vision, text + cost.text
        except MediaError as error:
            raise MediaError(error.code, f"medium {ref.id!r}: {error.message}") from error
    return Cost(vision, text)


def _times(ref: Medium, video_fps: float, video_frames: int) -> Sequence[float]:
    """Seconds of the frames of a clip that a chat uses."""
    if index := ref.info.get("timeline"):
        line = from_index(index)
        view = view_of(ref, video_fps, video_frames)
        shown = line.window(view.start, view.end, fps=view.fps, max_frames=view.max_frames, min_frames=view.min_frames)
        return [line.seconds(stamp) for stamp in shown]
    frames, fps, duration = (ref.info.get(key) for key in ("frames", "fps", "duration"))
    if frames and not fps and duration:
        fps = frames / duration
    if not frames or not (fps or frames == 1):
        raise ValueError(
            f"medium {ref.id!r}: its info has {', '.join(ref.info) or 'nothing'} but not how many frames a clip has "
            "and at which fps; mmrl.media.media_info finds both"
        )
    return chosen_times(int(frames), float(fps or 0), video_fps, video_frames)


def _family(folder: Path, *parts: Mapping[str, Any]) -> str:
    config = folder / "config.json"
    family = json.loads(config.read_text()).get("model_type", "") if config.is_file() else ""
    if not family:
        keys = ("processor_class", "video_processor_type", "image_processor_type")
        names = " ".join(str(part.get(key, "")) for part in parts for key in keys)
        family = next((family for name, family in CLASSES.items() if name in names), "")
    if family not in CLASSES.values():
        raise ValueError(f"{folder} is of model type {family or 'unknown'!r}, not one of {', '.join(CLASSES.values())}")
    return str(family)


def _pixels(part: Mapping[str, Any], default: tuple[int, int], *, old_names: bool = True) -> tuple[int, int]:
    """Smallest and largest area; `old_names` are min_pixels and max_pixels, which win where a processor knows them."""
    size = part.get("size") or {}
    out = []
    for old, name, value in (("min_pixels", "shortest_edge", default[0]), ("max_pixels", "longest_edge", default[1])):
        top = part.get(old) if old_names else None
        out.append(top if top is not None else size.get(name, size.get(old, value)))
    return int(out[0]), int(out[1])
