"""The `mmrl` command. torch is imported inside the commands that need it, so that --help answers at once."""

from __future__ import annotations

import importlib.resources
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmrl.config import Component, ConfigError, RunConfig, load_config, load_sft_config
from mmrl.registry import KINDS, STAGES, Entry, UnknownName, bind, entries, nearest
from mmrl.tools_cli import app as tools_app
from mmrl.tools_cli import connect_servers

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help=r"""Reinforcement learning for vision-language models that reason over images and video with tools.

    [bold]Examples[/bold]

    mmrl demo                              [dim]all of it on this machine, in minutes[/dim]
    mmrl recipes                           [dim]methods that come as recipes[/dim]
    mmrl train grpo-care data.train=\[shards/train] out=runs/first
    mmrl train grpo-care train.lr=3e-6 --check   [dim]show the plan, run nothing[/dim]
    mmrl train my-recipe.yaml --resume     [dim]after the newest checkpoint[/dim]
    torchrun --nproc-per-node 8 -m mmrl.cli train my-recipe.yaml
    mmrl methods show grpo                 [dim]formula, parameters, recipes[/dim]
    mmrl tools list                        [dim]what a policy may call; `mmrl tools call` tries one[/dim]
    """,
)
methods_app = typer.Typer(help="The registered methods, rewards, signals, tools and tasks.")
app.add_typer(methods_app, name="methods")
app.add_typer(tools_app, name="tools")

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings that replace its own")]
Resume = Annotated[bool, typer.Option("--resume", help="go on after the newest checkpoint of the run's folder")]


def console() -> Console:
    """The terminal as it is; a pipe gets lines that are not cut at 80 columns."""
    return Console() if sys.stdout.isatty() else Console(width=200)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="name of a recipe, or a YAML file")],
    overrides: Overrides = None,
    resume: Resume = False,
    check: Annotated[
        bool, typer.Option("--check", help="print the settings and the step's arithmetic, run nothing")
    ] = False,
) -> None:
    r"""Train a policy by reinforcement learning, as a recipe says.

    Example: mmrl train grpo-care data.train=\[shards/train] rollout.group=8 train.steps=200
    """
    config = load_config(recipe, overrides or [])
    connect_servers(config.rollout.mcp)
    check_components(config)
    if check:
        _print_settings(config)
        print(arithmetic(config))
        return
    from mmrl.trainers import rl

    print(f"checkpoints and logs: {rl.train(config, resume=resume)}")


@app.command()
def sft(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.yaml] KEY=VALUE", help="a file of settings, then settings")
    ] = None,
    resume: Resume = False,
) -> None:
    r"""Train a policy by imitation of the dialogues in shards that end with an answer, for a cold start.

    Example: mmrl sft model.path=Qwen/Qwen2.5-VL-3B-Instruct data.train=\[shards/train] batch=64 train.lr=1e-5
    """
    given = settings or []
    recipe = given.pop(0) if given and "=" not in given[0] else None
    config = load_sft_config(recipe, given)
    from mmrl.trainers import sft as trainer

    print(f"checkpoints and logs: {trainer.sft(config, resume=resume)}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for shards, run and report")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="of training; the pictures and their split stay the same")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps (default: the recipe's)")] = None,
) -> None:
    """Prepare shards from installed pictures, train the tiny model on them, and measure it before and after.

    Example: mmrl demo --out /tmp/demo --seed 1
    """
    from mmrl.demo import demo as run

    run(out, seed, steps)


@app.command()
def config(
    recipe: Annotated[str | None, typer.Argument(help="name of a recipe, or a YAML file")] = None,
    overrides: Overrides = None,
    schema: Annotated[bool, typer.Option("--schema", help="the JSON schema of a configuration")] = False,
) -> None:
    """Print the whole configuration of a recipe (defaults included), or the schema of one.

    Example: mmrl config grpo-care train.steps=20
    """
    if schema:
        print(json.dumps(RunConfig.model_json_schema(), indent=2))
    else:
        _print_settings(load_config(recipe, overrides or []))


@app.command()
def recipes() -> None:
    """List the recipes that come with mmrl: what each sets at every stage."""
    table = Table("recipe", "paper", "components", box=None, header_style="bold")
    for name in recipe_names():
        config = load_config(name)
        used = [f"{kind} {component.name}" for kind, component in components(config)]
        table.add_row(name, config.paper, escape(", ".join(used)))
    console().print(table)


@methods_app.callback(invoke_without_command=True)
def methods(context: typer.Context) -> None:
    """List the registered methods; `mmrl methods show NAME` tells all about one."""
    if context.invoked_subcommand is None:
        methods_list()


@methods_app.command("list")
def methods_list(
    kind: Annotated[str | None, typer.Option(help=f"only one kind: {', '.join(KINDS)}")] = None,
) -> None:
    """List name, stage, needed signals and paper of all methods."""
    if kind is not None and kind not in KINDS:
        raise UnknownName(f"no kind named {kind!r}: {nearest(kind, list(KINDS))}")
    shown = [e for e in entries() if (kind is None and e.kind in STAGES) or e.kind == kind]
    table = Table("name", "stage", "needs", "paper", "what it does", box=None, header_style="bold")
    for entry in sorted(shown, key=lambda e: (KINDS.index(e.kind), e.name)):
        summary = entry.doc.split("\n")[0]
        table.add_row(entry.name, entry.kind, ", ".join(entry.needs), entry.paper, escape(summary))
    console().print(table)


