"""Processes that work through a list in order and do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from mmrl_prep.places import PrepError

T = TypeVar("T")
R = TypeVar("R")
WORTH = 64  # decodes that take about as long as starting a process


class Crew:
    """Processes that are started when there is work for them and stay for the next: a context manager.

    engine: "local" processes, or "ray" for the workers of a Ray cluster, where `workers` is how many are at work at a
    time. One local worker works in this process.
    """

    def __init__(self, workers: int, engine: str = "local") -> None:
        self.workers = max(1, workers)
        self.engine = engine
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[T], R], items: Sequence[T], decodes: int) -> Iterator[R]:
        """`map`; results in the order of the items. `decodes`: how many pictures that comes to: small work is done
        here, since starting processes takes longer."""
        workers = max(1, min(self.workers, decodes // WORTH))
        if self.engine == "ray":
            yield from _ray_map(function, items, self.workers)
        elif workers <= 1 or len(items) <= 1:
            yield from map(function, items)
        else:
            if self._pool is None:
                # not fork: decoders and their threads hold locks that a forked child would wait for
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, context, initializer=_follow_parent)
            yield from self._pool.map(function, items, chunksize=max(1, min(32, len(items) // (4 * workers))))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=error is not None)
            self._pool = None


def _ray_map(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """The same over Ray; joins the cluster that RAY_ADDRESS names, else starts one on this machine."""
    try:
        import ray
    except ImportError as error:
        raise PrepError("--engine ray needs the extra ray: pip install 'mmrl[ray]'") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    chunk = max(1, min(16, len(items) // (4 * max(1, workers))))
    chunks = [items[n : n + chunk] for n in range(0, len(items), chunk)]

    def work(part: Sequence[T]) -> list[R]:
        return [function(item) for item in part]

    remote: Any = ray.remote(work)
    waiting: list[Any] = [remote.remote(part) for part in chunks[: 2 * max(1, workers)]]
    for number in range(len(chunks)):
        done: list[R] = ray.get(waiting[number])
        waiting[number] = None
        if len(waiting) < len(chunks):
            waiting.append(remote.remote(chunks[len(waiting)]))
        yield from done


def _follow_parent() -> None:
    """End this process when the parent is killed, so that it does not write beside the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
