"""The choice of tokens."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.families import mask_banned
from mmrl.rollout.sampling import choose, derive_seed, truncate, uniforms


def draw(logits: list[float], count: int, temperature: float = 1.0, top_p: float = 1.0) -> list[float]:
    """Frequencies of the tokens over an even grid of uniform numbers."""
    logp = torch.tensor(logits).log_softmax(-1).expand(count, -1)
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    token = choose(logp, uniform, torch.full((count,), temperature), torch.full((count,), top_p))
    return (torch.bincount(token, minlength=len(logits)) / count).tolist()


def test_frequencies_are_the_probabilities() -> None:
    probs = [0.5, 0.25, 0.125, 0.125]
    logits = [math.log(p) for p in probs]
    assert draw(logits, 10_000) == pytest.approx(probs, abs=1e-3)
    warm = [p**0.5 for p in probs]
    assert draw(logits, 10_000, temperature=2.0) == pytest.approx([w / sum(warm) for w in warm], abs=1e-3)
    assert draw(logits, 100, temperature=0.0) == [1, 0, 0, 0]
    assert draw(logits, 10_000, temperature=0.01) == pytest.approx([1, 0, 0, 0], abs=1e-3)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = [math.log(p) for p in (0.125, 0.5, 0.125, 0.25)]
    assert draw(logits, 9_999, top_p=0.75) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=1e-3)
    assert draw(logits, 9_999, top_p=0.76) == pytest.approx([1 / 7, 4 / 7, 0, 2 / 7], abs=1e-3)
    assert draw(logits, 100, top_p=1e-9) == [0, 1, 0, 0]
    assert draw(logits, 8_000, top_p=1.0) == pytest.approx([0.125, 0.5, 0.125, 0.25], abs=1e-3)


def test_rows_have_their_own_settings() -> None:
    logp = torch.tensor([[0.5, 0.25, 0.25]] * 3).log()
    token = choose(
        logp, torch.tensor([0.99, 0.99, 0.99]).double(), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1, 1, 0.6])
    )
    assert token.tolist() == [0, 2, 1]


@given(st.lists(st.floats(-80, 80), min_size=2, max_size=9), st.floats(0, 1, exclude_max=True), st.data())
@settings(max_examples=80, deadline=None)
def test_banned_tokens_are_never_chosen(logits: list[float], uniform: float, data: st.DataObject) -> None:
    banned = data.draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    logp = mask_banned(torch.tensor([logits]), tuple(banned)).log_softmax(-1)
    temperature = data.draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    for u in (uniform, 0.0, math.nextafter(1, 0)):
        token = choose(logp, torch.tensor([u]).double(), torch.tensor([temperature]), torch.tensor([0.9]))
        assert int(token) not in banned


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8), st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_truncation_is_smallest(weights: list[float], top_p: float) -> None:
    probs = torch.tensor(weights).double()
    probs /= probs.sum()
    kept = truncate(probs[None], torch.tensor([top_p]).double())[0]
    assert kept.sum() >= top_p - 1e-9
    positive = kept[kept > 0]
    assert kept.sum() - positive.min() < top_p + 1e-9
    assert all(float(k) in (0.0, float(p)) for k, p in zip(kept, probs, strict=True))


def test_seeds_are_apart_and_the_same_in_every_process() -> None:
    seeds = {
        derive_seed(*parts) for parts in [(0,), (1,), ("0",), (0, 0), (0, 1), (1, 0), ("0\x1f0",), (0, "a"), ("a", 0)]
    }
    assert len(seeds) == 9
    code = "from mmrl.rollout.sampling import derive_seed as d, uniforms as u; print(d(7, 'key', 2), u(5, 3).tolist())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    other = ran.stdout.strip()
    assert other == f"{derive_seed(7, 'key', 2)} {uniforms(5, 3).tolist()}"


def test_uniform_numbers() -> None:
    numbers = uniforms(derive_seed(3), 20_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.01)
    assert torch.equal(uniforms(9, 50)[:20], uniforms(9, 20))
