"""Recipes, overrides and error messages of the configuration."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mmrl.config import ConfigError, RunConfig, apply_override, load_config, merge, read_recipe, validate


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_defaults_are_a_valid_run():
    assert load_config() == RunConfig()


def test_overrides_are_read_as_yaml():
    config = load_config(None, ["train.lr=1e-4", "data.train=[a, b]", "model.lora={rank: 4}", "rollout.tools="])
    assert config.train.lr == 1e-4
    assert config.data.train == ["a", "b"]
    assert config.model.lora is not None
    assert config.model.lora.rank == 4
    assert config.rollout.tools is None


def test_exponents_without_a_point_are_numbers_in_recipes_too(tmp_path):
    """YAML 1.1 takes 1e-4 for text."""
    path = write(tmp_path, "r.yaml", "train: {lr: 1e-4}\nalgorithm: {advantage: {name: grpo, eps: 1e-8}}\n")
    config = load_config(path)
    assert config.train.lr == 1e-4
    assert config.algorithm.advantage.params == {"eps": 1e-8}


def test_components_by_bare_name_and_with_parameters(tmp_path):
    path = write(
        tmp_path, "r.yaml", "algorithm:\n  advantage: rloo\n  regularizers: [{name: kl, coef: 0.1}]\n  shaping: care\n"
    )
    config = load_config(path)
    assert (config.algorithm.advantage.name, config.algorithm.advantage.params) == ("rloo", {})
    assert [(c.name, c.params) for c in config.algorithm.regularizers] == [("kl", {"coef": 0.1})]
    assert [c.name for c in config.algorithm.shaping] == ["care"]


def test_override_of_a_bare_component_keeps_its_name(tmp_path):
    path = write(tmp_path, "r.yaml", "algorithm: {advantage: grpo}\n")
    config = load_config(path, ["algorithm.advantage.std=false"])
    assert (config.algorithm.advantage.name, config.algorithm.advantage.params) == ("grpo", {"std": False})


def test_recipes_extend_their_base(tmp_path):
    base = write(
        tmp_path, "base.yaml", "train: {lr: 0.001, steps: 7}\nalgorithm: {advantage: {name: grpo, std: false}}\n"
    )
    top = write(tmp_path, "top.yaml", f"base: {base}\ntrain: {{steps: 9}}\nalgorithm: {{advantage: {{name: rloo}}}}\n")
    config = load_config(top)
    assert (config.train.lr, config.train.steps) == (0.001, 9)
    assert config.algorithm.advantage.params == {}  # those of grpo do not carry over to rloo
    assert "base" not in read_recipe(top)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.stesp=3"], "unknown key train.stesp: did you mean 'steps'"),
        (["rolout.group=3"], "unknown key rolout: did you mean 'rollout'"),
        (["model.lora.rnak=3"], "unknown key model.lora.rnak: did you mean 'rank'"),
        (["train.steps=many"], r"train.steps: .*integer.* \(got 'many'\)"),
        (["rollout.group=1"], "rollout.group is 1, set at least 2"),
        (["rollout.temperature=0"], "greedy rollouts of a prompt are all equal"),
        (["train.steps"], "write key=value"),
        (["=3"], "write key=value"),
    ],
)
def test_errors_name_the_key_and_the_cure(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_missing_and_broken_recipes(tmp_path):
    with pytest.raises(ConfigError, match="no recipe file"):
        load_config(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="no recipe named 'nope'"):
        load_config("nope")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(write(tmp_path, "bad.yaml", "a: [1"))
    with pytest.raises(ConfigError, match="a recipe is a mapping"):
        load_config(write(tmp_path, "list.yaml", "- 1"))


TREES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda leaf: st.dictionaries(st.sampled_from("abcd"), leaf, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abcd"), TREES), st.dictionaries(st.sampled_from("abcd"), TREES))
def test_merge_lays_one_tree_on_another(base, over):
    def leaves(tree, path=()):
        for key, value in tree.items():
            if isinstance(value, dict) and value:
                yield from leaves(value, (*path, key))
            else:
                yield (*path, key), value

    def at(tree, path):
        for key in path:
            tree = tree[key]
        return tree

    merged = merge(base, over)
    for path, value in leaves(over):
        if value != {}:
            assert at(merged, path) == value
    assert merge(base, {}) == base
    assert merge(merged, over) == merged


@given(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.lists(st.integers()))
def test_an_override_sets_what_its_text_says(value):
    assert apply_override({"a": {"c": 1}}, f"a.b={json.dumps(value)}") == {"a": {"c": 1, "b": value}}


def test_settings_survive_a_round_trip_through_yaml():
    config = load_config(None, ["algorithm.advantage={name: grpo, std: false}", "model.lora={rank: 4}"])
    assert validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


def test_the_schema_describes_every_setting():
    schema = RunConfig.model_json_schema()
    assert set(schema["properties"]) == set(RunConfig.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["TrainConfig"]["properties"]["steps"]["exclusiveMinimum"] == 0
