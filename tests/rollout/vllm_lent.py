"""Engines that run vLLM on tiny models, one at a time, and what watches and steers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding  # noqa: F401  # of numba, as bm25s loads it: vLLM must start beside it
import torch
from tiny_models import Tiny, build
from torch import Tensor

from mmrl.rollout.vllm_engine import VllmEngine

OPTIONS: dict[str, Any] = {"max_len": 4096, "kv_cache": 0.05, "max_rows": 16}
NEAR = 1e-3  # of log-probs


@dataclass
class Lent:
    """A model and the engine that runs it."""

    tiny: Tiny
    engine: VllmEngine


class Garage:
    """One engine at a time: vLLM can run only once in a process."""

    def __init__(self) -> None:
        self.tinies: dict[str, Tiny] = {}
        self.lent: Lent | None = None

    def get(self, family: Any) -> Lent:
        if self.lent is None or self.lent.tiny.family != family:
            self.close()
            if family not in self.tinies:
                self.tinies[family] = build(family)
            tiny = self.tinies[family]
            self.lent = Lent(tiny, VllmEngine(tiny.model, tiny.chat, **OPTIONS))
        return self.lent

    def close(self) -> None:
        if self.lent is not None:
            self.lent.engine.close()
        self.lent = None


@contextmanager
def one_garage() -> Iterator[Garage]:
    """With one thread: what other tests fork off cannot use more, and vLLM keeps the number that it began with."""
    threads, out = torch.get_num_threads(), Garage()
    torch.set_num_threads(1)
    try:
        yield out
    finally:
        out.close()
        torch.set_num_threads(threads)


@dataclass
class Work:
    """What vLLM computed: M-RoPE positions of the tokens that the language model read, and how many pictures and clips
    the vision tower read."""

    read: list[Tensor] = field(default_factory=list)  # [3, T] each
    media: int = 0

    @property
    def tokens(self) -> int:
        return sum(p.shape[-1] for p in self.read)


@contextmanager
def watched(engine: VllmEngine) -> Iterator[Work]:
    work, hooks = Work(), []

    def language(module: Any, args: Any, kwargs: Any) -> None:
        work.read.append(kwargs["positions"].clone())

    def vision(module: Any, args: Any, kwargs: Any) -> None:
        work.media += len(kwargs["grid_thw"])

    def watch(model: Any) -> None:
        hooks.append(model.register_forward_pre_hook(language, with_kwargs=True))
        hooks.append(model.visual.register_forward_pre_hook(vision, with_kwargs=True))

    engine.llm.apply_model(watch)
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()


class Spelled:
    """Makes vLLM write what a script says, behind its scoring of tokens: log-probs stay those of the model.

    `script(context)` gives the ids to be written behind these ids of a context.
    """

    def __init__(self, engine: VllmEngine, script: Callable[[list[int]], list[int]]) -> None:
        self.runner = engine.llm.model_executor.driver_worker.worker.model_runner
        self.script = script

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, update: Any) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        for row, name in enumerate(self.runner.input_batch.req_ids):
            state = self.runner.requests[name]
            wanted = self.script(state.prompt_token_ids)
            written = len(state.output_token_ids)
            if written < len(wanted):
                logits[row] = -torch.inf
                logits[row, wanted[written]] = 0.0
        return logits

    @contextmanager
    def at_work(self) -> Iterator[None]:
        processors = self.runner.input_batch.logitsprocs.non_argmax_invariant
        processors.append(self)
        try:
            yield
        finally:
            processors.remove(self)
