"""Worked examples of every method, computed by an independent implementation: `--examples DIR` runs another folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from example_adapters import ADAPTERS
from torch import Tensor

OWN = Path(__file__).parent / "worked_examples"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "example" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--examples")
    cases, names = [], []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        if folder != OWN and content["method"] not in ADAPTERS:
            continue  # a folder of examples of all methods, those that mmrl does not have yet among them
        for number, case in enumerate(content["cases"]):
            cases.append((content["method"], {**content.get("params", {}), **case.get("params", {})}, case))
            names.append(f"{path.stem}-{number}")
    if not cases:
        raise pytest.UsageError(f"--examples {folder}: no worked example of a known method")
    metafunc.parametrize("example", cases, ids=names)


def plain(value: Any) -> Any:
    """Tensors as lists and numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def differences(found: Any, expected: Any, tol: float, where: str) -> list[str]:
    """Every place at which `found` is not `expected` within an absolute or relative tolerance."""
    if isinstance(expected, dict):
        missing = [f"{where}.{k} is missing" for k in expected if k not in found]
        return missing + [
            d for k, v in expected.items() if k in found for d in differences(found[k], v, tol, f"{where}.{k}")
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{where}: {found} is not {expected}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for n, (f, e) in pairs for d in differences(f, e, tol, f"{where}[{n}]")]
    if isinstance(expected, int | float) and isinstance(found, int | float):
        if math.isclose(found, expected, rel_tol=tol, abs_tol=tol):
            return []
    elif found == expected:
        return []
    return [f"{where}: {found} is not {expected}"]


def test_worked_example(example: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    method, params, case = example
    found = {k: plain(v) for k, v in ADAPTERS[method](case["inputs"], params).items()}
    wrong = differences(found, case["expected"], case.get("tol", 1e-6), method)
    assert not wrong, "\n".join([case.get("title", ""), *wrong])


def test_every_adapter_has_its_example() -> None:
    assert {json.loads(p.read_text())["method"] for p in OWN.glob("*.json")} == set(ADAPTERS)


@pytest.mark.parametrize("wrong", [0.51, [0.5], "0.5", None, math.nan])
def test_a_wrong_value_is_seen(wrong: Any) -> None:
    assert differences({"a": wrong}, {"a": 0.5}, 1e-5, "x")
    assert differences({"a": [wrong]}, {"a": [0.5]}, 1e-5, "x")
    assert differences({}, {"a": 0.5}, 1e-5, "x")
    assert not differences({"a": 0.5 + 1e-6}, {"a": 0.5}, 1e-5, "x")
