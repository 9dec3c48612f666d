"""Tasks that use tools: their names exist, and samples of their makers played by a known way get full reward."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.media import image_ref
from mmrl.registry import bind, get
from mmrl.rewards import score
from mmrl.rollout import call_tool
from mmrl.rollout.tools import ToolContext
from mmrl.types import Answer, Origin, Sample, ToolCall, Trajectory, Turn
from mmrl_prep.puzzles import Puzzle, PuzzleOptions
from mmrl_prep.rng import generator
from mmrl_tools import screens
from mmrl_tools.gridworld import MOVES, Grid, distances

TASKS = {
    "looking": ("visual_search", "counting", "measuring", "jigsaw_board"),
    "searching": ("document_qa", "long_video_qa", "multihop_search"),
    "playing": ("points24", "gridworld", "screen"),
    "safety": ("safety",),
    "asking": ("clarify",),
}
NAMES = [name for names in TASKS.values() for name in names]
MAKERS = {"visual_search": "search", "counting": "counting", "measuring": "measuring", "points24": "points24"}
FORM = "<think>look</think><answer>{}</answer>"

for module in TASKS:
    importlib.import_module(f"mmrl_tasks.{module}")
for module in ("ask_user", "board", "clips", "documents", "gallery", "games", "marks", "ocr", "screen", "text_search"):
    importlib.import_module(f"mmrl_tools.{module}")
for module in ("clarify", "environment", "expression", "looked", "partial", "safety"):
    importlib.import_module(f"mmrl.rewards.{module}")


def photo() -> Image.Image:
    blocks = np.random.default_rng(1).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((480, 360), Image.Resampling.BICUBIC)


def sample_of(task: str, puzzle: Puzzle) -> Sample:
    media = tuple(image_ref(f"img_{n + 1}", image) for n, image in enumerate(puzzle.images))
    content = [*({"type": "image", "id": m.id} for m in media), {"type": "text", "text": puzzle.question}]
    meta = json.loads(json.dumps(puzzle.meta))  # as a shard holds it
    return Sample("k", media, ({"role": "user", "content": content},), puzzle.answer, task, meta)


def made(task: str, number: int = 0) -> Sample:
    maker = importlib.import_module(f"mmrl_prep.puzzles.{MAKERS.get(task, task)}")
    return sample_of(task, maker.make(photo(), generator(0, str(number)), PuzzleOptions(size=192)))


def played(sample: Sample, calls: list[ToolCall], answer: Any) -> Trajectory:
    """One call a turn, then the answer, scored by the sample's task."""
    task = get("task", sample.task).obj
    prompt = task.prompt(sample)
    where = ToolContext({m.id: m for m in sample.media}, sample=sample)
    out = Trajectory(
        prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[], media=where.media
    )
    for call in calls:
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
        result = call_tool(call, where, prompt.tools)
        assert result.fault is None
        text = f"<tool_call>{body}</tool_call>"
        out.turns.append(Turn(Origin.POLICY, text, 0, 0, calls=(call,), results=(result,)))
        out.turns.append(Turn(Origin.OBSERVATION, result.text, 0, 0))
    out.turns.append(Turn(Origin.POLICY, FORM.format(answer), 0, 0))
    score([out], task.rewards)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_a_task_uses_is_there(name: str) -> None:
    task = get("task", name).obj
    assert task.name == name
    for reward in task.rewards:
        assert bind("reward", reward, {})
    prompt = task.prompt(Sample("k", (), ({"role": "user", "content": "?"},), Answer("text", "x"), name))
    system = prompt.messages[0]["content"]
    assert prompt.tools == task.tools
    assert all(f'"name": "{tool}"' in system for tool in task.tools)
    assert ("<tools>" in system) == bool(task.tools)
    assert len(system) < 3600  # schemas cost prompt tokens


def grid_moves(sample: Sample) -> list[ToolCall]:
    """Down the distances, cell by cell."""
    grid = Grid(tuple(sample.meta["gridworld"]["rows"]))
    left, place, calls = distances(grid), grid.start, []
    while left[place]:
        move = next(m for m in MOVES if left.get(grid.step(place, m), 99) < left[place])
        place = grid.step(place, move)
        calls.append(ToolCall("move", {"moves": [move]}))
    return calls


