"""Reading a shard set: any sample by its number, media by reference."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.media import content_hash
from mmrl.registry import nearest
from mmrl.shards.record import MANIFEST, IndexEntry, Manifest, Record, ShardError, ShardIndex, ShardSummary, parse
from mmrl.shards.writer import index_path
from mmrl.types import MediaRef, Sample


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete set. Raises ShardError."""
    if not (folder / MANIFEST).is_file():
        parts = [p.parent.name for p in sorted(folder.glob(f"*/{MANIFEST}"))]
        hint = f"open {' or '.join(str(folder / p) for p in parts)}" if parts else "finish it with mmrl-prep build"
        raise ShardError(f"{folder} is no complete shard set, it has no {MANIFEST}: {hint}")
    return parse(Manifest, (folder / MANIFEST).read_bytes(), str(folder / MANIFEST))


def read_index(tar: Path) -> ShardIndex:
    """The index of a shard. Raises ShardError."""
    path = index_path(tar)
    if not path.is_file():
        raise ShardError(f"{path} is missing: build the set again")
    return parse(ShardIndex, path.read_bytes(), str(path))


def read_record(tar: Path, entry: IndexEntry) -> Record:
    """The checked record of a sample. Raises ShardError."""
    offset, size, digest = entry.members["json"]
    with tar.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if content_hash(data) != digest:
        raise ShardError(f"{tar}, key {entry.key!r}: json: its bytes changed since the index was written")
    return parse(Record, data, f"{tar}, key {entry.key!r}")


class ShardSet:
    """Samples of one or more shard folders, numbered in the order of the folders, shards and members.

    Opening reads the manifests only; an index is read when a sample of its shard is asked for, so a set of millions
    opens at once. Safe to use from several threads.
    """

    def __init__(self, shards: Sequence[tuple[Path, ShardSummary]], tasks: Sequence[str] = ()) -> None:
        self._only = frozenset(tasks)
        known = Counter[str]()
        for path, shard in shards:
            if not path.is_file() or path.stat().st_size != shard.size:
                found = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
                raise ShardError(f"{path}: {found} where the manifest says {shard.size} bytes: build the set again")
            known.update(shard.tasks)
        for task in self._only:
            if task not in known:
                raise ShardError(f"no sample of the task {task!r}: {nearest(task, list(known))}")
        self.tasks: dict[str, int] = {t: n for t, n in sorted(known.items()) if not self._only or t in self._only}
        counts = [sum(n for t, n in s.tasks.items() if t in self.tasks) for _, s in shards]
        self._paths = [path for path, _ in shards]
        self._ends = list(itertools.accumulate(counts))
        self._indexes: dict[int, list[IndexEntry]] = {}

    @classmethod
    def open(cls, dirs: Sequence[Path | str] | Path | str, tasks: Sequence[str] = ()) -> ShardSet:
        """The sets in the given folders as one; `tasks` keeps only samples of these tasks. Raises ShardError."""
        folders = [Path(d) for d in ([dirs] if isinstance(dirs, str | Path) else dirs)]
        shards = [((f / s.tar).absolute(), s) for f in folders for s in read_manifest(f).shards]
        return cls(shards, tasks)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Sample:
        """A sample with references to its media; their bytes are not read. Raises ShardError, IndexError."""
        path, entry = self._find(number)
        record = read_record(path, entry)
        refs = {}
        for medium in record.media:
            offset, size, digest = entry.members[medium.name]
            refs[medium.name] = MediaRef(
                id=medium.id,
                kind=medium.kind,
                hash=digest,
                width=medium.width,
                height=medium.height,
                path=str(path),
                offset=offset,
                size=size,
                name=medium.name,
                info=medium.info,
            )
        return record.sample(refs)

    def __iter__(self) -> Iterator[Sample]:
        return (self[n] for n in range(len(self)))

    @property
    def keys(self) -> list[str]:
        """Keys of all samples in order; reads every index."""
        return [entry.key for shard in range(len(self._paths)) for entry in self._entries(shard)]

    def _find(self, number: int) -> tuple[Path, IndexEntry]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        shard = bisect.bisect_right(self._ends, number)
        before = self._ends[shard - 1] if shard else 0
        return self._paths[shard], self._entries(shard)[number - before]

    def _entries(self, shard: int) -> list[IndexEntry]:
        if shard not in self._indexes:
            self._indexes[shard] = self._read_entries(shard)
        return self._indexes[shard]

    def _read_entries(self, shard: int) -> list[IndexEntry]:
        entries = [e for e in read_index(self._paths[shard]).samples if e.task in self.tasks]
        expected = self._ends[shard] - (self._ends[shard - 1] if shard else 0)
        if len(entries) != expected:
            raise ShardError(
                f"{index_path(self._paths[shard])} lists {len(entries)} samples, the manifest {expected}: "
                "build the set again"
            )
        return entries
