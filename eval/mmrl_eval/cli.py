"""The `mmrl-eval` command. torch is imported inside the commands that need it, so that --help answers at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from mmrl.cli import console, run_app
from mmrl.config import key_value
from mmrl_eval import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmrl_eval.compare import Difference
    from mmrl_eval.metrics import Score

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="""Measure a vision-language model on shards, and compare two measurements.

    [bold]Examples[/bold]

    mmrl-eval run --model runs/first/export --data shards/heldout --out evals/after
    mmrl-eval run --model tiny-vlm --data shards/heldout --out evals/four --temperature 1 --samples 4
    mmrl-eval compare evals/before evals/after
    """,
)


@app.command()
def run(
    model: Annotated[str, typer.Option(help="Hugging Face folder of the policy, or tiny-vlm")],
    data: Annotated[list[Path], typer.Option(help="shard folder; may be given several times")],
    out: Annotated[Path, typer.Option(help="folder for records and result; a killed run goes on in it")],
    tasks: Annotated[str, typer.Option(help="only these tasks, separated by commas")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="ask only so many samples, drawn by seed and key")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="the likeliest token always (the default)")] = False,
    temperature: Annotated[float | None, typer.Option(min=0, help="sample at this temperature")] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    samples: Annotated[int, typer.Option(min=1, help="rollouts of each prompt")] = 1,
    tools: Annotated[bool, typer.Option("--tools/--no-tools", help="offer the tools of each task, or none")] = True,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="policy tokens of one turn")] = 512,
    max_turns: Annotated[int, typer.Option(min=1, help="policy turns of a trajectory")] = 4,
    max_images: Annotated[int, typer.Option(min=1, help="pictures of a trajectory")] = 8,
    max_context: Annotated[int, typer.Option(min=1, help="tokens of a trajectory")] = 8192,
    min_pixels: Annotated[int | None, typer.Option(min=1, help="smallest picture area (default: the model's)")] = None,
    max_pixels: Annotated[int | None, typer.Option(min=1, help="largest picture area (default: the model's)")] = None,
    seed: Annotated[int, typer.Option(help="of sampling, and of --limit")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="prompts rolled out together")] = 16,
    consistency: Annotated[bool, typer.Option(help="score the options after the reasoning")] = True,
    reader: Annotated[str | None, typer.Option(help="model that scores them (default: the policy itself)")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    engine: Annotated[str, typer.Option(help="what samples: transformers, vllm or openai (a server)")] = "transformers",
    engine_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="of the engine; may be given several times")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print result.json instead of tables")] = False,
) -> None:
    """Ask a policy the samples of shards; write records.jsonl and result.json; print the scores.

    Examples: mmrl-eval run --model tiny-vlm --data shards/heldout --out evals/before

    mmrl-eval run --model Qwen/Qwen2.5-VL-3B-Instruct --data shards/heldout --out evals/served --no-consistency
    --engine openai --engine-option url=http://localhost:8000/v1 --engine-option served=NAME
    """
    if greedy and temperature:
        raise RunError(f"--greedy and --temperature {temperature:g} contradict each other: give one")
    from mmrl.config import validate
    from mmrl.policy.load import load_chat, load_policy
    from mmrl.rollout import make_engine
    from mmrl.shards import ShardSet
    from mmrl_eval.run import EvalConfig, choose, evaluate

    config = EvalConfig(
        temperature=temperature or 0.0,
        top_p=top_p,
        samples=samples,
        tools=None if tools else (),
        max_new_tokens=max_new_tokens,
        max_turns=max_turns,
        max_images=max_images,
        max_context=max_context,
        seed=seed,
        batch=batch,
        consistency=consistency,
    )
    shards = ShardSet.open(data, [t for t in tasks.split(",") if t])
    asked = choose([shards[i] for i in range(len(shards))], limit, seed)
    settings = {"dtype": dtype, "device": device, "min_pixels": min_pixels, "max_pixels": max_pixels}

    def load(path: str) -> tuple[Any, Any]:
        return load_policy(validate({"model": {"path": path, **settings}}).model)

    options = dict(key_value(o, "--engine-option") for o in engine_option or [])
    if engine == "openai":  # the weights are the server's: here only the chat format is needed
        if consistency and reader is None:
            raise RunError("--engine openai: a server cannot score options: give --reader MODEL or --no-consistency")
        policy, chat = None, load_chat(validate({"model": {"path": model, **settings}}).model)
    else:
        policy, chat = load(model)
    read_by = None if reader is None else load(reader)[0]
    result = evaluate(
        policy,
        chat,
        asked,
        config=config,
        out=out,
        engine=make_engine(engine, policy, chat, **options),
        reader=read_by,
        identity={"model": model, "reader": reader, "engine": engine},
    )
    if as_json:
        print(json.dumps(result.to_json(), indent=1))
        return
    console().print(score_table({**result.tasks, "all": result.overall}, result.budget_hash))
    console().print(f"records and result: {out}", soft_wrap=True)
    if not result.complete:
        typer.echo("incomplete: infrastructure failed for some records; the same command again retries them", err=True)
        raise typer.Exit(1)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="run folder")],
    b: Annotated[Path, typer.Argument(help="run folder that is held against it")],
    allow_different_budgets: Annotated[bool, typer.Option("--allow-different-budgets")] = False,
    seed: Annotated[int, typer.Option(help="of bootstrap and permutation")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Compare two runs on the samples that both were asked: difference B - A, its 95 % interval and p.

    Example: mmrl-eval compare evals/before evals/after
    """
    from mmrl_eval.compare import compare as paired_comparison

    found = paired_comparison(a, b, allow_different_budgets=allow_different_budgets, seed=seed)
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    console().print(difference_table({**found.tasks, "all": found.overall}))
    if found.only_a or found.only_b:
        console().print(f"left out: {found.only_a} prompts only in A, {found.only_b} only in B")
    for name, (left, right) in found.budget_differences.items():
        console().print(f"budgets differ: {name} {left!r} in A, {right!r} in B", soft_wrap=True, markup=False)


