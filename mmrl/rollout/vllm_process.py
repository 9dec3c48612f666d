"""vLLM as a guest in the trainer's process: what it changes there while it starts, computes and stops is put back."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

FIXED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}  # all in this process, and nothing sent
USUAL = {"VLLM_LOGGING_LEVEL": "ERROR"}  # where the user has not set it

_threads = 0  # that vLLM first ran with in this process


@contextmanager
def starting() -> Iterator[None]:
    """What vLLM reads of the environment while it starts; programs started later do not see it."""
    before = {name: os.environ.get(name) for name in (*FIXED, *USUAL)}
    os.environ.update(FIXED | {name: value for name, value in USUAL.items() if before[name] is None})
    try:
        with kept_process():
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def kept_process() -> Iterator[None]:
    """As `computing`, for what seeds the generators of Python and numpy too."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with computing():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


@contextmanager
def computing() -> Iterator[None]:
    """Torch's random generators and threads stay what they were, although vLLM on a CPU takes `set_num_threads` away.

    Its kernels for CPUs divide their work by the number of threads that there were when they first ran in this
    process. With another number they compute wrong numbers without a word, so they are always given that one.
    """
    global _threads
    before, setter = torch.get_num_threads(), torch.set_num_threads
    _threads = _threads or before
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    setter(_threads)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        torch.set_num_threads = setter
        setter(before)


def tolerate_odd_modules() -> None:
    """Let vLLM start beside modules of others, numba for one (which bm25s brings along).

    While it starts it looks for its kernels in every module, with `vars(...).get` on all that stands there; objects
    whose `__dict__` is no mapping, like numba's library handle, end that with an AttributeError in vLLM 0.32.
    """
    with suppress(ImportError):
        from vllm.triton_utils import dispatcher

        dispatcher.vars = _mapping_of  # type: ignore[attr-defined]  # before the builtin of that name


def _mapping_of(value: Any) -> Mapping[str, Any]:
    found: Any = vars(value)
    return found if isinstance(found, Mapping) else {}


def undo_draws(worker: Any) -> None:
    """On a CPU, take back what rows drew whose contexts are not whole yet: their tokens are thrown away.

    vLLM 0.32 moves their generators back by an offset, which those of a CPU do not have: it would raise.
    """
    runner = worker.model_runner
    sample, keep = runner._sample, runner._bookkeeping_sync
    before: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def sample_and_remember(*args: Any, **kwargs: Any) -> Any:
        before.clear()
        batch = runner.input_batch
        for row in np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist():
            if (generator := batch.generators.get(row)) is not None:
                before[row] = generator, generator.get_state()
        return sample(*args, **kwargs)

    def keep_the_others(*args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators
        for row, (generator, state) in before.items():
            generator.set_state(state)
            del generators[row]
        try:
            return keep(*args, **kwargs)
        finally:
            generators.update({row: generator for row, (generator, _) in before.items()})

    runner._sample, runner._bookkeeping_sync = sample_and_remember, keep_the_others


def stop(core: Any, folder: str, guest: bool) -> None:
    """Shut vLLM down and remove its folder. `core` is None where it did not get that far.

    guest: the process group is the trainer's. vLLM would destroy it with its own.
    """
    destroy = dist.destroy_process_group
    if guest:
        dist.destroy_process_group = lambda group=None: destroy(group) if group is not None else None
    try:
        if core is not None:
            core.shutdown()
        else:
            with suppress(ImportError):
                from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

                cleanup_dist_env_and_memory()
    finally:
        dist.destroy_process_group = destroy
        shutil.rmtree(folder, ignore_errors=True)
