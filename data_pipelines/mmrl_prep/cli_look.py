"""Commands that only look: probe, verify, stats, preview."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mmrl.shards.repair import repair as repair_shard
from mmrl.shards.writer import atomic_write
from mmrl_prep import preview as previews
from mmrl_prep import probe as probes
from mmrl_prep import report
from mmrl_prep.places import walk
from mmrl_prep.rewrite import open_sets
from mmrl_prep.rng import rank
from mmrl_prep.tables import kind_of

Folder = Annotated[Path, typer.Argument(help="A build's folder or one shard set.")]
Model = Annotated[
    str, typer.Option(help="Whose sizes and tokens: qwen2.5-vl, qwen3-vl, or the folder of a checkpoint.")
]


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: `mmrl-prep probe clip.mp4 photos/*.jpg | jq .`. Exit code: 3 when one is unusable.")(
        probe
    )
    app.command(epilog="Example: `mmrl-prep verify shards/rotation`. Exit code: 0 whole, 1 not.")(verify)
    app.command(epilog="Examples: `mmrl-prep stats shards/rotation`, `mmrl-prep stats x --model qwen3-vl --json`")(
        stats
    )
    app.command(epilog="Example: `mmrl-prep preview shards/qa --out preview.html --model qwen2.5-vl --samples 20`")(
        preview
    )


def probe(files: Annotated[list[Path], typer.Argument(help="Pictures, clips, or folders of them.")]) -> None:
    """Say in a line of JSON what each file really is, and what would be done to it."""
    bad = False
    for given in files:
        for path in (p for p in walk(given) if kind_of(p.name)) if given.is_dir() else [given]:
            found = probes.probe(path)
            bad |= "code" in found
            print(json.dumps(found, ensure_ascii=False), flush=True)
    raise typer.Exit(3 if bad else 0)


def verify(
    folder: Folder,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every picture and clip as well.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep the good samples of cut shards; what is lost is said.")
    ] = False,
) -> None:
    """Check every byte of shards against their index, every record against the schema, and the split."""
    if repair:
        for path in sorted(folder.rglob("*.tar")):
            done = repair_shard(path)
            if done.lost:
                print(f"{path}: {done.kept} samples kept, lost: {', '.join(done.lost)}", file=sys.stderr)
        report.write_manifests(folder)
    problems = report.check(folder, decode=decode)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{folder}: {len(problems)} problems" if problems else f"{folder}: whole")
    raise typer.Exit(1 if problems else 0)


def stats(
    folder: Folder,
    model: Model = "qwen2.5-vl",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is in shards: samples, sources, answers, media, sizes, formats, times and tokens."""
    found = report.stats(folder, previews.load_profile(model))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table(title=str(folder))
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for row in ("samples", "shards", "bytes", "sources"):
        table.add_row(row, *(f"{s[row]:,}" for s in found.values()))
    for row in ("width", "height", "seconds", "fps", "tokens", "characters"):
        if any(s[row] for s in found.values()):
            table.add_row(f"{row} (least, median, most)", *(" ".join(map(str, s[row])) for s in found.values()))
    for group in ("media", "formats", "modes", "flags"):
        for row in sorted({kind for s in found.values() for kind in s[group]}):
            name = f"{row}s" if group == "media" else f"{group[:-1]} {row}"
            table.add_row(name, *(str(s[group].get(row, 0)) for s in found.values()))
    for task in sorted({task for s in found.values() for task in s["answers"]}):
        shares = [s["answers"].get(task, {}) for s in found.values()]
        many = max(len(s) for s in shares) > 8
        table.add_row(
            f"answers of {task}",
            *(f"{len(s)} different" if many else " ".join(f"{a}:{n}" for a, n in s.items()) for s in shares),
        )
    Console().print(table)
    reasons = report.quarantined(folder)
    if reasons:
        print("quarantined: " + ", ".join(f"{code} {count}" for code, count in reasons.items()))


def preview(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="HTML file to write; without it, words on the terminal.")] = None,
    model: Model = "qwen2.5-vl",
    samples: Annotated[int, typer.Option(help="How many, drawn by --seed.")] = 24,
    seed: Annotated[int, typer.Option(help="Which ones.")] = 0,
    fps: Annotated[float, typer.Option(help="Frames a second of clips that the model is shown.")] = 2.0,
    max_frames: Annotated[int, typer.Option(help="Frames of a clip at most.")] = 16,
) -> None:
    """Show samples as the model will see them: resized pictures, boxes, frames with times, answers, tokens."""
    data = open_sets([folder])
    drawn = sorted(range(len(data)), key=lambda n: rank(seed, str(n)))[:samples]
    chosen = [data[n] for n in sorted(drawn)]
    profile = previews.load_profile(model)
    if out is None:
        for line in previews.lines(chosen, profile, fps=fps, max_frames=max_frames):
            print(json.dumps(line, ensure_ascii=False))
        return
    text = previews.page(chosen, profile, title=str(folder), fps=fps, max_frames=max_frames)
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, text.encode())
    print(f"{out}: {len(chosen)} of {len(data)} samples")
