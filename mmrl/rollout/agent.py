"""The agent loop: the policy writes a turn, its tool calls run, the observation is appended, the policy goes on.

All trajectories that are under way are sampled together, turn by turn. Tokens are only ever appended.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from mmrl import families
from mmrl.chat import Chat, Encoded
from mmrl.config import RolloutConfig
from mmrl.media import MediaError
from mmrl.rollout.engine import Engine, Request, Sampled
from mmrl.rollout.parsing import ParsedTurn, parse_turn
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.tools import ToolContext, call_tool, observation
from mmrl.types import Fault, FaultKind, Origin, Prompt, Span, StopReason, ToolResult, Trajectory, Turn


@dataclass
class _Dialogue:
    """A trajectory under way."""

    trajectory: Trajectory
    context: ToolContext
    seed: int
    turn: int = 0  # number of the policy's next turn
    state: Any = None  # the engine's, of the turn before


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
    start = time.perf_counter()
    dialogues: list[_Dialogue] = []
    turns: list[tuple[list[_Dialogue], Request]] = []
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts):
        key = prompt.sample.key
        own = derive_seed(seed, key, seen.setdefault(key, 0))
        seen[key] += 1
        members = _begin(chat, prompt, number, config, own, config.group if group is None else group)
        dialogues += members
        if not members[0].trajectory.faults:
            turns.append((members, _request(members[0], config, len(members), own)))
    for _ in range(config.max_turns):  # the same number of calls on every rank
        going = []
        sampled = engine.generate([request for _, request in turns])
        for (members, request), continuations in zip(turns, sampled, strict=True):
            for dialogue, continuation in zip(members, continuations, strict=True):
                if _advance(chat, dialogue, continuation, request, config):
                    going.append(dialogue)
        turns = [([d], _request(d, config, 1, derive_seed(d.seed, d.turn))) for d in going]
    seconds = time.perf_counter() - start
    for dialogue in dialogues:
        dialogue.trajectory.meta["seconds"] = seconds
        _check(chat, dialogue.trajectory)
    return [d.trajectory for d in dialogues]


def _begin(chat: Chat, prompt: Prompt, number: int, config: RolloutConfig, seed: int, size: int) -> list[_Dialogue]:
    """The dialogues of one prompt, holding the encoded prompt."""
    media = {m.id: m for m in prompt.sample.media}
    faults: list[Fault] = []
    stop = StopReason.FINISHED
    try:
        encoded = chat.encode_prompt(prompt.messages, media)
        if len(encoded.tokens) >= config.max_context:
            message = f"{len(encoded.tokens)} prompt tokens leave no room in rollout.max_context {config.max_context}"
            faults, stop = [Fault(FaultKind.TASK, "prompt_too_long", message)], StopReason.MAX_CONTEXT
    except MediaError as error:
        # one token, so that padded batches have no empty row
        encoded = Encoded([chat.end_of_turn], [])
        faults, stop = [Fault(FaultKind.TASK, error.code, f"{prompt.sample.key}: {error}")], StopReason.FAULT
    decoded: dict[str, Image.Image] = {}
    out = []
    for index in range(size):
        n = len(encoded.tokens)
        trajectory = Trajectory(
            prompt=prompt,
            group=number,
            index=index,
            tokens=list(encoded.tokens),
            logp=[math.nan] * n,
            origin=[Origin.PROMPT] * n,
            span=[Span.OTHER] * n,
            turn=[-1] * n,
            vision=list(encoded.vision),
            media=dict(media),
            stop=stop,
            faults=list(faults),
        )
        own = derive_seed(seed, index)
        out.append(_Dialogue(trajectory, ToolContext(trajectory.media, own, decoded), own))
    return out


def _request(dialogue: _Dialogue, config: RolloutConfig, n: int, seed: int) -> Request:
    trajectory = dialogue.trajectory
    return Request(
        tokens=list(trajectory.tokens),
        vision=list(trajectory.vision),
        n=n,
        seed=seed,
        max_new_tokens=min(config.max_new_tokens, config.max_context - len(trajectory.tokens)),
        temperature=config.temperature,
        top_p=config.top_p,
        keep=bool(trajectory.prompt.tools) and dialogue.turn + 1 < config.max_turns,
        state=dialogue.state,
    )


def _advance(chat: Chat, dialogue: _Dialogue, sampled: Sampled, request: Request, config: RolloutConfig) -> bool:
    """Append a policy turn and, where it called tools, the observation. Whether the policy has another turn."""
    trajectory, number = dialogue.trajectory, dialogue.turn
    dialogue.state = sampled.state
    dialogue.turn += 1
    text = chat.decode(sampled.tokens)
    parsed = parse_turn(text, cut=not sampled.stopped, turn=number)
    spans = chat.spans(sampled.tokens)
    _append(trajectory, Origin.POLICY, text, sampled.tokens, sampled.logp, spans, number)
    trajectory.turns[-1].calls = parsed.calls
    trajectory.faults += parsed.faults
    if not text.strip() and sampled.stopped:
        trajectory.faults.append(Fault(FaultKind.POLICY, "empty_turn", "the policy wrote nothing", number))
    stop = _stop_before_tools(parsed, sampled, request, number, config)
    if stop is not None:
        trajectory.faults += [c.error for c in parsed.calls if c.error is not None]
        trajectory.stop = stop
        return False
    results = [_run(call, dialogue, number) for call in parsed.calls]
    trajectory.turns[-1].results = tuple(results)
    trajectory.faults += [r.fault for r in results if r.fault is not None]
    added = [ref for result in results for ref in result.media]
    if added and sum(m.kind == "image" for m in trajectory.media.values()) > config.max_images:
        trajectory.stop = StopReason.MAX_IMAGES
        return False
    seen = chat.encode_observation(observation(results), trajectory.media, closed=True)
    if len(trajectory.tokens) + len(seen.tokens) >= config.max_context:
        trajectory.stop = StopReason.MAX_CONTEXT
        return False
    count = len(seen.tokens)
    texts = "\n".join(r.text for r in results)
    _append(trajectory, Origin.OBSERVATION, texts, seen.tokens, [math.nan] * count, [Span.OTHER] * count, number)
    trajectory.vision += seen.vision
    return True


def _stop_before_tools(
    parsed: ParsedTurn, sampled: Sampled, request: Request, number: int, config: RolloutConfig
) -> StopReason | None:
    """Why the dialogue ends with this turn, None where its calls are to be run."""
    if not sampled.stopped:
        whole = request.max_new_tokens == config.max_new_tokens
        return StopReason.MAX_TOKENS if whole else StopReason.MAX_CONTEXT
    if parsed.final:
        return StopReason.FINISHED
    return StopReason.MAX_TURNS if number + 1 >= config.max_turns else None


def _run(call: Any, dialogue: _Dialogue, number: int) -> ToolResult:
    result = call_tool(call, dialogue.context, dialogue.trajectory.prompt.tools)
    if result.fault is None:
        return result
    return dataclasses.replace(result, fault=dataclasses.replace(result.fault, turn=number))


def _append(
    trajectory: Trajectory,
    origin: Origin,
    text: str,
    tokens: Sequence[int],
    logp: Sequence[float],
    spans: Sequence[Span],
    number: int,
) -> None:
    start = len(trajectory.tokens)
    trajectory.tokens += tokens
    trajectory.logp += logp
    trajectory.span += spans
    trajectory.origin += [origin] * len(tokens)
    trajectory.turn += [number] * len(tokens)
    trajectory.turns.append(Turn(origin, text, start, len(trajectory.tokens)))


def _check(chat: Chat, trajectory: Trajectory) -> None:
    """Raise ValueError where a finished trajectory breaks an invariant: these would be errors of this package."""
    trajectory.check()
    families.check_counts(chat.config, torch.tensor([trajectory.tokens]), [trajectory.vision])
    for origin, logp in zip(trajectory.origin, trajectory.logp, strict=True):
        if (origin is Origin.POLICY) == math.isnan(logp):
            raise ValueError(f"{trajectory.prompt.sample.key}/{trajectory.index}: {origin.name} token with logp {logp}")
