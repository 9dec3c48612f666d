"""Processes that work through a list in order and do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORTH = 64  # decodes that take about as long as starting a process


def useful(workers: int, decodes: int) -> int:
    """How many of the processes on offer are worth starting for so much work."""
    return max(1, min(workers, decodes // WORTH))


def ordered_map(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """`map` on several processes; results in the order of the items. One worker works in this process."""
    if workers <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    # not fork: decoders and their threads hold locks that a forked child would wait for
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(items)), context, initializer=_follow_parent) as pool:
        try:
            yield from pool.map(function, items, chunksize=max(1, min(16, len(items) // (4 * workers))))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _follow_parent() -> None:
    """End this process when the parent is killed, so that it does not write beside the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
