"""Resume at any place, failed samples, threads ahead, other processes, flat memory."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import MediaError, load_image
from mmrl.shards import Loader, Mixture, ShardError, ShardSet, permute
from mmrl.shards.loader import Samples
from mmrl.types import Sample

from .shard_sets import fill


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Samples]:
    """A plain set of one shard, a filtered one, and a mixture of both."""
    out = tmp_path_factory.mktemp("resume")
    plain = ShardSet.open(fill(out / "a", 23, "a"))
    some = ShardSet.open(fill(out / "b", 20, "b", max_samples=6), filters=["meta.number > 3", "meta.number != 11"])
    return {"plain": plain, "filtered": some, "mixture": Mixture([plain, some], [0.7, 0.3])}


def keys(loader: Loader, batches: int) -> list[list[str]]:
    return [[s.key for s in batch] for batch in itertools.islice(loader, batches)]


def dealt(data: Samples, batch: int, position: int, batches: int, world: int, workers: int) -> tuple[list[str], int]:
    """The stream as ranks and their workers (0: none) give it together, and the position after it."""
    ranks = [Loader(data, batch=batch, seed=4, rank=r, world=world, position=position) for r in range(world)]
    parts = [[rank.split(w, workers) for w in range(workers)] if workers else [rank] for rank in ranks]
    lists = [[keys(loader, batches) for loader in loaders] for loaders in parts]
    (after,) = {loader.position for loaders in parts for loader in loaders}
    stream = []
    for number in range(batches):
        for place in range(batch):
            rank, own = place % world, place // world
            stream.append(lists[rank][own % max(workers, 1)][number][own // max(workers, 1)])
    return stream, after


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["plain", "filtered", "mixture"]),
    batch=st.integers(1, 11),
    splits=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([1, 2, 3, 8]), st.sampled_from([0, 1, 2, 4])),
        min_size=2,
        max_size=4,
    ),
)
def test_any_chain_of_resumes_is_the_uninterrupted_stream(
    kinds: dict[str, Samples], kind: str, batch: int, splits: list[tuple[int, int, int]]
) -> None:
    data, position, stream = kinds[kind], 0, list[str]()
    for batches, world, workers in splits:
        part, position = dealt(data, batch, position, batches, world, workers)
        stream += part
        assert position == len(stream)
    whole = keys(Loader(data, batch=1, seed=4), len(stream))
    assert stream == [key for (key,) in whole]


def test_one_shard_and_32_consumers(kinds: dict[str, Samples]) -> None:
    loaders = [Loader(kinds["plain"], batch=46, seed=0, rank=r // 4, world=8).split(r % 4, 4) for r in range(32)]
    lists = [keys(loader, 3) for loader in loaders]
    assert {len(batches) for batches in lists} == {3}
    assert {loader.position for loader in loaders} == {138}
    assert set(Counter(k for batches in lists for batch in batches for k in batch).values()) == {6}


GOLDEN = [[4, 6, 5, 8, 2, 1, 0, 7, 9, 3], [9, 1, 4, 2, 8, 0, 6, 7, 3, 5], [6, 9, 8, 5, 4, 7, 1, 0, 3, 2]]


def test_order_stays_the_same_from_version_to_version() -> None:
    # a checkpoint holds a place in this order: change it, and every run that goes on repeats and drops samples
    assert [permute(i, 10, 0, 0) for i in range(10)] == GOLDEN[0]
    assert [permute(i, 10, 0, 1) for i in range(10)] == GOLDEN[1]
    assert [permute(i, 10, 1, 0) for i in range(10)] == GOLDEN[2]


def number(sample: Sample) -> int:
    """Refuses two samples, and takes its time with some."""
    value: int = sample.meta["number"]
    if value == 5:
        raise MediaError("truncated", f"{sample.key} is cut")
    if value == 12:
        raise RuntimeError("out of luck")
    time.sleep(0.001 * (value % 3))
    return value


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_failed_samples_are_left_out_and_reported(
    kinds: dict[str, Samples], threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = kinds["plain"]
    loader = Loader(data, batch=5, seed=0, load=number, on_error="report", prefetch=threads)
    order = [int(data[n].meta["number"]) for n in loader.indices(0, 50)]
    with loader:
        for at, batch in zip(range(0, 50, 5), loader, strict=False):
            assert batch == [n for n in order[at : at + 5] if n not in (5, 12)]
            assert loader.position == at + 5
            assert {f.place for f in loader.failures} <= set(range(loader.position))
    assert sorted((f.key, f.code, f.times) for f in loader.failures) == [
        ("a-0005", "truncated", order.count(5)),
        ("a-0012", "RuntimeError", order.count(12)),
    ]
    assert "a-0005 is cut [truncated]" in caplog.text
    assert [f.place for f in loader.failures] == sorted(order.index(n) for n in (5, 12))


@pytest.mark.parametrize("threads", [0, 3])
def test_raise_comes_with_its_batch_and_does_not_move_the_place(kinds: dict[str, Samples], threads: int) -> None:
    loader = Loader(kinds["plain"], batch=1, seed=0, load=number, prefetch=threads)
    bad = min(loader.indices(0, 23).index(n) for n in (5, 12))
    stream = iter(loader)
    for _ in range(bad):
        next(stream)
    with pytest.raises((MediaError, RuntimeError), match=r"cut|luck"):
        next(stream)
    assert loader.position == bad
    assert not own_threads()


def test_a_broken_record_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 6)
    tar = tmp_path / "shard-000000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"what? 4", b"what! 4"))
    data = ShardSet.open(tmp_path)
    (batch,) = keys(Loader(data, batch=6, seed=0, on_error="report", prefetch=2), 1)
    assert sorted(batch) == [f"mcq-{n:04d}" for n in (0, 1, 2, 3, 5)]
    loader = Loader(data, batch=6, seed=0, on_error="report")
    next(iter(loader))
    (failure,) = loader.failures
    assert (failure.number, failure.key, failure.code) == (4, "", "record")
    assert "mcq-0004" in failure.message
    with pytest.raises(ShardError, match="mcq-0004"):
        next(iter(Loader(data, batch=6, seed=0, prefetch=2)))


def own_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("mmrl-loader")]


def test_threads_end_and_a_new_position_is_obeyed(kinds: dict[str, Samples]) -> None:
    loader = Loader(kinds["mixture"], batch=4, seed=0, prefetch=3)
    plain = keys(Loader(kinds["mixture"], batch=4, seed=0), 12)
    for batch in loader:
        assert own_threads()
        assert [s.key for s in batch] == plain[0]
        break
    assert not own_threads()
    with loader:
        stream = iter(loader)
        assert [s.key for s in next(stream)] == plain[1]
        loader.position = 40
        assert [s.key for s in next(stream)] == plain[10]
        assert [s.key for s in next(stream)] == plain[11]
    assert not own_threads()
    assert list(stream) == []
    empty = Loader(kinds["plain"], batch=2, seed=0, rank=3, world=4, prefetch=2)
    assert keys(empty, 3) == [[], [], []]


def in_process(loader: Loader) -> list[list[tuple[int, int]]]:
    return [[image.size for image in batch] for batch in itertools.islice(loader, 2)]


def first_picture(sample: Sample) -> object:
    return load_image(sample.media[0])


def test_a_loader_can_be_sent_to_spawned_workers(kinds: dict[str, Samples]) -> None:
    loader = Loader(kinds["mixture"], batch=6, seed=0, load=first_picture, prefetch=2)
    list(itertools.islice(loader, 1))  # what it has open stays here
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(in_process, [loader.split(0, 2)]) == [[[(40, 30)] * 3] * 2]


def test_memory_is_flat_over_epochs(kinds: dict[str, Samples]) -> None:
    def whole(sample: Sample) -> bytes:
        return bytes(20_000 + number(sample))

    loader = Loader(kinds["plain"], batch=23, seed=0, load=whole, on_error="report", prefetch=2)
    sizes = []
    tracemalloc.start()
    try:
        with loader:
            for batch in itertools.islice(loader, 10):
                del batch
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes[3:]) < min(sizes[:3]) + 6 * 20_000  # the results that wait, not those of an epoch


def test_wrong_settings_are_refused(kinds: dict[str, Samples]) -> None:
    for wrong in ({"on_error": "skip"}, {"prefetch": -1}):
        with pytest.raises(ValueError, match="on_error is raise or report"):
            Loader(kinds["plain"], batch=1, seed=0, **wrong)  # type: ignore[arg-type]