@methods_app.command("show")
def methods_show(name: Annotated[str, typer.Argument(help="name of a method, reward, signal, tool or task")]) -> None:
    """Tell all about one name: what it does, its parameters, what it needs, its paper and the recipes that use it."""
    found = [e for e in entries() if e.name == name]
    if not found:
        raise UnknownName(f"nothing is registered as {name!r}: {nearest(name, [e.name for e in entries()])}")
    print("\n\n".join(describe(entry) for entry in found))


def describe(entry: Entry) -> str:
    """Everything that is known of a registered object, as text."""
    lines = [f"{entry.name} ({entry.kind})", "", *entry.doc.split("\n"), ""]
    for key, parameter in entry.parameters.items():
        default = "required" if parameter.default is inspect.Parameter.empty else f"default {parameter.default!r}"
        annotation = "" if parameter.annotation is inspect.Parameter.empty else f": {parameter.annotation}"
        lines.append(f"parameter  {key}{annotation}  ({default})")
    lines += [f"needs      {', '.join(entry.needs) or 'no signal'}"]
    lines += [f"paper      {entry.paper}"] if entry.paper else []
    using = recipes_with(entry)
    lines += [f"recipes    {', '.join(using)}"] if using else []
    return "\n".join(lines)


def recipe_names() -> list[str]:
    """Names of the recipes that come with mmrl, sorted."""
    folder = Path(str(importlib.resources.files("mmrl") / "recipes"))
    return sorted(path.stem for path in folder.glob("*.yaml"))


def components(config: RunConfig) -> list[tuple[str, Component]]:
    """The components of a run with their kinds, in the order of the stages."""
    chosen = config.algorithm
    return [
        *(("shaping", c) for c in chosen.shaping),
        ("advantage", chosen.advantage),
        *(("credit", c) for c in chosen.credit),
        ("ratio", chosen.ratio),
        ("surrogate", chosen.surrogate),
        ("aggregation", chosen.aggregation),
        *(("regularizer", c) for c in chosen.regularizers),
    ]


def recipes_with(entry: Entry) -> list[str]:
    """Names of the recipes that use an object: as a component, a signal that one needs, a reward or a tool."""
    found = []
    known = {(e.kind, e.name): e for e in entries()}
    for name in recipe_names():
        config = load_config(name)
        used = [(kind, c.name) for kind, c in components(config)]
        needs = [need for key in used if key in known for need in known[key].needs]
        used += [("signal", need) for need in needs]
        used += [("reward", reward) for reward in config.rewards]
        used += [("tool", tool) for tool in config.rollout.tools or []]
        if (entry.kind, entry.name) in used:
            found.append(name)
    return found


def check_components(config: RunConfig) -> None:
    """Raise ConfigError or UnknownName where a component, reward, tool or engine does not exist as configured."""
    for kind, component in components(config):
        try:
            bind(kind, component.name, component.params)
        except ValueError as error:
            raise ConfigError(f"algorithm: {error}") from error
    known = {(e.kind, e.name) for e in entries()}
    named = [("rewards", "reward", n) for n in config.rewards]
    named += [("rollout.tools", "tool", n) for n in config.rollout.tools or []]
    named += [("rollout.engine", "engine", config.rollout.engine.name)]
    for key, kind, name in named:
        if (kind, name) not in known:
            raise ConfigError(f"{key}: no {kind} named {name!r}: {nearest(name, [n for k, n in known if k == kind])}")


def arithmetic(config: RunConfig) -> str:
    """What a step and the run come to, as lines of text; counts the shards when they are there."""
    rollout, train = config.rollout, config.train
    trajectories = rollout.prompts * rollout.group
    longest = min(rollout.max_context, rollout.max_turns * rollout.max_new_tokens)
    lines = [
        f"one step     {rollout.prompts} prompts x {rollout.group} = {trajectories} trajectories, "
        f"at most {trajectories * longest:,} policy tokens",
        f"             {train.updates} optimiser step(s) of {trajectories / train.updates:g} trajectories each, "
        f"micro-batches of at most {train.micro_tokens:,} padded tokens",
        f"the run      {train.steps} steps = {train.steps * rollout.prompts:,} prompts, "
        f"{train.steps * trajectories:,} trajectories",
    ]
    if config.data.train:
        from mmrl.shards import open_data

        size = len(open_data(config.data.train, config.data.tasks, config.data.filters))
        lines.append(f"data         {size:,} samples = {train.steps * rollout.prompts / max(1, size):.2f} epochs")
    else:
        lines.append("data         none: set data.train=[FOLDER]")
    needs = sorted({n for kind, c in components(config) for e in entries(kind) if e.name == c.name for n in e.needs})
    lines.append(f"signals      {', '.join(needs) or 'none'}")
    return "\n".join(lines)


def _print_settings(config: RunConfig) -> None:
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")


def run_app(app: typer.Typer, arguments: Sequence[str] | None, *own: type[Exception]) -> None:
    """Run a command line. An error that tells the user what to do (those that mmrl raises for it, and `own`) is one
    message and exit code 2; any other is a bug, and its traceback is wanted."""
    try:
        app(args=arguments)
    except Exception as error:
        if not isinstance(error, (ConfigError, UnknownName, FileNotFoundError, *own)):
            from mmrl.media import MediaError
            from mmrl.shards import ShardError

            if not isinstance(error, ShardError | MediaError):
                raise
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/bold red] {escape(str(error))}")
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """The `mmrl` command."""
    run_app(app, arguments)


if __name__ == "__main__":
    main()
