"""Building shards: list, scan, plan, write. A build that is killed at any moment goes on where it was.

In the folder `out`: `train/` and `heldout/` (shard sets), `quarantine.jsonl` (inputs left out, with the reason),
`summary.json`, `build.json` (the settings) and `.scan.jsonl` (what is known of each file, so that none is decoded
twice). Shards of a build that was killed equal those of one that was not, byte for byte.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmrl.shards import ShardError, atomic_write, write_manifest
from mmrl.shards.dataset import read_index
from mmrl.shards.record import MANIFEST
from mmrl.shards.writer import index_path, summary
from mmrl_prep.make import ShardJob, make_shard
from mmrl_prep.plan import SPLITS, Job, Plan, plan_puzzles, plan_questions, shards
from mmrl_prep.progress import log, progress
from mmrl_prep.puzzles import PUZZLES
from mmrl_prep.scan import scan
from mmrl_prep.sources import PrepError, list_media, list_questions
from mmrl_prep.workers import ordered_map, useful

FORMAT = 1  # raised when the same inputs and settings give other samples
TASKS = (*PUZZLES, "mcq")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a build did: `summary.json`, and `mmrl_prep.build.build`'s result."""

    task: str
    samples: dict[str, int]  # of each split
    shards: dict[str, int]
    sources: dict[str, int]  # pictures and clips of each split, copies counted once
    duplicates: int  # inputs left out because they are there already
    ignored: int  # files of the folders that are neither pictures nor clips
    quarantined: dict[str, int] = field(default_factory=dict)  # inputs left out, by reason
    written: int = field(default=0, compare=False)  # shards that this run had to write

    @property
    def exit_code(self) -> int:
        """0: all good; 2: something was quarantined."""
        return 2 if self.quarantined else 0


def build(
    sources: Sequence[Path | str] | Path | str,
    task: str,
    out: Path | str,
    *,
    heldout: float = 0.1,
    seed: int = 0,
    per_image: int = 8,
    size: int = 224,
    every: float = 1.0,
    max_samples_per_shard: int = 1000,
    workers: int = 1,
) -> Summary:
    """Build the shard sets `out/train` and `out/heldout` of a task.

    Args:
        sources: folders of pictures or clips, single files, or JSONL files whose rows name them.
        task: rotation, jigsaw, patchfit, or mcq (JSONL rows with question, options, answer and media).
        heldout: share of the sources that is held out; all samples of a source fall on the same side.
        seed: of the split and of every puzzle.
        per_image: puzzles made from each picture, and from each chosen frame of a clip.
        size: side in pixels of the square picture that a puzzle shows.
        every: seconds between the frames of a clip that puzzles are made from.

    Raises PrepError for settings or sources that cannot be used; single bad inputs are quarantined instead.
    """
    paths = [Path(s) for s in ([sources] if isinstance(sources, str | Path) else sources)]
    out = Path(out)
    if task not in TASKS:
        raise PrepError(f"no task {task!r}; there are {', '.join(TASKS)}")
    if not paths or per_image < 1 or size < 16 or every <= 0 or max_samples_per_shard < 1 or not 0 <= heldout <= 1:
        raise PrepError(
            f"settings: at least one source, per_image {per_image} >= 1, size {size} >= 16, every {every} > 0, "
            f"max_samples_per_shard {max_samples_per_shard} >= 1 and heldout {heldout} in 0..1 are needed"
        )
    settings = {
        "format": FORMAT,
        "task": task,
        "heldout": heldout,
        "seed": seed,
        "max_samples_per_shard": max_samples_per_shard,
    }
    if task in PUZZLES:
        settings |= {"per_image": per_image, "size": size, "every": every}
    with _claimed(out):
        _check_settings(out / "build.json", settings)
        journal = out / ".scan.jsonl"
        if task in PUZZLES:
            media, rejected, ignored = list_media(paths)
            facts = scan(media, journal, every=every, workers=workers)
            plan = plan_puzzles(task, media, facts, per_image=per_image, heldout=heldout, seed=seed)
        else:
            questions, rejected = list_questions(paths)
            ignored = 0
            facts = scan([m for q in questions for m in q.media], journal, every=0, workers=workers)
            plan = plan_questions(task, questions, facts, heldout=heldout, seed=seed)
        plan.rejected = rejected + plan.rejected
        lines = [json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in plan.rejected]
        atomic_write(out / "quarantine.jsonl", "".join(lines).encode())
        if not plan.jobs:
            raise PrepError(f"no sample can be made of {', '.join(map(str, paths))}: see {out / 'quarantine.jsonl'}")
        written = _write(out, plan, task, seed, size, max_samples_per_shard, workers, settings)
        result = Summary(
            task=task,
            samples={name: len(jobs) for name, jobs in plan.jobs.items()},
            shards={name: len(shards(jobs, max_samples_per_shard)) for name, jobs in plan.jobs.items()},
            sources=plan.sources,
            duplicates=plan.duplicates,
            ignored=ignored,
            quarantined=dict(sorted(Counter(r.code for r in plan.rejected).items())),
            written=written,
        )
        facts_of_run = {k: v for k, v in asdict(result).items() if k != "written"}
        text = json.dumps({**facts_of_run, "settings": settings}, indent=1, sort_keys=True)
        atomic_write(out / "summary.json", text.encode() + b"\n")
    log.info("%s: %s samples, quarantined %s", out, result.samples, result.quarantined or "nothing")
    return result


