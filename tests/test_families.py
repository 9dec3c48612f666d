"""Model families: vision inputs, placeholders, positions, masks, against the models' own code and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl import families
from mmrl.families import VisionInput
from mmrl.policy.tiny import make_config, make_model, make_processor, train_tokenizer

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "glm4v")
CORPUS = ["which colour is it? red, green or blue", "<0.3 seconds> 0123456789"]


def make_parts(family: Any) -> tuple[Any, Any]:
    tokenizer = train_tokenizer(CORPUS, 400, family)
    config = make_config(family, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    return make_processor(family, tokenizer), make_model(config)


@pytest.fixture(scope="module", params=FAMILIES)
def parts(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return make_parts(request.param)


@pytest.fixture(scope="module")
def glm() -> tuple[Any, Any]:
    return make_parts("glm4v")


def hole(processor: Any, kind: str) -> str:
    """What a chat template writes for a medium."""
    if type(processor).__name__ == "Glm4vProcessor":
        return f"<|begin_of_{kind}|><|{kind}|><|end_of_{kind}|>"
    return f"<|vision_start|><|{kind}_pad|><|vision_end|>"


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_picture_equals_the_whole_processor(parts: tuple[Any, Any]) -> None:
    processor, _ = parts
    image = Image.fromarray(noise(70, 130, 3))
    own = families.image_input(processor, image)
    text = hole(processor, "image") + "which colour?"
    theirs = processor(text=[text], images=[image], return_tensors="pt")
    assert torch.equal(own.patches, theirs["pixel_values"])
    assert own.grid == tuple(theirs["image_grid_thw"][0].tolist())
    expanded = families.expand_placeholders(processor, text, [own])
    assert processor.tokenizer(expanded)["input_ids"] == theirs["input_ids"][0].tolist()
    assert own.n_tokens == expanded.count(processor.image_token)
    patch = processor.image_processor.patch_size
    assert own.seen == (own.grid[2] * patch, own.grid[1] * patch)


def expected_video_text(processor: Any, frames: np.ndarray, fps: float, indices: list[int]) -> tuple[list[int], Any]:
    """Ids and features that the family's own processor makes of sampled frames, with its outer pair as it leaves it."""
    out = processor(
        text=[hole(processor, "video") + "which?"],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": fps, "frames_indices": indices, "total_num_frames": max(indices) + 1}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    return out["input_ids"][0].tolist(), out


@pytest.mark.parametrize("count", [2, 5, 6])
def test_clip_equals_the_whole_processor(parts: tuple[Any, Any], count: int) -> None:
    processor, model = parts
    indices = [0, 13, 26, 39, 52, 66][:count]
    frames = noise(count, 64, 64, 3)
    own = families.video_input(processor, frames, [i / 25 for i in indices])
    theirs, out = expected_video_text(processor, frames, 25.0, indices)
    assert own.grid == tuple(out["video_grid_thw"][0].tolist())
    torch.testing.assert_close(own.patches, out["pixel_values_videos"])
    text = families.expand_placeholders(processor, hole(processor, "video") + "which?", [own])
    ids = processor.tokenizer(text)["input_ids"]
    if model.config.model_type == "qwen3_vl":  # an outer pair stands around the frames' own pairs in theirs
        theirs = theirs[1:]
        theirs.pop(len(theirs) - len(processor.tokenizer("which?")["input_ids"]) - 1)
    assert ids == theirs
    config = model.config
    pad = config.image_token_id if config.model_type == "glm4v" else config.video_token_id
    assert ids.count(pad) == own.n_tokens > 0


def test_a_clip_of_one_frame(parts: tuple[Any, Any]) -> None:
    """The families' own code refuses some of these: the frame is doubled."""
    processor, _ = parts
    one = families.video_input(processor, noise(1, 64, 64, 3), [0.0])
    two = families.video_input(processor, np.repeat(noise(1, 64, 64, 3), 2, axis=0), [0.0, 0.0])
    assert torch.equal(one.patches, two.patches)
    assert one.grid[0] == 1


def test_seconds_of_a_patch_come_from_the_true_times() -> None:
    processor = make_processor("qwen2_5_vl", train_tokenizer(CORPUS, 400))
    for count in (4, 5):  # an odd clip repeats its last frame, which adds no time
        clip = families.video_input(processor, noise(count, 56, 56, 3), [0.5 * i for i in range(count)])
        assert clip.seconds_per_grid == pytest.approx(1.0)
    assert families.video_input(processor, noise(1, 56, 56, 3), [0.0]).seconds_per_grid == 0


@pytest.mark.parametrize(
    ("total", "fps", "indices", "stamps"),
    [
        (132, 25, [0, 15, 29, 44, 58, 73, 87, 102, 116, 131], [0.3, 1.5, 2.6, 3.8, 4.9]),
        (
            250,
            25,
            [0, 13, 26, 39, 52, 66, 79, 92, 105, 118, 131, 144, 157, 170, 183, 197, 210, 223, 236, 249],
            [0.3, 1.3, 2.4, 3.4, 4.5, 5.5, 6.5, 7.6, 8.7, 9.7],
        ),
        (380, 30, [0, 54, 109, 163, 217, 271, 325, 379], [0.9, 4.5, 8.1, 11.7]),
    ],
)
def test_published_time_stamps(total: int, fps: int, indices: list[int], stamps: list[float]) -> None:
    processor = make_processor("qwen3_vl", train_tokenizer(CORPUS, 400))
    clip = families.video_input(processor, noise(len(indices), 32, 32, 3), [i / fps for i in indices])
    assert clip.text.count(" seconds>") == len(stamps)
    assert [float(part.split("<")[-1]) for part in clip.text.split(" seconds>")[:-1]] == stamps


def test_uneven_times_are_told_as_they_are() -> None:
    processor = make_processor("qwen3_vl", train_tokenizer(CORPUS, 400))
    clip = families.video_input(processor, noise(4, 32, 32, 3), [0.0, 0.04, 1.12, 5.24])
    assert clip.text.startswith("<0.0 seconds>")
    assert "<3.2 seconds>" in clip.text


@pytest.mark.parametrize(
    ("times", "stamps"),
    [
        ([0.0, 0.04, 1.12, 5.24], [0, 1]),
        ([6.0, 6.48, 7.0, 7.48, 8.0], [6, 7, 8]),  # a window that starts late, of an odd number of frames
        ([2.999, 3.0, 2.9999999, 3.5, 59.4, 60.0], [2, 3, 59]),  # times are exact to a millisecond
        ([7300.5], [7300]),
    ],
)
def test_glm_writes_the_whole_seconds_of_a_patch_behind_it(
    glm: tuple[Any, Any], times: list[float], stamps: list[int]
) -> None:
    processor, _ = glm
    clip = families.video_input(processor, noise(len(times), 56, 56, 3), times)
    area = clip.n_tokens // clip.grid[0]
    assert clip.text == "".join(f"<|begin_of_image|>{'<|image|>' * area}<|end_of_image|>{s}" for s in stamps)
    whole = families.expand_placeholders(processor, hole(processor, "video"), [clip])
    assert whole == f"<|begin_of_video|>{clip.text}<|end_of_video|>"


def test_a_clip_without_as_many_times_as_frames() -> None:
    processor = make_processor("qwen3_vl", train_tokenizer(CORPUS, 400))
    with pytest.raises(ValueError, match="2 frames and 1 times"):
        families.video_input(processor, noise(2, 32, 32, 3), [0.0])


def test_wrong_placeholders(parts: tuple[Any, Any]) -> None:
    processor, _ = parts
    picture = families.image_input(processor, Image.fromarray(noise(64, 64, 3)))
    with pytest.raises(ValueError, match="more placeholders than its 0 media"):
        families.expand_placeholders(processor, f"a {processor.image_token}", [])
    with pytest.raises(ValueError, match="no placeholder left"):
        families.expand_placeholders(processor, "a", [picture])
    with pytest.raises(ValueError, match="kind image"):
        families.expand_placeholders(processor, processor.video_token, [picture])


@pytest.mark.parametrize(("family", "most"), [("qwen3_vl", 16**2), ("glm4v", 19**2)])  # 512 px are 16, 18.3 tokens
def test_pixel_bounds(family: Any, most: int) -> None:
    image = Image.fromarray(noise(256, 256, 3))

    def tokens(low: int | None, high: int | None) -> int:
        processor = make_processor(family, train_tokenizer(CORPUS, 400, family), side=128)
        families.set_pixels(processor, low, high)
        return families.image_input(processor, image).n_tokens

    assert tokens(None, None) == 16
    assert tokens(None, 64 * 64) == 4
    assert tokens(None, 32 * 32) == 1
    assert tokens(512 * 512, None) == most  # the upper bound moves along
    with pytest.raises(ValueError, match="min_pixels 5000 is over"):
        tokens(5000, 4000)


# --- positions ----------------------------------------------------------------------------------------------------


def brute_positions(config: Any, tokens: list[int], vision: list[VisionInput]) -> list[tuple[int, int, int]]:
    """M-RoPE positions token by token: text counts on, a picture spans a grid and moves on by its larger side."""
    blocks: dict[int, list[tuple[int, int, int, float]]] = {config.image_token_id: [], config.video_token_id: []}
    for v in vision:
        t, h, w = v.grid
        if v.kind == "image" or config.model_type == "glm4v":  # whose clips are pictures between time stamps
            blocks[config.image_token_id] += [(1, h, w, 1.0)] * t
        elif config.model_type == "qwen3_vl":  # one block a frame, told apart by its time stamp
            blocks[config.video_token_id] += [(1, h, w, 1.0)] * t
        else:
            interval = config.vision_config.tokens_per_second * float(v.seconds_per_grid or 0)
            blocks[config.video_token_id].append((t, h, w, interval))
    out: list[tuple[int, int, int]] = []
    now, at = 0, 0
    while at < len(tokens):
        if tokens[at] not in blocks:
            out.append((now, now, now))
            now, at = now + 1, at + 1
            continue
        t, h, w, interval = blocks[tokens[at]].pop(0)
        merge = vision[0].merge
        rows, columns = h // merge, w // merge
        for i in range(t):
            for y in range(rows):
                for x in range(columns):
                    out.append((now + int(i * interval), now + y, now + x))
        at += t * rows * columns
        now += max(rows, columns)
    return out


def dialogue(processor: Any, *parts: str | VisionInput) -> tuple[list[int], list[VisionInput]]:
    vision = [p for p in parts if not isinstance(p, str)]
    text = "".join(p if isinstance(p, str) else hole(processor, p.kind) for p in parts)
    return processor.tokenizer(families.expand_placeholders(processor, text, vision))["input_ids"], vision


def rows_of(processor: Any) -> list[tuple[list[int], list[VisionInput]]]:
    wide = families.image_input(processor, Image.fromarray(noise(40, 120, 3)))
    tall = families.image_input(processor, Image.fromarray(noise(128, 64, 3)))
    clip = families.video_input(processor, noise(6, 64, 64, 3), [0, 0.5, 1, 1.5, 2, 2.5])
    return [
        dialogue(processor, "which ", wide, "colour"),
        dialogue(processor, "red"),
        dialogue(processor, tall, wide, "green", clip, "or", tall, "blue"),
        dialogue(processor, clip, "which?"),
    ]


@pytest.mark.parametrize("left", [False, True])
def test_positions_of_padded_rows_equal_brute_force(parts: tuple[Any, Any], left: bool) -> None:
    from mmrl.chat import pad_rows

    processor, model = parts
    rows = rows_of(processor)
    tokens, attention = pad_rows([r[0] for r in rows], 0, left=left)
    positions = families.rope_positions(model, tokens, attention, [r[1] for r in rows])
    assert positions.shape == (3, len(rows), tokens.shape[1])
    for n, (ids, vision) in enumerate(rows):
        own = positions[:, n][:, attention[n].bool()].T.tolist()
        assert [tuple(p) for p in own] == brute_positions(model.config, ids, vision)


def test_logits_do_not_depend_on_padding_or_on_earlier_calls(parts: tuple[Any, Any]) -> None:
    from mmrl.chat import pad_rows

    processor, model = parts
    rows = rows_of(processor)
    singles = []
    for ids, vision in rows:
        tokens = torch.tensor([ids])
        with torch.no_grad():
            singles.append(model(**families.forward_inputs(model, tokens, torch.ones_like(tokens), [vision])).logits[0])
    for left in (False, True):
        tokens, attention = pad_rows([r[0] for r in rows], 0, left=left)
        # a delta left behind by someone's model.generate
        families.base_model(model).rope_deltas = torch.full((len(rows), 1), -7)
        with torch.no_grad():
            logits = model(**families.forward_inputs(model, tokens, attention, [r[1] for r in rows])).logits
        for n, single in enumerate(singles):
            torch.testing.assert_close(logits[n][attention[n].bool()], single, atol=1e-5, rtol=1e-4)
    families.base_model(model).rope_deltas = None


@pytest.mark.parametrize("kind", ["image", "video"])
def test_glm_logits_equal_the_whole_of_transformers(glm: tuple[Any, Any], kind: str) -> None:
    """Its own processor's tensors into its own forward pass, which makes its own positions."""
    processor, model = glm
    if kind == "image":
        image = Image.fromarray(noise(70, 130, 3))
        own = families.image_input(processor, image)
        theirs = processor(text=[f"red{hole(processor, kind)}which?"], images=[image], return_tensors="pt")
    else:
        frames, indices = noise(6, 64, 64, 3), [25, 38, 51, 64, 77, 91]
        own = families.video_input(processor, frames, [i / 25 for i in indices])
        theirs = processor(
            text=[f"red{hole(processor, kind)}which?"],
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            video_metadata=[{"fps": 25.0, "frames_indices": indices, "total_num_frames": 100}],
            do_sample_frames=False,
            return_tensors="pt",
        )
        theirs.pop("video_metadata", None)
    ids, vision = dialogue(processor, "red", own, "which?")
    tokens = torch.tensor([ids])
    assert torch.equal(tokens, theirs["input_ids"])
    inner = families.base_model(model)
    inner.rope_deltas = None
    positions, _ = inner.get_rope_index(**{k: v for k, v in theirs.items() if not k.startswith("pixel")})
    inputs = families.forward_inputs(model, tokens, torch.ones_like(tokens), [vision])
    assert torch.equal(inputs["position_ids"], positions)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, model(**theirs).logits)
    inner.rope_deltas = None


