"""Shard sets: round trips, reproducible bytes, WebDataset reads them, damage is found and named."""

from __future__ import annotations

import json
import pickle
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import content_hash, load_image, read_bytes
from mmrl.shards import Record, ShardError, ShardSet, ShardWriter, verify
from mmrl.shards.record import parse
from mmrl.types import Answer

from .shard_sets import fill, picture, record


def test_round_trip_by_number_and_reference(tmp_path: Path) -> None:
    data = ShardSet.open([fill(tmp_path / "a", 10, max_samples=4)])
    assert len(data) == 10
    assert data.tasks == {"mcq": 10}
    assert data.keys == [f"mcq-{n:04d}" for n in range(10)]
    for n in (0, 3, 4, 9, -1):
        sample = data[n]
        number = n % 10
        assert sample.key == f"mcq-{number:04d}"
        assert sample.answer == Answer("choice", "B", ("1", "2", "3", "4"))
        assert sample.meta == {"number": number, "umlaut": "ä"}
        (ref,) = sample.media
        assert (ref.id, ref.kind, ref.width, ref.height, ref.data) == ("img_1", "image", 40, 30, None)
        assert read_bytes(ref) == picture(number)
        assert ref.hash == content_hash(picture(number))
        assert load_image(ref).getpixel((0, 0)) == (number, 0, 0)
    with pytest.raises(IndexError):
        data[10]
    assert verify(tmp_path / "a") == []


def test_webdataset_reads_our_shards(tmp_path: Path) -> None:
    fill(tmp_path, 7, max_samples=3)
    urls = [str(p) for p in sorted(tmp_path.glob("*.tar"))]
    assert len(urls) == 3
    rows = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert [r["__key__"] for r in rows] == [f"mcq-{n:04d}" for n in range(7)]
    for n, row in enumerate(rows):
        assert json.loads(row["json"])["meta"]["number"] == n
        assert row["000.png"] == picture(n)


def test_bytes_are_reproducible_and_tar_is_plain(tmp_path: Path) -> None:
    a, b = fill(tmp_path / "a", 5), fill(tmp_path / "b", 5)
    assert sorted(p.name for p in a.iterdir()) == ["dataset.json", "shard-000000.idx.json", "shard-000000.tar"]
    for path in a.iterdir():
        assert path.read_bytes() == (b / path.name).read_bytes()
    with tarfile.open(a / "shard-000000.tar") as tar:
        infos = tar.getmembers()
    assert {(i.mtime, i.uname, i.uid) for i in infos} == {(0, "", 0)}
    assert [i.name for i in infos[:2]] == ["mcq-0000.json", "mcq-0000.000.png"]


def test_several_folders_and_task_filter(tmp_path: Path) -> None:
    fill(tmp_path / "a", 5, "mcq", max_samples=2)
    with ShardWriter(tmp_path / "b", max_samples=4) as writer:
        for n in range(9):
            writer.write(record(n, "rotation" if n % 3 else "jigsaw"), {"000.png": picture(n)})
    data = ShardSet.open([tmp_path / "a", tmp_path / "b"])
    assert len(data) == 14
    assert data.tasks == {"jigsaw": 3, "mcq": 5, "rotation": 6}
    some = ShardSet.open([tmp_path / "a", tmp_path / "b"], tasks=["jigsaw", "mcq"])
    assert len(some) == 8
    assert [s.key for s in some] == [f"mcq-{n:04d}" for n in range(5)] + [f"jigsaw-{n:04d}" for n in (0, 3, 6)]
    with pytest.raises(ShardError, match="did you mean 'rotation'"):
        ShardSet.open([tmp_path / "b"], tasks=["rotatoin"])


def test_size_limit_closes_shards(tmp_path: Path) -> None:
    fill(tmp_path, 6, max_bytes=5000)
    sizes = [p.stat().st_size for p in sorted(tmp_path.glob("*.tar"))]
    assert len(sizes) > 1
    assert all(s < 5000 + 4096 for s in sizes)
    assert len(ShardSet.open(tmp_path)) == 6


def test_an_error_leaves_no_complete_set(tmp_path: Path) -> None:
    def samples() -> Iterator[int]:
        yield from range(3)
        raise RuntimeError("the source broke")

    def run() -> None:
        with ShardWriter(tmp_path, max_samples=2) as writer:
            for n in samples():
                writer.write(record(n), {"000.png": picture(n)})

    with pytest.raises(RuntimeError, match="the source broke"):
        run()
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ShardError, match="no complete shard set"):
        ShardSet.open(tmp_path)


def test_writer_refuses_what_readers_could_not_read(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, max_samples=2)
    bad: list[tuple[dict[str, Any], dict[str, bytes], str]] = [
        ({**record(0), "key": "a.b"}, {"000.png": b"x"}, "key: "),
        ({**record(0), "key": "__a__"}, {"000.png": b"x"}, "key: "),
        (record(0), {}, "members are"),
        (record(0), {"000.png": b"x", "001.png": b"x"}, "members are"),
        ({**record(0), "surprise": 1}, {"000.png": b"x"}, "surprise"),
        ({**record(0), "answer": {"kind": "choice", "value": "E", "options": ["a"]}}, {"000.png": b"x"}, "answer"),
        ({**record(0), "messages": [{"role": "user", "content": [{"type": "image", "id": "img_9"}]}]},
         {"000.png": b"x"}, "img_9"),
    ]  # fmt: skip
    for rec, members, words in bad:
        with pytest.raises(ShardError, match=words) as caught:
            writer.write(rec, members)
        assert "shard-000000.tar" in str(caught.value)
    writer.write(record(1), {"000.png": picture(1)})
    writer.write(record(2), {"000.png": picture(2)})
    with pytest.raises(ShardError, match="already written"):
        writer.write(record(1), {"000.png": picture(1)})
    writer.close()
    assert ShardSet.open(tmp_path).keys == ["mcq-0001", "mcq-0002"]
    with pytest.raises(ShardError, match="already holds"):
        ShardWriter(tmp_path)


