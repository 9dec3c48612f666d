"""Paired statistics against exact values and brute force; refusals."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from mmrl_eval import RunError
from mmrl_eval.compare import bootstrap_interval, compare, mcnemar, paired, paired_interval, sign_flip
from mmrl_eval.records import append


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (6, 0, 2 / 64), (10, 2, 2 * (1 + 12 + 66) / 4096), (0, 20, 2 / 2**20)],
)
def test_mcnemar_by_counting(won, lost, p):
    assert mcnemar(won, lost) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 80), st.integers(0, 80))
def test_mcnemar_is_a_fair_coin(won, lost):
    expected = binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected)


def test_paired_interval_of_a_published_table():
    """Agresti, Categorical Data Analysis: ratings 794, 150, 86, 570: -0.04 with (-0.059, -0.021)."""
    assert paired_interval(86, 150, 1600) == pytest.approx((-0.059, -0.021), abs=5e-4)


def test_paired_interval_stays_open_when_nothing_differs():
    low, high = paired_interval(0, 0, 20)
    assert low == -high
    assert high == pytest.approx(1.959964 / 22)


@settings(max_examples=30)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_sign_flip_counts_all_patterns(differences):
    observed = abs(sum(differences))
    patterns = list(itertools.product((-1, 1), repeat=len(differences)))
    extreme = sum(abs(sum(s * d for s, d in zip(p, differences, strict=True))) >= observed for p in patterns)
    assert sign_flip([d / 4 for d in differences]) == pytest.approx(extreme / len(patterns))


@pytest.mark.parametrize(("won", "lost"), [(9, 3), (60, 30), (40, 38)])
def test_sign_flip_of_single_wins_is_mcnemar(won, lost):
    p = mcnemar(won, lost)
    error = 3 * math.sqrt(p * (1 - p) / 10_000) + 1e-3
    assert sign_flip([1.0] * won + [-1.0] * lost + [0.0] * 50) == pytest.approx(p, abs=error)


def test_bootstrap_has_the_width_of_the_clusters():
    generator = np.random.default_rng(1)
    values = generator.normal(0.2, 1.0, 300)
    low, high = bootstrap_interval(values, [1] * 300)
    half = 1.96 * values.std() / math.sqrt(300)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    assert bootstrap_interval([1.0, 2.0], [2, 4]) == (0.5, 0.5)  # a ratio: clusters of any size with the same mean


def test_paired_takes_the_test_that_fits():
    a, b = {"x": 0.0, "y": 1.0, "z": 0.0}, {"x": 1.0, "y": 1.0, "z": 1.0}
    single = paired(a, b, {k: k for k in a})
    assert (single.test, single.won, single.lost, single.tied) == ("mcnemar", 2, 0, 1)
    assert (single.difference, single.p) == (pytest.approx(2 / 3), 0.5)
    assert paired(a, b, {"x": "one", "y": "one", "z": "two"}).test == "sign-flip"
    assert paired({"x": 0.25, "y": 0.5}, {"x": 0.5, "y": 0.5}, {"x": "x", "y": "y"}).test == "sign-flip"


def test_paired_needs_the_same_keys():
    with pytest.raises(ValueError, match="same keys"):
        paired({"a": 1.0}, {"b": 1.0}, {"a": "a", "b": "b"})


BUDGET = {"temperature": 0.0, "max_new_tokens": 64, "samples": 1}


def write_run(folder, scores, *, budget=BUDGET, truth="A"):
    folder.mkdir()
    result = {"budget": budget, "budget_hash": str(hash(str(budget)))}
    (folder / "result.json").write_text(json.dumps(result))
    append(
        folder / "records.jsonl",
        [
            {
                "key": key,
                "sample": i,
                "task": "mcq" if key < "m" else "rotation",
                "source": key,
                "truth": {"value": truth},
                "media": [["img_1", "abc"]],
                "score": score,
            }
            for key, values in scores.items()
            for i, score in enumerate(values)
        ],
    )
    return folder


def test_compare_two_runs(tmp_path):
    a = write_run(tmp_path / "a", {"a": [0.0], "b": [1.0], "x": [0.0], "only": [1.0]})
    b = write_run(tmp_path / "b", {"x": [1.0], "b": [0.0], "a": [1.0]})
    result = compare(a, b)
    assert (result.overall.prompts, result.overall.won, result.overall.lost) == (3, 2, 1)
    assert list(result.tasks) == ["mcq", "rotation"]
    assert (result.tasks["mcq"].difference, result.tasks["rotation"].difference) == (0.0, 1.0)
    assert (result.only_a, result.only_b) == (1, 0)


def test_compare_averages_the_samples_of_a_prompt(tmp_path):
    a = write_run(tmp_path / "a", {"a": [0.0, 1.0], "b": [0.0, 0.0]})
    b = write_run(tmp_path / "b", {"a": [1.0, 1.0], "b": [0.0, 1.0]})
    overall = compare(a, b).overall
    assert (overall.accuracy_a, overall.accuracy_b, overall.test) == (0.25, 0.75, "sign-flip")


def test_compare_refuses_different_budgets(tmp_path):
    a = write_run(tmp_path / "a", {"a": [0.0]})
    b = write_run(tmp_path / "b", {"a": [1.0]}, budget=BUDGET | {"max_new_tokens": 128})
    with pytest.raises(RunError, match="max_new_tokens: 64 in A, 128 in B") as error:
        compare(a, b)
    assert "temperature" not in str(error.value)
    assert "--allow-different-budgets" in str(error.value)
    assert compare(a, b, allow_different_budgets=True).budget_differences == {"max_new_tokens": (64, 128)}


def test_compare_refuses_other_questions_and_unfinished_runs(tmp_path):
    a = write_run(tmp_path / "a", {"a": [0.0]})
    with pytest.raises(RunError, match="another truth"):
        compare(a, write_run(tmp_path / "b", {"a": [0.0]}, truth="B"))
    with pytest.raises(RunError, match="no sample key in common"):
        compare(a, write_run(tmp_path / "c", {"z": [0.0]}))
    (tmp_path / "d").mkdir()
    with pytest.raises(RunError, match="no finished run"):
        compare(a, tmp_path / "d")
