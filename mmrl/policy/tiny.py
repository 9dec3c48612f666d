"""Vision-language models of a few million parameters, made from nothing: tokenizer, processor and architecture.

`scripts/build_tiny_vlm.py` pretrains the Qwen3-VL one that mmrl carries; tests use all families with random weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TinyFamily = Literal["qwen2_5_vl", "qwen3_vl", "glm4v"]

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
GLM_CONTROL = (
    "<|endoftext|>",
    *("[gMASK]", "<sop>"),
    *(f"<|{role}|>" for role in ("system", "user", "assistant", "observation")),
    *(f"<|{end}_of_{kind}|>" for kind in ("image", "video") for end in ("begin", "end")),
    *("<|image|>", "<|video|>"),
)
TAGS = tuple(f"<{slash}{name}>" for name in ("think", "answer", "tool_call", "tool_response") for slash in ("", "/"))

QWEN_IDS = {  # of a configuration: `image_token_id` and so on
    "image": "<|image_pad|>",
    "video": "<|video_pad|>",
    "vision_start": "<|vision_start|>",
    "vision_end": "<|vision_end|>",
}
GLM_IDS = {
    "image": "<|image|>",
    "video": "<|video|>",
    "image_start": "<|begin_of_image|>",
    "image_end": "<|end_of_image|>",
    "video_start": "<|begin_of_video|>",
    "video_end": "<|end_of_video|>",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM_CHAT_TEMPLATE = (  # as GLM-4.1V's own: parts only from the user, no token that ends a message
    "[gMASK]<sop>{% for message in messages %}<|{{ message.role }}|>\n"
    "{% if message.role != 'user' or message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% elif part.type == 'video' %}<|begin_of_video|><|video|><|end_of_video|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def control_tokens(family: TinyFamily) -> tuple[str, ...]:
    """The special tokens of a family, the padding token first."""
    return GLM_CONTROL if family == "glm4v" else CONTROL


def train_tokenizer(corpus: Iterable[str], vocab_size: int = 1024, family: TinyFamily = "qwen3_vl") -> Any:
    """A byte-level BPE tokenizer trained on `corpus`, with the family's special tokens: every text can be encoded.

    Lines, option letters and digits are kept apart; within a line, merges may span words, so that the long fixed texts
    of a system message cost a tiny model few tokens.
    """
    from transformers import PreTrainedTokenizerFast

    control = control_tokens(family)
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
        vocab_size=vocab_size - len(control) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    pad = control[0]
    eos = pad if family == "glm4v" else "<|im_end|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=[c for c in control if c not in (eos, pad)],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(TAGS))  # ordinary added tokens: a policy may write them
    return tokenizer


def make_processor(family: TinyFamily, tokenizer: Any, *, side: int = 64) -> Any:
    """The family's own processor with pictures resized to about `side` x `side` pixels (never beyond that area)."""
    from transformers import (
        Glm4vImageProcessor,
        Glm4vProcessor,
        Glm4vVideoProcessor,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    patch = 16 if family == "qwen3_vl" else 14
    depth = 2 if family == "glm4v" else 1  # GLM-4.1V counts a picture as two frames
    size = {
        "shortest_edge": (2 * patch) ** 2 * depth,
        "longest_edge": max(side * side, (2 * patch) ** 2) * depth,
    }
    shared: dict[str, Any] = {
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    image_class, video_class, processor_class = {
        "qwen2_5_vl": (Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen2_5_VLProcessor),
        "qwen3_vl": (Qwen2VLImageProcessor, Qwen3VLVideoProcessor, Qwen3VLProcessor),
        "glm4v": (Glm4vImageProcessor, Glm4vVideoProcessor, Glm4vProcessor),
    }[family]
    frames = 1 if family == "qwen2_5_vl" else 8 // depth  # the others bound the area of all frames together
    video_size = {"shortest_edge": size["shortest_edge"], "longest_edge": size["longest_edge"] * frames}
    return processor_class(
        image_processor=image_class(size=size, **shared),
        tokenizer=tokenizer,
        video_processor=video_class(size=video_size, **shared),
        chat_template=GLM_CHAT_TEMPLATE if family == "glm4v" else CHAT_TEMPLATE,
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
    from transformers import Glm4vConfig, Qwen2_5_VLConfig, Qwen3VLConfig

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
    names = QWEN_IDS if family != "glm4v" else GLM_IDS
    shared = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
    shared["tie_word_embeddings"] = True
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
    if family == "glm4v":
        text |= {
            "eos_token_id": [tokenizer.convert_tokens_to_ids(f"<|{t}|>") for t in ("endoftext", "user", "observation")],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 3, 3],
            },
        }
        vision |= {"patch_size": 14, "image_size": 14 * grid}
        return Glm4vConfig(text_config=text, vision_config=vision, **shared)
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]}}
    vision |= {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [vision_layers - 1]}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **shared)


def make_model(config: Any, *, seed: int = 0, vision_position_std: float = 0.5) -> Any:
    """A model with random weights from `seed`.

    The vision tower's learned positions start at a large spread: with the usual small one, where a thing stands in a
    picture is not learned in any reasonable time.
    """
    from transformers import (
        Glm4vForConditionalGeneration,
        Qwen2_5_VLForConditionalGeneration,
        Qwen3VLForConditionalGeneration,
    )

    kinds = {
        "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
        "qwen3_vl": Qwen3VLForConditionalGeneration,
        "glm4v": Glm4vForConditionalGeneration,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kinds[config.model_type](config)
        for name, weight in model.model.visual.named_parameters():
            if name in ("pos_embed.weight", "embeddings.position_embedding.weight"):
                torch.nn.init.normal_(weight, std=vision_position_std)
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    return model.eval()
