"""Worked examples to components: each adapter translates the names of a method's example, and computes nothing itself.

An adapter takes a case's inputs and parameters and returns what the components make of them, under the example's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.ema import ema, ema_due
from mmrl.algorithms.loss import Stages, compute_advantage, counted, counts, kept, policy_loss, shape_rewards
from mmrl.algorithms.shaping.care import consistency_bonus
from mmrl.algorithms.shaping.overlong import overlong_penalty
from mmrl.algorithms.surrogates.clip import cispo_weight
from mmrl.config import AlgorithmConfig
from mmrl.registry import get
from mmrl.types import RolloutBatch

Adapter = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]

ADAPTERS: dict[str, Adapter] = {}


def adapter(method: str) -> Callable[[Adapter], Adapter]:
    def add(function: Adapter) -> Adapter:
        ADAPTERS[method] = function
        return function

    return add


def tensor(values: Any) -> Tensor:
    """Numbers in float64; a missing one is nan."""

    def number(value: Any) -> Any:
        return [number(v) for v in value] if isinstance(value, list) else float("nan" if value is None else value)

    return torch.tensor(number(values), dtype=torch.float64)


def make_batch(inputs: Mapping[str, Any], **changes: Any) -> RolloutBatch:
    """The batch of an example's inputs; one token a rollout where it speaks of rewards only."""
    rows = len(inputs["group"])
    batch = RolloutBatch(
        group=torch.tensor(inputs["group"]),
        reward=tensor(inputs["reward"]) if "reward" in inputs else torch.zeros(rows, dtype=torch.float64),
        mask=tensor(inputs["mask"]) if "mask" in inputs else torch.ones(rows, 1, dtype=torch.float64),
        reward_terms={k: tensor(v) for k, v in inputs.get("reward_terms", {}).items()},
        correct=tensor(inputs["correct"]) if "correct" in inputs else None,
        logp_old=tensor(inputs["logp_old"]) if "logp_old" in inputs else None,
    )
    for name, value in changes.items():
        setattr(batch, name, value)
    return batch


def make_stages(**components: Any) -> Stages:
    return Stages.from_config(AlgorithmConfig(**components))


def update(batch: RolloutBatch, inputs: Mapping[str, Any], stages: Stages) -> dict[str, Any]:
    """Advantage, loss and gradient of one update from the whole batch."""
    batch.advantage = compute_advantage(batch, stages)
    logp_new = tensor(inputs["logp_new"]).requires_grad_()
    total = counts(batch, counted(batch, stages, zero_signal="count"))
    loss, _ = policy_loss(batch, logp_new, total, stages)
    (gradient,) = torch.autograd.grad(loss, logp_new)
    ratio = stages.ratio(batch, logp_new.detach())
    return {
        "advantage": stages.advantage(batch),
        "ratio": ratio * batch.mask,
        "loss": loss.detach(),
        "grad_logp_new": gradient,
    }


def grpo_advantage(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "grpo", "eps": params["eps"], "ddof": params.get("ddof", 0)}


def clip(params: Mapping[str, Any], name: str = "clip", **rest: Any) -> dict[str, Any]:
    return {"name": name, "low": params["clip_low"], "high": params["clip_high"], **rest}


@adapter("grpo")
def _grpo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    stages = make_stages(
        advantage=grpo_advantage(params),
        surrogate=clip(params),
        aggregation="seq-mean-token-mean",
        regularizers=[{"name": "kl", "coef": params["beta"], "estimator": "k3"}],
    )
    batch = make_batch(inputs, signals={"ref_logp": tensor(inputs["logp_ref"])})
    estimate = get("regularizer", "kl").obj(batch, tensor(inputs["logp_new"]), coef=1.0, estimator="k3")
    return {**update(batch, inputs, stages), "kl": estimate}


@adapter("dr-grpo")
def _dr_grpo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    aggregation = {"name": "seq-mean-token-sum-const", "const": params["max_len"]}
    return update(
        make_batch(inputs), inputs, make_stages(advantage="dr-grpo", surrogate=clip(params), aggregation=aggregation)
    )


@adapter("rloo")
def _rloo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    stages = make_stages(advantage={"name": "rloo", "singleton": params["singleton"]})
    return {"advantage": stages.advantage(make_batch(inputs))}


