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
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.registry import nearest
from mmrl.shards import ShardError
from mmrl.shards.index import read_index
from mmrl.shards.record import MANIFEST
from mmrl.shards.writer import index_path, manifest_of, summary
from mmrl_prep.make import ShardJob, make_shard
from mmrl_prep.places import PrepError, is_local, place, put, workshop
from mmrl_prep.plan import SPLITS, Job, Plan, plan_puzzles, plan_questions, shards
from mmrl_prep.progress import log, progress
from mmrl_prep.puzzles import PUZZLES, PuzzleOptions
from mmrl_prep.puzzles.maker import Style
from mmrl_prep.scan import Look, scan
from mmrl_prep.sources import Rejected, list_media, list_questions, mapping_of
from mmrl_prep.workers import Crew

FORMAT = 2  # raised when the same inputs and settings give other samples
QUESTIONS = ("mcq", "qa")  # qa: each row by the kind of its answer
TASKS = (*PUZZLES, *QUESTIONS)


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the bytes of a build. The fields from `size` on are for puzzles only."""

    heldout: float = 0.1  # share of the sources that is held out; all samples of a source fall on the same side
    seed: int = 0  # of the split, of every puzzle and of every order of options
    max_samples_per_shard: int = 1000
    mapping: str | None = None  # a built-in one or a YAML file: which column says what
    media_root: str | None = None  # where relative paths of rows begin, instead of their table's folder
    min_side: int = 16  # pixels
    allow_truncated: bool = False  # keep what is left of cut pictures, marked
    animated: bool = False  # GIF files are clips
    size: int = 224  # side in pixels of the picture that a puzzle shows
    per_image: int = 8  # puzzles of each picture, each chosen frame of a clip, or each clip
    every: float = 1.0  # seconds between the frames of a clip that puzzles are made from
    grid: tuple[int, int] = (3, 3)  # rows, columns of grid jigsaws
    clips: int = 4  # pieces of a clip, or frames to be put in order
    trim: float = 0.1  # share cut off at both ends of each piece
    points: int = 6  # marks of a depth order
    distractors: int = 3  # wrong patches
    style: Style = "order"  # or choice: of the answers of puzzles that ask for an order

    def options(self) -> PuzzleOptions:
        """Raises PrepError."""
        try:
            names = PuzzleOptions.__dataclass_fields__
            return PuzzleOptions(**{name: getattr(self, name) for name in names})
        except ValueError as error:
            raise PrepError(f"settings: {error}") from error


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
        """0: all good; 3: something was quarantined."""
        return 3 if self.quarantined else 0


def build(
    sources: Sequence[Path | str] | Path | str,
    task: str,
    out: Path | str,
    *,
    workers: int = 1,
    engine: str = "local",
    strict: bool = False,
    error_budget: float = 1.0,
    **settings: Any,
) -> Summary:
    """Build the shard sets `out/train` and `out/heldout` of a task.

    Args:
        sources: folders of pictures or clips, single files, shard sets, or tables whose rows name media.
        task: a puzzle (see `PUZZLES`), or for the questions of tables mcq (all have options) or qa (each row by the
            kind of its answer).
        workers: processes at most. engine: local, or ray for the workers of a Ray cluster.
        strict: the first input that cannot be used ends the build.
        error_budget: the share of inputs that may be quarantined; more end the build before anything is written.
        settings: fields of `Settings`.

    Raises PrepError for settings or sources that cannot be used; single bad inputs are quarantined instead.
    """
    paths = [place(s) for s in ([sources] if isinstance(sources, str | Path) else sources)]
    chosen, options = _checked(paths, task, engine, settings)
    shelf = place(out)
    out = shelf if is_local(shelf) else workshop(shelf)
    with _claimed(out), Crew(workers, engine) as crew:
        _check_settings(shelf / "build.json", _kept(task, chosen))
        plan, ignored = _plan(paths, task, out, chosen, crew)
        _report(shelf, plan.rejected, strict)
        inputs = len(plan.rejected) + plan.inputs
        if inputs and len(plan.rejected) / inputs > error_budget:
            raise PrepError(
                f"{len(plan.rejected)} of {inputs} inputs cannot be used, more than the error budget of "
                f"{error_budget:g}: see {shelf / 'quarantine.jsonl'}"
            )
        if not plan.jobs:
            raise PrepError(f"no sample can be made of {', '.join(map(str, paths))}: see {shelf / 'quarantine.jsonl'}")
        written = _write(out, shelf, plan, task, chosen, options, crew)
        _report(shelf, plan.rejected, strict)
        result = Summary(
            task=task,
            samples={name: len(jobs) for name, jobs in plan.jobs.items()},
            shards={name: len(shards(jobs, chosen.max_samples_per_shard)) for name, jobs in plan.jobs.items()},
            sources=plan.sources,
            duplicates=plan.duplicates,
            ignored=ignored,
            quarantined=dict(sorted(Counter(r.code for r in plan.rejected).items())),
            written=written,
        )
        facts_of_run = {k: v for k, v in asdict(result).items() if k != "written"}
        text = json.dumps({**facts_of_run, "settings": _kept(task, chosen)}, indent=1, sort_keys=True)
        put(shelf / "summary.json", text.encode() + b"\n")
    log.info("%s: %s samples, quarantined %s", shelf, result.samples, result.quarantined or "nothing")
    return result


def _checked(paths: Sequence[Path], task: str, engine: str, settings: dict[str, Any]) -> tuple[Settings, PuzzleOptions]:
    if task not in TASKS:
        raise PrepError(f"no task {task!r}: {nearest(task, list(TASKS))}; there are {', '.join(TASKS)}")
    if engine not in ("local", "ray"):
        raise PrepError(f"no engine {engine!r}: local or ray")
    unknown = [k for k in settings if k not in Settings.__dataclass_fields__]
    if unknown:
        raise PrepError(f"no setting {unknown[0]!r}: {nearest(unknown[0], list(Settings.__dataclass_fields__))}")
    s = Settings(**settings)
    if not paths or s.per_image < 1 or s.size < 16 or s.every <= 0 or s.max_samples_per_shard < 1:
        raise PrepError(
            f"settings: at least one source, per_image {s.per_image} >= 1, size {s.size} >= 16, every {s.every} > 0 "
            f"and max_samples_per_shard {s.max_samples_per_shard} >= 1 are needed"
        )
    if not 0 <= s.heldout <= 1 or s.min_side < 1:
        raise PrepError(f"settings: heldout {s.heldout} in 0..1 and min_side {s.min_side} >= 1 are needed")
    return s, s.options()


def _kept(task: str, chosen: Settings) -> dict[str, Any]:
    """The settings that the folder is bound to: those of puzzles only for puzzles."""
    names = list(Settings.__dataclass_fields__)
    if task not in PUZZLES:
        names = names[: names.index("size")]
    values = asdict(chosen)
    # plain JSON, so that what is read back compares equal
    return json.loads(json.dumps({"format": FORMAT, "task": task, **{n: values[n] for n in names}}))  # type: ignore


def _plan(paths: Sequence[Path], task: str, out: Path, chosen: Settings, crew: Crew) -> tuple[Plan, int]:
    """What is made, from which inputs; and the number of files that are neither pictures nor clips."""
    mapping = mapping_of(chosen.mapping)
    root = place(chosen.media_root) if chosen.media_root else None
    look = partial(Look, min_side=chosen.min_side, allow_truncated=chosen.allow_truncated)
    see = partial(scan, journal=_journal(out), crew=crew)
    if task in PUZZLES:
        media, rejected, ignored = list_media(paths, mapping, root=root, animated=chosen.animated)
        facts = see(media, look=look(every=chosen.every))
        plan = plan_puzzles(task, media, facts, per_image=chosen.per_image, heldout=chosen.heldout, seed=chosen.seed)
        plan.inputs = len(media)
    else:
        only = "mcq" if task == "mcq" else ""
        questions, rejected = list_questions(paths, mapping, seed=chosen.seed, root=root, task=only)
        ignored = 0
        facts = see([m for q in questions for m in q.media], look=look())
        plan = plan_questions(questions, facts, heldout=chosen.heldout, seed=chosen.seed)
        plan.inputs = len(questions)
    plan.inputs -= len(plan.rejected)
    plan.rejected = rejected + plan.rejected
    return plan, ignored


def _report(out: Path, rejected: Sequence[Rejected], strict: bool) -> None:
    """Write the quarantine list. Raises PrepError for the first of them where none may be."""
    lines = [json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in rejected]
    put(out / "quarantine.jsonl", "".join(lines).encode())
    if strict and rejected:
        first = rejected[0]
        row = f", row {first.row}" if first.row is not None else ""
        raise PrepError(f"{first.file}{row}: {first.message} [{first.code}] (--strict stops at the first)")


def _write(
    out: Path,
    shelf: Path,
    plan: Plan,
    task: str,
    chosen: Settings,
    options: PuzzleOptions,
    crew: Crew,
) -> int:
    """Write the shards that are not there yet, then the manifests. Returns how many had to be written.

    Shards are made in `out` and stand in `shelf`: the same folder, or one behind a URL that they are moved to. Jobs of
    which no sample can be made leave the plan and are quarantined; a journal keeps them for later runs.
    """
    todo: list[ShardJob] = []
    finish: list[tuple[Path, list[Path]]] = []
    journal = out / ".unmade.jsonl"
    unmade = _read_unmade(journal)
    for name in SPLITS:
        folder = shelf / name
        if name not in plan.jobs:
            _remove(folder)
            continue
        parts = shards(plan.jobs[name], chosen.max_samples_per_shard)
        paths = [folder / f"shard-{n:06d}.tar" for n in range(len(parts))]
        upload = None if shelf == out else folder
        missing = [
            ShardJob(out / name / path.name, tuple(jobs), task, chosen.seed, options, upload)
            for path, jobs in zip(paths, parts, strict=True)
            if not _is_done(path, jobs, unmade)
        ]
        there = {p.name for p in folder.glob("*.tar")} if folder.is_dir() else set()
        stale = sorted(there - {p.name for p in paths})
        if missing or stale or not (folder / MANIFEST).is_file():
            # first the manifest: while the set changes, readers must refuse it
            (folder / MANIFEST).unlink(missing_ok=True)
            finish.append((folder, paths))
        for tar in stale:
            index_path(folder / tar).unlink(missing_ok=True)
            (folder / tar).unlink()
        todo += missing
    made = crew.map(make_shard, todo, sum(len(shard.jobs) for shard in todo))
    with journal.open("a") as file:
        for failed in progress(made, len(todo), "write shards"):
            for key, code, message in failed:
                unmade[key] = (code, message)
                file.write(json.dumps([key, code, message]) + "\n")
            file.flush()
    _leave_out(plan, unmade)
    for folder, paths in finish:
        manifest = manifest_of([summary(read_index(path)) for path in paths], _kept(task, chosen))
        put(folder / MANIFEST, manifest)
    return len(todo)


def _remove(folder: Path) -> None:
    """A split that is not there any more."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.is_dir():
        for path in folder.iterdir():
            path.unlink()


