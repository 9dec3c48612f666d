"""How hard is each sample for a model? Its share of right answers among some, kept in the shard for curricula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.media import content_hash
from mmrl.registry import get
from mmrl.rollout import Engine, rollout
from mmrl.shards import ShardSet
from mmrl.types import FaultKind
from mmrl_prep.places import PrepError
from mmrl_prep.progress import progress


def measure(
    engine: Engine,
    chat: Chat,
    data: ShardSet,
    journal: Path,
    *,
    config: RolloutConfig,
    seed: int = 0,
    batch: int = 16,
    model: str = "",
) -> dict[str, dict[str, Any]]:
    """For each key: {"n", "right", "rate", "mean_reward", "unfinished"} over `config.group` samples of the policy.

    mean_reward: of the accuracy reward, which gives parts for boxes and tests. Samples are drawn by (seed, key) alone,
    so a run that goes on from its journal measures the same. Groups that infrastructure failed are asked again.
    Raises PrepError where the journal is of another model or other settings.
    """
    settings = {"model": model, "seed": seed, "config": config.model_dump(mode="json")}
    known = _read(journal, settings)
    todo = [n for n, key in enumerate(data.keys) if key not in known]
    accuracy = get("reward", "accuracy").obj
    starts = range(0, len(todo), batch)
    with journal.open("a") as file:
        for start in progress(starts, len(starts), f"sample {config.group} answers, {batch} samples at a time"):
            samples = [data[n] for n in todo[start : start + batch]]
            prompts = [get("task", s.task).obj.prompt(s, tools=config.tools) for s in samples]
            found: dict[str, list[float]] = {s.key: [] for s in samples}
            cut: dict[str, int] = dict.fromkeys(found, 0)
            for trajectory in rollout(engine, chat, prompts, config, seed=seed, group=config.group):
                if any(f.kind is FaultKind.INFRASTRUCTURE for f in trajectory.faults):
                    continue
                key = trajectory.prompt.sample.key
                found[key].append(float(accuracy(trajectory)))
                cut[key] += trajectory.stop.value != "finished"
            for key, scores in found.items():
                if len(scores) < config.group:
                    continue
                right = sum(s >= 1 for s in scores)
                known[key] = {
                    "n": len(scores),
                    "right": right,
                    "rate": round(right / len(scores), 4),
                    "mean_reward": round(sum(scores) / len(scores), 4),
                    "unfinished": cut[key],
                }
                file.write(json.dumps([key, known[key]]) + "\n")
            file.flush()
    return known


def _read(journal: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mark = content_hash(json.dumps(settings, sort_keys=True).encode())
    if not journal.is_file():
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_text(json.dumps({"settings": settings, "mark": mark}) + "\n")
        return {}
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(journal.read_text().splitlines()):
        try:
            row = json.loads(line)
        except ValueError:  # the line that was being written when a run was killed
            continue
        if number == 0:
            if row.get("mark") != mark:
                raise PrepError(f"{journal} is of another model or other settings: choose another --out or remove it")
        else:
            known[row[0]] = row[1]
    return known


def with_difficulty(found: dict[str, dict[str, Any]], model: str) -> Any:
    """A change of records for `rewrite.write_set`: what was measured stands in meta.difficulty."""

    def change(record: dict[str, Any]) -> dict[str, Any]:
        measured = found.get(record["key"])
        if measured is None:
            return record
        return {**record, "meta": {**record["meta"], "difficulty": {**measured, "model": model}}}

    return change
