"""The one file that knows model families: Qwen2.5-VL (and Qwen2-VL, which it extends), Qwen3-VL and GLM-4.1V.

Everything else sees `VisionInput`s, token ids and keyword arguments for `forward`. A new family is added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
IMAGE, VIDEO = 1, 2  # values of mm_token_type_ids
PIXELS = ("pixel_values", "pixel_values_videos")  # inputs of `forward` that call the vision tower, once each


@dataclass(frozen=True)
class VisionInput:
    """One picture or clip as the vision tower takes it."""

    kind: str  # "image" | "video"
    patches: Tensor = field(repr=False)  # [patches, channels * temporal * patch * patch] float32
    grid: tuple[int, int, int]  # frames / temporal patch, rows, columns of patches
    merge: int  # spatial merge: tokens = t * h * w / merge^2
    text: str = field(repr=False)  # what replaces the placeholder between vision_start and vision_end
    seen: tuple[int, int] = (0, 0)  # width, height that the model sees, pixels
    seconds_per_grid: float | None = None  # Qwen2.5-VL clips: seconds of one temporal patch
    as_pictures: bool = False  # GLM-4.1V clips: each temporal patch is a picture to the model

    @property
    def n_tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w // self.merge**2

    @property
    def stream(self) -> str:
        """What the model takes it for, "image" or "video": which placeholder token and which input of `forward`.

        Clips of GLM-4.1V go with its pictures: the placeholder is the same, and transformers 5.19 refuses a pass over
        both when they are told apart.
        """
        return "image" if self.as_pictures else self.kind

    @property
    def grids(self) -> list[tuple[int, int, int]]:
        """The grids that the model is told, in order."""
        t, h, w = self.grid
        return [(1, h, w)] * t if self.as_pictures else [self.grid]


def check_family(model_type: str) -> None:
    """Raise ValueError for a model type that mmrl has no vision inputs for."""
    if model_type not in FAMILIES:
        raise ValueError(f"model type {model_type!r} is not one of {', '.join(FAMILIES)}: add it in mmrl/families.py")


def image_input(processor: Any, image: Image.Image) -> VisionInput:
    """A normalised RGB picture through the model's own image processor."""
    out = processor.image_processor(images=[image], return_tensors="pt")
    return _vision("image", out["pixel_values"], out["image_grid_thw"][0], processor.image_processor, processor)


