"""Going on from any point of a trajectory: other continuations, answers for one thought, probes with and without a
call, hints.

A branch shares the ids, log-probs and origins of its prefix token by token: nothing is encoded or sampled again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.rollout.agent import Asked, play
from mmrl.rollout.dialogue import Dialogue, request, tool_context
from mmrl.rollout.engine import Engine
from mmrl.rollout.sampling import derive_seed
from mmrl.types import Origin, Span, StopReason, Trajectory, Turn


@dataclass(frozen=True)
class Branch:
    """Where to go on from, and with what.

    Args:
        trajectory: the one to branch off.
        at: number of its tokens that are kept: the end of the prompt or of an observation, or a point within a turn
            of the policy, which the branch then goes on with.
        suffix: ids put behind them, which the policy did not sample: a hint, the opening of an answer. They count to
            its turn, with origin PROMPT, and are never learnt from.
        n: continuations.
    """

    trajectory: Trajectory
    at: int
    suffix: tuple[int, ...] = ()
    n: int = 1


def branch(
    engine: Engine, chat: Chat, branches: Sequence[Branch], config: RolloutConfig, *, seed: int
) -> list[list[Trajectory]]:
    """The trajectories that go on from each branch; those of one are a group, numbered by the place of the branch.

    `meta["branch"]` holds the number of tokens shared with the trajectory. Continuations draw from (seed, key, rollout,
    place of the branch) alone. With a sharded model all ranks call this together. Raises ValueError for a point that
    no turn can go on from.
    """
    dialogues: list[Dialogue] = []
    asked: list[Asked] = []
    for number, what in enumerate(branches):
        old = what.trajectory
        own = derive_seed(seed, old.prompt.sample.key, old.index, what.at, number)
        members = [_cut(chat, what, config, number, index, derive_seed(own, index)) for index in range(what.n)]
        dialogues += members
        if members and members[0].trajectory.stop is not StopReason.MAX_CONTEXT:
            asked.append((members, request(members[0], config, len(members), own)))
    done = iter(play(engine, chat, dialogues, asked, config))
    return [[next(done) for _ in range(b.n)] for b in branches]


def _cut(chat: Chat, what: Branch, config: RolloutConfig, number: int, index: int, seed: int) -> Dialogue:
    """The dialogue as it stood when it was `at` tokens long, with the suffix behind it."""
    old, at = what.trajectory, what.at
    where = f"trajectory {old.prompt.sample.key}/{old.index}: a branch at token {at}"
    start = old.turns[0].start if old.turns else len(old.tokens)
    if not start <= at <= len(old.tokens):
        raise ValueError(f"{where} is outside of {start}..{len(old.tokens)}")
    whole = [t for t in old.turns if t.stop <= at]
    cut = next((t for t in old.turns if t.start < at < t.stop), None)
    if cut is not None and cut.origin is Origin.OBSERVATION:
        raise ValueError(f"{where} would cut the observation {cut.start}..{cut.stop} in two")
    if cut is None and whole and whole[-1].origin is Origin.POLICY:
        cut = whole.pop()
        if old.tokens[at - 1] in chat.stop_ids:
            raise ValueError(f"{where} stands behind the end of a turn: branch at its observation, or before its end")
    turn = sum(t.origin is Origin.POLICY for t in whole)
    first = at if cut is None else cut.start
    shown = [m for t in whole if t.origin is Origin.POLICY for r in t.results for m in r.media]
    count = len(what.suffix)
    trajectory = Trajectory(
        prompt=old.prompt,
        group=number,
        index=index,
        tokens=[*old.tokens[:at], *what.suffix],
        logp=[*old.logp[:at], *[math.nan] * count],
        origin=[*old.origin[:at], *[Origin.PROMPT] * count],
        span=[*old.span[:at], *[Span.OTHER] * count],
        turn=[*old.turn[:at], *[turn] * count],
        vision=old.vision[: len(old.prompt.sample.media) + len(shown)],
        turns=[_copy(t) for t in whole],
        media={m.id: m for m in (*old.prompt.sample.media, *shown)},
        stop=StopReason.MAX_CONTEXT if at + count >= config.max_context else StopReason.FINISHED,
        faults=[f for f in old.faults if f.turn < turn],
        meta={"branch": at},
    )
    context = tool_context(trajectory, config, seed)
    context.state = copy.deepcopy(old.meta.get("states", {}).get(turn - 1, {}))
    return Dialogue(trajectory, context, seed, turn=turn, begun=at + count - first)


def _copy(turn: Turn) -> Turn:
    return Turn(turn.origin, turn.text, turn.start, turn.stop, turn.calls, turn.results)
