"""The typed configuration of a run: YAML recipes, `key=value` overrides, errors that name the nearest key.

A recipe may say `base: NAME`, another recipe whose settings it extends; dictionaries merge, everything else replaces.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mmrl.registry import nearest

S = TypeVar("S", bound="Section")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says which key, why, and what to do."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors and values are checked on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class Component(Section):
    """A registered component and its parameters: `grpo`, or `{name: grpo, std: false}`."""

    model_config = ConfigDict(extra="allow")
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _component(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _components(value: Any) -> Any:
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    return [_component(v) for v in items]


One = Annotated[Component, BeforeValidator(_component)]
Many = Annotated[list[Component], BeforeValidator(_components)]


class LoraConfig(Section):
    """Low-rank adapters on the language model's linear layers."""

    rank: int = Field(16, gt=0, description="rank of the adapters")
    alpha: int = Field(32, gt=0, description="scale numerator: adapters are scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: list[str] = Field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        description="names of the linear layers that get adapters",
    )


class ModelConfig(Section):
    """The policy."""

    path: str = Field("tiny-vlm", description="a Hugging Face folder, or tiny-vlm for the one that mmrl carries")
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    freeze_vision: bool = Field(False, description="train the language model only")
    lora: LoraConfig | None = None
    min_pixels: int | None = Field(
        None, gt=0, description="smallest picture area after resizing (default: the model's)"
    )
    max_pixels: int | None = Field(None, gt=0, description="largest picture area after resizing (default: the model's)")
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"


class DataConfig(Section):
    """Where prompts come from."""

    train: list[str] = Field(default_factory=list, description="shard folders, read as one set; or one mixture file")
    heldout: list[str] = Field(default_factory=list, description="shard folders that are only evaluated on")
    tasks: list[str] = Field(default_factory=list, description="keep only samples of these tasks (empty: all)")
    filters: list[str] = Field(
        default_factory=list, description="keep only samples for which these hold, such as meta.difficulty.rate < 1"
    )
    workers: int = Field(0, ge=0, description="decoding threads")


Syntax = Literal["hermes", "tool_code", "json"]


class RolloutConfig(Section):
    """How trajectories are sampled."""

    engine: One = Field(
        default_factory=lambda: Component(name="transformers"),
        description="registered engine: vllm, or {name: vllm, option: value}",
    )
    prompts: int = Field(16, gt=0, description="prompts of one step, over all ranks")
    group: int = Field(8, gt=0, description="trajectories of one prompt")
    temperature: float = Field(1.0, ge=0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    max_new_tokens: int = Field(512, gt=0, description="policy tokens of one turn")
    max_turns: int = Field(4, gt=0, description="policy turns of a trajectory")
    max_images: int = Field(8, gt=0, description="pictures in a trajectory, those of the prompt included")
    max_context: int = Field(8192, gt=0, description="tokens of a trajectory, prompt and observations included")
    frame_budgets: list[Annotated[int, Field(ge=1, le=768)]] = Field(
        default_factory=list,
        description="the most frames of each clip of a prompt: one of these, drawn by the key of the sample (default: "
        "its meta.frame_budget, else 16)",
    )
    tools: list[str] | None = Field(None, description="tools on offer (default: those of each task)")
    tool_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="settings of tools, such as {text_search: {corpus: FOLDER}}"
    )
    mcp: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="MCP servers, whose tools are named SERVER.TOOL, such as {maps: {command: maps-server}} or "
        "{wiki: {url: URL}} (see mmrl_tools/mcp.py)",
    )
    tool_concurrency: int = Field(32, gt=0, description="calls that run at the same time")
    tool_failures: int = Field(5, gt=0, description="failures of a tool in a row after which it rests")
    tool_rest: float = Field(30.0, ge=0, description="seconds that such a tool rests before it is tried again")
    syntax: list[Syntax] = Field(
        default_factory=lambda: list[Syntax](["hermes"]),
        min_length=1,
        description="forms of calls that are understood: <tool_call>{...}</tool_call>, <tool_code>f(x=1)</tool_code>, "
        "```json blocks",
    )
    calls: Literal["all", "first", "last"] = Field("all", description="which of several calls in a turn run")
    max_calls: int = Field(8, gt=0, description="calls of a turn that run; the others are answered by an error")
    think_calls: Literal["run", "ignore"] = Field("run", description="calls inside <think>")


