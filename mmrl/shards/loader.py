"""Dealing samples out to ranks: an order that depends on (seed, epoch) only, and a place in it that is one integer.

The global stream is epoch 0 in its order, then epoch 1 in its own, without end. Batch b of `batch` prompts is the
stretch [position, position + batch) of that stream, and rank r of R takes every R-th sample of it from the r-th on. So
there is no tail: a batch that reaches the end of an epoch is filled from the next one, every sample comes exactly once
in each epoch, and every rank gets the same number of batches (lists that differ by at most one sample, empty for some
ranks when there are more of them than prompts). Nothing here depends on how samples are spread over shards.
"""

from __future__ import annotations

import copy
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, cast

from mmrl.shards.ahead import in_order
from mmrl.shards.order import shuffled
from mmrl.shards.record import ShardError
from mmrl.types import Sample

log = logging.getLogger(__name__)


class Samples(Protocol):
    """What a loader deals out: a ShardSet, a Mixture, or any sequence of samples.

    One with a method `at(place, seed) -> number` has an order of its own; the others are shuffled anew each epoch.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Sample: ...


@dataclass(slots=True)
class Failure:
    """A sample that was left out of its batch, the first time it was."""

    number: int  # in the data set
    key: str  # empty where the record could not be read
    code: str  # that of a MediaError, `record`, or the type of the exception
    message: str
    place: int  # in the global stream
    times: int = 1  # how often until now


class Loader:
    """Iterates without end over this rank's part of each global batch: lists of samples, or of what `load` makes.

    Close it (or leave its `with` block) to end the threads at once; they also end with the iterator.

    Args:
        dataset: the samples, at least one.
        batch: prompts of one step, over all ranks.
        seed: of the order.
        rank, world: which part of each batch.
        position: samples delivered globally before; save `loader.position` after a step and pass it here to go on
            exactly there. It holds for any world size and any batch size, and counts delivered batches only.
        load: what to do with each sample, e.g. decode it; must be picklable if the loader is sent to a process.
        on_error: `raise` what reading or `load` raises when its batch is due, or `report`: leave the sample out of its
            batch, log it and add it to `failures`. Nothing takes its place, so all other batches stay as they are.
        prefetch: threads that read and `load` samples ahead; the order does not depend on it. 0: none.
    """

    def __init__(
        self,
        dataset: Samples,
        *,
        batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        position: int = 0,
        load: Callable[[Sample], Any] | None = None,
        on_error: Literal["raise", "report"] = "raise",
        prefetch: int = 0,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("a loader needs at least one sample; the shard set is empty")
        if batch < 1 or not 0 <= rank < world or position < 0:
            raise ValueError(f"no batch {batch}, rank {rank} of {world}, position {position}")
        if on_error not in ("raise", "report") or prefetch < 0:
            raise ValueError(f"on_error is raise or report, not {on_error!r}; prefetch 0 or more, not {prefetch}")
        self.dataset = dataset
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world = world
        self.position = position
        self.load = load
        self.on_error = on_error
        self.prefetch = prefetch
        self._failures: dict[int, Failure] = {}
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next sample belongs to."""
        return self.position // len(self.dataset)

    @property
    def failures(self) -> list[Failure]:
        """The samples that were left out of delivered batches, each once, in the order of their first failure."""
        return list(self._failures.values())

    def indices(self, start: int, stop: int) -> Sequence[int]:
        """Numbers of the samples at places [start, stop) of the global stream."""
        return [self._number(place) for place in range(start, stop)]

    def split(self, worker: int, workers: int) -> Loader:
        """The part of a worker of this rank: it gets every `workers`-th sample of the rank's part of each batch."""
        part = copy.copy(self)
        part.rank, part.world = self.rank + self.world * worker, self.world * workers
        return part

    def __iter__(self) -> Iterator[list[Any]]:
        stream = self._deliver()
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """End the iterators of this loader and their threads. It may be iterated again."""
        for stream in list(self._streams):
            stream.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts with iterators and failures of its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_failures", "_streams")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _failures={}, _streams=weakref.WeakSet())

    def _deliver(self) -> Iterator[list[Any]]:
        count = len(range(self.rank, self.batch, self.world))
        while True:  # once, and again whenever somebody has set another position
            start = self.position
            results = cast(Any, in_order(self._fetch, self._places(start) if count else iter(()), self.prefetch))
            try:
                while self.position == start:
                    kept = []
                    for result in itertools.islice(results, count):
                        if isinstance(result, Failure):
                            self._report(result)
                        else:
                            kept.append(result)
                    self.position = start = start + self.batch
                    yield kept
            finally:
                results.close()

    def _places(self, start: int) -> Iterator[int]:
        """This rank's places of the global stream, from a batch that begins at `start` on."""
        for begin in itertools.count(start, self.batch):
            yield from range(begin + self.rank, begin + self.batch, self.world)

    def _number(self, place: int) -> int:
        own = getattr(self.dataset, "at", None)
        return own(place, self.seed) if own else shuffled(place, len(self.dataset), self.seed)

    def _fetch(self, place: int) -> Any:
        number, key = self._number(place), ""
        try:
            sample = self.dataset[number]
            key = sample.key
            return sample if self.load is None else self.load(sample)
        except Exception as error:
            if self.on_error == "raise":
                raise
            code = "record" if isinstance(error, ShardError) else str(getattr(error, "code", type(error).__name__))
            return Failure(number, key, code, str(error), place)

    def _report(self, failure: Failure) -> None:
        known = self._failures.setdefault(failure.number, failure)
        if known is not failure:
            known.times += 1
        log.warning("left out sample %s [%s]: %s", failure.key or failure.number, failure.code, failure.message)