def test_glm_takes_pictures_and_clips_in_one_row(glm: tuple[Any, Any]) -> None:
    """The forward pass of transformers 5.19 refuses such a row, as both are of one placeholder. Put together by hand:
    features of pictures and clips from its two methods, each to its own places, positions by its own token types."""
    processor, model = glm
    ids, vision = rows_of(processor)[2]
    inner, tokens = families.base_model(model), torch.tensor([ids])
    types = torch.tensor(processor.create_mm_token_type_ids([ids]))
    assert set(types.flatten().tolist()) == {0, 1, 2}
    images, videos = ([v for v in vision if v.kind == kind] for kind in ("image", "video"))
    grids = [torch.tensor([v.grid for v in part]) for part in (images, videos)]
    with torch.no_grad():
        embeds = inner.get_input_embeddings()(tokens)
        seen = inner.get_image_features(torch.cat([v.patches for v in images]), grids[0]).pooler_output
        embeds[types == 1] = torch.cat(list(seen))
        seen = inner.get_video_features(torch.cat([v.patches for v in videos]), grids[1]).pooler_output
        embeds[types == 2] = torch.cat(list(seen))
        positions, _ = inner.get_rope_index(tokens, types, image_grid_thw=grids[0], video_grid_thw=grids[1])
        hidden = inner.language_model(inputs_embeds=embeds, position_ids=positions).last_hidden_state
        own = model(**families.forward_inputs(model, tokens, torch.ones_like(tokens), [vision])).logits
        torch.testing.assert_close(own, model.lm_head(hidden))


