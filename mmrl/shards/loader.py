"""Dealing samples out to ranks: an order that depends on (seed, epoch) only, and a place in it that is one integer.

The global stream is epoch 0 in its order, then epoch 1 in its own, without end. Batch b of `batch` prompts is the
stretch [position, position + batch) of that stream, and rank r of R takes every R-th sample of it from the r-th on. So
there is no tail: a batch that reaches the end of an epoch is filled from the next one, every sample comes exactly once
in each epoch, and every rank gets the same number of batches (lists that differ by at most one sample, empty for some
ranks when there are more of them than prompts). Nothing here depends on how samples are spread over shards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Protocol

import xxhash

from mmrl.types import Sample

ROUNDS = 6


class Samples(Protocol):
    """What a loader deals out: a ShardSet, or any sequence of samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Sample: ...


def permute(index: int, size: int, seed: int, epoch: int) -> int:
    """Place `index` of the order of an epoch: a permutation of range(size) for each (seed, epoch), in constant memory.

    A Feistel network over the next power of four, walked until it falls inside the range (Black and Rogaway 2002).
    The domain has at least 64 values: over smaller ones six rounds do not give all orders equally often.
    """
    half = max(3, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(ROUNDS):
            mixed = xxhash.xxh3_64_intdigest(b"%d %d %d %d" % (seed, epoch, number, right))
            left, right = right, left ^ (mixed & mask)
        index = left << half | right
        if index < size:
            return index


class Loader:
    """Iterates without end over this rank's part of each global batch.

    Args:
        dataset: the samples, at least one.
        batch: prompts of one step, over all ranks.
        seed: of the order.
        rank, world: which part of each batch.
        position: samples delivered globally before; save `loader.position` after a step and pass it here to go on
            exactly there. It holds for any world size and any batch size.
    """

    def __init__(
        self, dataset: Samples, *, batch: int, seed: int, rank: int = 0, world: int = 1, position: int = 0
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("a loader needs at least one sample; the shard set is empty")
        if batch < 1 or not 0 <= rank < world or position < 0:
            raise ValueError(f"no batch {batch}, rank {rank} of {world}, position {position}")
        self.dataset = dataset
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world = world
        self.position = position

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next sample belongs to."""
        return self.position // len(self.dataset)

    def indices(self, start: int, stop: int) -> Sequence[int]:
        """Numbers of the samples at places [start, stop) of the global stream."""
        size = len(self.dataset)
        return [permute(place % size, size, self.seed, place // size) for place in range(start, stop)]

    def split(self, worker: int, workers: int) -> Loader:
        """The part of a worker of this rank: it gets every `workers`-th sample of the rank's part of each batch."""
        part = copy.copy(self)
        part.rank, part.world = self.rank + self.world * worker, self.world * workers
        return part

    def __iter__(self) -> Iterator[list[Sample]]:
        while True:
            start, stop = self.position, self.position + self.batch
            mine = self.indices(start, stop)[self.rank :: self.world]
            samples = [self.dataset[n] for n in mine]
            self.position = stop
            yield samples
