"""Intervals, design effects and summaries against published and brute-force values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl_eval.metrics import Distribution, by_task, effective_size, interval, summarise, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe (1998), Statistics in Medicine 17, 857-872, table I, score method without continuity correction
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_table(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 400), st.data())
def test_wilson_contains_the_rate_and_is_symmetric(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n)
    assert 0 <= low <= k / n + 1e-12
    assert k / n - 1e-12 <= high <= 1
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low))


def test_wilson_of_nothing_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


def test_effective_size_of_copies_is_the_number_of_pictures():
    scores = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    copies = [s for s in scores for _ in range(5)]
    clusters = [i for i in range(len(scores)) for _ in range(5)]
    # perfectly alike within a cluster: 5 copies are worth one, up to the (C - 1) / C of the cluster variance
    assert effective_size(copies, clusters) == pytest.approx(len(scores) - 1)
    assert effective_size(scores, range(len(scores))) == len(scores)


def test_effective_size_is_never_above_the_number_of_records():
    # each cluster holds one right and one wrong: less spread than chance, which must not narrow the interval
    assert effective_size([1.0, 0.0] * 6, [i // 2 for i in range(12)]) == 12
    assert effective_size([1.0] * 12, [i // 4 for i in range(12)]) == 3  # nothing known of the spread


def test_interval_covers_the_truth_when_records_of_a_picture_agree():
    """Beta-binomial pictures (intra-class correlation 1/3): 95 % intervals hold the mean about 95 % of the time; those
    that take the records for independent do not."""
    generator = np.random.default_rng(0)
    pictures, each, runs = 40, 8, 400
    clusters = [i for i in range(pictures) for _ in range(each)]
    held = naive = 0
    for _ in range(runs):
        rates = generator.beta(1.2, 0.8, pictures)
        scores = (generator.random((pictures, each)) < rates[:, None]).astype(float).ravel().tolist()
        low, high = interval(scores, clusters)
        held += low <= 0.6 <= high
        low, high = wilson(sum(scores), len(scores))
        naive += low <= 0.6 <= high
    assert 0.92 <= held / runs <= 0.985
    assert naive / runs < 0.85


def test_distribution_of_known_values():
    values = list(range(1, 101))
    assert Distribution.of(values) == Distribution(mean=50.5, median=50.5, p95=95, max=100)
    assert Distribution.of([7]) == Distribution(7, 7, 7, 7)
    assert Distribution.of([]) == Distribution(0, 0, 0, 0)


def row(key="a", sample=0, task="mcq", score=1.0, **changes):
    base = {
        "key": key,
        "sample": sample,
        "task": task,
        "source": key,
        "score": score,
        "status": "ok",
        "answer": "A",
        "stop": "finished",
        "lengths": {"prompt": 9, "policy": 10, "observation": 0, "think": 6, "answer": 3},
        "tool_calls": [],
        "faults": [],
        "answer_logp": math.log(0.5),
        "consistent": None,
    }
    return base | changes


def test_summary_by_hand():
    call = {"turn": 0, "name": "crop", "arguments": {}}
    rows = [
        row("a", consistent=True, tool_calls=[call | {"error": None}, call | {"error": "outside_picture"}]),
        row("b", consistent=False, tool_calls=[call | {"error": None}]),
        row("c", score=0.0, consistent=True),
        row("d", score=0.0, answer=None, status="unfinished", stop="max_tokens", answer_logp=None),
    ]
    rows[3]["faults"] = [{"kind": "policy", "code": "bad_json", "message": "", "turn": 0}]
    score = summarise(rows)
    assert (score.records, score.prompts, score.clusters) == (4, 4, 4)
    assert (score.accuracy, score.low, score.high) == (0.5, *wilson(2, 4))
    assert score.consistent == pytest.approx(2 / 3)
    assert (score.consistent_right, score.consistent_wrong, score.consistency_records) == (0.5, 1.0, 3)
    assert (score.unparsed, score.truncated, score.tool_used) == (0.25, 0.25, 0.5)
    assert score.tool_calls == 0.75
    assert score.tool_valid == pytest.approx(2 / 3)
    assert (score.accuracy_with_tools, score.accuracy_without_tools) == (1.0, 0.0)
    assert score.answer_likelihood == pytest.approx(0.5)
    assert score.status == {"ok": 3, "unfinished": 1}
    assert score.stop == {"finished": 3, "max_tokens": 1}
    assert score.faults == {"policy:bad_json": 1}


def test_failed_and_unparsed_records_stay_in_the_denominator():
    rows = [row("a"), row("b", score=0.0, answer=None, status="no_answer_tag"), row("c", score=0.0, stop="fault")]
    assert summarise(rows).accuracy == pytest.approx(1 / 3)


def test_no_records_is_an_error():
    with pytest.raises(ValueError, match="no records"):
        summarise([])


def test_by_task_splits_and_sorts():
    scores = by_task([row("a", task="z"), row("b", task="m", score=0.0), row("c", task="m")])
    assert list(scores) == ["m", "z"]
    assert (scores["m"].accuracy, scores["z"].accuracy) == (0.5, 1.0)