def test_counts_are_checked_row_by_row(parts: tuple[Any, Any]) -> None:
    processor, model = parts
    ids, vision = rows_of(processor)[0]
    tokens = torch.tensor([ids, ids])
    with pytest.raises(ValueError, match=r"row 1: .* image placeholder tokens for 0"):
        families.forward_inputs(model, tokens, torch.ones_like(tokens), [vision, []])


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_dummy_inputs_call_the_vision_tower_as_often_as_asked(parts: tuple[Any, Any], calls: int) -> None:
    _, model = parts
    if model.config.model_type == "glm4v":  # pictures and clips go through the tower together
        calls = min(calls, 1)
    seen = []
    hook = families.base_model(model).visual.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        out = model(**families.dummy_inputs(model, calls))
    hook.remove()
    assert len(seen) == calls
    assert torch.isfinite(out.logits).all()


def test_base_model_under_adapters(parts: tuple[Any, Any]) -> None:
    import copy

    from peft import LoraConfig, get_peft_model

    processor, model = parts
    wrapped = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules=["q_proj"]))
    assert hasattr(families.base_model(wrapped), "visual")
    assert len(families.decoder_layers(wrapped)) == 4
    ids, vision = rows_of(processor)[0]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        inputs = families.forward_inputs(wrapped, tokens, torch.ones_like(tokens), [vision])
        torch.testing.assert_close(wrapped(**inputs).logits, model(**inputs).logits)


