"""Tiny models of all families with random weights, and an engine that is forced to write given texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl.chat import Chat
from mmrl.media import image_ref
from mmrl.policy.tiny import TinyFamily, make_config, make_model, make_processor, train_tokenizer
from mmrl.rollout.engine import Request
from mmrl.rollout.tools import tools_prompt
from mmrl.rollout.transformers_engine import TransformersEngine
from mmrl.types import Answer, MediaRef, Prompt, Sample

CROP = '<tool_call>{"name": "crop", "arguments": {"image": "img_1", "box": [0, 0, 500, 500]}}</tool_call>'
ZOOM = '<tool_call>{"name": "zoom", "arguments": {"image": "img_1", "point": [500, 500]}}</tool_call>'
TOOLS = ("crop", "zoom")


@dataclass(frozen=True)
class Tiny:
    """A tiny model with its chat format."""

    family: str
    model: Any
    chat: Chat

    @property
    def header(self) -> str:
        """What opens a turn of the policy."""
        return "<|assistant|>\n" if self.family == "glm4v" else "<|im_start|>assistant\n"

    @property
    def ends(self) -> int:
        """How often the token that ends a policy turn stands in an observation: in GLM-4.1V it only opens it."""
        return 0 if self.family == "glm4v" else 1

    @property
    def clip_token(self) -> int:
        """What the features of a clip replace."""
        config = self.chat.config
        return int(config.image_token_id if self.family == "glm4v" else config.video_token_id)

    def turns(self, tokens: list[int]) -> int:
        """How many turns of the policy these tokens open."""
        return self.chat.decode(tokens).count(self.header)


def build(family: TinyFamily) -> Tiny:
    corpus = [CROP, ZOOM, tools_prompt(TOOLS), "which colour? think and answer: red, blue, green", "img_2: region of"]
    tokenizer = train_tokenizer(corpus, 500, family)
    config = make_config(family, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    model = make_model(config, seed=3)
    with torch.no_grad():  # fresh weights hardly mix tokens: make context and pictures matter
        for name, weight in model.model.named_parameters():
            if weight.ndim == 2 and ("layers." in name or "merger" in name):
                weight.mul_(5)
        model.model.language_model.norm.weight.mul_(6)
    return Tiny(family, model, Chat(make_processor(family, tokenizer), config))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of noise, so that every part of it is different."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_prompt(key: str, text: str, *pictures: Image.Image, tools: tuple[str, ...] = TOOLS) -> Prompt:
    media: tuple[MediaRef, ...] = tuple(image_ref(f"img_{i + 1}", p) for i, p in enumerate(pictures))
    user = {
        "role": "user",
        "content": [*({"type": "image", "id": m.id} for m in media), {"type": "text", "text": text}],
    }
    sample = Sample(key, media, (user,), Answer("choice", "A"), "mcq")
    return Prompt(sample, ({"role": "system", "content": tools_prompt(tools)}, user), tools)


class ForcedEngine(TransformersEngine):
    """Writes what `script` says instead of sampling; log-probs are those of the model.

    `script(request, continuation)` gives the text of a turn, or None to let the model sample.
    """

    def __init__(self, model: Any, chat: Chat, script: Callable[[Request, int], str | None], **options: Any) -> None:
        super().__init__(model, chat, **options)
        self.script = script
        self.end = chat.end_of_turn  # what each turn ends with
        self._forced: dict[tuple[int, int], list[int]] = {}

    def _spell(self, text: str) -> list[int]:
        """A policy cannot sample control tokens, but it can spell them letter by letter."""
        ids = self.chat.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*ids, self.end]

    def _choose(self, rows, logp):  # type: ignore[no-untyped-def]
        token = super()._choose(rows, logp)
        for i, row in enumerate(rows):
            if not row.tokens:
                text = self.script(row.request, row.index)
                self._forced[row.job.ticket, row.index] = [] if text is None else self._spell(text)
            forced = self._forced[row.job.ticket, row.index]
            if len(row.tokens) < len(forced):
                token[i] = forced[len(row.tokens)]
        return token


def rescore(tiny: Tiny, trajectory: Any) -> torch.Tensor:
    """Log-prob of each token [T] by one plain, unpadded, uncached forward pass over the whole trajectory."""
    from mmrl import families

    tokens = torch.tensor([trajectory.tokens])
    with torch.no_grad():
        inputs = families.forward_inputs(tiny.model, tokens, torch.ones_like(tokens), [trajectory.vision])
        logits = tiny.model(**inputs, use_cache=False).logits
    logp = families.mask_banned(logits, tiny.chat.banned_ids).log_softmax(-1)[0]
    out = torch.full((tokens.shape[1],), float("nan"))
    out[1:] = logp[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
    return out