def screen_actions(sample: Sample) -> list[ToolCall]:
    """As the question says it: open the section, the page, fill in, switch on, press."""
    app = sample.meta["app"]
    at, values = app["goal"]["screen"], app["goal"]["values"]

    def tap(name: str, text: str) -> ToolCall:
        row = [r["text"] for r in app["screens"][name]["rows"]].index(text)
        x1, y1, x2, y2 = screens.box_of(row)
        return ToolCall("tap", {"point": [(x1 + x2) / 2, (y1 + y2) / 2]})

    section, page = at.split("/")
    calls = [tap("home", section), tap(section, page)]
    for name, value in values.items():
        calls.append(tap(at, name.split("/")[2]))
        calls += [ToolCall("type", {"text": value})] if isinstance(value, str) else []
    return [*calls, tap(at, app["screens"][at]["rows"][-1]["text"])]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("task", ["gridworld", "screen"])
def test_the_shortest_way_and_the_code_it_shows_are_worth_everything(task: str, number: int) -> None:
    sample = made(task, number)
    calls = grid_moves(sample) if task == "gridworld" else screen_actions(sample)
    assert len(calls) == sample.meta["shortest"]
    whole = played(sample, calls, sample.answer.value)
    assert whole.reward_terms == pytest.approx({"accuracy": 1, "steps": 1, "format": 1, "success": 1})
    assert (whole.reward, whole.correct) == (pytest.approx(2.2), True)
    shown = [t.text for t in whole.turns if t.origin is Origin.OBSERVATION]
    assert str(sample.answer.value) in shown[-1]
    assert not any(str(sample.answer.value) in text for text in shown[:-1])
    half = played(sample, calls[: len(calls) // 2], "no idea")
    expected = {"accuracy": 0, "steps": (len(calls) // 2) / len(calls), "format": 1, "success": 0}
    assert half.reward_terms == pytest.approx(expected)
    assert not half.correct


def test_points24() -> None:
    sample = made("points24")
    solution = sample.meta["solution"]
    right = played(sample, [ToolCall("calculate", {"expression": solution})], solution)
    assert (right.reward_terms, right.reward) == ({"accuracy": 1.0, "format": 1.0}, 1.5)
    assert right.turns[0].results[0].data["success"]
    assert played(sample, [], "1+1").reward_terms == {"accuracy": 0.0, "format": 1.0}


def test_visual_search_pays_for_looking() -> None:
    sample = made("visual_search")
    whole = sample.media[0]
    box = [v * 1000 / side for v, side in zip(sample.meta["target"], (whole.width, whole.height) * 2, strict=True)]
    found = played(sample, [ToolCall("crop", {"image": "img_1", "box": box})], sample.answer.value)
    assert (found.reward_terms, found.correct) == ({"accuracy": 1.0, "format": 1.0, "looked": 1.0}, True)
    assert played(sample, [], sample.answer.value).reward_terms["looked"] == 0


def test_counting_pays_for_nearness() -> None:
    sample = made("counting")
    right = float(sample.answer.value)
    terms = [played(sample, [], n).reward_terms["closeness"] for n in (right, right * 1.05, right + 5)]
    assert terms == pytest.approx([1, 0.5, 0])


def test_measuring_with_the_tool() -> None:
    for number in range(6):
        sample = made("measuring", number)
        whole = sample.media[0]
        points = [[x * 1000 / whole.width, y * 1000 / whole.height] for x, y in sample.meta["points"]]
        call = ToolCall("measure", {"image": "img_1", "what": sample.meta["measures"], "points": points})
        value = played(sample, [call], "A").turns[0].results[0].data["value"]
        nearest = min(sample.answer.options, key=lambda o: abs(float(o) - value))
        assert "ABCD"[sample.answer.options.index(nearest)] == sample.answer.value


def test_safety_and_clarify() -> None:
    tags = "<visual_safe>safe</visual_safe> <text_safe>safe</text_safe> <combined_safe>safe</combined_safe>"
    meta = {"visual_safe": "safe", "text_safe": "safe", "combined_safe": "safe"}
    trajectory = played(Sample("k", (), (), Answer("text", "a kite"), "safety", meta), [], "a kite")
    trajectory.turns[-1].text = f"<think>{tags}</think><answer>a kite</answer>"
    score([trajectory], get("task", "safety").obj.rewards)
    assert (trajectory.reward, trajectory.correct) == (1.0, True)
    user = {"facts": [{"say": "It costs 3."}]}
    lacking = Sample("k", (), (), Answer("number", 6), "clarify", {"missing": True, "user": user})
    ask = [ToolCall("ask_user", {"question": "What does it cost?"})]
    assert played(lacking, ask, 6).reward_terms == pytest.approx({"clarify": 1.0, "format": 1.0})
    assert played(lacking, [], 6).reward_terms == {"clarify": -1.0, "format": 1.0}
    complete = Sample("k", (), (), Answer("number", 6), "clarify", {"missing": False})
    assert played(complete, [], 6).reward_terms["clarify"] == 1.0
