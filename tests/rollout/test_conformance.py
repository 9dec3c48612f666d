"""The same trajectories through the engines: ids, marks of tokens, media, positions and log-probs are equal.

The policy's turns are given; what they do, what the tools answer and how it is all laid out and scored is the engines'.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from media.clips import BIKES
from tiny_models import CROP, ZOOM, ForcedEngine, Tiny, picture, rescore
from vllm_lent import NEAR, Garage, Lent, Spelled, one_garage, watched

from mmrl import families
from mmrl.config import RolloutConfig
from mmrl.media import file_ref, image_ref
from mmrl.rollout import rollout
from mmrl.rollout.engine import Request
from mmrl.rollout.tools import tools_prompt
from mmrl.types import Answer, MediaRef, Origin, Prompt, Sample, Span, Trajectory
from mmrl_tools import clips

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.xdist_group("vllm"),
]
ANSWER = "<think>x</think><answer>A</answer>"
CONFIG = RolloutConfig(group=2, max_new_tokens=400, max_turns=4, max_context=4000)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def prompt_of(tools: tuple[str, ...], *media: MediaRef) -> Prompt:
    parts = [*({"type": m.kind, "id": m.id} for m in media), {"type": "text", "text": "which?"}]
    user = {"role": "user", "content": parts}
    sample = Sample("k", media, (user,), Answer("choice", "A"), "mcq")
    return Prompt(sample, ({"role": "system", "content": tools_prompt(tools)}, user), tools)


def one() -> MediaRef:
    return image_ref("img_1", picture(120, 90))


def bikes() -> MediaRef:
    return file_ref("vid_1", BIKES, "video")


CASES: dict[str, tuple[Callable[[], Prompt], list[str]]] = {
    "text": (lambda: prompt_of(("crop",)), [ANSWER]),
    "two pictures": (lambda: prompt_of(("crop",), one(), image_ref("img_2", picture(40, 90, 2))), [ANSWER]),
    "crop": (lambda: prompt_of(("crop", "zoom"), one()), [CROP, ANSWER]),
    "crop of a crop": (
        lambda: prompt_of(("crop", "zoom"), one()),
        [CROP, call("crop", image="img_2", box=[100, 100, 900, 900]), ANSWER],
    ),
    "two calls in a turn": (lambda: prompt_of(("crop", "zoom"), one()), [f"<think>x</think>{ZOOM}{CROP}", ANSWER]),
    "bad calls": (
        lambda: prompt_of(("crop", "zoom"), one()),
        ["<tool_call>{broken</tool_call>", call("crop", image="img_7", box=[0, 0, 9, 9]), ANSWER],
    ),
    "a clip between pictures": (
        lambda: prompt_of(("crop",), one(), bikes(), image_ref("img_2", picture(64, 64, 5))),
        [ANSWER],
    ),
    "windows of a clip": (
        lambda: prompt_of(("video_window",), bikes()),
        [call("video_window", video="vid_1", windows=[[6, 8], [2, 3]]), ANSWER],
    ),
}


@pytest.fixture(scope="module")
def garage() -> Iterator[Garage]:
    with one_garage() as out:
        yield out


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "glm4v"])
def lent(request: pytest.FixtureRequest, garage: Garage) -> Lent:
    return garage.get(request.param)


def play(lent: Lent, engine: str, prompt: Prompt, turns: list[str]) -> list[Trajectory]:
    """The rollouts of policies that write these turns."""
    tiny = lent.tiny

    def turn_of(context: list[int]) -> str:
        return turns[tiny.turns(context) - 1]

    forced = ForcedEngine(tiny.model, tiny.chat, lambda request, _: turn_of(request.tokens))
    spelled = Spelled(lent.engine, lambda context: forced._spell(turn_of(context)))
    with spelled.at_work() if engine == "vllm" else nullcontext():
        return rollout(lent.engine if engine == "vllm" else forced, tiny.chat, [prompt], CONFIG, seed=1)


def row_positions(tiny: Tiny, trajectory: Trajectory) -> torch.Tensor:
    """M-RoPE positions [3, T] as the trainer has them."""
    tokens = torch.tensor([trajectory.tokens])
    return families.rope_positions(tiny.model, tokens, torch.ones_like(tokens), [trajectory.vision])[:, 0]


@pytest.mark.parametrize("case", CASES)
def test_trajectories_are_the_same(lent: Lent, case: str) -> None:
    assert clips.told(1.5) == "1.5"  # the tools are registered by the import
    tiny, (make, turns) = lent.tiny, CASES[case]
    prompt = make()
    wanted = play(lent, "transformers", prompt, turns)
    found = play(lent, "vllm", prompt, turns)
    assert len(found) == len(wanted) == 2
    for own, right in zip(found, wanted, strict=True):
        for part in ("tokens", "origin", "span", "turn", "stop", "faults"):
            assert getattr(own, part) == getattr(right, part), part
        assert [(t.origin, t.start, t.stop, t.text) for t in own.turns] == [
            (t.origin, t.start, t.stop, t.text) for t in right.turns
        ]
        assert sum(t.origin is Origin.POLICY for t in own.turns) == len(turns)
        assert Span.ANSWER in own.span
        assert list(own.media) == list(right.media)
        for ours, theirs in zip(own.vision, right.vision, strict=True):
            assert (ours.kind, ours.grid, ours.seconds_per_grid) == (theirs.kind, theirs.grid, theirs.seconds_per_grid)
            assert torch.equal(ours.patches, theirs.patches)
        families.check_counts(tiny.chat.config, torch.tensor([own.tokens]), [own.vision])
        assert own.logp == pytest.approx(right.logp, abs=NEAR, nan_ok=True)
        sampled = ~torch.tensor(own.logp).isnan()
        assert int(sampled.sum()) == own.length > 0
        trained = rescore(tiny, own)
        torch.testing.assert_close(torch.tensor(own.logp)[sampled], trained[sampled], atol=NEAR, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_positions_are_those_of_the_trainer(lent: Lent, case: str) -> None:
    make, turns = CASES[case]
    own = play(lent, "vllm", make(), turns)[0]
    policy = [t for t in own.turns if t.origin is Origin.POLICY]
    last = policy[-1]
    request = Request(
        own.tokens[: last.start], own.vision, 1, seed=0, max_new_tokens=last.stop - last.start, temperature=0.0
    )
    lent.engine.sync()  # nothing is in its caches: all is computed
    with watched(lent.engine) as work, Spelled(lent.engine, lambda _: own.tokens[last.start : last.stop]).at_work():
        ((sampled,),) = lent.engine.generate([request])
    assert sampled.tokens == own.tokens[last.start : last.stop]
    seen = torch.cat(work.read, dim=1)
    assert torch.equal(seen, row_positions(lent.tiny, own)[:, : seen.shape[1]])
    assert seen.shape[1] == last.stop - 1  # all but the last token
    assert work.media == len({id(v) for v in own.vision})
