"""The loader: every sample once an epoch, equal batch counts, exact resume, any split gives the same sequence."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.shards import Loader, permute
from mmrl.types import Answer, Sample


class Numbers:
    """A stand-in for a shard set: sample n has the key str(n)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Sample:
        return Sample(str(number), (), (), Answer("number", number), "t")


def take(loader: Loader, batches: int) -> list[list[int]]:
    return [[int(s.key) for s in batch] for batch in itertools.islice(loader, batches)]


def flat(lists: list[list[int]]) -> list[int]:
    return [n for part in lists for n in part]


@given(size=st.integers(1, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_permute_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permute(i, size, seed, epoch) for i in range(size)) == list(range(size))


def test_permute_is_even_and_differs_by_seed_and_epoch() -> None:
    # each of the 120 orders of 5 things about equally often, over seeds: chi-square with 119 degrees of freedom
    counts = Counter(tuple(permute(i, 5, seed, seed % 7) for i in range(5)) for seed in range(12000))
    assert len(counts) == 120
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 200
    orders = {tuple(permute(i, 50, seed, epoch) for i in range(50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@settings(max_examples=60)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 12),
    world=st.integers(1, 8),
    workers=st.integers(1, 4),
    start=st.integers(0, 100),
)
def test_ranks_and_workers_share_the_global_sequence(
    size: int, batch: int, world: int, workers: int, start: int
) -> None:
    whole = take(Loader(Numbers(size), batch=batch, seed=3, position=start), 4)
    ranks = [Loader(Numbers(size), batch=batch, seed=3, rank=r, world=world, position=start) for r in range(world)]
    parts = [take(loader, 4) for loader in ranks]
    assert all(loader.position == start + 4 * batch for loader in ranks)
    for number, full in enumerate(whole):
        sizes = [len(p[number]) for p in parts]
        assert max(sizes) - min(sizes) <= 1
        assert [parts[i % world][number][i // world] for i in range(batch)] == full
    for rank in range(world):
        loader = Loader(Numbers(size), batch=batch, seed=3, rank=rank, world=world, position=start)
        pieces = [take(loader.split(w, workers), 4) for w in range(workers)]
        for number, mine in enumerate(parts[rank]):
            assert [pieces[i % workers][number][i // workers] for i in range(len(mine))] == mine


@given(size=st.integers(1, 30), batch=st.integers(1, 45), epochs=st.integers(1, 4))
def test_every_sample_once_an_epoch_and_no_tail(size: int, batch: int, epochs: int) -> None:
    batches = -(-size * epochs // batch)
    stream = flat(take(Loader(Numbers(size), batch=batch, seed=1), batches))
    assert len(stream) == batches * batch
    for epoch in range(epochs):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


@pytest.mark.parametrize("stop", [1, 2, 5, 9])
def test_resume_is_exact_with_another_world_size(stop: int) -> None:
    whole = take(Loader(Numbers(23), batch=6, seed=9), 14)
    first = Loader(Numbers(23), batch=6, seed=9)
    head = take(first, stop)
    assert first.position == stop * 6
    assert head == whole[:stop]
    tails = [take(Loader(Numbers(23), batch=6, seed=9, rank=r, world=4, position=first.position), 3) for r in range(4)]
    for number in range(3):
        assert [tails[i % 4][number][i // 4] for i in range(6)] == whole[stop + number]
    # and with another batch size the stream of samples goes on unbroken
    other = flat(take(Loader(Numbers(23), batch=5, seed=9, position=first.position), 4))
    assert other == flat(whole)[stop * 6 : stop * 6 + 20]


def test_position_counts_delivered_batches_only() -> None:
    loader = Loader(Numbers(10), batch=4, seed=0)
    assert loader.position == 0
    for number, _ in zip(range(3), loader, strict=False):
        assert loader.position == (number + 1) * 4
    assert loader.epoch == loader.position // 10


def test_32_consumers_of_one_sample_get_as_many_batches_as_each_other() -> None:
    parts = [take(Loader(Numbers(1), batch=2, seed=0, rank=r, world=32), 5) for r in range(32)]
    assert {len(p) for p in parts} == {5}
    assert [len(flat(p)) for p in parts] == [5, 5] + [0] * 30


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Loader(Numbers(0), batch=1, seed=0)
    for wrong in ({"batch": 0}, {"rank": 2, "world": 2}, {"position": -1}):
        with pytest.raises(ValueError, match="no batch"):
            Loader(Numbers(3), **{"batch": 1, "seed": 0, **wrong})