class AlgorithmConfig(Section):
    """One component for each stage, in this order."""

    shaping: Many = Field(default_factory=list)
    filters: Many = Field(default_factory=list)
    advantage: One = Field(default_factory=lambda: Component(name="grpo"))
    credit: Many = Field(default_factory=list)
    ratio: One = Field(default_factory=lambda: Component(name="token"))
    surrogate: One = Field(default_factory=lambda: Component(name="clip"))
    aggregation: One = Field(default_factory=lambda: Component(name="token-mean"))
    regularizers: Many = Field(default_factory=list)
    zero_signal: Literal["skip", "count"] = Field(
        "count",
        description="groups without any advantage: count them in the denominators of the loss, as the papers do, or "
        "skip them",
    )


class ReferenceConfig(Section):
    """Frozen or slowly moving copies of the policy, for the signals that need one."""

    ema_decay: float = Field(0.995, ge=0, lt=1, description="EMA reference: ref = decay * ref + (1 - decay) * policy")
    ema_every: int = Field(10, gt=0, description="steps between EMA updates")


class TrainConfig(Section):
    """The optimiser and the loop."""

    steps: int = Field(100, gt=0)
    seed: int = 0
    lr: float = Field(1e-6, gt=0)
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    clip_grad: float = Field(1.0, gt=0, description="largest norm of the whole gradient")
    updates: int = Field(1, gt=0, description="optimiser steps made from one batch of rollouts (mini-batches)")
    micro_tokens: int = Field(16384, gt=0, description="padded tokens of one forward and backward pass")
    save_every: int = Field(0, ge=0, description="steps between checkpoints (0: only at the end)")
    keep: int = Field(2, gt=0, description="checkpoints kept")
    importance_cap: float | None = Field(
        None, gt=0, description="truncated importance sampling of engine against trainer, e.g. 2.0 (off by default)"
    )
    max_logp_gap: float = Field(
        1.0, gt=0, description="mean |engine - trainer| log-prob over which a step stops: the two disagree on the model"
    )


class LogConfig(Section):
    """What a run writes beside checkpoints: metrics.jsonl and trajectories.jsonl always."""

    tensorboard: bool = Field(True, description="when tensorboard is installed")
    wandb: str | None = Field(None, description="project name")
    trajectories: int = Field(8, ge=0, description="trajectories written for each step")


