"""`mmrl demo`: pictures to shards to a better model, measured on pictures that training never saw.

    pictures of installed packages -> mmrl-prep -> shards -> GRPO-CARE with crop and zoom -> mmrl-eval before and after

Everything lands in one folder; a demo that was stopped goes on where it was when it is started again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mmrl.config import RunConfig, load_config
from mmrl.policy.load import load_policy
from mmrl.shards import ShardSet, atomic_write
from mmrl.trainers.rl import train
from mmrl.types import Sample
from mmrl_eval.metrics import Score
from mmrl_eval.run import EvalConfig, Result, evaluate
from mmrl_prep.build import build
from mmrl_prep.pictures import demo_sources

SIDE = 128  # pixels of a puzzle; the tiny model sees 64 of them, a crop shows it the rest
SPLIT_SEED = 0  # the tiny model was pretrained on the training side of this split, whatever the seed of the demo
HELDOUT = 0.2
TASKS = ("rotation", "jigsaw")
PER_TASK = 120  # held-out samples measured


@dataclass(frozen=True)
class Measure:
    """The scores of one model on the held-out samples."""

    sampled: Result  # as in training: temperature 1
    greedy: Result


def demo(
    out: Path,
    seed: int = 0,
    steps: int | None = None,
    overrides: Sequence[str] = (),
    *,
    per_task: int = PER_TASK,
) -> Path:
    """Run the demo into `out`; returns the path of the report (Markdown, with the table that is printed).

    Args:
        seed: of training; the pictures and their split are the same for all seeds.
        steps: training steps (default: the recipe's).
        overrides: further settings `key=value` of the recipe.
        per_task: held-out samples of each task that are measured.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)  # a table in a log is not cut
    start = time.time()
    prepare(out / "shards", out / "sources")
    folders = [str(out / "shards" / task / "train") for task in TASKS]
    settings = [f"out={out / 'run'}", f"train.seed={seed}", f"data.train={json.dumps(folders)}"]
    settings += [f"train.steps={steps}"] if steps else []
    config = load_config("demo", [*settings, *overrides])
    samples = heldout_samples(out / "shards", per_task)
    console.print(f"shards are ready after {time.time() - start:.0f} s; measuring the base model")
    before = measure(config.model.path, config, samples, out / "before")
    console.print(f"training {config.train.steps} steps of {config.rollout.prompts} x {config.rollout.group} rollouts")
    model = train(config, resume=(out / "run").exists()) / "model"
    after = measure(str(model), config, samples, out / "after")
    console.print(table(before, after))
    path = out / "report.md"
    atomic_write(path, markdown(before, after, config, time.time() - start).encode())
    console.print(f"report: {path}   log: {out / 'run' / 'metrics.jsonl'}   trained model: {model}")
    return path


def prepare(shards: Path, sources: Path) -> None:
    """Build the shards of each task from the pictures of installed packages."""
    folders = demo_sources(sources)
    for task in TASKS:
        build(folders, task, shards / task, heldout=HELDOUT, seed=SPLIT_SEED, per_image=12, size=SIDE)


def heldout_samples(shards: Path, per_task: int) -> list[Sample]:
    """The held-out samples that are measured: the same number of each task, spread evenly over its shards."""
    samples = []
    for task in TASKS:
        heldout = ShardSet.open([shards / task / "heldout"])
        count = min(per_task, len(heldout))
        samples += [heldout[i * len(heldout) // count] for i in range(count)]
    return samples


def measure(path: str, config: RunConfig, samples: list[Sample], out: Path) -> Measure:
    """Score the model in `path` as it is sampled in training, and greedily."""
    model, chat = load_policy(config.model.model_copy(update={"path": path}))
    results = []
    for name, temperature, rollouts in (("sampled", config.rollout.temperature, 4), ("greedy", 0.0, 1)):
        budget = EvalConfig(
            temperature=temperature,
            samples=rollouts,
            max_new_tokens=config.rollout.max_new_tokens,
            max_turns=config.rollout.max_turns,
            max_images=config.rollout.max_images,
            max_context=config.rollout.max_context,
            batch=64,
        )
        results.append(evaluate(model, chat, samples, config=budget, out=out / name, identity={"model": path}))
    return Measure(*results)


def _rows(before: Measure, after: Measure) -> Iterator[list[str]]:
    """Cells of the table: a task, then before -> after and the gain in points, sampled and greedy."""
    for task in [*TASKS, "all"]:
        cells = [task]
        for mode in ("sampled", "greedy"):
            old, new = (_score(getattr(m, mode), task) for m in (before, after))
            interval = f"[{100 * new.low:.0f}, {100 * new.high:.0f}]"
            cells += [
                f"{100 * old.accuracy:.1f}",
                f"{100 * new.accuracy:.1f} {interval}",
                f"{100 * (new.accuracy - old.accuracy):+.1f}",
            ]
        yield cells


def _score(result: Result, task: str) -> Score:
    return result.overall if task == "all" else result.tasks[task]


HEADER = ["held-out accuracy, %", "before", "after, 95 %", "gain", "greedy before", "greedy after, 95 %", "gain"]


def table(before: Measure, after: Measure) -> Table:
    """The one table of the demo."""
    out = Table(*HEADER, box=None, header_style="bold")
    for cells in _rows(before, after):
        out.add_row(*cells)
    for name, old, new in _habits(before, after):
        out.add_row(name, old, new)
    return out


def _habits(before: Measure, after: Measure) -> Iterator[tuple[str, str, str]]:
    old, new = before.sampled.overall, after.sampled.overall
    for name, field in (
        ("looks closer with a tool, %", "tool_used"),
        ("reasoning leads to answer, %", "consistent"),
        ("no answer readable, %", "unparsed"),
    ):
        was, is_now = (f"{100 * (getattr(s, field) or 0):.1f}" for s in (old, new))
        yield name, was, is_now


def markdown(before: Measure, after: Measure, config: RunConfig, seconds: float) -> str:
    """The report: what was run, and the table."""
    lines = [
        "# mmrl demo",
        "",
        f"Recipe `{config.name}`, {config.train.steps} steps of {config.rollout.prompts} prompts x "
        f"{config.rollout.group} rollouts, seed {config.train.seed}, {seconds:.0f} s in all.",
        f"Measured on {before.greedy.overall.prompts} held-out prompts from pictures that training never saw; "
        "chance is 25 %.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---" * len(HEADER) + "|",
        *(f"| {' | '.join(cells)} |" for cells in _rows(before, after)),
        *(f"| {name} | {old} | {new} | | | | |" for name, old, new in _habits(before, after)),
        "",
        "Records of every sample: `before/` and `after/`; training: `run/metrics.jsonl`, `run/trajectories.jsonl`.",
    ]
    return "\n".join(lines) + "\n"
