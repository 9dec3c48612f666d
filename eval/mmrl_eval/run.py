"""Evaluate a policy: roll out, score, record, summarise. A run killed at any point goes on where it stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.registry import get
from mmrl.rewards.extract import extract
from mmrl.rollout import Engine, make_engine, rollout
from mmrl.shards import atomic_write
from mmrl.signals.answer import answer_positions
from mmrl.types import FaultKind, Prompt, Sample, Trajectory
from mmrl_eval import RunError
from mmrl_eval.consistency import consistent, option_logps
from mmrl_eval.metrics import Score, by_task, summarise
from mmrl_eval.records import append, read_records, record, repair

VERSION = 1  # of records.jsonl and result.json
SAME = ("version", "data_hash", "budget_hash", "model_hash", "reader_hash")  # what makes two starts the same run


@dataclass(frozen=True)
class EvalConfig:
    """How a policy is asked. All but `batch` and `consistency` is part of the declared budget."""

    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    samples: int = 1  # rollouts of each prompt
    tools: tuple[str, ...] | None = None  # None: those of each task
    max_new_tokens: int = 512  # policy tokens of one turn
    max_turns: int = 4
    max_images: int = 8
    max_context: int = 8192
    seed: int = 0
    batch: int = 16  # prompts rolled out together
    consistency: bool = True  # score the options after the reasoning

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise RunError(f"samples and batch are at least 1, got {self.samples} and {self.batch}")
        if self.temperature == 0 and self.samples > 1:
            raise RunError(
                f"{self.samples} greedy samples of a prompt are all equal: set a temperature, or samples to 1"
            )


@dataclass(frozen=True)
class Result:
    """What a run found. `complete` is false while infrastructure faults stand among the records."""

    records: list[dict[str, Any]]  # in the order of the samples
    tasks: dict[str, Score]
    overall: Score
    budget: dict[str, Any]
    budget_hash: str
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """Everything but the records."""
        return {
            "version": VERSION,
            "complete": self.complete,
            "budget_hash": self.budget_hash,
            "budget": self.budget,
            "overall": asdict(self.overall),
            "tasks": {name: asdict(score) for name, score in self.tasks.items()},
        }


def digest(value: Any) -> str:
    """Short hash of a JSON value."""
    return xxhash.xxh3_64_hexdigest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def weights_hash(model: Any) -> str | None:
    """Hash of a model's parameters and buffers, names and bytes; None for no model."""
    if model is None:
        return None
    state = xxhash.xxh3_128()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        state.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def choose(samples: Sequence[Sample], limit: int | None, seed: int) -> Sequence[Sample]:
    """`limit` samples drawn by seed and key, in their own order, whatever order or folders they came in; None: all."""
    if limit is None or limit >= len(samples):
        return samples
    drawn = sorted(samples, key=lambda s: xxhash.xxh3_64_digest(f"{seed} {s.key}".encode()))[:limit]
    kept = {s.key for s in drawn}
    return [s for s in samples if s.key in kept]