def test_other_families_are_refused() -> None:
    with pytest.raises(ValueError, match=r"llava.*mmrl/families.py"):
        families.check_family("llava")
    with pytest.raises(ValueError, match="no get_rope_index"):
        families.base_model(torch.nn.Linear(1, 1))


# --- banned tokens ------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-30, 30), min_size=4, max_size=12), st.data())
@settings(max_examples=50, deadline=None)
def test_banned_tokens_have_no_probability_and_no_gradient(values: list[float], data: st.DataObject) -> None:
    banned = data.draw(st.sets(st.integers(0, len(values) - 1), max_size=len(values) - 1))
    logits = torch.tensor(values, requires_grad=True)
    logp = families.mask_banned(logits, tuple(banned)).log_softmax(-1)
    probs = logp.exp()
    assert all(probs[i] == 0 for i in banned)
    rest = [v for i, v in enumerate(values) if i not in banned]
    total = math.log(sum(math.exp(v - max(rest)) for v in rest)) + max(rest)
    for i, v in enumerate(values):
        if i not in banned:
            assert logp[i].item() == pytest.approx(v - total, abs=1e-4)
    entropy = -(probs * logp).sum()
    assert torch.isfinite(entropy)
    entropy.backward()
    assert torch.isfinite(logits.grad).all()
    assert all(logits.grad[i] == 0 for i in banned)


def test_masking_makes_float32() -> None:
    assert families.mask_banned(torch.zeros(2, 3, dtype=torch.bfloat16), (1,)).dtype == torch.float32
    assert families.mask_banned(torch.zeros(3), ()).tolist() == [0, 0, 0]