class RunConfig(Section):
    """A whole run: `mmrl train RECIPE key=value ...`."""

    name: str = "run"
    paper: str = Field("", description="where the method is from")
    out: str = Field("runs/run", description="folder of the run")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    reference: ReferenceConfig = Field(default_factory=ReferenceConfig)
    rewards: dict[str, float] = Field(
        default_factory=dict, description="weights that replace those of the tasks, by reward name"
    )
    train: TrainConfig = Field(default_factory=TrainConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    @model_validator(mode="after")
    def _cross_checks(self) -> RunConfig:
        if self.algorithm.advantage.name in ("grpo", "dr-grpo", "rloo") and self.rollout.group < 2:
            raise ValueError(
                f"algorithm.advantage {self.algorithm.advantage.name} compares the trajectories of a group: "
                f"rollout.group is {self.rollout.group}, set at least 2"
            )
        if self.rollout.temperature == 0:
            raise ValueError("rollout.temperature is 0: greedy rollouts of a prompt are all equal and teach nothing")
        return self


class SftConfig(Section):
    """A supervised run: `mmrl sft RECIPE key=value ...`."""

    name: str = "sft"
    out: str = Field("runs/sft", description="folder of the run")
    batch: int = Field(16, gt=0, description="dialogues of one step, over all ranks")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    train: TrainConfig = Field(default_factory=lambda: TrainConfig(lr=1e-5))
    log: LogConfig = Field(default_factory=LogConfig)


class _Yaml(yaml.SafeLoader):
    """Safe YAML in which 1e-4 is a number, as in YAML 1.2; YAML 1.1 takes it for text, for want of a point."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z"), list("-+.0123456789")
)


def recipe_path(name: str) -> Path:
    """The file of a recipe: a path to a YAML file, or the name of one that mmrl carries."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise ConfigError(f"no recipe file {name}")
        return Path(name)
    folder = Path(str(importlib.resources.files("mmrl") / "recipes"))
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"no recipe named {name!r}: {nearest(name, [p.stem for p in folder.glob('*.yaml')])}")
    return path


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: dictionaries merge key by key, everything else replaces."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if not (isinstance(old, dict) and isinstance(value, dict)):
            out[key] = value
        elif "name" in value and value["name"] != old.get("name"):
            out[key] = value  # another component in a stage: the parameters of the old one do not carry over
        else:
            out[key] = merge(old, value)
    return out


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe with those of its bases below them."""
    path = recipe_path(name)
    try:
        data = yaml.load(path.read_text(), _Yaml) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of settings, not a {type(data).__name__}")
    base = data.pop("base", None)
    return merge(read_recipe(base), data) if base else data


def apply_override(data: dict[str, Any], override: str) -> dict[str, Any]:
    """Lay `a.b.c=value` (value read as YAML) on nested settings."""
    key, eq, text = override.partition("=")
    if not eq or not key:
        raise ConfigError(f"override {override!r}: write key=value, for example train.steps=20")
    try:
        value = yaml.load(text, _Yaml) if text else None
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML: {error}") from error
    parts = key.split(".")
    node = data
    for part in parts[:-1]:
        child = node.get(part)
        if isinstance(child, str):  # a component written by its bare name
            child = {"name": child}
        node[part] = dict(child) if isinstance(child, dict) else {}
        node = node[part]
    node[parts[-1]] = value
    return data


def load_config(recipe: str | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The validated configuration of a recipe with overrides laid on it. Raises ConfigError."""
    return validate(read_settings(recipe, overrides))


def load_sft_config(recipe: str | None = None, overrides: Sequence[str] = ()) -> SftConfig:
    """The same for a supervised run."""
    return _validated(read_settings(recipe, overrides), SftConfig)


def key_value(text: str, option: str) -> tuple[str, Any]:
    """What a command-line `option` KEY=VALUE says, the value read as YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} {text!r}: write KEY=VALUE")
    return key, yaml.safe_load(value)


def read_settings(recipe: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """A recipe's settings with overrides laid on them, not yet validated."""
    data = read_recipe(recipe) if recipe else {}
    for override in overrides:
        data = apply_override(data, override)
    return data


def validate(data: dict[str, Any]) -> RunConfig:
    """Settings as a RunConfig; errors name the key, the reason and the nearest known key."""
    return _validated(data, RunConfig)


def _validated(data: dict[str, Any], kind: type[S]) -> S:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e, kind) for e in error.errors())) from error


def _explain(error: Any, kind: type[BaseModel]) -> str:
    where = ".".join(str(p) for p in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{where or 'configuration'}: {error['msg'].removeprefix('Value error, ')}" + (
            f" (got {error['input']!r})" if where and not isinstance(error["input"], (dict, BaseModel)) else ""
        )
    section: Any = kind
    for part in error["loc"][:-1]:
        if isinstance(part, str) and isinstance(section, type) and issubclass(section, BaseModel):
            annotation = section.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            section = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    known = list(section.model_fields) if section else []
    return f"unknown key {where}: {nearest(str(error['loc'][-1]), known)}"