def declared_budget(config: EvalConfig, chat: Chat, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Everything that a score depends on beside the model and the data, as it really was."""
    size = chat.processor.image_processor.size
    return {
        "temperature": config.temperature,
        "top_p": config.top_p if config.temperature else 1.0,
        "samples": config.samples,
        "seed": config.seed if config.temperature else 0,
        "tools": {p.sample.task: list(p.tools) for p in sorted(prompts, key=lambda p: p.sample.task)},
        "max_new_tokens": config.max_new_tokens,
        "max_turns": config.max_turns,
        "max_images": config.max_images,
        "max_context": config.max_context,
        "min_pixels": size["shortest_edge"],
        "max_pixels": size["longest_edge"],
        "video_fps": chat.video_fps,
        "video_frames": chat.video_frames,
    }


def evaluate(
    model: Any,
    chat: Chat,
    samples: Sequence[Sample],
    *,
    config: EvalConfig,
    out: Path | None = None,
    engine: Engine | None = None,
    reader: Any = None,
    identity: dict[str, Any] | None = None,
    progress: bool = True,
) -> Result:
    """Ask a policy all samples and score what it says.

    Args:
        model: the policy; unused where `engine` is given, a `reader` is too, or consistency is not wanted.
        chat: its chat format.
        samples: with distinct keys.
        out: folder for `run.json`, `records.jsonl` and `result.json`. Records that it holds of the same run are kept,
            save those that infrastructure failed, which are asked again.
        engine: what samples (default: the transformers engine on `model`).
        reader: the model that scores the options for the consistency rate (default: `model`).
        identity: names to store beside the result (of the model, say); what a resume checks are the weights themselves.
        progress: a bar on the terminal.

    Raises:
        RunError: `out` holds another run, or two samples have the same key.
    """
    if not samples:
        raise RunError("no samples to evaluate on")
    prompts = [get("task", s.task).obj.prompt(s, tools=config.tools) for s in samples]
    budget = declared_budget(config, chat, prompts)
    keys = [s.key for s in samples]
    if len(set(keys)) < len(keys):
        raise RunError(f"two samples have the key {next(k for k in keys if keys.count(k) > 1)!r}")
    run = {
        **(identity or {}),
        "version": VERSION,
        "data_hash": digest([[s.key, s.task, [m.hash for m in s.media], s.answer.value] for s in samples]),
        "budget_hash": digest(budget),
        "budget": budget,
    }
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    if out:
        run |= {
            "model_hash": getattr(engine, "identity", None) or weights_hash(model),
            "reader_hash": weights_hash(reader),
        }
        rows = {(r["key"], r["sample"]): r for r in _open(out, run)}
    rows = {place: r for place, r in rows.items() if not _failed(r)}
    wanted = [p for p in prompts if any((p.sample.key, i) not in rows for i in range(config.samples))]
    engine = engine or make_engine("transformers", model, chat)
    for group in _batches(wanted, config.batch, enabled=progress):
        trajectories = rollout(
            engine, chat, group, _rollout_config(config, chat.video_frames), seed=config.seed, group=config.samples
        )
        fresh = [t for t in trajectories if (t.prompt.sample.key, t.index) not in rows]
        new = judge(fresh, chat, (reader or model) if config.consistency else None)
        if out:
            append(out / "records.jsonl", new)
        rows |= {(r["key"], r["sample"]): r for r in new}
    records = [rows[(key, i)] for key in keys for i in range(config.samples)]
    result = Result(
        records=records,
        tasks=by_task(records),
        overall=summarise(records),
        budget=budget,
        budget_hash=run["budget_hash"],
        complete=not any(map(_failed, records)),
    )
    if out:
        atomic_write(out / "result.json", json.dumps({**run, **result.to_json()}, indent=1).encode())
    return result


def judge(trajectories: Sequence[Trajectory], chat: Chat, reader: Any) -> list[dict[str, Any]]:
    """The records of finished trajectories; a reader of None leaves the consistency out."""
    options = option_logps(reader, chat, trajectories) if reader is not None else [None] * len(trajectories)
    accuracy = get("reward", "accuracy").obj
    rows = []
    for trajectory, likelihoods in zip(trajectories, options, strict=True):
        found = extract(trajectory.answer_text, trajectory.prompt.sample.answer)
        rows.append(
            record(
                trajectory,
                status=found.status,
                answer=found.value,
                score=float(accuracy(trajectory) or 0.0),
                answer_logp=_answer_logp(trajectory, chat),
                options=likelihoods,
                consistent=consistent(likelihoods, found.value),
            )
        )
    return rows


def _answer_logp(trajectory: Trajectory, chat: Chat) -> float | None:
    """Mean log-prob of the answer's tokens as they were sampled; None without an answer, or without log-probs."""
    found = [trajectory.logp[t] for t in answer_positions(trajectory, chat)]
    return sum(found) / len(found) if found and not any(map(math.isnan, found)) else None


def _rollout_config(config: EvalConfig, frames: int) -> RolloutConfig:
    return RolloutConfig(
        frame_budgets=[frames],  # the declared one, whatever a sample was trained with
        temperature=config.temperature,
        top_p=config.top_p,
        group=config.samples,
        max_new_tokens=config.max_new_tokens,
        max_turns=config.max_turns,
        max_images=config.max_images,
        max_context=config.max_context,
        tools=None if config.tools is None else list(config.tools),
    )


def _failed(row: dict[str, Any]) -> bool:
    return any(f["kind"] == FaultKind.INFRASTRUCTURE.value for f in row["faults"])


def _open(out: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the folder the run's own, or check that it already is; its records. Raises RunError."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "run.json"
    if path.is_file():
        old = json.loads(path.read_text())
        differ = [k for k in SAME if old.get(k) != run.get(k)]
        if differ:
            what = ", ".join(f"{k} {old.get(k)!r} there, {run.get(k)!r} now" for k in differ)
            raise RunError(f"{out} holds another run ({what}): choose another folder, or delete this one")
    elif (out / "records.jsonl").exists():
        raise RunError(f"{out} has records but no run.json that says of what: choose another folder")
    else:
        atomic_write(path, json.dumps(run, indent=1).encode())
    repair(out / "records.jsonl")
    return read_records(out / "records.jsonl")


def _batches(prompts: Sequence[Prompt], size: int, *, enabled: bool) -> Iterator[Sequence[Prompt]]:
    """Prompts in groups, with a bar on a terminal and a line every tenth elsewhere."""
    console = Console(stderr=True)
    columns = TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not (enabled and console.is_terminal)) as bar:
        task = bar.add_task("", total=len(prompts))
        for at in range(0, len(prompts), size):
            yield prompts[at : at + size]
            done = min(at + size, len(prompts))
            bar.update(task, completed=done)
            if enabled and not console.is_terminal and 10 * done // len(prompts) > 10 * at // len(prompts):
                console.print(f"evaluated {done} of {len(prompts)} prompts", highlight=False)
