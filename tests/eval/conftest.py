"""Tiny models with random weights, samples of one coloured picture, and trajectories written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from PIL import Image

from mmrl.chat import Chat
from mmrl.media import image_ref
from mmrl.policy.tiny import make_config, make_model, make_processor, train_tokenizer
from mmrl.types import Answer, Origin, Prompt, Sample, Span, StopReason, Trajectory, Turn

CORPUS = ["Which colour is the picture? A red B green C blue D grey", "the picture looks red, so it is A"] * 5


def _chat(family: str) -> tuple[Chat, object]:
    tokenizer = train_tokenizer(CORPUS, vocab_size=400)
    config = make_config(family, tokenizer, hidden=64, layers=2, vision_hidden=64, vision_layers=2)
    return Chat(make_processor(family, tokenizer, side=64), config), make_model(config, seed=1)


@pytest.fixture(scope="session", params=["qwen3_vl", "qwen2_5_vl"])
def both(request: pytest.FixtureRequest) -> tuple[Chat, object]:
    """Chat and model of each family in turn."""
    return _chat(request.param)


@pytest.fixture(scope="session")
def tiny() -> tuple[Chat, object]:
    return _chat("qwen3_vl")


def sample(
    key: str, right: str = "A", *, colour: str = "red", task: str = "mcq", source: str = "", options: int = 4
) -> Sample:
    """A multiple-choice question on one picture."""
    image = image_ref("img_1", Image.new("RGB", (64, 64), colour))
    names = ("red", "green", "blue", "grey")[:options]
    text = "Which colour? " + " ".join(f"{letter} {name}" for letter, name in zip("ABCD", names, strict=False))
    content = [{"type": "image", "id": "img_1"}, {"type": "text", "text": text}]
    return Sample(
        key=key,
        media=(image,),
        messages=({"role": "user", "content": content},),
        answer=Answer("choice", right, names),
        task=task,
        meta={"source": source} if source else {},
    )


def trajectory(
    chat: Chat, of: Sample, text: str, *, index: int = 0, stop: StopReason = StopReason.FINISHED
) -> Trajectory:
    """A trajectory of one policy turn that says `text`."""
    prompt = Prompt(of, of.messages)
    media = {m.id: m for m in of.media}
    head = chat.encode_prompt(prompt.messages, media)
    own = [*chat.encode_text(text), *([chat.end_of_turn] if stop is StopReason.FINISHED else [])]
    n, m = len(head.tokens), len(own)
    return Trajectory(
        prompt=prompt,
        group=0,
        index=index,
        tokens=[*head.tokens, *own],
        logp=[math.nan] * n + [-0.5] * m,
        origin=[Origin.PROMPT] * n + [Origin.POLICY] * m,
        span=[Span.OTHER] * n + chat.spans(own),
        turn=[-1] * n + [0] * m,
        vision=head.vision,
        turns=[Turn(Origin.POLICY, text, n, n + m)],
        media=media,
        stop=stop,
    )


@pytest.fixture(scope="session")
def make_sample() -> Callable[..., Sample]:
    return sample


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    return trajectory


@pytest.fixture(scope="session")
def questions() -> Sequence[Sample]:
    return [sample(f"q{i}", "ABCD"[i % 4], colour=("red", "green", "blue", "grey")[i % 4]) for i in range(6)]
