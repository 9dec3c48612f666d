"""Frame budgets: how many frames of its clips a prompt shows, the same for a group, and the same everywhere later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from media.clips import BIKES, CARPHONE
from pydantic import ValidationError
from tiny_models import ForcedEngine, Tiny, picture

from mmrl.chat import Encoded
from mmrl.config import RolloutConfig, load_config
from mmrl.media import file_ref, image_ref, load_video
from mmrl.policy.logprobs import token_logps
from mmrl.rollout import rollout
from mmrl.rollout.dialogue import begin
from mmrl.types import Answer, FaultKind, MediaRef, Origin, Prompt, Sample, StopReason, Trajectory
from mmrl.view import View, shown_media, with_view

CONFIG = RolloutConfig(group=2, max_new_tokens=50, max_context=8000)
BUDGETS = [4, 8, 16]


def prompt_of(key: str, *media: MediaRef, **meta: Any) -> Prompt:
    parts = [{"type": m.kind, "id": m.id} for m in media]
    user = {"role": "user", "content": [*parts, {"type": "text", "text": "when?"}]}
    return Prompt(Sample(key, media, (user,), Answer("choice", "A"), "mcq", meta), (user,))


def play(tiny: Tiny, *prompts: Prompt, seed: int = 0, **changes: Any) -> list[Trajectory]:
    config = RolloutConfig.model_validate({**CONFIG.model_dump(), **changes})
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: "<answer>A</answer>")
    return rollout(engine, tiny.chat, prompts, config, seed=seed)


def bikes(id: str = "vid_1") -> MediaRef:
    """10 s: 20 frames at 2 fps."""
    return file_ref(id, BIKES, "video")


@pytest.mark.parametrize(("budget", "frames"), [(1, 1), (2, 2), (5, 5), (8, 8), (64, 20), (768, 20)])
def test_the_budget_of_the_sample_is_kept(tiny: Tiny, budget: int, frames: int) -> None:
    found = play(tiny, prompt_of("k", bikes(), frame_budget=budget))
    assert len(found) == 2
    for t in found:
        assert t.faults == []
        assert t.vision[0].grid[0] == -(-frames // 2)
        assert t.tokens.count(tiny.clip_token) == t.vision[0].n_tokens
        assert len(load_video(t.media["vid_1"]).times) == frames
        assert t.prompt.sample.media == (t.media["vid_1"],)
    assert found[0].tokens == found[1].tokens


def test_the_frames_are_spread_over_the_whole_clip(tiny: Tiny) -> None:
    (t, _) = play(tiny, prompt_of("k", bikes(), frame_budget=3))
    assert load_video(t.media["vid_1"]).times == pytest.approx([0, 4.96, 9.96])
    if tiny.family == "qwen3_vl":
        text = tiny.chat.decode(t.tokens)
        assert [s in text for s in ("<2.5 seconds>", "<10.0 seconds>")] == [True, True]


def test_without_a_budget_it_is_the_chats_own(tiny: Tiny) -> None:
    (t, _) = play(tiny, prompt_of("k", bikes()))
    assert t.vision[0].grid[0] == tiny.chat.video_frames // 2 == 8
    assert torch.equal(t.vision[0].patches, tiny.chat.vision(bikes()).patches)


def test_each_clip_has_the_budget_and_pictures_stay(tiny: Tiny) -> None:
    phone = file_ref("vid_2", CARPHONE, "video")
    image = image_ref("img_1", picture(80, 60))
    (t, _) = play(tiny, prompt_of("k", bikes(), image, phone, frame_budget=4))
    assert [(v.kind, v.grid[0]) for v in t.vision] == [("video", 2), ("image", 1), ("video", 2)]
    assert t.media["img_1"] == image
    assert torch.equal(t.vision[1].patches, tiny.chat.vision(image).patches)


def test_a_clip_that_is_a_window_keeps_it(tiny: Tiny) -> None:
    part = with_view(bikes(), View(2.0, 6.0, fps=5, max_frames=10))
    (wide, _) = play(tiny, prompt_of("k", part, frame_budget=64))
    (few, _) = play(tiny, prompt_of("k", part, frame_budget=3))
    assert [len(load_video(t.media["vid_1"]).times) for t in (wide, few)] == [10, 3]
    assert load_video(few.media["vid_1"]).times == pytest.approx([2, 4, 6])


def test_the_recipe_draws_by_the_key(tiny: Tiny) -> None:
    prompts = [prompt_of(f"sample {n}", bikes(), frame_budget=2) for n in range(6)]
    first = play(tiny, *prompts, frame_budgets=BUDGETS)
    drawn = [2 * t.vision[0].grid[0] for t in first]
    assert drawn[::2] == drawn[1::2]  # one budget a group
    assert set(drawn) <= set(BUDGETS)
    again = play(tiny, *reversed(prompts), seed=99, frame_budgets=BUDGETS)  # another step, in another order
    assert [2 * t.vision[0].grid[0] for t in reversed(again)] == drawn
    # as another process drew them: nothing depends on Python's hash of a text
    assert drawn[::2] == [16, 8, 4, 8, 8, 16]


def test_draws_are_even() -> None:
    asked: list[int | None] = []

    class Listening:
        end_of_turn = 0

        def shown(self, sample: Sample, budget: int | None) -> dict[str, MediaRef]:
            asked.append(budget)
            return {}

        def encode_prompt(self, messages: Any, media: Any) -> Any:
            return Encoded([1], [])

    config = RolloutConfig(frame_budgets=BUDGETS)
    for n in range(3000):
        begin(Listening(), prompt_of(f"key {n}"), 0, config, seed=0, size=1)  # type: ignore[arg-type]
    counts = [asked.count(b) for b in BUDGETS]
    assert sum(counts) == 3000
    assert min(counts) > 850


@pytest.mark.parametrize("budget", [0, -4, 769, 10**9, "8", 8.0, True, None, [8]])
def test_a_budget_that_is_none_is_a_fault_of_the_sample(tiny: Tiny, budget: Any) -> None:
    bad, _, good, _ = play(tiny, prompt_of("bad", bikes(), frame_budget=budget), prompt_of("good", bikes()))
    assert [(f.kind, f.code) for f in bad.faults] == [(FaultKind.TASK, "frame_budget")]
    assert (bad.stop, bad.length) == (StopReason.FAULT, 0)
    assert f"a frame budget of {budget!r}: it must be 1 to 768" in bad.faults[0].message
    assert good.faults == []
    only_pictures = play(tiny, prompt_of("k", image_ref("img_1", picture(60, 60)), frame_budget=budget))
    assert only_pictures[0].faults == []


@pytest.mark.parametrize("budgets", [[0], [769], [4, -1], ["x"]])
def test_budgets_of_a_recipe_are_checked(budgets: list[Any]) -> None:
    with pytest.raises(ValidationError, match="frame_budgets"):
        RolloutConfig(frame_budgets=budgets)


def test_budgets_are_set_in_a_recipe() -> None:
    assert load_config("grpo", ["rollout.frame_budgets=[4, 8, 16]"]).rollout.frame_budgets == BUDGETS


def test_training_takes_what_the_rollout_saw(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs of the trainer are the engine's, and no clip is read again: the budget cannot be lost on the way."""
    found = play(tiny, prompt_of("a", bikes()), prompt_of("b", bikes(), frame_budget=3), frame_budgets=[])
    assert [t.vision[0].grid[0] for t in found] == [8, 8, 2, 2]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a clip was read again")

    monkeypatch.setattr("mmrl.chat.load_video", refuse)
    monkeypatch.setattr(type(tiny.chat), "vision", refuse)
    logp, _ = token_logps(tiny.model, tiny.chat, found)
    for row, t in zip(logp, found, strict=True):
        mine = [i for i, o in enumerate(t.origin) if o is Origin.POLICY]
        assert row[mine].numpy() == pytest.approx(np.array([t.logp[i] for i in mine]), abs=2e-3)


def test_shown_media_leave_the_sample_alone() -> None:
    sample = prompt_of("k", bikes(), frame_budget=4).sample
    out = shown_media(sample, 2.0, 16)
    assert "window" not in sample.media[0].info
    assert out["vid_1"].info["window"] == {"fps": 2.0, "max_frames": 4, "min_frames": 1}
    assert shown_media(sample, 1.0, 16, 7)["vid_1"].info["window"]["max_frames"] == 7
    assert shown_media(replace(sample, meta={}), 1.0, 9)["vid_1"].info["window"]["max_frames"] == 9