def score_table(scores: dict[str, Score], budget_hash: str) -> Table:
    """Scores by task; every accuracy with its interval, its n and the hash of the budget that it was got with."""
    table = Table(title=f"budget {budget_hash}", box=None, header_style="bold")
    table.add_column("task")
    for name in ("accuracy", "95 % interval", "n", "consistent", "unparsed", "cut"):
        table.add_column(name, justify="right")
    for name in ("used tools", "calls", "calls ok", "tokens", "p95"):
        table.add_column(name, justify="right")
    for task, s in scores.items():
        table.add_row(
            escape(task),
            _percent(s.accuracy),
            f"{_percent(s.low)} - {_percent(s.high)}",
            str(s.records),
            _percent(s.consistent),
            _percent(s.unparsed),
            _percent(s.truncated),
            _percent(s.tool_used),
            f"{s.tool_calls:.2f}",
            _percent(s.tool_valid),
            f"{s.tokens.mean:.0f}",
            f"{s.tokens.p95:.0f}",
        )
    return table


def difference_table(differences: dict[str, Difference]) -> Table:
    """Differences by task."""
    table = Table(box=None, header_style="bold")
    table.add_column("task")
    for name in ("A", "B", "B - A", "95 % interval", "p", "test", "prompts", "won", "lost", "tied"):
        table.add_column(name, justify="right")
    for task, d in differences.items():
        table.add_row(
            escape(task),
            _percent(d.accuracy_a),
            _percent(d.accuracy_b),
            f"{100 * d.difference:+.1f}",
            f"{100 * d.low:+.1f} to {100 * d.high:+.1f}",
            f"{d.p:.2g}",
            d.test,
            *map(str, (d.prompts, d.won, d.lost, d.tied)),
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The `mmrl-eval` command."""
    run_app(app, arguments, RunError)


if __name__ == "__main__":
    main()
