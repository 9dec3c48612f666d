"""Writing shards so that a reader never sees half of one: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mmrl.media import content_hash
from mmrl.shards.record import (
    MANIFEST,
    IndexEntry,
    Manifest,
    Record,
    ShardError,
    ShardIndex,
    ShardSummary,
    parse,
)
from mmrl.shards.tar import END, header, padding

# more digits than a 64-bit integer may have: worth a look at the value itself
_LONG = re.compile(rb"\d{19}")


def dumps(value: Any) -> bytes:
    """JSON with one spelling for one value, so that bytes are reproducible."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def temporary(path: Path) -> Path:
    """The name under which a file is written before it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def publish(temp: Path, path: Path) -> None:
    """Give a completely written and synced file its name, durably."""
    os.replace(temp, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file that is there either whole or not at all, even after a loss of power."""
    temp = temporary(path)
    with temp.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(temp, path)


def index_path(tar: Path) -> Path:
    return tar.with_name(tar.name.removesuffix(".tar") + ".idx.json")


class ShardFile:
    """One shard being written. It gets its name and its index in `commit`; before that nothing is to be seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.samples: list[IndexEntry] = []
        self._keys: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temp = temporary(path)
        self._file = self._temp.open("wb")

    def add(self, record: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Append a sample: its record (see `Record`), and the bytes of its media by member name. Raises ShardError."""
        where = f"{self.path.name}, key {record.get('key')!r}"
        checked = parse(Record, dict(record), where)
        names = {m.name for m in checked.media}
        if names != set(members):
            raise ShardError(f"{where}: media: the record names {sorted(names)}, the members are {sorted(members)}")
        for medium in checked.media:
            medium.hash = content_hash(members[medium.name])
        if checked.key in self._keys:
            raise ShardError(f"{where}: the key is already in this shard")
        places = {}
        line = dumps(checked.model_dump())
        if _LONG.search(line) and _wide(json.loads(line)):
            raise ShardError(f"{where}: an integer beyond 64 bits, which JSON readers round: write it as text")
        self._keys.add(checked.key)
        for name, data in {"json": line, **dict(sorted(members.items()))}.items():
            self._file.write(header(f"{checked.key}.{name}", len(data)))
            places[name] = (self._file.tell(), len(data), content_hash(data))
            self._file.write(data + padding(len(data)))
        self.size = self._file.tell()
        self.samples.append(IndexEntry(key=checked.key, task=checked.task, members=places))

    def commit(self) -> ShardIndex:
        """Publish the shard, then its index."""
        self._file.write(END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.size = self._file.tell()
        self._file.close()
        publish(self._temp, self.path)
        index = ShardIndex(tar=self.path.name, size=self.size, samples=self.samples)
        atomic_write(index_path(self.path), dumps(index.model_dump()))
        return index

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._temp.unlink(missing_ok=True)


def _wide(value: Any) -> bool:
    """Whether an integer beyond 64 bits stands in a JSON value."""
    if isinstance(value, dict | list):
        return any(map(_wide, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def summary(index: ShardIndex) -> ShardSummary:
    """A shard as the manifest lists it."""
    tasks = Counter(s.task for s in index.samples)
    return ShardSummary(tar=index.tar, size=index.size, tasks=dict(sorted(tasks.items())))


def manifest_of(shards: Sequence[ShardSummary], info: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of `dataset.json`."""
    manifest = Manifest(shards=list(shards), info=dict(info or {}))
    return json.dumps(manifest.model_dump(), indent=1, sort_keys=True).encode() + b"\n"


def write_manifest(out: Path, shards: Sequence[ShardSummary], info: Mapping[str, Any] | None = None) -> None:
    """Say that the set is complete: write `dataset.json`."""
    atomic_write(out / MANIFEST, manifest_of(shards, info))


class ShardWriter:
    """Write samples one after the other into shards of limited size.

    `with ShardWriter(folder) as writer: writer.write(record, members)`; leaving the block without an error writes the
    manifest. With an error the shards written so far stay, without a manifest, and readers refuse the folder.

    Args:
        out: folder of the set; it must not hold one already.
        prefix: beginning of the shards' names.
        max_samples, max_bytes: a shard is closed when it has reached either.
    """

    def __init__(
        self, out: Path, prefix: str = "shard", *, max_samples: int = 1000, max_bytes: int = 1_000_000_000
    ) -> None:
        if (out / MANIFEST).exists():
            raise ShardError(f"{out} already holds a complete shard set: choose another folder or remove it")
        self.out, self.prefix = out, prefix
        self.max_samples, self.max_bytes = max_samples, max_bytes
        self._shards: list[ShardSummary] = []
        self._keys: set[str] = set()
        self._open: ShardFile | None = None
        out.mkdir(parents=True, exist_ok=True)

    def write(self, sample_json: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        """Append a sample. Raises ShardError for a record outside the schema or a key that was written before."""
        if sample_json.get("key") in self._keys:
            raise ShardError(f"{self.out}: the key {sample_json['key']!r} was already written")
        if self._open is None:
            self._open = ShardFile(self.out / f"{self.prefix}-{len(self._shards):06d}.tar")
        self._open.add(sample_json, members)
        self._keys.add(sample_json["key"])
        if len(self._open.samples) >= self.max_samples or self._open.size >= self.max_bytes:
            self._commit()

    def close(self) -> None:
        """Publish the last shard and the manifest."""
        if self._open is not None:
            self._commit()
        write_manifest(self.out, self._shards)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._open is not None:
            self._open.abort()

    def _commit(self) -> None:
        assert self._open is not None
        # an emptied shard is one whose only sample was refused
        if self._open.samples:
            self._shards.append(summary(self._open.commit()))
        else:
            self._open.abort()
        self._open = None
