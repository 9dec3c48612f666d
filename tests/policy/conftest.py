"""Tiny models of both families with random weights, and trajectories written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.chat import Chat
from mmrl.media import image_ref
from mmrl.policy.tiny import make_config, make_model, make_processor, train_tokenizer
from mmrl.types import Answer, Origin, Prompt, Sample, Span, Trajectory, Turn


@dataclass(frozen=True)
class Tiny:
    """A tiny model with its chat format."""

    model: Any
    chat: Chat


@pytest.fixture(scope="session", params=["qwen2_5_vl", "qwen3_vl", "glm4v"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tiny(family: Any) -> Tiny:
    """A fresh model each time: tests change the weights."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(["which colour? <think>it is</think><answer>red</answer>"] * 3, 320, family)
    config = make_config(family, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    model = make_model(config, seed=3)
    with torch.no_grad():  # random weights give logits near 0: make them matter
        model.model.language_model.norm.weight.mul_(8)
    return Tiny(model, Chat(make_processor(family, tokenizer, side=32), config))


Speak = Callable[..., Trajectory]


@pytest.fixture
def speak() -> Speak:
    """A function that makes a trajectory of given policy turns, with an observation (a picture) between them."""

    def make(chat: Chat, *turns: str, pictures: int = 1, key: str = "k", group: int = 0, index: int = 0) -> Trajectory:
        rng = np.random.default_rng(len(turns))
        media = {
            f"img_{n + 1}": image_ref(
                f"img_{n + 1}", Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
            )
            for n in range(pictures + len(turns))
        }
        shown = [{"type": "image", "id": f"img_{n + 1}"} for n in range(pictures)]
        messages = ({"role": "user", "content": [*shown, {"type": "text", "text": "which colour?"}]},)
        encoded = chat.encode_prompt(messages, media)
        prompt = Prompt(Sample(key, tuple(media.values()), messages, Answer("text", "red"), "mcq"), messages)
        count = len(encoded.tokens)
        out = Trajectory(
            prompt=prompt,
            group=group,
            index=index,
            tokens=list(encoded.tokens),
            logp=[math.nan] * count,
            origin=[Origin.PROMPT] * count,
            span=[Span.OTHER] * count,
            turn=[-1] * count,
            vision=list(encoded.vision),
        )
        for number, text in enumerate(turns):
            own = [*chat.encode_text(text), chat.end_of_turn]
            _append(out, Origin.POLICY, text, own, -1.0, chat.spans(own), number)
            if number + 1 < len(turns):
                content = [{"type": "image", "id": f"img_{pictures + number + 1}"}]
                seen = chat.encode_observation(content, media, closed=True)
                _append(out, Origin.OBSERVATION, "", seen.tokens, math.nan, [Span.OTHER] * len(seen.tokens), number)
                out.vision += seen.vision
        out.check()
        return out

    return make


def _append(
    out: Trajectory, origin: Origin, text: str, tokens: list[int], logp: float, spans: list[Span], number: int
) -> None:
    start = len(out.tokens)
    out.tokens += tokens
    out.logp += [logp] * len(tokens)
    out.origin += [origin] * len(tokens)
    out.span += spans
    out.turn += [number] * len(tokens)
    out.turns.append(Turn(origin, text, start, len(out.tokens)))
