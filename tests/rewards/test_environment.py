"""What environments pay: steps, success, and the form of every turn."""

from __future__ import annotations

from typing import Any

import pytest

from mmrl.registry import get
from mmrl.rewards.environment import steps, success, turn_format
from mmrl.types import Answer, Fault, FaultKind, Origin, Prompt, Sample, ToolResult, Trajectory, Turn

CALL = '<think>go</think><tool_call>{"name": "move", "arguments": {}}</tool_call>'
FINAL = "<think>there</think><answer>7</answer>"


def played(*turns: tuple[str, list[dict[str, Any]]]) -> Trajectory:
    """Policy turns with the data of the results of their calls."""
    prompt = Prompt(Sample("k", (), (), Answer("number", 7), "gridworld"), ())
    out = Trajectory(prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[])
    for text, results in turns:
        found = tuple(ToolResult("", data=data) for data in results)
        out.turns += [Turn(Origin.POLICY, text, 0, 0, results=found), Turn(Origin.OBSERVATION, "seen", 0, 0)]
    return out


@pytest.mark.parametrize(
    ("results", "total", "reached"),
    [
        ([], 0.0, 0.0),
        ([[{"reward": 0.25}, {"reward": -0.5}], [{"reward": 1}]], 0.75, 0.0),
        ([[{"reward": 0.5, "success": False}], [{"reward": 0.5, "success": True}]], 1.0, 1.0),
        ([[{"success": True}], [{"success": False}]], 0.0, 0.0),
        ([[{"success": True}], [{"value": "24"}]], 0.0, 1.0),
    ],
)
def test_steps_and_success(results: list[list[dict[str, Any]]], total: float, reached: float) -> None:
    trajectory = played(*((CALL, r) for r in results), (FINAL, []))
    assert steps(trajectory) == pytest.approx(total)
    assert success(trajectory) == reached


def test_a_call_that_failed_pays_nothing() -> None:
    trajectory = played((CALL, [{"reward": 0.5, "success": True}]))
    trajectory.turns[0].results += (ToolResult("Error", fault=Fault(FaultKind.POLICY, "ended", "ended")),)
    assert (steps(trajectory), success(trajectory)) == (0.5, 1.0)


def test_task_rewards_of_the_card_mobile_r1() -> None:
    """Score of the trajectory and mean form over its steps: 1 + 2/3, and 0 + 1."""
    two = played((CALL, [{"success": False}]), (CALL, [{"success": True}]), ("talk", []))
    one = played((CALL, [{"success": False}]))
    assert [success(t) + turn_format(t) for t in (two, one)] == pytest.approx([5 / 3, 1.0])
    assert get("reward", "turn_format").paper == "Mobile-R1"


def test_form_of_turns() -> None:
    assert turn_format(played((CALL, []), (FINAL, []))) == 1
    assert turn_format(played((FINAL, []), (FINAL, []))) == 0.5
    assert turn_format(played()) == 0
