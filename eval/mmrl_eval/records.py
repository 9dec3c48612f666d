"""One line of JSON for each sample and rollout: made from a trajectory, appended, and read back after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmrl.rollout.events import call_events, media_event
from mmrl.types import MediaRef, Origin, Span, Trajectory
from mmrl_eval import RunError


def prompt_text(trajectory: Trajectory) -> str:
    """The messages of the prompt as plain text, media as `[id]`."""
    lines = []
    for message in trajectory.prompt.messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        body = "".join(p["text"] if p["type"] == "text" else f"[{p['id']}]" for p in parts)
        lines.append(f"{message['role']}: {body}")
    return "\n".join(lines)


def record(
    trajectory: Trajectory,
    *,
    status: str,
    answer: Any,
    score: float,
    answer_logp: float | None,
    options: dict[str, float] | None,
    consistent: bool | None,
) -> dict[str, Any]:
    """The record of one trajectory.

    Args:
        status: how reading the answer went ("ok" or the reason why not).
        answer: the answer as read, None when it could not be.
        score: in [0, 1].
        answer_logp: mean log-prob of the answer's tokens, when there are any.
        options: log-likelihood of each option after the reasoning, where that applies.
        consistent: whether the answer is the likeliest of them.
    """
    sample = trajectory.prompt.sample
    own = [s for s, o in zip(trajectory.span, trajectory.origin, strict=True) if o is Origin.POLICY]
    return {
        "key": sample.key,
        "sample": trajectory.index,
        "task": sample.task,
        "source": str(sample.meta.get("source", sample.key)),
        "prompt": prompt_text(trajectory),
        "media": [[m.id, m.hash] for m in sample.media],
        "turns": [_turn(t.origin, t.text, [m for r in t.results for m in r.media]) for t in trajectory.turns],
        "status": status,
        "answer": answer,
        "truth": {"kind": sample.answer.kind, "value": sample.answer.value, "options": list(sample.answer.options)},
        "score": score,
        "stop": trajectory.stop.value,
        "lengths": {
            "prompt": sum(o is Origin.PROMPT for o in trajectory.origin),
            "policy": len(own),
            "observation": sum(o is Origin.OBSERVATION for o in trajectory.origin),
            "think": sum(s is Span.THINK for s in own),
            "answer": sum(s is Span.ANSWER for s in own),
        },
        "tool_calls": call_events(trajectory),
        "faults": [
            {"kind": f.kind.value, "code": f.code, "message": f.message, "turn": f.turn} for f in trajectory.faults
        ],
        "answer_logp": answer_logp,
        "options": options,
        "consistent": consistent,
    }


def _turn(origin: Origin, text: str, media: Sequence[MediaRef]) -> dict[str, Any]:
    shown = [media_event(m) for m in media]
    return {"by": origin.name.lower(), "text": text, **({"media": shown} if shown else {})}


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, one for each (key, sample): a later line replaces an earlier one. Writes nothing.

    A last line without its end is what a kill left: it is not read. Raises RunError for any other broken line.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    data = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            row = json.loads(line)
            rows[(row["key"], row["sample"])] = row
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}, line {number}: not a record ({error}): delete the line, the run does it again"
            ) from error
    return list(rows.values())


def repair(path: Path) -> int:
    """Cut off a torn last line of a file in place. Returns the number of bytes cut."""
    if not path.is_file():
        return 0
    data = path.read_bytes()
    keep = data.rfind(b"\n") + 1
    if keep < len(data):
        os.truncate(path, keep)
    return len(data) - keep


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add records to a file; they are on the disk when this returns."""
    with path.open("ab") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())
