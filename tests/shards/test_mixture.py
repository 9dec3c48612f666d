"""Mixtures: exact shares, even use of every part, the file, and one order for one seed."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.shards import Loader, Mixture, ShardError, ShardSet, open_data, write_mixture
from mmrl.shards.order import PERIOD, schedule, shares

from .shard_sets import fill


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixture")
    for name, count in (("a", 9), ("b", 4), ("c", 25)):
        fill(out / name, count, name, max_samples=4)
    return out


def mixed(folder: Path, **weights: float) -> Mixture:
    return Mixture([ShardSet.open(folder / name) for name in weights], list(weights.values()))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7))
def test_every_stretch_has_its_shares(weights: list[int]) -> None:
    counts = shares(weights)
    parts, draws = schedule(counts)
    done = [0] * len(counts)
    for place, (part, draw) in enumerate(zip(parts, draws, strict=True), 1):
        assert draw == done[part]
        done[part] += 1
        assert all(abs(n * len(parts) - place * c) < len(parts) for n, c in zip(done, counts, strict=True))
    assert done == counts


def test_weights_in_any_unit() -> None:
    assert shares([0.7, 0.3]) == shares([7, 3]) == [7, 3]
    assert shares([2]) == [1]
    assert shares([1 / 3, 2 / 3]) == [1, 2]
    assert shares([1 / 3, 1 / 7]) == [7, 3]  # no end as decimal numbers: the nearest of 10,000
    odd = shares([0.123457, 0.333333, 0.54321])
    assert sum(odd) == PERIOD
    assert odd == [1235, 3333, 5432]
    for wrong in ([], [0, 1], [-1], [float("nan")], [1, 1e-9]):
        with pytest.raises(ValueError, match="weight"):
            shares(wrong)


def test_parts_are_used_evenly_and_to_their_shares(folder: Path) -> None:
    data = mixed(folder, a=0.5, b=0.3, c=0.2)
    assert len(data) == 38
    assert data.tasks == {"a": 9, "b": 4, "c": 25}
    stream = [data.keys[n] for n in Loader(data, batch=1, seed=3).indices(0, 2000)]
    assert Counter(k[0] for k in stream) == {"a": 1000, "b": 600, "c": 400}
    for start in (0, 7, 333, 1400):
        part = Counter(k[0] for k in stream[start : start + 500])
        assert all(abs(part[k] - n) < 2 for k, n in (("a", 250), ("b", 150), ("c", 100)))
    for name, size in (("a", 9), ("b", 4), ("c", 25)):
        own = [k for k in stream if k[0] == name]
        epochs = [tuple(own[i : i + size]) for i in range(0, len(own) - size + 1, size)]
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert len(set(epochs)) > 1


def test_order_is_that_of_seed_and_place_only(folder: Path) -> None:
    data = mixed(folder, a=2, c=1)
    first, again, other = (Loader(data, batch=1, seed=s).indices(0, 300) for s in (5, 5, 6))
    assert first == again != other
    assert Loader(pickle.loads(pickle.dumps(data)), batch=7, seed=5).indices(100, 300) == first[100:]
    twice = mixed(folder, a=1)
    both = Mixture([*twice.sets, *twice.sets], [1, 1])
    numbers = Loader(both, batch=1, seed=0).indices(0, 18)
    assert [n for n in numbers if n < 9] != [n - 9 for n in numbers if n >= 9]


def test_resume_with_other_ranks(folder: Path) -> None:
    data = mixed(folder, a=1, b=2, c=3)
    whole = list(itertools.islice(Loader(data, batch=6, seed=0), 30))
    for world in (1, 2, 3, 8):
        ranks = [iter(Loader(data, batch=6, seed=0, rank=r, world=world, position=60)) for r in range(world)]
        for number in range(10, 30):
            parts = [[s.key for s in next(rank)] for rank in ranks]
            assert [parts[i % world][i // world] for i in range(6)] == [s.key for s in whole[number]]


def test_mixture_file(folder: Path, tmp_path: Path) -> None:
    path = folder / "mix.json"
    write_mixture(path, [{"path": "a", "weight": 3}, {"path": "c", "weight": 1, "filters": ["meta.number < 5"]}])
    assert json.loads(path.read_text()) == {
        "version": 1,
        "parts": [{"path": "a", "weight": 3.0}, {"path": "c", "weight": 1.0, "filters": ["meta.number < 5"]}],
    }
    data = open_data(path)
    assert isinstance(data, Mixture)
    assert (len(data), data[-1].key, data[9].key) == (14, "c-0004", "c-0000")
    assert [s.key for s in data] == data.keys
    assert len(open_data([str(path)], filters=["meta.number >= 3"])) == 6 + 2
    assert open_data(folder / "a").keys == ShardSet.open(folder / "a").keys
    assert len(open_data([folder / "a", folder / "b"], tasks=["b"])) == 4
    write_mixture(tmp_path / "far" / "mix.json", [{"path": folder / "b", "weight": 1, "tasks": ["b"]}])
    assert len(open_data(tmp_path / "far" / "mix.json")) == 4


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "parts"),
        ([{"path": "a", "weight": 0}], r"parts.0.weight"),
        ([{"path": "a", "weight": 1, "tsaks": []}], "tsaks"),
        ([{"path": "a", "weight": 1}, {"path": "none", "weight": 1}], "part 1: .*none"),
        ([{"path": "a", "weight": 1, "tasks": ["x"]}], "part 0: .*'x'"),
        ([{"path": "a", "weight": 1, "filters": ["meta.number > 99"]}], "part 0: .*passes"),
        ([{"path": "mix.json", "weight": 1}], "part 0: .*is a file"),
    ],
)
def test_wrong_files_are_named(folder: Path, parts: list[dict[str, Any]], words: str) -> None:
    path = folder / "mix.json"
    path.write_text(json.dumps({"version": 1, "parts": parts}))
    with pytest.raises(ShardError, match=words) as caught:
        open_data(path)
    assert "mix.json" in str(caught.value)


def test_a_mixture_stands_alone(folder: Path) -> None:
    write_mixture(folder / "mix.json", [{"path": "a", "weight": 1, "tasks": ["a"]}])
    with pytest.raises(ShardError, match="stands alone"):
        open_data([folder / "mix.json", folder / "b"])
    with pytest.raises(ShardError, match="open_data"):
        ShardSet.open(folder / "mix.json")
    with pytest.raises(ShardError, match="none of b"):
        open_data(folder / "mix.json", tasks=["b"])
