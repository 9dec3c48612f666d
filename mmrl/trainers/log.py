"""What a run leaves behind: metrics.jsonl and trajectories.jsonl, lines or a live table, TensorBoard, W&B."""

from __future__ import annotations

import importlib.util
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mmrl.config import ConfigError, LogConfig
from mmrl.rollout.events import call_events
from mmrl.shards import atomic_write
from mmrl.types import Trajectory

METRICS, TRAJECTORIES = "metrics.jsonl", "trajectories.jsonl"
SHOWN = ("reward", "accuracy", "loss", "length", "entropy", "gap", "grad_norm", "zero_signal", "time/step")
LINES = 12  # of the live table
TIMING = ("time/", "tokens_per_second")  # metrics that no two runs share


class Clock:
    """Seconds of each stage of a step."""

    def __init__(self) -> None:
        self.start = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """The time since the last lap was spent on `stage`."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now

    def metrics(self, tokens: float) -> dict[str, float]:
        whole = time.perf_counter() - self.start
        out = {f"time/{stage}": seconds for stage, seconds in self.laps.items()}
        return {**out, "time/step": whole, "tokens_per_second": tokens / whole}


def truncate(path: Path, step: int) -> None:
    """Keep only the whole lines of steps up to `step`: a resumed run writes the others again."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except ValueError:  # the line that a killed process was writing
            break
    atomic_write(path, "".join(f"{line}\n" for line in kept).encode())


def trajectory_record(step: int, trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON, for reading and for the viewer."""
    return {
        "step": step,
        "key": trajectory.prompt.sample.key,
        "task": trajectory.prompt.sample.task,
        "group": trajectory.group,
        "index": trajectory.index,
        "answer": trajectory.prompt.sample.answer.value,
        "turns": [{"origin": t.origin.name.lower(), "text": t.text} for t in trajectory.turns],
        "calls": call_events(trajectory),
        "reward": trajectory.reward,
        "terms": trajectory.reward_terms,
        "correct": trajectory.correct,
        "stop": trajectory.stop.value,
        "faults": [f"{f.kind.value}.{f.code}: {f.message}" for f in trajectory.faults],
        "length": trajectory.length,
    }


class Log:
    """The records of a run, from step `step` on. Used as a context; on ranks other than the first it does nothing.

    Args:
        out: folder of the run.
        steps: of the whole run, for the progress bar.
        step: steps done before; later lines of an earlier start are removed.
        main: whether this process writes.
    """

    def __init__(self, out: Path, cfg: LogConfig, *, name: str, steps: int, step: int, main: bool) -> None:
        self.out, self.cfg, self.main = out, cfg, main
        self._rows: deque[Mapping[str, float]] = deque(maxlen=LINES)
        self._sinks: list[Any] = []
        self._live: Live | None = None
        if not main:
            return
        out.mkdir(parents=True, exist_ok=True)
        for file in (METRICS, TRAJECTORIES):
            truncate(out / file, step)
        if cfg.tensorboard and importlib.util.find_spec("tensorboard"):
            self._sinks.append(_TensorBoard(out, step))
        if cfg.wandb:
            self._sinks.append(_Wandb(out, cfg.wandb, name))
        self._console = Console()
        if self._console.is_terminal:
            columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns)
            self._task = self._progress.add_task("", total=steps, completed=step)
            self._live = Live(console=self._console, refresh_per_second=4)

    def __enter__(self) -> Log:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        for sink in self._sinks:
            sink.close()

    def write(self, step: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory] = ()) -> None:
        """The metrics of a step and, one of each group first, some of its trajectories."""
        if not self.main:
            return
        shown = sorted(trajectories, key=lambda t: (t.index, t.group))[: self.cfg.trajectories]
        _append(self.out / TRAJECTORIES, [trajectory_record(step, t) for t in shown])
        _append(self.out / METRICS, [{"step": step, **metrics}])
        for sink in self._sinks:
            sink.write(step, metrics)
        self._rows.append({"step": step, **metrics})
        if self._live:
            self._progress.update(self._task, completed=step)
            self._live.update(Group(_table(self._rows), self._progress))
        else:
            names = [n for n in SHOWN if n in metrics]
            numbers = "  ".join(f"{n} {metrics[n]:.4g}" for n in names)
            self._console.print(f"step {step}  {numbers}", highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line for whoever watches."""
        if self.main:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """In one write, so that a kill leaves whole lines but for the last."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _table(rows: Sequence[Mapping[str, float]]) -> Table:
    names = [n for n in SHOWN if any(n in row for row in rows)]
    table = Table("step", *names, box=None, header_style="bold")
    for row in rows:
        table.add_row(f"{row['step']:.0f}", *(f"{row[n]:.4g}" if n in row else "" for n in names))
    return table


class _TensorBoard:
    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, out: Path, project: str, name: str) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(f"log.wandb is {project!r}, but wandb is not installed: pip install wandb, or unset it")
        import wandb

        self._run = wandb.init(project=project, name=name, id=out.name, dir=str(out), resume="allow")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
