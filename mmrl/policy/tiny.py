"""Vision-language models of a few million parameters, made from nothing: tokenizer, processor and architecture.

`scripts/build_tiny_vlm.py` pretrains the Qwen3-VL one that mmrl carries; tests use both families with random weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TinyFamily = Literal["qwen2_5_vl", "qwen3_vl"]

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = tuple(f"<{slash}{name}>" for name in ("think", "answer", "tool_call", "tool_response") for slash in ("", "/"))

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(corpus: Iterable[str], vocab_size: int = 1024) -> Any:
    """A byte-level BPE tokenizer trained on `corpus`: every text can be encoded.

    Lines, option letters and digits are kept apart; within a line, merges may span words, so that the long fixed texts
    of a system message cost a tiny model few tokens.
    """
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n|[A-Z]\) "), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[c for c in CONTROL if c not in ("<|im_end|>", "<|endoftext|>")],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(TAGS))  # ordinary added tokens: a policy may write them
    return tokenizer


def make_processor(family: TinyFamily, tokenizer: Any, *, side: int = 64) -> Any:
    """The family's own processor with pictures resized to about `side` x `side` pixels (never beyond that area)."""
    from transformers import (
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    patch = 16 if family == "qwen3_vl" else 14
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": max(side * side, (2 * patch) ** 2)}
    shared: dict[str, Any] = {
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    image_processor = Qwen2VLImageProcessor(size=size, **shared)
    video_class, processor_class = (
        (Qwen3VLVideoProcessor, Qwen3VLProcessor)
        if family == "qwen3_vl"
        else (Qwen2VLVideoProcessor, Qwen2_5_VLProcessor)
    )
    frames = 8 if family == "qwen3_vl" else 1  # Qwen3-VL bounds the area of all frames together
    video_size = {"shortest_edge": size["shortest_edge"], "longest_edge": size["longest_edge"] * frames}
    return processor_class(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=video_class(size=video_size, **shared),
        chat_template=CHAT_TEMPLATE,
    )


def make_config(
    family: TinyFamily,
    tokenizer: Any,
    *,
    hidden: int = 128,
    layers: int = 4,
    vision_hidden: int = 96,
    vision_layers: int = 3,
    grid: int = 8,
) -> Any:
    """Configuration of a tiny model; `grid` is the side of the vision tower's table of learned positions."""
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    head = 32
    text: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // head,
        "num_key_value_heads": max(1, hidden // head // 2),
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    vision: dict[str, Any] = {
        "depth": vision_layers,
        "hidden_size": vision_hidden,
        "intermediate_size": 3 * vision_hidden,
        "num_heads": vision_hidden // head,
        "out_hidden_size": hidden,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    shared = {
        "image_token_id": ids["image_pad"],
        "video_token_id": ids["video_pad"],
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        "tie_word_embeddings": True,
    }
    if family == "qwen3_vl":
        text |= {
            "head_dim": head,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,  # transformers does so without it, vLLM does not
            },
        }
        vision |= {"patch_size": 16, "num_position_embeddings": grid * grid, "deepstack_visual_indexes": [1]}
        return Qwen3VLConfig(text_config=text, vision_config=vision, **shared)
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]}}
    vision |= {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [vision_layers - 1]}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **shared)


def make_model(config: Any, *, seed: int = 0, vision_position_std: float = 0.5) -> Any:
    """A model with random weights from `seed`.

    The vision tower's learned positions start at a large spread: with the usual small one, where a thing stands in a
    picture is not learned in any reasonable time.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = (
            Qwen3VLForConditionalGeneration if config.model_type == "qwen3_vl" else Qwen2_5_VLForConditionalGeneration
        )
        model = kind(config)
        if config.model_type == "qwen3_vl":
            torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=vision_position_std)
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    return model.eval()
