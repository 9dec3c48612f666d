"""The agent loop: the policy writes a turn, its tool calls run, the observation is appended, the policy goes on.

Dialogues that are ready are sampled together; those whose tools still run hold nobody up. Tokens are only ever
appended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.policy.shard import is_sharded
from mmrl.rollout.calls import Tools
from mmrl.rollout.dialogue import Dialogue, begin, check, hear, request, speak
from mmrl.rollout.engine import Engine, Request, Sampled
from mmrl.rollout.sampling import derive_seed
from mmrl.types import Prompt, ToolResult, Trajectory

Asked = tuple[list[Dialogue], Request]  # a request and the dialogues that its continuations belong to


def rollout(
    engine: Engine,
    chat: Chat,
    prompts: Sequence[Prompt],
    config: RolloutConfig,
    *,
    seed: int,
    group: int | None = None,
) -> list[Trajectory]:
    """`group` trajectories (default: config.group) of each prompt, those of a prompt next to each other.

    What a trajectory draws depends on (seed, key of the sample, how often that key came before, rollout, turn) and on
    nothing else: it is the same in any batch and on any rank. A trainer passes another seed each step. With a sharded
    model all ranks call this together. A prompt that cannot be encoded gives trajectories that ended with a fault and
    hold no policy token. `meta["seconds"]` is the wall time of the whole call.
    """
    dialogues: list[Dialogue] = []
    asked: list[Asked] = []
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts):
        key = prompt.sample.key
        own = derive_seed(seed, key, seen.setdefault(key, 0))
        seen[key] += 1
        members = begin(chat, prompt, number, config, own, config.group if group is None else group)
        dialogues += members
        if not members[0].trajectory.faults:
            asked.append((members, request(members[0], config, len(members), own)))
    return play(engine, chat, dialogues, asked, config)


def play(
    engine: Engine, chat: Chat, dialogues: Sequence[Dialogue], asked: list[Asked], config: RolloutConfig
) -> list[Trajectory]:
    """Take all dialogues to their ends, beginning with the requests `asked`; their trajectories."""
    start = time.perf_counter()
    model = getattr(engine, "model", None)
    turns = _turns_together if model is not None and is_sharded(model) else _turns
    with Tools(concurrency=config.tool_concurrency, failures=config.tool_failures, rest=config.tool_rest) as tools:
        turns(engine, chat, asked, config, tools)
    seconds = time.perf_counter() - start
    for dialogue in dialogues:
        dialogue.trajectory.meta["seconds"] = seconds
        check(chat, dialogue.trajectory, exact=getattr(engine, "exact", True))
    return [d.trajectory for d in dialogues]


def _turns(engine: Engine, chat: Chat, ready: list[Asked], config: RolloutConfig, tools: Tools) -> None:
    """Each dialogue at its own pace: a request is made when its tools have answered."""
    flow = _Flow(engine)
    calling: dict[Future[list[ToolResult]], Dialogue] = {}
    while ready or flow.busy or calling:
        for members, what in ready:
            flow.add(members, what)
        ready = []
        if flow.busy:
            for dialogue, sampled, what in flow.step():
                if speak(chat, dialogue, sampled, what, config):
                    calling[_call(tools, dialogue)] = dialogue
        elif calling:
            wait(calling, return_when=FIRST_COMPLETED)
        for future in [f for f in calling if f.done()]:
            dialogue = calling.pop(future)
            if hear(chat, dialogue, future.result(), config):
                ready.append(_next(dialogue, config))


def _turns_together(engine: Engine, chat: Chat, asked: list[Asked], config: RolloutConfig, tools: Tools) -> None:
    """All dialogues take each turn together: ranks of a sharded model make the same number of calls of the engine."""
    for _ in range(config.max_turns):
        calling = []
        for (members, what), continuations in zip(asked, engine.generate([r for _, r in asked]), strict=True):
            for dialogue, sampled in zip(members, continuations, strict=True):
                if speak(chat, dialogue, sampled, what, config):
                    calling.append((dialogue, _call(tools, dialogue)))
        asked = [_next(d, config) for d, future in calling if hear(chat, d, future.result(), config)]


def _call(tools: Tools, dialogue: Dialogue) -> Future[list[ToolResult]]:
    trajectory = dialogue.trajectory
    return tools.submit(trajectory.turns[-1].calls, dialogue.context, trajectory.prompt.tools)


def _next(dialogue: Dialogue, config: RolloutConfig) -> Asked:
    return [dialogue], request(dialogue, config, 1, derive_seed(dialogue.seed, dialogue.turn))


class _Flow:
    """Requests under way in an engine, whether it batches continuously (`add`, `step`) or call by call."""

    def __init__(self, engine: Engine) -> None:
        self.engine: Any = engine
        self.continuous = hasattr(engine, "step")
        self.live: dict[int, Asked] = {}

    @property
    def busy(self) -> bool:
        return bool(self.live)

    def add(self, members: list[Dialogue], what: Request) -> None:
        ticket = self.engine.add(what) if self.continuous else len(self.live)
        self.live[ticket] = (members, what)

    def step(self) -> list[tuple[Dialogue, Sampled, Request]]:
        """What has been sampled since, at least for one request."""
        if self.continuous:
            found = self.engine.step()
        else:
            found = list(enumerate(self.engine.generate([r for _, r in self.live.values()])))
        out = []
        for ticket, continuations in found:
            members, what = self.live.pop(ticket)
            out += [(d, s, what) for d, s in zip(members, continuations, strict=True)]
        return out
