"""What an engine is: it continues token sequences and says with which log-prob it sampled each token."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmrl.chat import Chat
from mmrl.config import ConfigError
from mmrl.families import VisionInput
from mmrl.registry import bind
from mmrl.types import Fault


@dataclass(frozen=True, slots=True)
class Request:
    """One context to be continued `n` times, each time until a stop id or for `max_new_tokens` tokens.

    Continuation j draws its randomness from (seed, j) alone, so that it does not depend on what else is in the batch.
    """

    tokens: list[int]
    vision: list[VisionInput]  # the media of the placeholders in `tokens`, in order
    n: int
    seed: int
    max_new_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    keep: bool = False  # the caller may continue from these: fill Sampled.state where the engine can
    state: Any = None  # `Sampled.state` of the continuation that this context extends: saves computing it again


@dataclass(frozen=True, slots=True)
class Sampled:
    """One continuation. `logp[i]` is log_softmax(mask_banned(logits))[tokens[i]], whatever the temperature was:
    the number that the trainer computes again. All are nan from an engine that cannot tell (its `exact` is False)."""

    tokens: list[int]
    logp: list[float]
    stopped: bool  # ended with a stop id, which is the last token; else cut at the limit
    state: Any = field(default=None, repr=False, compare=False)  # the engine's own
    fault: Fault | None = None  # why there is no continuation: the tokens are none then, and the trajectory ends


class Engine(Protocol):
    """Anything that continues requests. Called by all ranks of a sharded model together, even with no requests.

    One that batches continuously has `add(request) -> ticket` and `step() -> [(ticket, continuations)]` too, see
    `TransformersEngine`.
    """

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        """For each request its `n` continuations."""
        ...

    def sync(self) -> None:
        """Take over the policy's present weights: called before each rollout of a training run."""
        ...

    def sleep(self) -> None:
        """Give back memory until the next `sync`, where there is any to give."""
        ...

    def close(self) -> None:
        """Stop. The engine cannot be used any more."""
        ...


def make_engine(name: str, model: Any, chat: Chat, **options: Any) -> Engine:
    """The registered engine `name` for a model (which it may share with the trainer) and its chat format.

    Raises UnknownName, and ConfigError for options that it does not have or that it lacks.
    """
    try:
        make = bind("engine", name, options)
        inspect.signature(make).bind(model, chat)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"engine {name}: {error}") from error
    engine: Engine = make(model, chat)
    return engine
