"""Tars of others: WebDataset's rules, three layouts, and every kind of damage named."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.shards import ShardError, ShardSet, ShardWriter, read_groups, repair, scan, tars, verify

from .shard_sets import fill, picture, record


def pack(path: Path, files: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def contents(tar: Path) -> list[tuple[str, dict[str, bytes]]]:
    data = tar.read_bytes()
    return [(g.key, {n: data[at : at + size] for n, (at, size) in g.members.items()}) for g in read_groups(tar)]


def peer(tar: Path) -> list[tuple[str, dict[str, bytes]]]:
    own = ("__key__", "__url__", "__local_path__")
    rows = webdataset.WebDataset([str(tar)], shardshuffle=False, empty_check=False)
    return [(r["__key__"], {n: v for n, v in r.items() if n not in own}) for r in rows]


def test_plain_webdataset(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for n in range(5):
            writer.write({"__key__": f"d/{n:03d}", "JPG": bytes([n]) * 700 * n, "cls": n, "seg.png": b"x"})
    assert contents(path) == peer(path)
    assert contents(path)[2] == ("d/002", {"jpg": b"\2" * 1400, "cls": b"2", "seg.png": b"x"})
    with webdataset.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=2, verbose=0) as shards:
        for n in range(5):
            shards.write({"__key__": f"{n:03d}", "txt": str(n)})
    assert [[k for k, _ in contents(p)] for p in sorted(tmp_path.glob("s-*.tar"))] == [
        ["000", "001"],
        ["002", "003"],
        ["004"],
    ]


def test_img2dataset_and_energon(tmp_path: Path) -> None:
    files = [
        (f"{n:09d}.{e}", d) for n in range(3) for e, d in (("jpg", picture(n)), ("json", b"{}"), ("txt", b"caption"))
    ]
    path = pack(tmp_path / "00000.tar", files)
    (tmp_path / "00000_stats.json").write_text("{}")
    assert contents(path) == peer(path)
    assert [k for k, _ in contents(path)] == ["000000000", "000000001", "000000002"]

    folder = tmp_path / "energon"
    (folder / ".nv-meta").mkdir(parents=True)
    (folder / ".nv-meta" / "dataset.yaml").write_text("{}")
    pack(folder / ".nv-meta" / "hidden.tar", [])
    (folder / "parts").mkdir()
    first = pack(folder / "parts" / "b_0.tar", [("s1.context.json", b"1"), ("s1.img1.jpg", b"2"), ("s2.wav", b"3")])
    second = pack(folder / "a.tar", [])
    assert tars(folder) == [second, first]
    assert contents(first) == [("s1", {"context.json": b"1", "img1.jpg": b"2"}), ("s2", {"wav": b"3"})]
    assert contents(second) == []


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_formats(tmp_path: Path, kind: int) -> None:
    long = "/".join(["folder-of-many-letters"] * 9) + "/"
    names = ["a.x", "é/ü.y", "b" * 60 + ".z", long + "c.jpg", long + "c.Json", "plain.x"]
    if kind != tarfile.USTAR_FORMAT:
        names += ["n" * 200 + ".txt", long * 3 + "q.txt"]
    path = pack(tmp_path / "a.tar", [(n, n.encode()) for n in names], kind)
    with tarfile.open(path, "a", format=kind) as tar:
        tar.addfile(tarfile.TarInfo("x.tar/"), None)
        for name, what in (("folder", tarfile.DIRTYPE), ("link.x", tarfile.SYMTYPE), ("hard.x", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = what, "a.x"
            tar.addfile(info)
    assert contents(path) == peer(path)
    assert len(contents(path)) == len(names) - 1


def test_sizes_in_base_256_and_in_pax_headers(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 9_000_000_000  # beyond 11 octal digits
    with pytest.raises(ShardError, match=r"cut inside a.bin: 0 of 9000000000 bytes"):
        scan_raises(tmp_path, info.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(ShardError, match=r"cut inside a.bin: 0 of 9000000000 bytes"):
        scan_raises(tmp_path, info.tobuf(tarfile.PAX_FORMAT))
    with pytest.raises(ShardError, match="PAX header"):
        scan_raises(tmp_path, info.tobuf(tarfile.PAX_FORMAT).replace(b"size=9", b"size=x"))


def scan_raises(folder: Path, data: bytes) -> None:
    (folder / "x.tar").write_bytes(data)
    read_groups(folder / "x.tar")


names = st.lists(
    st.text("ab._/AB", min_size=1, max_size=7).filter(lambda n: n.strip("/") == n and "//" not in n),
    max_size=8,
    unique=True,
)


@settings(max_examples=150)
@given(names)
def test_grouping_is_that_of_webdataset(tmp_path_factory: pytest.TempPathFactory, given: list[str]) -> None:
    path = pack(tmp_path_factory.mktemp("names") / "a.tar", [(n, n.encode()) for n in given])
    found = scan(path)
    try:
        rows = peer(path)
    except ValueError:
        assert any("twice" in str(p) for p in found.problems)
        return
    split = {k for k, _ in rows if sum(k == other for other, _ in rows) > 1}
    data = path.read_bytes()
    mine = [(g.key, {n: data[at : at + size] for n, (at, size) in g.members.items()}) for g in found.groups]
    assert mine == [(k, m) for k, m in rows if k not in split]
    assert len(split) == len({g.key for g in found.doubtful})


FILES = [(f"k{n}.{e}", bytes([n + 1]) * 600) for n in range(4) for e in ("jpg", "json")]


@pytest.mark.parametrize(
    ("change", "words", "left"),
    [
        (lambda d: d[: 1536 * 5 + 700], r"cut inside k2.json: 188 of 600 bytes.*last good key is 'k1'.*'k2'", 2),
        (lambda d: d[: 1536 * 5], r"byte 7680: no end marker.*last good key is 'k1'", 2),
        (lambda d: d[: 1536 * 5 + 100], r"byte 7780: no end marker", 2),
        (lambda d: b"", r"byte 0: no end marker.*no sample is whole", 0),
        (lambda d: d[: 1536 * 4] + b"junk" * 128 + d[1536 * 4 + 512 :], r"byte 6144 is not a tar header", 1),
        (lambda d: d[: 1536 * 4] + b"z" + d[1536 * 4 + 1 :], r"byte 6144 is not a tar header: its checksum", 1),
        (lambda d: d + d, r"behind the end marker, from byte", 3),
    ],
)
def test_damage_is_named(tmp_path: Path, change: Callable[[bytes], bytes], words: str, left: int) -> None:
    path = pack(tmp_path / "a.tar", FILES)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ShardError, match=words) as caught:
        read_groups(path)
    assert "a.tar" in str(caught.value)
    problems: list[ShardError] = []
    assert [g.key for g in read_groups(path, on_problem="collect", problems=problems)] == [f"k{n}" for n in range(left)]
    assert [str(p) for p in problems] == [str(caught.value)]


def test_doubles_and_returns_are_named(tmp_path: Path) -> None:
    twice = pack(tmp_path / "twice.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.JPG", b"3"), ("c.jpg", b"4")])
    with pytest.raises(ShardError, match=r"twice.tar, key 'b', byte 2560: b.JPG is there twice, first at byte 1536"):
        read_groups(twice)
    mixed = pack(tmp_path / "mixed.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.txt", b"3"), ("c.jpg", b"4")])
    with pytest.raises(ShardError, match=r"mixed.tar, key 'a', byte 2560: a.txt stands apart.*byte 512"):
        read_groups(mixed)
    assert [g.key for g in read_groups(twice, on_problem="collect")] == ["a", "c"]
    assert [g.key for g in read_groups(mixed, on_problem="collect")] == ["b", "c"]
    assert list(scan(mixed).doubtful[0].members) == ["jpg", "txt"]


def test_dots_in_names_are_noticed(tmp_path: Path) -> None:
    odd = pack(tmp_path / "a.tar", [(f"clip {n}.{n}5 (x).mp3", b"") for n in range(12)])
    found = scan(odd)
    assert not found.problems
    assert "12 of 12 extensions come only once, such as '05 (x).mp3'" in found.warnings[0]
    assert scan(pack(tmp_path / "b.tar", [("README", b""), *FILES])).warnings == [
        f"{tmp_path / 'b.tar'}: 1 members without an extension belong to no sample, such as 'README'"
    ]


@settings(max_examples=60)
@given(st.binary(max_size=1500), st.integers(0, 6000), st.integers(0, 255))
def test_any_bytes_are_groups_or_problems(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("junk") / "a.tar"
    path.write_bytes(junk)
    scan(path)
    whole = bytearray(pack(path, FILES[:4], tarfile.PAX_FORMAT).read_bytes())
    whole[place] = value
    path.write_bytes(whole)
    assert len(scan(path).groups) <= 2


@pytest.mark.parametrize("indexed", [True, False])
def test_repair_of_a_cut_shard(tmp_path: Path, indexed: bool) -> None:
    fill(tmp_path, 8, max_samples=5)
    whole = ShardSet.open(tmp_path)
    tar = tmp_path / "shard-000000.tar"
    before = tar.read_bytes()
    cut = before[: whole[3].media[0].offset + 30]
    at = cut.index(picture(1))
    tar.write_bytes(cut[:at] + b"?" + cut[at + 1 :])
    if not indexed:
        (tmp_path / "shard-000000.idx.json").unlink()

    result = repair(tar)
    assert result.kept == 2
    assert "000.png: cut, changed or missing" in result.lost["mcq-0001"]
    assert "mcq-0003" in result.lost
    assert ("mcq-0004" in result.lost) == indexed
    assert result.damaged is not None
    assert len(result.damaged.read_bytes()) == len(cut)
    assert verify(tmp_path) == []
    assert ShardSet.open(tmp_path).keys == ["mcq-0000", "mcq-0002", "mcq-0005", "mcq-0006", "mcq-0007"]
    with ShardWriter(tmp_path / "same") as writer:
        for n in (0, 2):
            writer.write(record(n), {"000.png": picture(n)})
    assert tar.read_bytes() == (tmp_path / "same" / "shard-000000.tar").read_bytes()

    before = tar.stat()
    assert (repair(tar).kept, repair(tar).lost, repair(tar).damaged) == (2, {}, None)
    assert tar.stat().st_ino == before.st_ino
    assert result.damaged.is_file()


def test_repair_elsewhere_and_of_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    tar = tmp_path / "shard-000000.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[:-1024])  # every sample is there, the end marker is not
    result = repair(tar, tmp_path / "saved" / "new.tar")
    assert (result.kept, result.lost, result.damaged) == (3, {}, None)
    assert result.tar.read_bytes() == whole
    assert tar.read_bytes() == whole[:-1024]
    with pytest.raises(ShardError, match="already there"):
        repair(tar, result.tar)
    tar.write_bytes(whole[:300])
    index = json.loads((tmp_path / "shard-000000.idx.json").read_bytes())
    with pytest.raises(ShardError, match="no sample of it is whole"):
        repair(tar)
    assert tar.read_bytes() == whole[:300]
    assert json.loads((tmp_path / "shard-000000.idx.json").read_bytes()) == index
    assert not list(tmp_path.glob(".*"))
