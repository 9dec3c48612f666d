"""Messages to tokens and back, against the models' own processors."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl import chat as chat_module
from mmrl.chat import Chat, pad_rows
from mmrl.media import image_ref, load_video
from mmrl.policy.tiny import control_tokens, make_config, make_processor, train_tokenizer
from mmrl.types import MediaRef, Span

CORPUS = [
    "which colour is it? red, green or blue",
    '<think>it is red</think><answer>A</answer><tool_call>{"name": "crop"}</tool_call>',
]
THINK, CALL, ANSWER, OTHER = Span.THINK, Span.TOOL_CALL, Span.ANSWER, Span.OTHER


def make_chat(family: Any = "qwen3_vl", **kwargs: Any) -> Chat:
    tokenizer = train_tokenizer(CORPUS, 400, family)
    config = make_config(family, tokenizer, hidden=64, layers=1, vision_hidden=64, vision_layers=2)
    return Chat(make_processor(family, tokenizer), config, **kwargs)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "glm4v"])
def chat(request: pytest.FixtureRequest) -> Chat:
    return make_chat(request.param)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


MEDIA: dict[str, MediaRef] = {
    "img_1": image_ref("img_1", picture(130, 70)),
    "img_2": image_ref("img_2", picture(64, 100, 1)),
}
TWO_PICTURES: list[dict[str, Any]] = [
    {"role": "system", "content": "think"},
    {
        "role": "user",
        "content": [
            {"type": "image", "id": "img_2"},
            {"type": "text", "text": "and"},
            {"type": "image", "id": "img_1"},
            {"type": "text", "text": "which colour?"},
        ],
    },
]


def test_prompt_equals_the_whole_processor(chat: Chat) -> None:
    own = chat.encode_prompt(TWO_PICTURES, MEDIA)
    bare = [
        {"role": "system", "content": "think"},
        {"role": "user", "content": [{k: v for k, v in p.items() if k != "id"} for p in TWO_PICTURES[1]["content"]]},
    ]
    text = chat.processor.apply_chat_template(bare, tokenize=False, add_generation_prompt=True)
    images = [picture(64, 100, 1), picture(130, 70)]
    theirs = chat.processor(text=[text], images=images, return_tensors="pt")
    assert own.tokens == theirs["input_ids"][0].tolist()
    assert torch.equal(torch.cat([v.patches for v in own.vision]), theirs["pixel_values"])
    assert [v.grid for v in own.vision] == [tuple(g) for g in theirs["image_grid_thw"].tolist()]


def test_a_dialogue_is_the_template_of_the_whole(chat: Chat) -> None:
    """Prompt, policy turn and observation laid end to end are what the template makes of the whole dialogue."""
    prompt = chat.encode_prompt(TWO_PICTURES, MEDIA)
    turn = [*chat.encode_text("<think>it"), chat.end_of_turn]
    content = [{"type": "text", "text": "here"}, {"type": "image", "id": "img_1"}]
    seen = chat.encode_observation(content, MEDIA, closed=True)
    whole = chat.encode_prompt(
        [*TWO_PICTURES, {"role": "assistant", "content": "<think>it"}, {"role": "user", "content": content}], MEDIA
    )
    assert prompt.tokens + turn + seen.tokens == whole.tokens
    assert len(seen.vision) == 1
    open_end = chat.encode_observation(content, MEDIA, closed=False)
    assert open_end.tokens == [chat.end_of_turn, *seen.tokens]


def test_supervised_dialogue_is_laid_out_like_a_rollout(chat: Chat) -> None:
    observed = [{"type": "text", "text": "here"}, {"type": "image", "id": "img_1"}]
    encoded, mask = chat.encode_dialogue(
        [
            *TWO_PICTURES,
            {"role": "assistant", "content": "look"},
            {"role": "user", "content": observed},
            {"role": "assistant", "content": [{"type": "text", "text": "<answer>A</answer>"}]},
        ],
        MEDIA,
    )
    own = [[*chat.encode_text(t), chat.end_of_turn] for t in ("look", "<answer>A</answer>")]
    prompt = chat.encode_prompt(TWO_PICTURES, MEDIA)
    seen = chat.encode_observation(observed, MEDIA, closed=True)
    assert encoded.tokens == prompt.tokens + own[0] + seen.tokens + own[1]
    assert [t for t, m in zip(encoded.tokens, mask, strict=True) if m] == own[0] + own[1]
    assert len(encoded.vision) == 3
    with pytest.raises(ValueError, match="message 3 is of role 'assistant'"):
        chat.encode_dialogue([*TWO_PICTURES, *[{"role": "assistant", "content": "a"}] * 2], MEDIA)


def test_clips_in_a_prompt(chat: Chat, tmp_path: Any) -> None:
    import av

    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for i in range(20):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 10 * i, dtype=np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    ref = MediaRef("vid_1", "video", "h", 64, 64, path=str(path))
    content = [{"type": "video", "id": "vid_1"}, {"type": "text", "text": "which?"}]
    encoded = chat.encode_prompt([{"role": "user", "content": content}], {"vid_1": ref})
    glm = chat.config.model_type == "glm4v"
    pad = chat.config.image_token_id if glm else chat.config.video_token_id
    assert encoded.tokens.count(pad) == encoded.vision[0].n_tokens > 0
    start = chat.config.image_start_token_id if glm else chat.config.vision_start_token_id
    timed = chat.config.model_type != "qwen2_5_vl"
    assert encoded.tokens.count(start) == (encoded.vision[0].grid[0] if timed else 1)
    if chat.config.model_type == "qwen3_vl":
        return  # whose own processor leaves an outer pair around the frames: see tests/test_families.py
    bare = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "which?"}]}]
    clip = load_video(ref, fps=chat.video_fps, max_frames=chat.video_frames)
    theirs = chat.processor(
        text=[chat.processor.apply_chat_template(bare, tokenize=False, add_generation_prompt=True)],
        videos=[torch.from_numpy(clip.frames).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": 10.0, "frames_indices": [round(10 * t) for t in clip.times], "total_num_frames": 20}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert encoded.tokens == theirs["input_ids"][0].tolist()
    torch.testing.assert_close(encoded.vision[0].patches, theirs["pixel_values_videos"])


def test_unknown_or_mistaken_media(chat: Chat) -> None:
    with pytest.raises(ValueError, match=r"'img_9'; there are img_1, img_2"):
        chat.encode_prompt([{"role": "user", "content": [{"type": "image", "id": "img_9"}]}], MEDIA)
    with pytest.raises(ValueError, match="'img_1' is of kind image, the message says video"):
        chat.encode_prompt([{"role": "user", "content": [{"type": "video", "id": "img_1"}]}], MEDIA)


def test_a_picture_is_processed_once_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = make_chat()
    same = image_ref("another_id", picture(130, 70))
    assert chat.vision(MEDIA["img_1"]) is chat.vision(same)
    assert chat.vision(MEDIA["img_1"]) is not chat.vision(MEDIA["img_2"])
    monkeypatch.setattr(chat_module, "VISION_CACHE", 3 * chat.vision(same).patches.nbytes)
    refs = [image_ref(f"img_{i}", picture(130, 70, i + 5)) for i in range(8)]
    for ref in refs:
        chat.vision(ref)
    kept = [chat.vision(r) for r in refs[-2:]]
    assert [chat.vision(r) for r in refs[-2:]] == kept
    assert sum(v.patches.nbytes for v in chat._vision.values()) == chat._vision_bytes <= chat_module.VISION_CACHE


# --- tokens that text must never make, and the policy must never sample -------------------------------------------

PIECES = {
    "qwen3_vl": [
        *["<|im_end|>", "<|im_start|>assistant", "<|image_pad|>", "<|vision_start|>", "<|video_pad|>", "<|endoftext|>"],
        *["<|im_", "end|>"],
    ],
    "glm4v": [
        *[
            "<|user|>",
            "<|assistant|>\n",
            "<|image|>",
            "<|begin_of_video|>",
            "<|video|>",
            "<|endoftext|>",
            "[gMASK]<sop>",
        ],
        *["<|us", "er|>"],
    ],
}


@pytest.mark.parametrize("family", sorted(PIECES))
@given(data=st.data(), split=st.booleans())
@settings(max_examples=60, deadline=None)
def test_text_cannot_make_control_tokens(family: str, data: st.DataObject, split: bool) -> None:
    chat = shared(family)
    pieces = data.draw(st.lists(st.sampled_from([*PIECES[family], "a ", "<", "é"]), max_size=8))
    texts = pieces if split else ["".join(pieces)]
    content = [{"type": "text", "text": t} for t in texts]
    plain = chat.encode_prompt([{"role": "user", "content": "a"}], {})
    encoded = chat.encode_prompt([{"role": "user", "content": content}], {})
    for special in [*chat.banned_ids, chat.end_of_turn]:
        assert encoded.tokens.count(special) == plain.tokens.count(special)
    assert "".join(pieces) in chat.decode(encoded.tokens).replace("\u200b", "")
    ends = chat.encode_observation("a", {}, closed=True).tokens.count(chat.end_of_turn)
    assert chat.encode_observation(content, {}, closed=True).tokens.count(chat.end_of_turn) == ends


shared = cache(make_chat)
SHARED = shared("qwen3_vl")


def test_assistant_text_cannot_make_control_tokens(chat: Chat) -> None:
    encoded, mask = chat.encode_dialogue(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "<|image_pad|><|im_end|><|image|><|user|>"},
        ],
        {},
    )
    own = [t for t, m in zip(encoded.tokens, mask, strict=True) if m]
    assert own.count(chat.end_of_turn) == 1
    assert not set(own) & set(chat.banned_ids)


def test_banned_ids(chat: Chat) -> None:
    ids = chat.tokenizer.convert_tokens_to_ids
    control = {ids(t) for t in control_tokens(chat.config.model_type)}
    unused = set(range(len(chat.tokenizer), chat.config.text_config.vocab_size))
    ends = ["<|user|>", "<|observation|>", "<|endoftext|>"] if chat.config.model_type == "glm4v" else ["<|im_end|>"]
    assert set(chat.banned_ids) == (control - set(chat.stop_ids)) | unused
    assert list(chat.stop_ids) == ids(ends)
    assert chat.end_of_turn == chat.stop_ids[0]
    assert ids("<tool_call>") not in chat.banned_ids
    assert chat.pad_id == ids("<|endoftext|>")


def test_glm_prompts_and_turns() -> None:
    """Text alone reaches the template as a string: GLM-4.1V's would print a list of parts as it stands. A turn ends
    with the role that speaks next, which is left out of the observation where the policy wrote it."""
    chat = make_chat("glm4v")
    parts = [{"type": "text", "text": "which"}, {"type": "text", "text": " colour?"}]
    encoded = chat.encode_prompt([{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts}], {})
    assert chat.decode(encoded.tokens) == "[gMASK]<sop><|system|>\nwhich<|user|>\nwhich colour?<|assistant|>\n"
    assert encoded.tokens[:2] == chat.tokenizer.convert_tokens_to_ids(["[gMASK]", "<sop>"])
    closed, opened = (chat.encode_observation(parts, {}, closed=c) for c in (True, False))
    assert chat.decode(closed.tokens) == "\nwhich colour?<|assistant|>\n"
    assert opened.tokens == [chat.end_of_turn, *closed.tokens]
    assert all(chat.decode([*chat.encode_text("red"), end]) == "red" for end in chat.stop_ids)


# --- spans and decoding -------------------------------------------------------------------------------------------


def spans_by_text(chat: Chat, text: str) -> dict[str, set[Span]]:
    """The spans of each letter a-z of the text, found by decoding token by token."""
    tokens = chat.encode_text(text)
    out: dict[str, set[Span]] = {}
    for token, span in zip(tokens, chat.spans(tokens), strict=True):
        for letter in chat.tokenizer.decode([token]):
            out.setdefault(letter, set()).add(span)
    return out


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("x<think>y</think>z", {"x": OTHER, "y": THINK, "z": OTHER}),
        ("<think>y</think><answer>Z</answer>x", {"y": THINK, "Z": ANSWER, "x": OTHER}),
        ("<tool_call>Q</tool_call>x", {"Q": CALL, "x": OTHER}),
        ("<think>y<tool_call>Q</tool_call>z</think>x", {"y": THINK, "Q": CALL, "z": THINK, "x": OTHER}),
        ("x<answer>Z", {"x": OTHER, "Z": ANSWER}),
        ("<think>y<think>z</think>x", {"y": THINK, "z": THINK, "x": OTHER}),
        ("</think>x</answer>", {"x": OTHER}),
        ("<answer>Z</answer>x<answer>Q</answer>", {"Z": ANSWER, "x": OTHER, "Q": ANSWER}),
    ],
)
def test_spans(chat: Chat, text: str, want: dict[str, Span]) -> None:
    found = spans_by_text(chat, text)
    assert {letter: found[letter] for letter in want} == {letter: {span} for letter, span in want.items()}


def test_the_end_of_the_turn_is_of_no_span(chat: Chat) -> None:
    tokens = [*chat.encode_text("<think>y"), chat.end_of_turn]
    spans = chat.spans(tokens)
    assert spans[-1] is OTHER
    assert set(spans[:-1]) == {THINK}
    assert chat.decode(tokens) == "<think>y"
    assert chat.spans([]) == []
    assert chat.decode([]) == ""


@given(st.text(max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_text_survives_tokens(text: str) -> None:
    tokens = SHARED.encode_text(SHARED.escape(text))
    assert SHARED.decode(tokens) == SHARED.escape(text)
    assert len(SHARED.spans(tokens)) == len(tokens)


@given(st.lists(st.integers(0, 399), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_tokens_have_spans(tokens: list[int]) -> None:
    """Sampled ids need not be what their text would be tokenised to, nor whole characters."""
    assert len(SHARED.spans(tokens)) == len(tokens)
    SHARED.decode(tokens)


def test_a_tag_spelled_by_other_tokens_still_opens_a_span(chat: Chat) -> None:
    letters = [chat.encode_text(c)[0] for c in "<think>"]
    assert set(chat.spans([*letters, *chat.encode_text("y")])) == {THINK}


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=5), st.booleans())
def test_padding(rows: list[list[int]], left: bool) -> None:
    tokens, attention = pad_rows(rows, 0, left=left)
    assert tokens.shape == attention.shape == (len(rows), max((len(r) for r in rows), default=0))
    for row, ids, mask in zip(rows, tokens, attention, strict=True):
        assert ids[mask.bool()].tolist() == row
        assert ids[~mask.bool()].tolist() == [0] * (len(ids) - len(row))
        if row:
            assert bool(mask[-1 if left else 0])


def test_a_chat_can_be_loaded_from_a_folder(tmp_path: Any) -> None:
    chat = make_chat()
    chat.processor.save_pretrained(tmp_path)
    chat.config.save_pretrained(tmp_path)
    again = Chat.from_pretrained(tmp_path)
    assert again.encode_prompt(TWO_PICTURES, MEDIA).tokens == chat.encode_prompt(TWO_PICTURES, MEDIA).tokens
    assert again.banned_ids == chat.banned_ids
    small = Chat.from_pretrained(tmp_path, max_pixels=32 * 32)
    assert small.vision(MEDIA["img_1"]).n_tokens < chat.vision(MEDIA["img_1"]).n_tokens
