"""The one file that knows model families: Qwen2.5-VL and Qwen3-VL (and Qwen2-VL, which the former extends).

Everything else sees `VisionInput`s, token ids and keyword arguments for `forward`. A new family is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
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

    @property
    def n_tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w // self.merge**2


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
    grid = out["video_grid_thw"][0]
    if _timestamps_in_text(processor):
        patch_times = [(times[i] + times[i + step - 1]) / 2 for i in range(0, len(times), step)]
        t, h, w = (int(x) for x in grid)
        block = processor.video_token * (h * w // processor.video_processor.merge_size**2)
        start, end = processor.vision_start_token, processor.vision_end_token
        text = "".join(f"<{patch_times[i]:.1f} seconds>{start}{block}{end}" for i in range(t))
        return _vision("video", out["pixel_values_videos"], grid, processor.video_processor, processor, text)
    return _vision("video", out["pixel_values_videos"], grid, processor.video_processor, processor, seconds=seconds)


def _timestamps_in_text(processor: Any) -> bool:
    return "Qwen3" in type(processor).__name__


def _vision(
    kind: str, patches: Tensor, grid: Tensor, part: Any, processor: Any, text: str = "", seconds: float | None = None
) -> VisionInput:
    t, h, w = (int(x) for x in grid)
    token = processor.image_token if kind == "image" else processor.video_token
    merge = part.merge_size
    return VisionInput(
        kind=kind,
        patches=patches.float(),
        grid=(t, h, w),
        merge=merge,
        text=text or token * (t * h * w // merge**2),
        seen=(w * part.patch_size, h * part.patch_size),
        seconds_per_grid=seconds,
    )


def expand_placeholders(processor: Any, text: str, vision: Sequence[VisionInput]) -> str:
    """Rendered chat text with one placeholder a medium -> the same with each placeholder expanded, in order.

    Raises ValueError where the number or kind of placeholders differs from the media.
    """
    start, end = _wrap(processor)
    tokens = {processor.image_token: "image", processor.video_token: "video"}
    out, rest = [], text
    for item in vision:
        at, token = min(
            ((rest.find(tok), tok) for tok in tokens if tok in rest), default=(-1, ""), key=lambda pair: pair[0]
        )
        if at < 0 or tokens[token] != item.kind:
            raise ValueError(f"the chat text has no placeholder left for a medium of kind {item.kind}")
        before, after = rest[:at], rest[at + len(token) :]
        if not item.text.startswith(token):
            # Time stamps with a vision_start and vision_end for each frame replace the outer pair too, as the models
            # were trained (transformers 5.19 leaves the outer pair standing around them).
            before, after = before.removesuffix(start), after.removeprefix(end)
        out += [before, item.text]
        rest = after
    if any(tok in rest for tok in tokens):
        raise ValueError(f"the chat text has more placeholders than its {len(vision)} media")
    return "".join([*out, rest])


def _wrap(processor: Any) -> tuple[str, str]:
    return (
        getattr(processor, "vision_start_token", None) or "<|vision_start|>",
        getattr(processor, "vision_end_token", None) or "<|vision_end|>",
    )


def vision_token_ids(config: Any) -> set[int]:
    """Ids that stand for vision in the token stream: a policy must never sample them."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return {getattr(config, n) for n in names if getattr(config, n, None) is not None}


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
    images = [v for v in flat if v.kind == "image"]
    videos = [v for v in flat if v.kind == "video"]
    extra: dict[str, Any] = {}
    if videos and videos[0].seconds_per_grid is not None:
        extra["second_per_grid_ts"] = torch.tensor([v.seconds_per_grid for v in videos])
    positions, _ = inner.get_rope_index(
        tokens,
        mm_token_type_ids=token_types(inner.config, tokens),
        image_grid_thw=torch.tensor([v.grid for v in images]) if images else None,
        video_grid_thw=torch.tensor([v.grid for v in videos]) if videos else None,
        attention_mask=attention,
        **extra,
    )
    return positions


def check_counts(config: Any, tokens: Tensor, vision: Sequence[Sequence[VisionInput]]) -> None:
    """Raise ValueError unless every row has exactly as many placeholder tokens as its media have features."""
    for n, row in enumerate(vision):
        for kind, token in (("image", config.image_token_id), ("video", config.video_token_id)):
            want = sum(v.n_tokens for v in row if v.kind == kind)
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
    for kind, pixels, grid in (
        ("image", PIXELS[0], "image_grid_thw"),
        ("video", PIXELS[1], "video_grid_thw"),
    ):
        part = [v for v in flat if v.kind == kind]
        if part:
            inputs[pixels] = torch.cat([v.patches for v in part]).to(device)
            inputs[grid] = torch.tensor([v.grid for v in part], device=device)
    return inputs


def dummy_row(model: Any, vision_calls: int) -> tuple[list[int], list[VisionInput]]:
    """Token ids and media of the smallest row that calls the vision tower 0, 1 or 2 times."""
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
    low = min_pixels if min_pixels is not None else min(old["shortest_edge"], max_pixels or old["shortest_edge"])
    high = max_pixels if max_pixels is not None else max(old["longest_edge"], low)
    processor.image_processor.size = type(old)(shortest_edge=low, longest_edge=high)
