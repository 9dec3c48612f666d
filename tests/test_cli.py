"""The `mmrl` command: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mmrl import cli
from mmrl.config import ConfigError, RunConfig, load_config, validate
from mmrl.registry import STAGES, entries, get


@pytest.fixture
def mmrl(capsys):
    """Runs the command in this process; returns exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


def test_help_answers_without_torch():
    code = "import sys; sys.argv = ['mmrl', '--help']\nfrom mmrl import cli\ntry:\n    cli.main()\n"
    code += "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert "mmrl train grpo-care data.train=[shards/train] out=runs/first" in done.stdout


def test_the_module_runs_as_torchrun_starts_it():
    done = subprocess.run([sys.executable, "-m", "mmrl.cli", "config", "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no recipe named 'nope'")
    assert "Traceback" not in done.stderr


def test_config_prints_settings_that_can_be_run_again(mmrl, tmp_path):
    code, out, _ = mmrl("config", "grpo", "train.steps=7", "algorithm.advantage.std=false")
    assert code == 0
    assert validate(yaml.safe_load(out)) == load_config("grpo", ["train.steps=7", "algorithm.advantage.std=false"])


def test_config_schema_is_the_json_schema(mmrl):
    code, out, _ = mmrl("config", "--schema")
    assert (code, json.loads(out)) == (0, RunConfig.model_json_schema())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "grpoo"], "no recipe named 'grpoo': did you mean 'grpo"),
        (["train", "grpo", "train.stesp=3", "--check"], "unknown key train.stesp: did you mean 'steps'?"),
        (["train", "grpo", "algorithm.advantage=grpp", "--check"], "no advantage named 'grpp': did you mean 'grpo'?"),
        (["train", "grpo", "algorithm.advantage.sdt=true", "--check"], "advantage 'grpo' has no parameter 'sdt'"),
        (["train", "grpo", "rewards={acuracy: 1}", "--check"], "rewards: no reward named 'acuracy': did you mean"),
        (["train", "grpo", "rollout.tools=[corp]", "--check"], "rollout.tools: no tool named 'corp': did you mean"),
        (["train", "grpo", "rollout.engine=transformer", "--check"], "rollout.engine: no engine named 'transformer'"),
        (["train", "grpo", "data.train=[/nonexistent]", "--check"], "/nonexistent is no complete shard set"),
        (["methods", "show", "gprpo"], "nothing is registered as 'gprpo': did you mean 'grpo'?"),
        (["methods", "list", "--kind", "advantages"], "no kind named 'advantages': did you mean 'advantage'?"),
    ],
)
def test_a_users_error_is_one_message_and_exit_code_2(mmrl, arguments, message):
    code, _, err = mmrl(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "load_config", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["config", "grpo"])


def test_check_prints_settings_and_arithmetic_and_trains_nothing(mmrl, monkeypatch):
    from mmrl.trainers import rl

    monkeypatch.setattr(rl, "train", lambda *_, **__: pytest.fail("--check must not train"))
    settings = ["rollout.prompts=6", "rollout.group=4", "rollout.max_new_tokens=50", "rollout.max_turns=2"]
    code, out, _ = mmrl("train", "grpo", *settings, "train.steps=10", "train.updates=2", "--check")
    assert code == 0
    assert "6 prompts x 4 = 24 trajectories, at most 2,400 policy tokens" in out
    assert "2 optimiser step(s) of 12 trajectories each" in out
    assert "10 steps = 60 prompts, 240 trajectories" in out
    assert "none: set data.train=[FOLDER]" in out


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_train_passes_on_what_it_was_told(mmrl, monkeypatch, resume):
    from mmrl.trainers import rl

    told = []
    monkeypatch.setattr(rl, "train", lambda config, **options: told.append((config, options)) or Path("there"))
    code, out, _ = mmrl("train", "grpo", "train.steps=3", *resume)
    assert (code, told) == (0, [(load_config("grpo", ["train.steps=3"]), {"resume": bool(resume)})])
    assert out.strip().endswith("there")


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_sft_takes_settings_with_or_without_a_file(mmrl, monkeypatch, tmp_path, resume):
    from mmrl.trainers import sft

    told = []
    monkeypatch.setattr(sft, "sft", lambda config, **options: told.append((config, options)) or Path("there"))
    (tmp_path / "own.yaml").write_text("batch: 3\ntrain: {steps: 9, lr: 1e-4}\n")
    assert mmrl("sft", "batch=5", *resume)[0] == 0
    assert mmrl("sft", str(tmp_path / "own.yaml"), "train.steps=2", *resume)[0] == 0
    (first, options), (second, _) = told
    assert (first.batch, first.train.lr, options) == (5, 1e-5, {"resume": bool(resume)})
    assert (second.batch, second.train.steps, second.train.lr) == (3, 2, 1e-4)
    code, _, err = mmrl("sft", "bacth=5")
    assert (code, "unknown key bacth: did you mean 'batch'?" in err) == (2, True)


def test_demo_passes_on_what_it_was_told(mmrl, monkeypatch):
    from mmrl import demo

    told = []
    monkeypatch.setattr(demo, "demo", lambda *arguments: told.append(arguments))
    assert mmrl("demo", "--out", "x", "--seed", "3", "--steps", "5")[0] == 0
    assert mmrl("demo")[0] == 0
    assert told == [(Path("x"), 3, 5), (Path("demo-run"), 0, None)]


def test_methods_lists_every_stage_component(mmrl):
    code, out, _ = mmrl("methods")
    assert code == 0
    for entry in entries():
        if entry.kind in STAGES:
            assert any(line.split()[:2] == [entry.name, entry.kind] for line in out.splitlines()), entry
    assert mmrl("methods", "list")[1] == out
    tools = mmrl("methods", "list", "--kind", "tool")[1]
    assert {line.split()[0] for line in tools.splitlines()[1:]} >= {"crop", "zoom"}


def test_methods_show_tells_all(mmrl):
    code, out, _ = mmrl("methods", "show", "grpo")
    entry = get("advantage", "grpo")
    assert code == 0
    assert "grpo (advantage)" in out
    assert entry.doc.split("\n")[0] in out
    for name, parameter in entry.parameters.items():
        assert f"parameter  {name}: " in out
        assert f"(default {parameter.default!r})" in out
    assert f"paper      {entry.paper}" in out
    line = next(line for line in out.splitlines() if line.startswith("recipes"))
    assert "grpo" in line.split(None, 1)[1].split(", ")


def test_recipes_lists_all_and_every_one_is_sound(mmrl):
    code, out, _ = mmrl("recipes")
    assert code == 0
    listed = {line.split()[0] for line in out.splitlines()[1:] if not line.startswith("  ")}
    assert set(cli.recipe_names()) <= listed
    for name in cli.recipe_names():
        config = load_config(name)
        cli.check_components(config)
        assert config.name == name


def test_check_components_names_the_stage():
    with pytest.raises(ConfigError, match="surrogate 'clip' has no parameter 'hihg'"):
        cli.check_components(load_config(None, ["algorithm.surrogate={name: clip, hihg: 0.3}"]))
