"""The stages put together: additivity over micro-batches and ranks, edges, and errors that name the culprit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.loss import (
    NonFinite,
    Stages,
    compute_advantage,
    counted,
    counts,
    has_signal,
    kept,
    policy_loss,
    shape_rewards,
)
from mmrl.config import AlgorithmConfig
from mmrl.registry import register
from mmrl.types import Counts, RolloutBatch

RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {"aggregation": "seq-mean-token-mean", "regularizers": [{"name": "kl", "coef": 0.1}]},
    "dr-grpo": {"advantage": "dr-grpo", "aggregation": {"name": "seq-mean-token-sum-const", "const": 7}},
    "rloo": {"advantage": "rloo", "aggregation": "seq-mean-token-sum"},
    "dapo": {"filters": ["mixed-groups"], "surrogate": {"name": "dapo", "dual": 3.0}, "aggregation": "token-mean"},
    "gspo": {"ratio": "gspo", "surrogate": {"name": "clip", "low": 0.01, "high": 0.02}},
    "cispo": {"surrogate": "cispo", "aggregation": "group-token-mean"},
}


def stages(name: str) -> Stages:
    return Stages.from_config(AlgorithmConfig(**RECIPES[name]))


def make_batch(seed: int, rows: int = 9, width: int = 6) -> tuple[RolloutBatch, torch.Tensor]:
    """Groups of unequal size in any order, some rows without a token to learn from, nan outside the mask."""
    rng = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, width, generator=rng) < 0.6).double()
    mask[torch.rand(rows, generator=rng) < 0.2] = 0
    old, new, ref = (-3 * torch.rand(rows, width, generator=rng, dtype=torch.float64) for _ in range(3))
    for values in (old, new, ref):
        values[mask == 0] = math.nan
    correct = torch.randint(0, 2, (rows,), generator=rng).double()
    batch = RolloutBatch(
        group=torch.randint(0, 4, (rows,), generator=rng),
        reward=correct + 0.5 * torch.randint(0, 2, (rows,), generator=rng).double(),
        mask=mask,
        correct=correct,
        logp_old=old,
        signals={"ref_logp": ref},
    )
    return batch, new


def gradient(
    batch: RolloutBatch, new: torch.Tensor, algorithm: Stages, total: Counts, parts: list[list[int]]
) -> tuple[float, torch.Tensor]:
    """Loss and gradient summed over the parts of a batch."""
    new = new.clone().requires_grad_()
    loss = new.new_zeros(())
    for part in parts:
        loss = loss + policy_loss(batch.select(part), new[part], total, algorithm)[0]
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


@pytest.mark.parametrize("name", RECIPES)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(9)), cut=st.integers(1, 8))
def test_parts_add_up_to_one_large_batch(name: str, seed: int, order: list[int], cut: int) -> None:
    batch, new = make_batch(seed)
    algorithm = stages(name)
    batch.advantage = compute_advantage(batch, algorithm)
    rows = counted(batch, algorithm, zero_signal="count")
    total = counts(batch, rows)
    batch.weight = algorithm.aggregation(batch, total)
    whole = gradient(batch, new, algorithm, total, [list(range(9))])
    parts = gradient(batch, new, algorithm, total, [order[:cut], order[cut:]])
    assert parts[0] == pytest.approx(whole[0], abs=1e-12)
    assert torch.allclose(parts[1], whole[1], atol=1e-12)
    assert whole[1].isfinite().all()
    assert whole[1][batch.mask == 0].abs().sum() == 0
    assert whole[1][~kept(batch, algorithm)].abs().sum() == 0


@given(seed=st.integers(0, 10_000))
def test_a_group_without_signal_is_counted_or_skipped_as_a_group(seed: int) -> None:
    batch, _ = make_batch(seed)
    algorithm = stages("dr-grpo")
    batch.advantage = compute_advantage(batch, algorithm)
    some = torch.tensor(
        [
            bool(((batch.advantage[batch.group == g].abs() * batch.mask[batch.group == g]).sum() > 0).item())
            for g in batch.group
        ]
    )
    assert torch.equal(has_signal(batch), some)
    skip, count = (counted(batch, algorithm, zero_signal=z) for z in ("skip", "count"))
    assert torch.equal(skip, some)
    assert count.all()
    assert counts(batch, count) == Counts(float(batch.mask.sum()), 9.0, float(len(batch.group.unique())))
    assert counts(batch, skip).tokens == float(batch.mask[some].sum())


def test_a_row_at_the_mean_of_its_group_still_counts() -> None:
    batch = RolloutBatch(
        group=torch.zeros(3, dtype=torch.long), reward=torch.tensor([1.0, 0.5, 0.0]), mask=torch.ones(3, 2)
    )
    algorithm = stages("dr-grpo")
    batch.advantage = compute_advantage(batch, algorithm)
    assert batch.advantage[1].abs().sum() == 0
    assert counts(batch, counted(batch, algorithm, zero_signal="skip")).trajectories == 3


@pytest.mark.parametrize("name", RECIPES)
def test_edges_give_no_gradient(name: str) -> None:
    algorithm = stages(name)
    batch, new = make_batch(1)
    batch.mask = torch.zeros_like(batch.mask)
    batch.advantage = compute_advantage(batch, algorithm)
    loss, grad = gradient(batch, new, algorithm, counts(batch, kept(batch, algorithm)), [list(range(9))])
    assert (loss, float(grad.abs().sum())) == (0.0, 0.0)

    batch, _ = make_batch(2)
    batch.reward = torch.full_like(batch.reward, 0.1 + 0.2)  # equal rewards, of a value that rounds
    assert compute_advantage(batch, algorithm).abs().sum() == 0
    batch, _ = make_batch(3)
    batch.group = torch.arange(9)  # groups of one
    assert compute_advantage(batch, algorithm).abs().sum() == 0


def test_on_policy_the_ratio_is_1_and_has_a_gradient() -> None:
    batch, new = make_batch(4)
    batch.logp_old = None
    new = torch.where(batch.mask > 0, new, torch.zeros_like(new)).requires_grad_()
    for kind in ("token", "gspo"):
        ratio = Stages.from_config(AlgorithmConfig(ratio=kind)).ratio(batch, new)
        assert torch.equal(ratio, torch.ones_like(ratio))
        (grad,) = torch.autograd.grad(ratio.sum(), new)
        assert torch.equal(grad, batch.mask)


def test_far_log_ratios_stay_finite() -> None:
    batch, new = make_batch(5)
    new = torch.where(batch.mask > 0, torch.full_like(new, -1e4), new)
    algorithm = stages("grpo")
    batch.advantage = compute_advantage(batch, algorithm)
    loss, grad = gradient(batch, new, algorithm, counts(batch, kept(batch, algorithm)), [list(range(9))])
    assert math.isfinite(loss)
    assert grad.isfinite().all()


def test_a_number_that_is_not_finite_names_component_row_and_key() -> None:
    @register("shaping", "breaks-at-two")
    def breaks(batch: RolloutBatch) -> torch.Tensor:
        return torch.where(torch.arange(len(batch.reward)) == 2, math.nan, batch.reward)

    batch, _ = make_batch(6)
    batch.meta = [{"key": f"k{n}"} for n in range(9)]
    with pytest.raises(NonFinite, match=r"shaping 'breaks-at-two' .* row 2 \(key k2\)"):
        shape_rewards(batch, Stages.from_config(AlgorithmConfig(shaping=["breaks-at-two"])))


def test_a_missing_signal_names_component_signal_and_what_there_is() -> None:
    batch, _ = make_batch(7)
    with pytest.raises(ValueError, match=r"shaping 'grpo-care' needs the signal 'ema_answer_logp'.*entropy"):
        shape_rewards(batch, Stages.from_config(AlgorithmConfig(shaping=["grpo-care"])))


def test_shapings_see_what_the_one_before_made() -> None:
    @register("shaping", "plus-one")
    def plus_one(batch: RolloutBatch) -> torch.Tensor:
        return batch.reward + 1

    batch, _ = make_batch(8)
    before = batch.reward.clone()
    shaped = shape_rewards(batch, Stages.from_config(AlgorithmConfig(shaping=["plus-one", "plus-one"])))
    assert torch.equal(shaped, before + 2)
    assert torch.equal(batch.reward, before)


def test_care_gives_no_bonus_to_rollouts_without_an_answer() -> None:
    algorithm = Stages.from_config(AlgorithmConfig(shaping=["grpo-care"]))
    batch = RolloutBatch(
        group=torch.tensor([0, 0, 0]),
        reward=torch.tensor([1.0, 1.0, 0.0]),
        mask=torch.ones(3, 1),
        reward_terms={"accuracy": torch.tensor([1.0, 1.0, 0.0])},
        signals={"ema_answer_logp": torch.tensor([-math.inf, -0.7, math.nan])},
    )
    assert shape_rewards(batch, algorithm).tolist() == [1.0, 1.5, 0.0]
    batch.reward_terms = {}
    with pytest.raises(ValueError, match="reward named accuracy"):
        shape_rewards(batch, algorithm)