def video_input(processor: Any, frames: np.ndarray, times: Sequence[float]) -> VisionInput:
    """Frames [F, H, W, 3] uint8 with their true presentation times in seconds through the model's video processor.

    The processor is handed source index / source fps pairs that reproduce the true times exactly (indices are
    milliseconds, fps is 1000), so variable frame rates and windows that start late are told as they are.
    """
    if len(frames) == 0 or len(frames) != len(times):
        raise ValueError(f"a clip needs as many times as frames, got {len(frames)} frames and {len(times)} times")
    step = processor.video_processor.temporal_patch_size
    seconds = (times[-1] - times[0]) / max(1, len(times) - 1) * step
    if len(frames) % step:  # the last frame fills its temporal patch
        missing = step - len(frames) % step
        frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
        times = [*times, *[times[-1]] * missing]
    ticks = [round(1000 * t) for t in times]
    metadata = {
        "fps": 1000.0,
        "frames_indices": ticks,
        "total_num_frames": max(ticks) + 1,
        "duration": ticks[-1] / 1000,
    }
    out = processor.video_processor(
        videos=[torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_metadata=True,
        return_tensors="pt",
    )
    clip = _vision("video", out["pixel_values_videos"], out["video_grid_thw"][0], processor.video_processor, processor)
    area = clip.n_tokens // clip.grid[0]
    if _is(processor, "Qwen3"):
        patch_times = [(times[i] + times[i + step - 1]) / 2 for i in range(0, len(times), step)]
        block = f"{processor.vision_start_token}{processor.video_token * area}{processor.vision_end_token}"
        return replace(clip, text="".join(f"<{t:.1f} seconds>{block}" for t in patch_times))
    if _is(processor, "Glm4v"):  # transformers 5.19 writes whole seconds, cut off, of a patch's first frame behind it
        text = "".join(processor.replace_frame_token_id(t / 1000, num_image_tokens=area) for t in ticks[::step])
        return replace(clip, text=text, as_pictures=True)
    return replace(clip, seconds_per_grid=seconds)


def _is(processor: Any, family: str) -> bool:
    return type(processor).__name__.startswith(family)


def _vision(kind: str, patches: Tensor, grid: Tensor, part: Any, processor: Any) -> VisionInput:
    t, h, w = (int(x) for x in grid)
    token = processor.image_token if kind == "image" else processor.video_token
    return VisionInput(
        kind=kind,
        patches=patches.float(),
        grid=(t, h, w),
        merge=part.merge_size,
        text=token * (t * h * w // part.merge_size**2),
        seen=(w * part.patch_size, h * part.patch_size),
    )


def expand_placeholders(processor: Any, text: str, vision: Sequence[VisionInput]) -> str:
    """Rendered chat text with one placeholder a medium -> the same with each placeholder expanded, in order.

    Raises ValueError where the number or kind of placeholders differs from the media.
    """
    tokens = {processor.image_token: "image", processor.video_token: "video"}
    out, rest = [], text
    for item in vision:
        at, token = min(
            ((rest.find(tok), tok) for tok in tokens if tok in rest), default=(-1, ""), key=lambda pair: pair[0]
        )
        if at < 0 or tokens[token] != item.kind:
            raise ValueError(f"the chat text has no placeholder left for a medium of kind {item.kind}")
        before, after = rest[:at], rest[at + len(token) :]
        if item.kind == "video" and _is(processor, "Qwen3"):
            # Time stamps with a vision_start and vision_end for each frame replace the outer pair too, as the models
            # were trained (transformers 5.19 leaves the outer pair standing around them).
            before = before.removesuffix(processor.vision_start_token)
            after = after.removeprefix(processor.vision_end_token)
        out += [before, item.text]
        rest = after
    if any(tok in rest for tok in tokens):
        raise ValueError(f"the chat text has more placeholders than its {len(vision)} media")
    return "".join([*out, rest])


def vision_token_ids(config: Any) -> set[int]:
    """Ids that stand for vision in the token stream: a policy must never sample them."""
    what = ("image", "video", "vision_start", "vision_end", "image_start", "image_end", "video_start", "video_end")
    found = (getattr(config, f"{name}_token_id", None) for name in what)
    return {token for token in found if token is not None}


def turn_ends(config: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a turn of the policy, first the one that stands behind a turn in a dialogue that goes on.

    GLM-4.1V has none of its own: a turn ends with the role of who speaks next, which is the next message's first token,
    or with the text.
    """
    if config.model_type == "glm4v":
        return tuple(tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>", "<|endoftext|>"]))
    return (int(tokenizer.eos_token_id),)


def mask_banned(logits: Tensor, banned: Sequence[int]) -> Tensor:
    """Logits [..., V] in float32 with those of `banned` ids at the lowest finite number: probability exactly 0.

    Engines and trainer both score tokens by `log_softmax(mask_banned(logits, chat.banned_ids))`. Finite rather than
    -inf so that p * log p stays 0 in entropies. Differentiable.
    """
    if not banned:
        return logits.float()
    index = torch.tensor(banned, device=logits.device)
    return logits.float().index_fill(-1, index, torch.finfo(torch.float32).min)


def base_model(model: Any) -> Any:
    """The module that has `visual`, `language_model` and `get_rope_index`, under PEFT or FSDP wrappers or not."""
    inner = model
    while not hasattr(inner, "get_rope_index"):
        nxt = getattr(inner, "base_model", None)
        if nxt is None or nxt is inner:
            nxt = getattr(inner, "model", None)
        if nxt is None or nxt is inner:
            raise ValueError(f"{type(model).__name__} has no get_rope_index: not a supported vision-language model")
        inner = nxt
    return inner


def token_types(config: Any, tokens: Tensor) -> Tensor:
    """0 text, 1 picture, 2 clip for each token id; same shape as `tokens`."""
    return torch.where(tokens == config.image_token_id, IMAGE, torch.where(tokens == config.video_token_id, VIDEO, 0))


def rope_positions(model: Any, tokens: Tensor, attention: Tensor, vision: Sequence[Sequence[VisionInput]]) -> Tensor:
    """M-RoPE positions [3, N, T], always computed afresh: a rope delta kept from an earlier batch is never used.

    tokens, attention: [N, T]; vision: the media of each row in order of their placeholders.
    """
    inner = base_model(model)
    flat = [v for row in vision for v in row]
    videos = [v for v in flat if v.stream == "video"]
    extra: dict[str, Any] = {}
    if videos and videos[0].seconds_per_grid is not None:
        extra["second_per_grid_ts"] = torch.tensor([v.seconds_per_grid for v in videos])
    positions, _ = inner.get_rope_index(
        tokens,
        mm_token_type_ids=token_types(inner.config, tokens),
        image_grid_thw=grid_table([v for v in flat if v.stream == "image"]),
        video_grid_thw=grid_table(videos),
        attention_mask=attention,
        **extra,
    )
    return positions


def grid_table(media: Iterable[VisionInput]) -> Tensor | None:
    """The grids of media of one stream as the model takes them: [grids, 3], None without any."""
    grids = [grid for v in media for grid in v.grids]
    return torch.tensor(grids) if grids else None


def vision_calls(media: Iterable[VisionInput]) -> int:
    """How often a forward pass over these media calls the vision tower: 0, 1 or 2 times."""
    return len({v.stream for v in media})


def check_counts(config: Any, tokens: Tensor, vision: Sequence[Sequence[VisionInput]]) -> None:
    """Raise ValueError unless every row has exactly as many placeholder tokens as its media have features."""
    for n, row in enumerate(vision):
        for kind, token in (("image", config.image_token_id), ("video", config.video_token_id)):
            want = sum(v.n_tokens for v in row if v.stream == kind)
            have = int((tokens[n] == token).sum())
            if want != have:
                raise ValueError(f"row {n}: {have} {kind} placeholder tokens for {want} vision features")


def forward_inputs(
    model: Any,
    tokens: Tensor,
    attention: Tensor,
    vision: Sequence[Sequence[VisionInput]],
    positions: Tensor | None = None,
) -> dict[str, Any]:
    """Keyword arguments of `model.forward` for right- or left-padded rows [N, T] with their media.

    Where `tokens` only continue a cache, `attention` covers cache and tokens, `vision` is what the tokens hold, and
    `positions` [3, N, T] are the tokens' own, cut from those of the whole rows.
    """
    config = base_model(model).config
    check_counts(config, tokens, vision)
    device = tokens.device
    flat = [v for row in vision for v in row]
    if positions is None:
        positions = rope_positions(model, tokens, attention, vision)
    inputs: dict[str, Any] = {
        "input_ids": tokens,
        "attention_mask": attention,
        "position_ids": positions.to(device),
    }
    for stream, pixels in zip(("image", "video"), PIXELS, strict=True):
        part = [v for v in flat if v.stream == stream]
        grids = grid_table(part)
        if grids is not None:
            inputs[pixels] = torch.cat([v.patches for v in part]).to(device)
            inputs[f"{stream}_grid_thw"] = grids.to(device)
    return inputs


def dummy_row(model: Any, vision_calls: int) -> tuple[list[int], list[VisionInput]]:
    """Token ids and media of the smallest row that calls the vision tower 0, 1 or 2 times (GLM-4.1V: at most once)."""
    config = base_model(model).config
    part = config.vision_config
    channels = getattr(part, "in_channels", 3)
    merge = part.spatial_merge_size
    size = channels * part.temporal_patch_size * part.patch_size**2
    vision = [
        VisionInput(kind, torch.zeros(merge**2, size), (1, merge, merge), merge, "", seconds_per_grid=0.0)
        for kind in ("image", "video")[:vision_calls]
    ]
    ids = (config.image_token_id, config.video_token_id)[:vision_calls]
    return [0, *(t for i in ids for t in (i, 0))], vision


def dummy_inputs(model: Any, vision_calls: int) -> dict[str, Any]:
    """Inputs of the smallest forward pass that calls the vision tower 0, 1 or 2 times.

    For a rank that must join the others' passes of a sharded model without having anything to compute.
    """
    row, vision = dummy_row(model, vision_calls)
    tokens = torch.tensor([row], device=next(model.parameters()).device)
    return forward_inputs(model, tokens, torch.ones_like(tokens), [vision]) | {"use_cache": False}


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The modules that FSDP shards one by one: language layers and vision blocks."""
    inner = base_model(model)
    return [*inner.visual.blocks, *inner.language_model.layers]


def set_pixels(processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
    """Set the smallest and largest picture area (pixels after resizing) of a processor in place.

    Given only one of them, the checkpoint's other bound moves along where it would cross it.
    """
    if min_pixels is None and max_pixels is None:
        return
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise ValueError(f"model.min_pixels {min_pixels} is over model.max_pixels {max_pixels}")
    old = processor.image_processor.size
    if _is(processor, "Glm4v"):  # it counts a picture as the frames of one temporal patch
        frames = processor.image_processor.temporal_patch_size
        min_pixels, max_pixels = (None if p is None else p * frames for p in (min_pixels, max_pixels))
    low = min_pixels if min_pixels is not None else min(old["shortest_edge"], max_pixels or old["shortest_edge"])
    high = max_pixels if max_pixels is not None else max(old["longest_edge"], low)
    processor.image_processor.size = type(old)(shortest_edge=low, longest_edge=high)