def _leave_out(plan: Plan, unmade: dict[str, tuple[str, str]]) -> None:
    """Take the jobs of which no sample could be made out of the plan and into the quarantine list."""
    for name, jobs in plan.jobs.items():
        for job in jobs:
            if job.key in unmade:
                code, message = unmade[job.key]
                medium = job.media[0][0]
                plan.rejected.append(Rejected(code, medium.file, medium.row, f"{message} (sample {job.key})"))
        plan.jobs[name] = [job for job in jobs if job.key not in unmade]


def _read_unmade(journal: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for line in journal.read_text().splitlines() if journal.is_file() else []:
        try:
            key, code, message = json.loads(line)
            found[key] = (code, message)
        except ValueError:  # the line that was being written when a run was killed
            continue
    return found


def _is_done(path: Path, jobs: Sequence[Job], unmade: dict[str, tuple[str, str]]) -> bool:
    """Whether a shard holds the planned samples. Keys name the sources' contents, and settings are the same."""
    try:
        index = read_index(path)
        wanted = [j.key for j in jobs if j.key not in unmade]
        return path.stat().st_size == index.size and [s.key for s in index.samples] == wanted
    except (ShardError, OSError):
        return False


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Keep the settings of a folder; refuse to mix it with others."""
    if not path.is_file():
        put(path, json.dumps(settings, indent=1).encode() + b"\n")
        return
    old = json.loads(path.read_bytes())
    changed = [f"{k} {old.get(k)!r}, now {v!r}" for k, v in settings.items() if old.get(k) != v]
    if changed:
        raise PrepError(
            f"{path.parent} was begun with other settings ({'; '.join(changed)}): choose another --out or remove it"
        )


def _journal(out: Path) -> Path:
    return out / ".scan.jsonl"


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
