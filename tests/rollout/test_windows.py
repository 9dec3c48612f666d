"""Windows of clips in dialogues: several in a turn, in order, decoded alone, with times of the whole clip."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from media.clips import BIKES, VARIABLE, encode
from tiny_models import ForcedEngine, Tiny, picture, rescore

from mmrl import families
from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.media import content_hash, file_ref, image_ref, media_info, read_times
from mmrl.rollout import rollout
from mmrl.rollout.branch import Branch, branch
from mmrl.rollout.tools import tools_prompt
from mmrl.types import Answer, FaultKind, MediaRef, Origin, Prompt, Sample, StopReason, Trajectory
from mmrl.view import View, with_view
from mmrl_tools import clips

TOOLS = ("video_window", "frame_select", "video_info", "crop")
CONFIG = RolloutConfig(group=2, max_new_tokens=400, max_turns=4, max_context=8000)
ANSWER = "<think>x</think><answer>A</answer>"


def call(name: str, video: str = "vid_1", **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'video': video, **arguments}})}</tool_call>"


def prompt_of(*media: MediaRef, shown: bool = True) -> Prompt:
    parts = [{"type": m.kind, "id": m.id} for m in media] if shown else []
    user = {"role": "user", "content": [*parts, {"type": "text", "text": "when?"}]}
    sample = Sample("k", media, (user,), Answer("choice", "A"), "mcq")
    return Prompt(sample, ({"role": "system", "content": tools_prompt(TOOLS)}, user), TOOLS)


def play(tiny: Tiny, prompt: Prompt, *turns: str, config: RolloutConfig = CONFIG) -> list[Trajectory]:
    """The rollouts of policies that write these turns one after the other, then answer."""
    assert clips.told(1.5) == "1.5"  # the tools are registered by the import
    script = [*turns, ANSWER]

    def say(request: Any, continuation: int) -> str:
        return script[tiny.turns(request.tokens) - 1]

    return rollout(ForcedEngine(tiny.model, tiny.chat, say), tiny.chat, [prompt], config, seed=0)


def bikes() -> MediaRef:
    return file_ref("vid_1", BIKES, "video")


def seen_text(tiny: Tiny, t: Trajectory) -> str:
    """The first observation as the policy reads it, each medium as one placeholder."""
    text = tiny.chat.decode(t.tokens[t.turns[1].start : t.turns[1].stop])
    return re.sub(r"(<\|(image|video)(_pad)?\|>)+", r"<\2>", text)


def stamps(tiny: Tiny, times: list[float]) -> str:
    """What stands for a clip of these frames in a text."""
    block = "<|vision_start|><video><|vision_end|>"
    if tiny.family == "qwen2_5_vl":
        return block
    if tiny.family == "glm4v":
        seen = "".join(f"<|begin_of_image|><image><|end_of_image|>{math.floor(t)}" for t in times[::2])
        return f"<|begin_of_video|>{seen}<|end_of_video|>"
    padded = [*times, *times[-1:] * (len(times) % 2)]
    pairs = [(a + b) / 2 for a, b in zip(padded[::2], padded[1::2], strict=True)]
    return "".join(f"<{t:.1f} seconds>{block}" for t in pairs)


FIRST, SECOND = [6.0, 6.48, 7.0, 7.48, 8.0], [2.0, 2.32, 2.64, 3.0]


@pytest.mark.parametrize(
    "turn",
    [
        call("video_window", start=6, end=8) + call("video_window", start=2, end=3),
        call("video_window", windows=[[6, 8], [2, 3]]),
    ],
    ids=["two calls", "one call"],
)
def test_two_windows_in_a_turn(tiny: Tiny, turn: str) -> None:
    one, two = play(tiny, prompt_of(bikes()), f"<think>both</think>{turn}")
    assert one.tokens == two.tokens
    assert (one.stop, one.faults) == (StopReason.FINISHED, [])
    assert list(one.media) == ["vid_1", "vid_2", "vid_3"]
    assert [v.kind for v in one.vision] == ["video"] * 3
    assert [v.grid[0] for v in one.vision] == [8, 3, 2]
    pads = [one.tokens[u.start : u.stop].count(tiny.clip_token) for u in one.turns]
    assert pads == [0, sum(v.n_tokens for v in one.vision[1:]), 0]
    assert pads[1] > 0
    lines = ["vid_2: 6-8 s of vid_1, 5 frames", "vid_3: 2-3 s of vid_1, 4 frames"]
    shown = [stamps(tiny, FIRST), stamps(tiny, SECOND)]
    opening, closing = "<tool_response>", "</tool_response>"
    if len(one.turns[0].calls) == 2:
        want = "".join(f"{opening}{line}{closing}{clip}" for line, clip in zip(lines, shown, strict=True))
    else:
        want = f"{opening}{lines[0]}\n{lines[1]}{closing}{shown[0]}{shown[1]}"
    assert want in seen_text(tiny, one)
    assert sum(r.tokens for r in one.turns[0].results) < one.turns[1].stop - one.turns[1].start


def test_windows_are_the_frames_of_a_plain_reading(tiny: Tiny) -> None:
    (t, _) = play(tiny, prompt_of(bikes()), call("video_window", windows=[[6, 8], [2, 3]]))
    for vision, times in zip(t.vision[1:], (FIRST, SECOND), strict=True):
        clip = read_times(BIKES, times)
        assert clip.times == pytest.approx(times)
        plain = families.video_input(tiny.chat.processor, clip.frames, clip.times)
        assert torch.equal(vision.patches, plain.patches)
        assert (vision.grid, vision.text) == (plain.grid, plain.text)
    if tiny.family == "qwen2_5_vl":
        assert [v.seconds_per_grid for v in t.vision[1:]] == pytest.approx([2 * 2 / 4, 2 * 1 / 3])


def test_log_probs_are_those_of_one_pass_over_the_whole(tiny: Tiny) -> None:
    turn = (
        call("video_window", start=6, end=8) + call("frame_select", times=[1, 9]) + call("video_window", start=2, end=3)
    )
    (t, _) = play(tiny, prompt_of(bikes()), turn)
    assert [v.kind for v in t.vision] == ["video", "video", "image", "image", "video"]
    mine = torch.tensor([o is Origin.POLICY for o in t.origin])
    torch.testing.assert_close(torch.tensor(t.logp)[mine], rescore(tiny, t)[mine], atol=2e-3, rtol=0)


def test_a_window_of_a_window_in_the_next_turn(tiny: Tiny) -> None:
    first, inner = call("video_window", start=4, end=6), call("video_window", video="vid_2", start=5, end=5.5)
    (t, _) = play(tiny, prompt_of(bikes()), first, inner)
    assert t.faults == []
    assert t.turns[3].text == "vid_3: 5-5.5 s of vid_1, 4 frames"
    assert t.media["vid_3"].parent == "vid_1"


def test_varying_rates_keep_their_times(tiny: Tiny) -> None:
    data = encode(VARIABLE, b_frames=2)
    width, height, info = media_info(data, "video")
    ref = MediaRef("vid_1", "video", content_hash(data), width, height, data=data, info=info)
    (t, _) = play(tiny, prompt_of(ref), call("video_window", start=0.05, end=2.3))
    # 0.05, 0.55 ... 2.05 s lie in three frames; spread over five points, the end included, they are four
    times = [0.04, 0.12, 1.12, 2.24]
    assert t.turns[0].results[0].data["windows"][0]["times"] == pytest.approx(times, abs=1e-3)
    assert stamps(tiny, times) in seen_text(tiny, t)
    assert t.vision[1].grid[0] == 2


def test_each_window_is_its_own_in_the_cache(tiny: Tiny) -> None:
    ref = bikes()
    views = [View(), View(max_frames=4), View(start=1, end=2), View(start=1, end=2, min_frames=4), View(start=1, end=3)]
    found = [tiny.chat.vision(with_view(ref, v)) for v in views]
    assert len({f.patches.numpy().tobytes() for f in found}) == len(views)
    assert all(tiny.chat.vision(with_view(replace(ref, id="x"), v)) is f for v, f in zip(views, found, strict=True))
    assert tiny.chat.vision(ref) is found[0]  # the chat's own 2 fps and 16 frames


def test_frames_within_an_area(tiny: Tiny) -> None:
    least = (2 * tiny.chat.processor.video_processor.patch_size) ** 2
    config = CONFIG.model_copy(update={"tool_options": {"video_window": {"max_pixels": 2 * least}}})
    (small, _) = play(tiny, prompt_of(bikes()), call("video_window", start=6, end=8), config=config)
    (whole, _) = play(tiny, prompt_of(bikes()), call("video_window", start=6, end=8))
    assert small.vision[1].grid[0] == whole.vision[1].grid[0]
    assert small.vision[1].seen[0] * small.vision[1].seen[1] <= 2 * least
    assert small.vision[1].n_tokens < whole.vision[1].n_tokens
    assert small.turns[0].text == whole.turns[0].text


def test_a_clip_that_does_not_decode_is_a_fault_and_the_dialogue_goes_on(tiny: Tiny) -> None:
    broken = replace(bikes(), data=b"nothing of a clip", path="", hash="broken")
    (t, _) = play(tiny, prompt_of(broken, shown=False), call("video_window", start=6, end=8))
    fault = t.turns[0].results[0].fault
    assert fault is not None
    assert (fault.kind, fault.code, fault.turn) == (FaultKind.TOOL, "bad_media", 0)
    assert t.faults == [fault]
    assert "[vid_2 is not shown: it does not decode: not_media]" in seen_text(tiny, t)
    assert (t.stop, t.vision, list(t.media)) == (StopReason.FINISHED, [], ["vid_1"])


def test_what_does_not_fit_is_left_out_with_a_notice(tiny: Tiny) -> None:
    turn = call("video_window", windows=[[6, 8], [0, 9]])
    config = CONFIG.model_copy(update={"tool_options": {"video_window": {"fps": 8, "max_frames": 64}}})
    (whole, _) = play(tiny, prompt_of(bikes()), turn, config=config)
    assert whole.vision[2].grid[0] == 32
    tight = config.model_copy(update={"max_context": whole.turns[1].stop - 20})
    (t, _) = play(tiny, prompt_of(bikes()), turn, config=tight)
    assert "observation_shrunk" in [f.code for f in t.faults]
    assert "vid_3 is not shown: no room is left for it" in seen_text(tiny, t)
    assert list(t.media) == ["vid_1", "vid_2"]


def test_a_branch_finds_the_clips_as_they_were_shown(tiny: Tiny) -> None:
    image = image_ref("img_1", picture(60, 60))
    config = CONFIG.model_copy(update={"frame_budgets": [5]})
    script = call("video_window", start=6, end=8), call("video_info") + call("video_info", video="vid_2")
    (t, _) = play(tiny, prompt_of(bikes(), image), *script, config=config)
    said = [r.text for r in t.turns[2].results]
    assert said[0].endswith("shown: 5 frames at 0, 2.48, 4.96, 7.44, 9.96 s")
    assert said[1].endswith("shown: 5 frames at 6, 6.48, 7, 7.48, 8 s")
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: script[1] if r.tokens == t.tokens[:at] else ANSWER)
    at = t.turns[1].stop
    ((again,),) = branch(engine, tiny.chat, [Branch(t, at)], config, seed=1)
    assert [r.text for r in again.turns[2].results] == said
    assert np.array_equal(again.tokens, t.tokens)


def test_chats_of_their_own_rate(tiny: Tiny) -> None:
    chat = Chat(tiny.chat.processor, tiny.chat.config, video_fps=1, video_frames=4)
    own = Tiny(tiny.family, tiny.model, chat)
    (t, _) = play(own, prompt_of(bikes()), call("video_info") + call("video_window", start=1, end=3))
    assert t.turns[0].results[0].text.endswith("shown: 4 frames at 0, 3.32, 6.64, 9.96 s")
    assert [v.grid[0] for v in t.vision] == [2, 3]
