"""Commands that make sets from sets, or compare them: dedupe, check, filter, mix, split, export, difficulty."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmrl.shards import ShardSet
from mmrl.shards.filters import Selection
from mmrl.shards.mixture import open_data, write_mixture
from mmrl.shards.writer import atomic_write
from mmrl.tokens import count_tokens
from mmrl_prep import copies, preview, rewrite
from mmrl_prep.augment import CHANGES, augmented
from mmrl_prep.augment import documents as pages
from mmrl_prep.places import PrepError, place
from mmrl_prep.scan import Look, scan
from mmrl_prep.similar import LIMIT
from mmrl_prep.sources import list_media
from mmrl_prep.workers import Crew

Sets = Annotated[list[Path], typer.Argument(help="Shard sets or builds.")]
Out = Annotated[Path, typer.Option(help="Folder of the new shard set.")]
Workers = Annotated[int, typer.Option(help="Processes at most.")]
Bits = Annotated[int, typer.Option(help="Bits of 64 by which the fingerprints of look-alikes may differ.")]
CPUS = os.cpu_count() or 1


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: `mmrl-prep dedupe photos --report copies.jsonl`, "
        "`mmrl-prep dedupe shards/qa --report copies.jsonl --out shards/qa-once`. Exit code: 3 when there are copies."
    )(dedupe)
    app.command(
        epilog="Example: `mmrl-prep check shards/qa/train --against benchmarks/mmvu --report pairs.jsonl`. "
        "Exit code: 3 when something is shared."
    )(check)
    app.command(
        "filter",
        epilog="Example: `mmrl-prep filter shards/qa --where 'media.0.width >= 64' --where 'meta.difficulty.rate < 1' "
        "--max-tokens 4096 --out shards/qa-fit`",
    )(filter_)
    app.command(epilog="Example: `mmrl-prep mix shards/qa=3 shards/jigsaw=1 --out mixture.json`")(mix)
    app.command(epilog="Example: `mmrl-prep split shards/all --heldout 0.2 --by source --out shards/split`")(split)
    app.command(
        epilog="Examples: `mmrl-prep augment shards/qa --change invert --out shards/qa-inverted`, "
        "`mmrl-prep augment shards/hard --change difficulty:rationale --out shards/graded`. Exit code: 3 when some "
        "samples allow no change."
    )(augment)
    app.command(epilog="Example: `mmrl-prep documents --count 1000 --out shards/pages`")(documents)
    app.command(epilog="Examples: `mmrl-prep export shards/qa/train --format parquet --out qa`")(export)
    app.command(
        epilog="Example: `mmrl-prep difficulty shards/qa/train --model checkpoints/sft --n 8 --out shards/hard`"
    )(difficulty)


def dedupe(
    source: Annotated[list[str], typer.Argument(help="Shard sets (samples), or folders and tables (media).")],
    report: Annotated[Path, typer.Option(help="JSON Lines: a group of copies a line, the first is kept.")],
    out: Annotated[Path | None, typer.Option(help="Write a shard set without the copies; shard sets only.")] = None,
    bits: Bits = LIMIT,
    workers: Workers = CPUS,
) -> None:
    """Find copies, exact and by their looks. Nothing is removed without --out, and never without the list."""
    paths = [place(s) for s in source]
    if all(_is_set(p) for p in paths):
        data = rewrite.open_sets(paths)
        groups = copies.sample_copies(data, limit=bits, workers=workers)
        lines: list[dict[str, Any]] = [{"samples": [data[n].key for n in group]} for group in groups]
        extra = {n for group in groups for n in group[1:]}
        if out:
            kept = [n for n in range(len(data)) if n not in extra]
            rewrite.write_set((data[n] for n in kept), len(kept), out, what="write")
        print(f"{len(extra)} of {len(data)} samples are copies in {len(groups)} groups: {report}")
    else:
        if out:
            raise PrepError("--out writes shard sets: build one of these media first, which leaves exact copies out")
        media, _, _ = list_media(paths)
        report.parent.mkdir(parents=True, exist_ok=True)
        with Crew(workers) as crew:
            facts = scan(media, report.with_suffix(".scan.jsonl"), look=Look(min_side=1), crew=crew)
        found = copies.media_groups(media, facts, limit=bits)
        lines = [{"media": [{"file": m.file, "row": m.row, "distance": d} for m, d in group]} for group in found]
        print(f"{sum(len(g) - 1 for g in found)} of {len(media)} media are copies in {len(found)} groups: {report}")
        groups = [[0]] * len(found)
    _write_lines(report, lines)
    raise typer.Exit(3 if groups else 0)


def check(
    folder: Sets,
    against: Annotated[list[Path], typer.Option(help="Shard sets of benchmarks; give it more than once for several.")],
    report: Annotated[Path, typer.Option(help="JSON Lines: a pair of samples a line, with the evidence.")],
    bits: Bits = LIMIT,
    words: Annotated[int, typer.Option(help="Words of a run that two questions share.")] = copies.GRAM,
    overlap: Annotated[float, typer.Option(help="Share of a benchmark question's runs that must be shared.")] = 0.5,
    workers: Workers = CPUS,
) -> None:
    """Contamination: samples that share a picture, a clip or their words with a benchmark."""
    ours, theirs = rewrite.open_sets(folder), rewrite.open_sets(against)
    pairs = copies.contamination(ours, theirs, limit=bits, gram=words, min_overlap=overlap, workers=workers)
    _write_lines(report, [p.to_json() for p in pairs])
    kinds = {k: sum(p.media == k for p in pairs) for k in ("exact", "similar")}
    print(
        f"{len(pairs)} pairs: {kinds['exact']} with the same medium, {kinds['similar']} with a look-alike "
        f"(up to {bits} bits), {sum(bool(p.text) for p in pairs)} with shared words "
        f"(runs of {words}, overlap {overlap:g}): {report}"
    )
    raise typer.Exit(3 if pairs else 0)


def filter_(
    folder: Sets,
    out: Out,
    where: Annotated[list[str] | None, typer.Option(help="Keep samples for which this holds; all must.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens that the media of a sample cost.")] = None,
    model: Annotated[str, typer.Option(help="Whose tokens: qwen2.5-vl, qwen3-vl or a checkpoint.")] = "qwen2.5-vl",
) -> None:
    """Keep samples by expressions on their record.

    Fields: `task`, `answer.kind`, `media.0.width`, `media.0.info.sharpness` (`entropy`, `duration`, `fps`, `frames`),
    `meta.…`, `characters` (length of the words), `text`, `tokens` (of the media). Comparisons: == != < <= > >= in.
    """
    data = rewrite.open_sets(folder)
    profile = preview.load_profile(model)
    selection = Selection(where or [])
    kept = []
    for number, sample in enumerate(data):
        tokens = count_tokens(profile, sample.media).total
        if max_tokens is not None and tokens > max_tokens:
            continue
        if selection.keeps({**rewrite.fields(sample), "tokens": tokens}):
            kept.append(number)
    selection.check()
    if not kept:
        raise PrepError(f"none of {len(data)} samples passes {where or []}")
    rewrite.write_set((data[n] for n in kept), len(kept), out, what="write")
    print(f"{out}: {len(kept)} of {len(data)} samples")


def mix(
    part: Annotated[list[str], typer.Argument(help="FOLDER=WEIGHT for each shard set.")],
    out: Annotated[Path, typer.Option(help="The mixture file (JSON) that `data.train` and loaders take.")],
    where: Annotated[list[str] | None, typer.Option(help="A filter that every part is narrowed by.")] = None,
) -> None:
    """Write a weighted mixture of shard sets; samples stay where they are."""
    parts = []
    for text in part:
        folder, _, weight = text.rpartition("=")
        try:
            value = float(weight)
        except ValueError as error:
            raise PrepError(f"{text!r}: FOLDER=WEIGHT is needed, such as shards/qa=2") from error
        path = Path(os.path.relpath(Path(folder).absolute(), out.absolute().parent))
        parts.append({"path": str(path), "weight": value, "filters": list(where or [])})
    write_mixture(out, parts)
    print(f"{out}: an epoch has {len(open_data(out))} samples of {len(parts)} sets")


def split(
    folder: Sets,
    out: Annotated[Path, typer.Option(help="Folder for train/ and heldout/.")],
    heldout: Annotated[float, typer.Option(help="Share of the groups that is held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Which groups.")] = 0,
    by: Annotated[str, typer.Option(help="The field of meta whose groups stay together.")] = "source",
) -> None:
    """Split shards anew, by source: copies and look-alikes of a picture stay on one side."""
    found = rewrite.split_set(rewrite.open_sets(folder), out, heldout=heldout, seed=seed, by=by)
    print(f"{out}: " + ", ".join(f"{name} {count}" for name, count in found.items()))


def augment(
    folder: Sets,
    out: Out,
    change: Annotated[list[str], typer.Option(help=f"One after the other: {', '.join(CHANGES)}.")],
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    suffix: Annotated[str, typer.Option(help="Added to every key, so that both sets can be mixed.")] = "-a",
) -> None:
    """Make samples from samples: inverted questions, other options, frame budgets, noise, help by difficulty."""
    data = rewrite.open_sets(folder)
    failed: list[tuple[str, str, str]] = []
    records = augmented(data, change, failed, seed=seed, suffix=suffix)
    count = rewrite.write_records(records, len(data), out, what="write")
    codes = ", ".join(f"{code} {n}" for code, n in sorted(Counter(code for _, code, _ in failed).items()))
    print(f"{out}: {count} of {len(data)} samples" + (f"; left out: {codes}" if failed else ""))
    if failed:
        lines = [{"key": key, "code": code, "message": message} for key, code, message in failed]
        _write_lines(out / "left_out.jsonl", lines)
    raise typer.Exit(3 if failed else 0)


def documents(
    out: Out,
    count: Annotated[int, typer.Option(help="Pages.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the pages.")] = 0,
    width: Annotated[int, typer.Option(help="Pixels of a page.")] = 640,
    height: Annotated[int, typer.Option(help="Pixels of a page.")] = 896,
) -> None:
    """Draw document pages with known text; the answer is the unit tests that a transcription must pass."""
    made = rewrite.write_records(pages(count, seed=seed, size=(width, height)), count, out, what="draw")
    print(f"{out}: {made} pages")


def export(
    folder: Sets,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    format: Annotated[str, typer.Option(help="parquet (read by datasets.load_dataset) or webdataset.")] = "parquet",
) -> None:
    """Write shards as parquet or plain WebDataset tars for other tools; `mmrl-prep import` reads both back."""
    if format not in ("parquet", "webdataset"):
        raise PrepError(f"no format {format!r}: parquet or webdataset")
    data = rewrite.open_sets(folder)
    count = rewrite.export_parquet(data, out) if format == "parquet" else rewrite.export_webdataset(data, out)
    print(f"{out}: {count} samples")


def difficulty(
    folder: Sets,
    model: Annotated[str, typer.Option(help="Folder or hub name of the policy.")],
    out: Out,
    n: Annotated[int, typer.Option(help="Answers to sample for each question.")] = 8,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Of a turn.")] = 512,
    max_turns: Annotated[int, typer.Option(help="Turns, tool calls included.")] = 4,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    batch: Annotated[int, typer.Option(help="Questions at a time.")] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "auto",
) -> None:
    """Measure how often a model is right, and write the shards with `meta.difficulty`."""
    from mmrl.config import ModelConfig, RolloutConfig
    from mmrl.policy.load import load_policy
    from mmrl.rollout import make_engine
    from mmrl_prep.difficulty import measure, with_difficulty

    data: ShardSet = rewrite.open_sets(folder)
    policy, chat = load_policy(ModelConfig(path=model, device=device))
    config = RolloutConfig(group=n, temperature=temperature, max_new_tokens=max_new_tokens, max_turns=max_turns)
    journal = out.with_name(f".{out.name}.difficulty.jsonl")
    engine = make_engine("transformers", policy, chat)
    found = measure(engine, chat, data, journal, config=config, seed=seed, batch=batch, model=model)
    rewrite.write_set(data, len(data), out, what="write", change=with_difficulty(found, model))
    rates = sorted(m["rate"] for m in found.values())
    never, always = sum(r == 0 for r in rates), sum(r == 1 for r in rates)
    mean = sum(rates) / max(1, len(rates))
    print(f"{out}: {len(rates)} samples, mean rate {mean:.3f}, {never} never right, {always} always right")


def _is_set(path: Path) -> bool:
    return any((path / n / "dataset.json").is_file() for n in (".", "train", "heldout"))


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
