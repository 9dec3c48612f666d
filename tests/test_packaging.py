"""The wheel holds everything, and works unpacked outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "mmrl": "mmrl",
    "mmrl_prep": "data_pipelines/mmrl_prep",
    "mmrl_tools": "tools/mmrl_tools",
    "mmrl_tasks": "tasks/mmrl_tasks",
    "mmrl_eval": "eval/mmrl_eval",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no build folder is left in the repository."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    for path in PACKAGES.values():
        shutil.copytree(ROOT / path, source / path, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def outside(unpacked: Path, code: str) -> str:
    """Output of a program that runs in an empty folder with the unpacked wheel before everything else."""
    empty = unpacked.parent / "empty"
    empty.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run([sys.executable, "-c", code], cwd=empty, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_every_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        f"{package}/{path.relative_to(ROOT / folder)}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
    }
    assert {f"{package}/__init__.py" for package in PACKAGES} <= expected
    assert any(name.startswith("mmrl/recipes/") for name in expected)
    assert expected - names == set()
    assert {name.split("/")[0] for name in names} - {*PACKAGES} == {f"{wheel.name.split('-py3')[0]}.dist-info"}


def test_commands_and_licence_are_declared(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    assert (info / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    entry_points = (info / "entry_points.txt").read_text()
    for line in ("mmrl = mmrl.cli:main", "mmrl-prep = mmrl_prep.cli:main", "mmrl-eval = mmrl_eval.cli:main"):
        assert line in entry_points


def test_commands_plugins_and_recipes_work_outside_the_repository(unpacked):
    code = """
import importlib.metadata, json, sys
from mmrl.cli import recipe_names
from mmrl.config import load_config
from mmrl.registry import entries
mine = importlib.metadata.distribution("mmrl")
for point in mine.entry_points:
    point.load()
print(json.dumps({
    "files": sorted({m.__file__ for n, m in sys.modules.items() if n.split(".")[0].startswith("mmrl") and m.__file__}),
    "kinds": sorted({e.kind for e in entries()}),
    "recipes": [load_config(name).name for name in recipe_names()],
}))
"""
    found = json.loads(outside(unpacked, code))
    assert [f for f in found["files"] if not f.startswith(str(unpacked))] == []
    assert {Path(f).relative_to(unpacked).parts[0] for f in found["files"]} == set(PACKAGES)
    assert {"advantage", "surrogate", "aggregation", "reward", "signal", "engine", "tool", "task"} <= set(
        found["kinds"]
    )
    assert found["recipes"]
