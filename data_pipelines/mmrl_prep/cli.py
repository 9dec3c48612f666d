"""mmrl-prep: pictures, clips and questions become checked shards. Building is here, other commands are beside it."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mmrl.media import MediaError
from mmrl.shards import ShardError
from mmrl_prep import build as building
from mmrl_prep import cli_look, cli_sets
from mmrl_prep.mappings import MAPPINGS
from mmrl_prep.places import PrepError

app = typer.Typer(
    help="Pictures and clips become checked, split WebDataset shards that `mmrl train` and `mmrl-eval` read.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

EXAMPLES = """
Examples:

- `mmrl-prep build photos --task rotation --out shards/rotation`

- `mmrl-prep build photos clips --task jigsaw_grid --grid 3x3 --out shards/jigsaw --size 224 --workers 8`

- `mmrl-prep build questions.jsonl --task qa --out shards/qa --heldout 0.2`

- `mmrl-prep build train.parquet --task qa --mapping video-r1 --media-root /data/videos --out shards/v`

A row of a table is an object such as `{"question": "Which fruit?", "options": ["apple", "pear"], "answer": "B",
"image": "fruit.jpg"}`; paths are relative to the table, and `images`, `video` and `videos` name media as well. A
mapping file (YAML) says which column of another table is what; columns that it does not name are kept in `meta`.

Inputs that cannot be used are listed with their reason in `quarantine.jsonl`, and the run goes on. A killed build is
continued by the same command and gives the same bytes.