def test_integers_that_readers_would_round_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        with pytest.raises(ShardError, match=r"mcq-0000.*64 bits"):
            writer.write({**record(0), "meta": {"seeds": [2**64]}}, {"000.png": picture(0)})
        writer.write({**record(1), "meta": {"seeds": [2**64 - 1, -(2**63), 0.1 + 0.2]}}, {"000.png": picture(0)})
    (sample,) = ShardSet.open(tmp_path)
    assert sample.meta == {"seeds": [2**64 - 1, -(2**63), 0.1 + 0.2]}


def test_a_rebuilt_set_is_read_anew_and_a_set_can_be_sent(tmp_path: Path) -> None:
    old = ShardSet.open(fill(tmp_path / "a", 4, max_samples=2))
    assert [s.key for s in pickle.loads(pickle.dumps(old))] == [s.key for s in old]
    shutil.rmtree(tmp_path / "a")
    fill(tmp_path / "a", 4, "mca", max_samples=2)
    new = ShardSet.open(tmp_path / "a")
    assert [s.key for s in new] == [f"mca-{n:04d}" for n in range(4)]
    assert [read_bytes(s.media[0]) for s in new] == [picture(n) for n in range(4)]
    with pytest.raises(ShardError, match="bytes changed"):
        old[0]
    (tmp_path / "a" / "shard-000000.tar").unlink()
    with pytest.raises(ShardError, match=r"mca-0001.*cannot read"):
        new[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": {"000.png": [0, 1, "00"]}}, "without a record"),
        ({"members": {"json": [0, "x", "00" * 16]}}, "samples.0.members.json"),
        ({"key": 3}, "samples.0.key"),
    ],
)
def test_a_broken_index_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = fill(tmp_path, 1) / "shard-000000.idx.json"
    index = json.loads(path.read_bytes())
    index["samples"][0].update(change)
    path.write_text(json.dumps(index))
    if "key" in change:  # keys are not kept in memory
        assert ShardSet.open(tmp_path)[0].key == "mcq-0000"
    with pytest.raises(ShardError, match=words) as caught:
        print(ShardSet.open(tmp_path).keys if "key" in change else ShardSet.open(tmp_path)[0])
    assert path.name in str(caught.value)


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    fill(tmp_path, 6, max_samples=3)
    tar = tmp_path / "shard-000001.tar"
    whole = tar.read_bytes()

    at = whole.index(picture(4))
    tar.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    (problem,) = verify(tmp_path)
    assert "shard-000001.tar, key 'mcq-0004': 000.png" in problem

    at = whole.index(b"what? 4")
    tar.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    with pytest.raises(ShardError, match="key 'mcq-0004': json"):
        ShardSet.open(tmp_path)[4]

    tar.write_bytes(whole[:-700])
    with pytest.raises(ShardError, match="manifest says"):
        ShardSet.open(tmp_path)
    assert any("shard-000001.tar" in p for p in verify(tmp_path))
    tar.write_bytes(whole[: len(whole) // 2])
    assert any("cut inside" in p or "no end marker" in p for p in verify(tmp_path))
    tar.unlink()
    assert any("missing" in p for p in verify(tmp_path))


def test_open_of_the_folder_above_says_what_to_open(tmp_path: Path) -> None:
    fill(tmp_path / "train", 1)
    with pytest.raises(ShardError, match="train"):
        ShardSet.open(tmp_path)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("number", 3.5, "3"),
        ("number", 3, float("nan")),
        ("text", "cat", ""),
        ("text", ["cat", "tom"], []),
        ("box", [1, 2, 3.5, 4], [3, 2, 1, 4]),
        ("boxes", [[1, 2, 3, 4]], [[1, 2, 3]]),
        ("point", [1, 2], [1]),
        ("span", [0.5, 2], [2, 1]),
        ("order", [2, 0, 1], [1, 2, 3]),
        ("order", [0], [True]),
        ("rotation", 90, 45),
    ],
)
def test_answers_are_checked(kind: str, good: Any, bad: Any) -> None:
    base = record(0)
    assert parse(Record, {**base, "answer": {"kind": kind, "value": good}}, "here").answer.value == good
    with pytest.raises(ShardError, match=r"here: answer.*" + kind):
        parse(Record, {**base, "answer": {"kind": kind, "value": bad}}, "here")


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=5), text=st.text(max_size=300))
def test_any_member_size_and_text(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], text: str) -> None:
    out = tmp_path_factory.mktemp("any")
    text = text.encode("utf-8", "replace").decode()
    media = [
        {"id": f"i{n}", "kind": "image", "name": f"{n:03d}.bin", "width": 1, "height": 1} for n in range(len(sizes))
    ]
    with ShardWriter(out) as writer:
        writer.write(
            {**record(0), "media": media, "messages": [{"role": "user", "content": text}]},
            {f"{n:03d}.bin": bytes([n + 1]) * size for n, size in enumerate(sizes)},
        )
    (sample,) = ShardSet.open(out)
    assert sample.messages[0]["content"] == text
    assert [read_bytes(r) for r in sample.media] == [bytes([n + 1]) * s for n, s in enumerate(sizes)]
    assert verify(out) == []
