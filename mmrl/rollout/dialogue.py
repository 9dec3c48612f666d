"""One dialogue under way, and what changes it: a turn that was sampled, an observation that came back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from mmrl import families
from mmrl.chat import Chat, Encoded
from mmrl.config import RolloutConfig
from mmrl.media import MediaError
from mmrl.rollout.budget import fit_observation
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.parsing import ParsedTurn, parse_turn
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.tools import ToolContext
from mmrl.types import Fault, FaultKind, Origin, Prompt, Span, StopReason, ToolResult, Trajectory, Turn


@dataclass
class Dialogue:
    """A trajectory under way."""

    trajectory: Trajectory
    context: ToolContext
    seed: int
    turn: int = 0  # number of the policy's next turn
    state: Any = None  # the engine's, of the turn before
    begun: int = 0  # tokens of the next turn that stand already: a branch within a turn


def begin(chat: Chat, prompt: Prompt, number: int, config: RolloutConfig, seed: int, size: int) -> list[Dialogue]:
    """The dialogues of one prompt, holding the encoded prompt."""
    sample, budgets = prompt.sample, config.frame_budgets
    media = {m.id: m for m in sample.media}
    faults: list[Fault] = []
    stop = StopReason.FINISHED
    try:
        # by the key alone: the same for all rollouts of a sample, in every process and at every step
        drawn = budgets[derive_seed("frame_budget", sample.key) % len(budgets)] if budgets else None
        media = chat.shown(sample, drawn)
        encoded = chat.encode_prompt(prompt.messages, media)
        if len(encoded.tokens) >= config.max_context:
            message = f"{len(encoded.tokens)} prompt tokens leave no room in rollout.max_context {config.max_context}"
            faults, stop = [Fault(FaultKind.TASK, "prompt_too_long", message)], StopReason.MAX_CONTEXT
    except MediaError as error:
        # one token, so that padded batches have no empty row
        encoded = Encoded([chat.end_of_turn], [])
        faults, stop = [Fault(FaultKind.TASK, error.code, f"{prompt.sample.key}: {error}")], StopReason.FAULT
    prompt = replace(prompt, sample=replace(sample, media=tuple(media.values())))  # as it is shown
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
        out.append(Dialogue(trajectory, tool_context(trajectory, config, own, decoded), own))
    return out


def tool_context(
    trajectory: Trajectory, config: RolloutConfig, seed: int, decoded: dict[str, Image.Image] | None = None
) -> ToolContext:
    """What the tools of a dialogue see; the media are those of the trajectory, not a copy."""
    return ToolContext(
        trajectory.media,
        seed,
        {} if decoded is None else decoded,
        trajectory.prompt.sample,
        settings=config.tool_options,
    )


def request(dialogue: Dialogue, config: RolloutConfig, n: int, seed: int) -> Request:
    """The next turn of a dialogue as a request to an engine."""
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


def speak(chat: Chat, dialogue: Dialogue, sampled: Sampled, asked: Request, config: RolloutConfig) -> bool:
    """Append a policy turn. Whether it holds calls that are to be run."""
    trajectory, number = dialogue.trajectory, dialogue.turn
    if sampled.fault is not None:
        trajectory.faults.append(replace(sampled.fault, turn=number))
        trajectory.stop = StopReason.FAULT
        return False
    dialogue.state = sampled.state
    dialogue.turn += 1
    start = len(trajectory.tokens) - dialogue.begun
    written = [*trajectory.tokens[start:], *sampled.tokens]
    text = chat.decode(written)
    parsed = parse_turn(
        text,
        cut=not sampled.stopped,
        turn=number,
        syntax=config.syntax,
        which=config.calls,
        most=config.max_calls,
        think=config.think_calls,
    )
    append(trajectory, Origin.POLICY, text, sampled.tokens, sampled.logp, [Span.OTHER] * len(sampled.tokens), number)
    trajectory.span[start:] = chat.spans(written, config.syntax)
    trajectory.turns[-1].start, dialogue.begun = start, 0
    trajectory.turns[-1].calls = parsed.calls
    trajectory.faults += parsed.faults
    if not text.strip() and sampled.stopped:
        trajectory.faults.append(Fault(FaultKind.POLICY, "empty_turn", "the policy wrote nothing", number))
    stop = _stop_before_tools(parsed, sampled, asked, number, config)
    if stop is not None:
        trajectory.faults += [c.error for c in parsed.calls if c.error is not None]
        trajectory.stop = stop
    return stop is None


def hear(chat: Chat, dialogue: Dialogue, results: Sequence[ToolResult], config: RolloutConfig) -> bool:
    """Append the observation of the turn before. Whether the policy has another turn.

    An observation that does not fit is made smaller, and says so; `observation_shrunk` is counted.
    """
    trajectory, number = dialogue.trajectory, dialogue.turn - 1
    results = [_numbered(r, number) for r in results]
    spoken = trajectory.turns[-1]
    spoken.results = tuple(results)
    fitted = None
    room = config.max_context - len(trajectory.tokens) - 1  # a token at least is left for the policy
    closed = trajectory.tokens[-1] == chat.end_of_turn  # not so where another of the stop ids ended the turn
    added = [ref for result in results for ref in result.media]
    if added and sum(m.kind == "image" for m in trajectory.media.values()) > config.max_images:
        trajectory.stop = StopReason.MAX_IMAGES
    elif (fitted := fit_observation(chat, results, trajectory.media, room, closed=closed)) is None:
        trajectory.stop = StopReason.MAX_CONTEXT
    else:
        spoken.results = tuple(_numbered(r, number) for r in fitted.results)
    trajectory.faults += [r.fault for r in spoken.results if r.fault is not None]
    if fitted is None:
        return False
    if fitted.notes:
        trajectory.faults.append(Fault(FaultKind.TASK, "observation_shrunk", "; ".join(fitted.notes), number))
    seen, count = fitted.encoded, len(fitted.encoded.tokens)
    texts = "\n".join(r.text for r in fitted.results)
    append(trajectory, Origin.OBSERVATION, texts, seen.tokens, [math.nan] * count, [Span.OTHER] * count, number)
    trajectory.vision += seen.vision
    if dialogue.context.state:  # what a branch behind this observation finds
        trajectory.meta.setdefault("states", {})[number] = copy.deepcopy(dialogue.context.state)
    return True


def _stop_before_tools(
    parsed: ParsedTurn, sampled: Sampled, asked: Request, number: int, config: RolloutConfig
) -> StopReason | None:
    """Why the dialogue ends with this turn, None where its calls are to be run."""
    if not sampled.stopped:
        whole = asked.max_new_tokens == config.max_new_tokens
        return StopReason.MAX_TOKENS if whole else StopReason.MAX_CONTEXT
    if parsed.final:
        return StopReason.FINISHED
    return StopReason.MAX_TURNS if number + 1 >= config.max_turns else None


def _numbered(result: ToolResult, number: int) -> ToolResult:
    return result if result.fault is None else replace(result, fault=replace(result.fault, turn=number))


def append(
    trajectory: Trajectory,
    origin: Origin,
    text: str,
    tokens: Sequence[int],
    logp: Sequence[float],
    spans: Sequence[Span],
    number: int,
) -> None:
    """Add one turn to a trajectory."""
    start = len(trajectory.tokens)
    trajectory.tokens += tokens
    trajectory.logp += logp
    trajectory.span += spans
    trajectory.origin += [origin] * len(tokens)
    trajectory.turn += [number] * len(tokens)
    trajectory.turns.append(Turn(origin, text, start, len(trajectory.tokens)))


def check(chat: Chat, trajectory: Trajectory, *, exact: bool = True) -> None:
    """Raise ValueError where a finished trajectory breaks an invariant: these would be errors of this package.

    exact: the engine gives log-probs; else all are nan, and none of the tokens can be learnt from.
    """
    trajectory.check()
    families.check_counts(chat.config, torch.tensor([trajectory.tokens]), [trajectory.vision])
    for origin, logp in zip(trajectory.origin, trajectory.logp, strict=True):
        if math.isnan(logp) == (exact and origin is Origin.POLICY):
            raise ValueError(f"{trajectory.prompt.sample.key}/{trajectory.index}: {origin.name} token with logp {logp}")