Exit code: 0 all good, 3 done but some inputs were quarantined, 1 failed.
"""
PUZZLES = "Puzzles"

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Folders of pictures or clips, single files, tables (.jsonl .json .csv .tsv .parquet .arrow .tar or "
        "folders of them), shard sets; paths or URLs."
    ),
]
Out = Annotated[str, typer.Option(help="Folder or URL for the shard sets train/ and heldout/.")]
Heldout = Annotated[float, typer.Option(help="Share of the source pictures that is held out.")]
Seed = Annotated[int, typer.Option(help="Seed of the split, of every puzzle and of every order of options.")]
Limit = Annotated[int, typer.Option(help="Samples of a shard.")]
Workers = Annotated[int, typer.Option(help="Processes at most; small builds use one.")]
Engine = Annotated[str, typer.Option(help="local processes, or the workers of a ray cluster.")]
Mapping = Annotated[str | None, typer.Option(help=f"Which column is what: {', '.join(MAPPINGS)}, or a YAML file.")]
Root = Annotated[str | None, typer.Option(help="Where relative paths of rows begin, instead of their table's folder.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first input that cannot be used.")]
Budget = Annotated[float, typer.Option(help="Share of inputs that may be quarantined; more end the build.")]
CPUS = os.cpu_count() or 1


@app.command(epilog=EXAMPLES)
def build(
    source: Sources,
    task: Annotated[str, typer.Option(help=f"What to make: {', '.join(building.TASKS)}.")],
    out: Out,
    heldout: Heldout = 0.1,
    seed: Seed = 0,
    mapping: Mapping = None,
    media_root: Root = None,
    max_samples_per_shard: Limit = 1000,
    workers: Workers = CPUS,
    engine: Engine = "local",
    strict: Strict = False,
    error_budget: Budget = 1.0,
    min_side: Annotated[int, typer.Option(help="Smallest side of a picture or clip, pixels.")] = 16,
    allow_truncated: Annotated[
        bool, typer.Option("--allow-truncated", help="Keep what is left of cut pictures, marked in their flags.")
    ] = False,
    animated: Annotated[bool, typer.Option("--animated", help="GIF files are clips, not their first frame.")] = False,
    per_image: Annotated[
        int, typer.Option(help="Puzzles of each picture, chosen frame or clip.", rich_help_panel=PUZZLES)
    ] = 8,
    size: Annotated[int, typer.Option(help="Side in pixels of what a puzzle shows.", rich_help_panel=PUZZLES)] = 224,
    every: Annotated[
        float, typer.Option(help="Seconds between the frames of a clip that puzzles show.", rich_help_panel=PUZZLES)
    ] = 1.0,
    grid: Annotated[str, typer.Option(help="Rows x columns of jigsaw_grid.", rich_help_panel=PUZZLES)] = "3x3",
    clips: Annotated[
        int, typer.Option(help="Pieces of video_jigsaw, frames of temporal_order.", rich_help_panel=PUZZLES)
    ] = 4,
    trim: Annotated[
        float, typer.Option(help="Share cut off at both ends of each piece of a clip.", rich_help_panel=PUZZLES)
    ] = 0.1,
    points: Annotated[int, typer.Option(help="Marks of depth_order.", rich_help_panel=PUZZLES)] = 6,
    distractors: Annotated[
        int, typer.Option(help="Wrong patches of patchfit_hard: 3, 5 or 7.", rich_help_panel=PUZZLES)
    ] = 3,
    style: Annotated[
        str,
        typer.Option(help="Orders are asked for as a list (order) or a letter (choice).", rich_help_panel=PUZZLES),
    ] = "order",
) -> None:
    """Make shards from pictures, clips or questions."""
    settings = dict(locals())
    for name in ("source", "task", "out"):
        settings.pop(name)
    _build(source, task, out, **{**settings, "grid": _grid(grid)})


@app.command(epilog="Example: `mmrl-prep puzzle shards/photos --task jigsaw --out shards/jigsaw --per-image 4`")
def puzzle(
    source: Annotated[list[str], typer.Argument(help="Shard sets or builds whose pictures and clips become puzzles.")],
    task: Annotated[str, typer.Option(help=f"Which: {', '.join(building.PUZZLES)}.")],
    out: Out,
    heldout: Heldout = 0.1,
    seed: Seed = 0,
    per_image: Annotated[int, typer.Option(help="Puzzles of each picture, chosen frame or clip.")] = 8,
    size: Annotated[int, typer.Option(help="Side in pixels of what a puzzle shows.")] = 224,
    every: Annotated[float, typer.Option(help="Seconds between the frames of a clip that puzzles show.")] = 1.0,
    grid: Annotated[str, typer.Option(help="Rows x columns of jigsaw_grid.")] = "3x3",
    clips: Annotated[int, typer.Option(help="Pieces of video_jigsaw, frames of temporal_order.")] = 4,
    style: Annotated[str, typer.Option(help="order or choice.")] = "order",
    max_samples_per_shard: Limit = 1000,
    workers: Workers = CPUS,
) -> None:
    """Make puzzles from the media of shards that are there."""
    if task not in building.PUZZLES:
        raise PrepError(f"no puzzle {task!r}; there are {', '.join(building.PUZZLES)}")
    settings = dict(locals())
    for name in ("source", "task", "out"):
        settings.pop(name)
    _build(source, task, out, **{**settings, "grid": _grid(grid)})


@app.command(
    "import",
    epilog="Example: `mmrl-prep import tars/ --out shards/x`, `mmrl-prep import data.parquet --mapping m.yaml --out x`",
)
def import_(
    source: Sources,
    out: Out,
    mapping: Mapping = None,
    media_root: Root = None,
    heldout: Heldout = 0.0,
    seed: Seed = 0,
    max_samples_per_shard: Limit = 1000,
    workers: Workers = CPUS,
    strict: Strict = False,
) -> None:
    """Make shards from WebDataset tars, parquet or Hugging Face dataset folders: `build --task qa --heldout 0`."""
    settings = dict(locals())
    for name in ("source", "out"):
        settings.pop(name)
    _build(source, "qa", out, **settings)


def _grid(text: str) -> tuple[int, int]:
    try:
        rows, columns = (int(n) for n in text.lower().split("x"))
    except ValueError as error:
        raise PrepError(f"grid {text!r}: rows x columns such as 3x3") from error
    return rows, columns


def _build(source: list[str], task: str, out: str, **settings: Any) -> None:
    result = building.build(list(source), task, out, **settings)
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
        console.print(f"quarantined: {reasons}; see {out}/quarantine.jsonl")
    raise typer.Exit(result.exit_code)


cli_look.add_to(app)
cli_sets.add_to(app)


def main() -> None:
    """Entry point: errors that the user can mend are said in a line, without a traceback."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        app()
    except (PrepError, ShardError, MediaError, OSError) as error:
        print(f"mmrl-prep: {error}", file=sys.stderr)
        sys.exit(1)
