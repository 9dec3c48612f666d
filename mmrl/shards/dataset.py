"""Reading a shard set: any sample by its number, media by reference."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from mmrl.media import read_at
from mmrl.registry import nearest
from mmrl.shards.filters import Selection
from mmrl.shards.index import Columns, Places, entries_of
from mmrl.shards.index import read_index as read_index  # where it was before
from mmrl.shards.record import MANIFEST, Manifest, Record, ShardError, ShardSummary, loads, parse, sample_of
from mmrl.shards.writer import index_path
from mmrl.types import MediaRef, Sample


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a complete set. Raises ShardError."""
    if folder.is_file():
        raise ShardError(f"{folder} is a file, a shard set is a folder: read a mixture with mmrl.shards.open_data")
    if not (folder / MANIFEST).is_file():
        parts = [p.parent.name for p in sorted(folder.glob(f"*/{MANIFEST}"))]
        hint = f"open {' or '.join(str(folder / p) for p in parts)}" if parts else "finish it with mmrl-prep build"
        raise ShardError(f"{folder} is no complete shard set, it has no {MANIFEST}: {hint}")
    return parse(Manifest, (folder / MANIFEST).read_bytes(), str(folder / MANIFEST))


class ShardSet:
    """Samples of one or more shard folders, numbered in the order of the folders, shards and members.

    Opening reads the manifests only; an index is read when a sample of its shard is asked for, so a set of millions
    opens at once. With `filters` every record is read on opening, and those that pass are numbered anew. A record is
    trusted when its hash is that of the index, since the writer checked it; `verify` checks again.
    Safe to use from several threads and to send to other processes.
    """

    def __init__(
        self, shards: Sequence[tuple[Path, ShardSummary]], tasks: Sequence[str] = (), filters: Sequence[str] = ()
    ) -> None:
        only = frozenset(tasks)
        known = Counter[str]()
        for path, shard in shards:
            if not path.is_file() or path.stat().st_size != shard.size:
                found = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
                raise ShardError(f"{path}: {found} where the manifest says {shard.size} bytes: build the set again")
            known.update(shard.tasks)
        for task in only:
            if task not in known:
                raise ShardError(f"no sample of the task {task!r}: {nearest(task, list(known))}")
        self.tasks: dict[str, int] = {t: n for t, n in sorted(known.items()) if not only or t in only}
        self._paths = [str(path) for path, _ in shards]
        self._known = frozenset(self.tasks)
        counts = [sum(n for t, n in s.tasks.items() if t in self._known) for _, s in shards]
        self._ends = list(itertools.accumulate(counts))
        self._indexes: dict[int, Columns] = {}
        self._chosen: array[int] | None = None  # with filters: number -> number among all
        if filters:
            self._choose(Selection(filters))

    @classmethod
    def open(
        cls, dirs: Sequence[Path | str] | Path | str, tasks: Sequence[str] = (), filters: Sequence[str] = ()
    ) -> ShardSet:
        """The sets in the given folders as one.

        Args:
            tasks: keep only samples of these tasks.
            filters: keep only samples that pass all these expressions (see `mmrl.shards.filters`).

        Raises ShardError; FilterError for an expression that cannot be read, fits no field or leaves no sample.
        """
        folders = [Path(d) for d in ([dirs] if isinstance(dirs, str | Path) else dirs)]
        shards = [((f / s.tar).absolute(), s) for f in folders for s in read_manifest(f).shards]
        return cls(shards, tasks, filters)

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Sample:
        """A sample with references to its media; their bytes are not read. Raises ShardError, IndexError."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        shard, place = self._find(number if self._chosen is None else self._chosen[number])
        path, members = self._paths[shard], self._columns(shard)[place]
        record = self._record(shard, place, members)
        try:
            return sample_of(record, {m["name"]: _reference(path, m, members) for m in record["media"]})
        except (KeyError, TypeError) as error:
            where = self._where(shard, place)
            parse(Record, record, where)  # says which field is wrong
            raise ShardError(f"{where}: the index does not list the member {error}: build the set again") from error

    def __iter__(self) -> Iterator[Sample]:
        return (self[n] for n in range(len(self)))

    @property
    def keys(self) -> list[str]:
        """Keys of all samples in order; reads every index."""
        keys = [e.key for path in self._paths for e in entries_of(Path(path), self._known)]
        return keys if self._chosen is None else [keys[n] for n in self._chosen]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_indexes": {}}  # cheaper to read again than to send

    def _find(self, number: int) -> tuple[int, int]:
        """The shard of a sample and its place there, counting all samples of the wanted tasks."""
        shard = bisect.bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)

    def _columns(self, shard: int) -> Columns:
        found = self._indexes.get(shard)
        if found is None:
            path = Path(self._paths[shard])
            found = Columns(path, self._known)
            expected = self._ends[shard] - (self._ends[shard - 1] if shard else 0)
            if len(found) != expected:
                raise ShardError(
                    f"{index_path(path)} lists {len(found)} samples, the manifest {expected}: build the set again"
                )
            self._indexes[shard] = found
        return found

    def _record(self, shard: int, place: int, members: Places) -> dict[str, Any]:
        offset, size, digest = members["json"]
        try:
            data = read_at(self._paths[shard], offset, size)
        except OSError as error:
            raise ShardError(f"{self._where(shard, place)}: cannot read the record: {error.strerror}") from error
        if xxhash.xxh3_128_digest(data) != digest:
            raise ShardError(f"{self._where(shard, place)}: json: its bytes changed since the index was written")
        try:
            record: dict[str, Any] = loads(data)
        except ValueError as error:
            raise ShardError(f"{self._where(shard, place)}: json: {error}") from error
        return record

    def _where(self, shard: int, place: int) -> str:
        path = Path(self._paths[shard])
        try:
            return f"{path}, key {entries_of(path, self._known)[place].key!r}"
        except (ShardError, IndexError):  # the index has changed, too
            return f"{path}, sample {place}"

    def _choose(self, selection: Selection) -> None:
        chosen, tasks, number = array("Q"), Counter[str](), 0
        for shard in range(len(self._paths)):
            columns = self._columns(shard)
            for place in range(len(columns)):
                record = self._record(shard, place, columns[place])
                if selection.keeps(record):
                    chosen.append(number)
                    tasks[record["task"]] += 1
                number += 1
        selection.check()
        self._chosen = chosen
        self.tasks = dict(sorted(tasks.items()))
        if not chosen and number:
            expressions = ", ".join(repr(f.expression) for f in selection.filters)
            raise ShardError(f"none of {number} samples passes the filters {expressions}: loosen them")


def _reference(path: str, medium: dict[str, Any], members: Places) -> MediaRef:
    offset, size, digest = members[medium["name"]]
    return MediaRef(
        id=medium["id"],
        kind=medium["kind"],
        hash=digest.hex(),
        width=medium["width"],
        height=medium["height"],
        path=path,
        offset=offset,
        size=size,
        name=medium["name"],
        info=medium["info"],
    )