def _write(
    out: Path, plan: Plan, task: str, seed: int, size: int, limit: int, workers: int, settings: dict[str, Any]
) -> int:
    """Write the shards that are not there yet, then the manifests. Returns how many had to be written."""
    todo: list[ShardJob] = []
    finish: list[tuple[Path, list[Path]]] = []
    for name in SPLITS:
        folder = out / name
        if name not in plan.jobs:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        parts = shards(plan.jobs[name], limit)
        paths = [folder / f"shard-{n:06d}.tar" for n in range(len(parts))]
        missing = [
            ShardJob(path, tuple(jobs), task, seed, size)
            for path, jobs in zip(paths, parts, strict=True)
            if not _is_done(path, jobs)
        ]
        stale = sorted(set(folder.glob("*.tar")) - set(paths)) if folder.is_dir() else []
        if missing or stale or not (folder / MANIFEST).is_file():
            # first the manifest: while the set changes, readers must refuse it
            (folder / MANIFEST).unlink(missing_ok=True)
            finish.append((folder, paths))
        for path in stale:
            index_path(path).unlink(missing_ok=True)
            path.unlink()
        todo += missing
    processes = useful(workers, sum(len(shard.jobs) for shard in todo))
    for _ in progress(ordered_map(make_shard, todo, processes), len(todo), "write shards"):
        pass
    for folder, paths in finish:
        write_manifest(folder, [summary(read_index(path)) for path in paths], settings)
    return len(todo)


def _is_done(path: Path, jobs: Sequence[Job]) -> bool:
    """Whether a shard holds the planned samples. Keys name the sources' contents, and settings are the same."""
    try:
        index = read_index(path)
        return path.stat().st_size == index.size and [s.key for s in index.samples] == [j.key for j in jobs]
    except (ShardError, OSError):
        return False


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Keep the settings of a folder; refuse to mix it with others."""
    if not path.is_file():
        atomic_write(path, json.dumps(settings, indent=1).encode() + b"\n")
        return
    old = json.loads(path.read_bytes())
    changed = [f"{k} {old.get(k)!r}, now {v!r}" for k, v in settings.items() if old.get(k) != v]
    if changed:
        raise PrepError(
            f"{path.parent} was begun with other settings ({'; '.join(changed)}): choose another --out or remove it"
        )


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Only one build works in a folder; what a killed one left half-written is removed."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PrepError(f"another build is writing to {out}: wait for it or choose another --out") from error
        for folder in (out, *(out / name for name in SPLITS)):
            for temp in folder.glob(".*.tmp"):
                temp.unlink(missing_ok=True)
        yield
