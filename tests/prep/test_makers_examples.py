"""The worked examples of the methods that make data, each through a small adapter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mmrl_prep.puzzles import orders
from mmrl_prep.puzzles.clips import clip_ranges
from mmrl_prep.puzzles.grid import edges
from mmrl_prep.questions import OptionQuestion, frame_budget, invert

FOLDER = Path(__file__).parents[1] / "worked_examples_prep"
Adapter = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]]


def visual_jigsaw(params: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
    ranges = clip_ranges(inputs["total_frames"], inputs["clips"], inputs["trim"])
    out = {
        "answer": [[slot + 1 for slot in orders.inverse(order)] for order in inputs["order"]],
        "clip_ranges": [list(r) for r in ranges],
    }
    if "width" in inputs:
        out |= {
            "x_edges": edges(inputs["width"], inputs["cols"]),
            "y_edges": edges(inputs["height"], inputs["rows"]),
        }
    return out


def puzzlecraft(params: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
    """Shuffling and undoing; the rewards of the example belong to the rewards."""
    shown = orders.show(inputs["tiles"], inputs["permutation"])
    return {"shuffled": shown, "restored": orders.restore(shown, inputs["permutation"])}


def budget(params: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
    return {"frame_budget": [frame_budget(k, params["choices"], params["seed"]) for k in inputs["prompt_key"]]}


def qai(params: dict[str, Any], inputs: dict[str, Any]) -> Mapping[str, Any]:
    question = OptionQuestion(inputs["question"], tuple(inputs["options"]), (inputs["answer_index"],))
    made = invert(question, inputs["order"])
    return {"question": made.text, "options": list(made.options), "answer": made.letters}


ADAPTERS: dict[str, Adapter] = {
    "visual-jigsaw-data": visual_jigsaw,
    "puzzlecraft-puzzles": puzzlecraft,
    "para-frame-budget": budget,
    "qai": qai,
}
CASES = [
    pytest.param(path.stem, data["params"], case, id=f"{path.stem}: {case['title']}")
    for path in sorted(FOLDER.glob("*.json"))
    for data in [json.loads(path.read_text())]
    for case in data["cases"]
]


@pytest.mark.parametrize(("name", "params", "case"), CASES)
def test_example(name: str, params: dict[str, Any], case: dict[str, Any]) -> None:
    found = ADAPTERS[name](params, case["inputs"])
    assert found == {k: v for k, v in case["expected"].items() if k in found}
    assert set(case["expected"]) - set(found) <= {"reward"}


def test_every_adapter_has_its_example() -> None:
    assert {case.values[0] for case in CASES} == set(ADAPTERS)
