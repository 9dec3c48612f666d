"""Results in order, computed ahead by threads."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

X = TypeVar("X")
Y = TypeVar("Y")


def in_order(function: Callable[[X], Y], items: Iterator[X], threads: int) -> Iterator[Y]:
    """`function` of each item, in the order of the items, with at most `2 * threads` results waiting.

    An exception of `function` comes out at its item's turn. The threads have ended when the iterator is exhausted,
    has raised or is closed; work that has begun is waited for. Without threads everything happens here.
    """
    if not threads:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="mmrl-loader")
    try:
        waiting: deque[Future[Y]] = deque(pool.submit(function, x) for x in itertools.islice(items, 2 * threads))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, x) for x in itertools.islice(items, 1))
            yield result
            del result  # or it would stay in memory until the next one is asked for
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
