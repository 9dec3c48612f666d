"""What a step is reported as: one record a trajectory, gathered from all ranks, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mmrl.types import Origin, RolloutBatch, StopReason, Trajectory

CUT = (StopReason.MAX_TOKENS, StopReason.MAX_CONTEXT)


@dataclass(frozen=True, slots=True)
class Record:
    """The numbers of one trajectory."""

    reward: float
    shaped: float
    terms: Mapping[str, float]
    correct: bool
    length: int  # tokens that the policy sampled
    learnt: int  # of these, tokens with mask 1
    turns: int
    calls: int
    faults: tuple[str, ...]  # "policy.bad_json"
    stop: str
    task: str
    signal: bool  # whether it has any advantage
    sums: Mapping[str, float] = field(default_factory=dict)  # over its learnt tokens
    gap_max: float = 0.0


def records(trajectories: Sequence[Trajectory], batch: RolloutBatch, entropy: torch.Tensor) -> list[Record]:
    """One record a row. entropy: [N, T]; the batch holds shaped rewards, `logp_old`, `advantage` and `engine_logp`."""
    assert batch.logp_old is not None
    assert batch.advantage is not None
    gap = (batch.logp_old - batch.signals["engine_logp"]).abs() * batch.mask
    sums = {"entropy": (entropy * batch.mask).sum(-1), "gap": gap.sum(-1)}
    for name in ("ref", "ema"):
        if f"{name}_logp" in batch.signals:
            apart = batch.logp_old - batch.signals[f"{name}_logp"]
            sums[f"kl_{name}"] = (((-apart).exp() - 1 + apart) * batch.mask).sum(-1)
    gap_max = gap.amax(-1) if gap.shape[1] else gap.sum(-1)
    signal = (batch.advantage != 0).flatten(1).any(-1)
    return [
        Record(
            reward=t.reward,
            shaped=float(batch.reward[n]),
            terms=dict(t.reward_terms),
            correct=t.correct,
            length=t.length,
            learnt=int(batch.mask[n].sum()),
            turns=sum(turn.origin is Origin.POLICY for turn in t.turns),
            calls=sum(len(turn.calls) for turn in t.turns),
            faults=tuple(f"{f.kind.value}.{f.code}" for f in t.faults),
            stop=t.stop.value,
            task=t.prompt.sample.task,
            signal=bool(signal[n]),
            sums={k: float(v[n]) for k, v in sums.items()},
            gap_max=float(gap_max[n]),
        )
        for n, t in enumerate(trajectories)
    ]


def summarise(rows: Sequence[Record], left_out: Sequence[Sequence[str]] = ()) -> dict[str, float]:
    """The metrics of all trajectories of a step; `left_out` are the faults of each of those that no batch may hold."""
    faults = Counter(code for faults in [*(r.faults for r in rows), *left_out] for code in faults)
    out = {"trajectories": float(len(rows)), "left_out": float(len(left_out))}
    out |= {f"fault/{code}": float(n) for code, n in sorted(faults.items())}
    if not rows:
        return out
    n, tokens = len(rows), sum(r.learnt for r in rows)
    rewards = torch.tensor([r.reward for r in rows], dtype=torch.float64)
    out |= {"reward": float(rewards.mean()), "reward_std": float(rewards.std(correction=0))}
    out["reward_shaped"] = sum(r.shaped for r in rows) / n
    out["accuracy"] = sum(r.correct for r in rows) / n
    for task in sorted({r.task for r in rows}):
        mine = [r.correct for r in rows if r.task == task]
        out[f"accuracy/{task}"] = sum(mine) / len(mine)
    for term in sorted({k for r in rows for k in r.terms}):
        values = [r.terms[term] for r in rows if term in r.terms]
        out[f"reward/{term}"] = sum(values) / len(values)
    out["length"] = sum(r.length for r in rows) / n
    out["length_max"] = float(max(r.length for r in rows))
    out["turns"] = sum(r.turns for r in rows) / n
    out["tool_calls"] = sum(r.calls for r in rows) / n
    out["truncated"] = sum(r.stop in CUT for r in rows) / n
    for reason in sorted({r.stop for r in rows}):
        out[f"stop/{reason}"] = sum(r.stop == reason for r in rows) / n
    out["zero_signal"] = sum(not r.signal for r in rows) / n
    out["tokens"] = float(sum(r.length for r in rows))
    out["tokens_dropped"] = out["tokens"] - tokens
    for name in rows[0].sums:
        out[name] = sum(r.sums[name] for r in rows) / max(1, tokens)
    out["gap_max"] = max(r.gap_max for r in rows)
    return out


def update_metrics(sums: Mapping[str, float], updates: int) -> dict[str, float]:
    """The sums of `policy_loss` over all updates of a step as means: of tokens, or of updates for parts of the loss."""
    if not updates:
        return {}
    tokens = max(1.0, sums.get("tokens", 0.0))
    of_tokens = ("clipped", "ratio", "kl_old")
    return {k: v / (tokens if k in of_tokens else updates) for k, v in sums.items() if k != "tokens"}