@adapter("dapo")
def _dapo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    limits = {"max_len": params["max_len"], "cache_len": params["cache_len"]}
    stages = make_stages(
        shaping=[{"name": "soft-overlong", **limits, "weight": params["overlong_weight"]}],
        filters=["mixed-groups"],
        advantage=grpo_advantage(params),
        surrogate=clip(params, "dapo", dual=params["dual_clip"]),
        aggregation="token-mean",
    )
    batch = make_batch(inputs)
    length = tensor(inputs["length"])  # of the rollout, of which the example shows only the first tokens
    full = make_batch(inputs, mask=(torch.arange(int(length.max())) < length[:, None]).double())
    batch.reward = shape_rewards(full, stages)
    return {
        "overlong_penalty": overlong_penalty(length, **limits),
        "reward": batch.reward,
        "keep": kept(batch, stages),
        **update(batch, inputs, stages),
    }


@adapter("gspo")
def _gspo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    stages = make_stages(
        advantage=grpo_advantage(params),
        ratio="gspo",
        surrogate=clip(params),
        aggregation="seq-mean-token-mean",
    )
    batch = make_batch(inputs)
    out = update(batch, inputs, stages)
    logp_new = tensor(inputs["logp_new"])
    whole = make_batch(inputs, advantage=batch.advantage)
    _, sums = zip(*(policy_loss(whole.select([n]), logp_new[n : n + 1], counts(whole, whole.group >= 0), stages)
                    for n in range(len(whole.group))), strict=True)  # fmt: skip
    ratio = stages.ratio(batch, logp_new)[:, 0]
    return {**out, "ratio": ratio, "clipped": [float(s["clipped"]) > 0 for s in sums]}


@adapter("cispo")
def _cispo(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    stages = make_stages(advantage=grpo_advantage(params), surrogate=clip(params, "cispo"), aggregation="token-mean")
    batch = make_batch(inputs)
    ratio = stages.ratio(batch, tensor(inputs["logp_new"]))
    weight = cispo_weight(ratio, low=params["clip_low"], high=params["clip_high"])
    return {**update(batch, inputs, stages), "weight": weight * batch.mask}


@adapter("kl-estimators")
def _kl(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    rows = len(inputs["mask"])
    batch = make_batch({"group": [0] * rows, **inputs}, signals={"ref_logp": tensor(inputs["logp_ref"])})
    total = counts(batch, batch.group >= 0)
    out: dict[str, Any] = {}
    for name in ("k1", "k2", "k3", "abs"):
        logp_new = tensor(inputs["logp_new"]).requires_grad_()
        estimate = get("regularizer", "kl").obj(batch, logp_new, coef=1.0, estimator=name, **params)
        mean = (get("aggregation", "token-mean").obj(batch, total) * estimate).sum()
        (out[f"grad_{name}"],) = torch.autograd.grad(mean, logp_new)
        out |= {f"kl_{name}": estimate.detach(), f"mean_{name}": mean.detach()}
    return out


@adapter("loss-aggregation")
def _aggregation(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    batch = make_batch(inputs)
    total = counts(batch, batch.group >= 0)
    out: dict[str, Any] = {}
    for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-const",
                 "group-token-mean"):  # fmt: skip
        extra = {"const": params["const"]} if name.endswith("const") else {}
        weight = get("aggregation", name).obj(batch, total, **extra)
        out |= {name: (weight * tensor(inputs["token_loss"])).sum(), f"weight_{name}": weight}
    return out


@adapter("grpo-care")
def _care(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    own = {k: params[k] for k in ("coef", "cap", "margin")}
    stages = make_stages(
        shaping=[{"name": "grpo-care", **own}], advantage={"name": "grpo", "eps": params["eps"], "ddof": 1}
    )
    batch = make_batch(inputs, signals={"ema_answer_logp": tensor(inputs["answer_logp"])})
    bonus = consistency_bonus(batch.reward_terms["accuracy"], batch.signals["ema_answer_logp"], batch.group, **own)
    batch.reward = shape_rewards(batch, stages)
    return {"bonus": bonus, "reward": batch.reward, "advantage": stages.advantage(batch)}


@adapter("ema-reference")
def _ema(inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = tensor(inputs["ref"])
    out: Sequence[Tensor] = []
    for step, policy in zip(inputs["step"], inputs["policy"], strict=True):
        if ema_due(step, params["update_every"]):
            ref = ema(ref, tensor(policy), params["decay"])
        out = [*out, ref]
    return {"ref": list(out)}
