"""Checking a shard set byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmrl.media import content_hash
from mmrl.shards.dataset import read_manifest
from mmrl.shards.index import read_index
from mmrl.shards.record import Record, ShardError, ShardIndex, parse
from mmrl.shards.tar import members
from mmrl.shards.writer import summary


def verify(folder: Path) -> list[str]:
    """What is wrong with a shard set (manifest, indexes, tars, hashes, records, unique keys); empty when it is good."""
    try:
        manifest = read_manifest(folder)
    except ShardError as error:
        return [str(error)]
    problems: list[str] = []
    seen: dict[str, str] = {}
    listed = {shard.tar for shard in manifest.shards}
    problems += [f"{p}: not in the manifest" for p in sorted(folder.glob("*.tar")) if p.name not in listed]
    for shard in manifest.shards:
        path = folder / shard.tar
        if not path.is_file():
            problems.append(f"{path}: missing")
            continue
        try:
            index = read_index(path)
            if summary(index) != shard or path.stat().st_size != shard.size:
                problems.append(f"{path}: size or number of samples differs from the manifest")
            problems += check_shard(path, index)
        except ShardError as error:
            problems.append(str(error))
            continue
        for entry in index.samples:
            if entry.key in seen:
                problems.append(f"{path}, key {entry.key!r}: also in {seen[entry.key]}")
            seen[entry.key] = shard.tar
    return problems


def check_shard(path: Path, index: ShardIndex) -> Iterator[str]:
    """What is wrong with a tar and its index. Raises ShardError where the tar is cut or damaged."""
    found = list(members(path))
    named = [(f"{e.key}.{n}", m[0], m[1]) for e in index.samples for n, m in e.members.items()]
    # the same members in the same order: those of a sample then stand together
    if sorted(named, key=lambda m: m[1]) != found:
        yield f"{path}: the index does not list the members that the tar holds"
        return
    with path.open("rb") as file:
        for entry in index.samples:
            data = b""
            for name, (offset, size, digest) in entry.members.items():
                file.seek(offset)
                found_bytes = file.read(size)
                data = found_bytes if name == "json" else data
                if content_hash(found_bytes) != digest:
                    yield f"{path}, key {entry.key!r}: {name}: its bytes differ from the hash in the index"
            try:
                record = parse(Record, data, f"{path}, key {entry.key!r}")
            except ShardError as error:
                yield str(error)
                continue
            if record.key != entry.key or record.task != entry.task:
                yield f"{path}, key {entry.key!r}: the record says key {record.key!r}, task {record.task!r}"
            hashes = {m.name: m.hash for m in record.media}
            if hashes != {n: m[2] for n, m in entry.members.items() if n != "json"}:
                yield f"{path}, key {entry.key!r}: media: names or hashes differ from the members"
