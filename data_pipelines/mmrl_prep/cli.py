"""mmrl-prep: build, verify and describe shards."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mmrl.media import MediaError
from mmrl.shards import ShardError
from mmrl_prep import build as building
from mmrl_prep import report
from mmrl_prep.sources import PrepError

app = typer.Typer(
    help="Pictures and clips become checked, split WebDataset shards that `mmrl train` and `mmrl-eval` read.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

EXAMPLES = """
Examples:

- `mmrl-prep build photos --task rotation --out shards/rotation`

- `mmrl-prep build photos clips --task jigsaw --out shards/jigsaw --size 128 --per-image 16 --workers 8`

- `mmrl-prep build questions.jsonl --task mcq --out shards/mcq --heldout 0.2`

A row of a JSONL file is an object such as `{"question": "Which fruit?", "options": ["apple", "pear"], "answer": "B",
"image": "fruit.jpg"}`; paths are relative to the file, and `images`, `video` and `videos` name media as well.

Inputs that cannot be used are listed with their reason in `quarantine.jsonl`, and the run goes on. A killed build is
continued by the same command.

Exit code: 0 all good, 2 done but some inputs were quarantined, 1 failed.
"""


@app.command(epilog=EXAMPLES)
def build(
    source: Annotated[list[Path], typer.Argument(help="Folders of pictures or clips, single files, or JSONL files.")],
    task: Annotated[str, typer.Option(help=f"What to make: {', '.join(building.TASKS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for the shard sets train/ and heldout/.")],
    heldout: Annotated[float, typer.Option(help="Share of the source pictures that is held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the split and of every puzzle.")] = 0,
    per_image: Annotated[int, typer.Option(help="Puzzles from each picture, or chosen frame of a clip.")] = 8,
    size: Annotated[int, typer.Option(help="Side in pixels of the square picture that a puzzle shows.")] = 224,
    every: Annotated[float, typer.Option(help="Seconds between the frames of a clip that puzzles show.")] = 1.0,
    max_samples_per_shard: Annotated[int, typer.Option(help="Samples of a shard.")] = 1000,
    workers: Annotated[int, typer.Option(help="Processes at most; small builds use one.")] = os.cpu_count() or 1,
) -> None:
    """Make shards from pictures, clips or questions."""
    result = building.build(
        source,
        task,
        out,
        heldout=heldout,
        seed=seed,
        per_image=per_image,
        size=size,
        every=every,
        max_samples_per_shard=max_samples_per_shard,
        workers=workers,
    )
    table = Table(title=f"{task} in {out}")
    for column in ("split", "samples", "shards", "sources"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for name, count in result.samples.items():
        table.add_row(name, str(count), str(result.shards[name]), str(result.sources[name]))
    console = Console()
    console.print(table)
    if result.duplicates or result.ignored:
        console.print(f"left out: {result.duplicates} copies, {result.ignored} files that are neither picture nor clip")
    if result.quarantined:
        reasons = ", ".join(f"{code} {count}" for code, count in result.quarantined.items())
        console.print(f"quarantined: {reasons}; see {out / 'quarantine.jsonl'}")
    raise typer.Exit(result.exit_code)


@app.command(epilog="Example: `mmrl-prep verify shards/rotation`. Exit code: 0 whole, 1 not.")
def verify(folder: Annotated[Path, typer.Argument(help="A build's folder or one shard set.")]) -> None:
    """Check every byte of shards against their index, every record against the schema, and the split."""
    problems = report.check(folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{folder}: {len(problems)} problems" if problems else f"{folder}: whole")
    raise typer.Exit(1 if problems else 0)


@app.command(epilog="Examples: `mmrl-prep stats shards/rotation`, `mmrl-prep stats shards/rotation --json`")
def stats(
    folder: Annotated[Path, typer.Argument(help="A build's folder or one shard set.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is in shards: samples, sources, answers, media and sizes."""
    found = report.stats(folder)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table(title=str(folder))
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for row in ("samples", "shards", "bytes", "sources"):
        table.add_row(row, *(f"{s[row]:,}" for s in found.values()))
    for row in ("width", "height", "characters"):
        table.add_row(f"{row} (least, median, most)", *(" ".join(map(str, s[row])) for s in found.values()))
    for row in sorted({kind for s in found.values() for kind in s["media"]}):
        table.add_row(f"{row}s", *(str(s["media"].get(row, 0)) for s in found.values()))
    for task in sorted({task for s in found.values() for task in s["answers"]}):
        shares = [s["answers"].get(task, {}) for s in found.values()]
        many = max(len(s) for s in shares) > 8
        table.add_row(
            f"answers of {task}",
            *(f"{len(s)} different" if many else " ".join(f"{a}:{n}" for a, n in s.items()) for s in shares),
        )
    Console().print(table)


def main() -> None:
    """Entry point: errors that the user can mend are said in a line, without a traceback."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        app()
    except (PrepError, ShardError, MediaError, OSError) as error:
        print(f"mmrl-prep: {error}", file=sys.stderr)
        sys.exit(1)
