"""The index of a shard in memory: numbers in columns, about 60 bytes a sample and 32 a member.

A set of millions keeps all its indexes, so an object a sample would be too much; keys are read again when one is
asked for, which only messages do.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from pathlib import Path

from mmrl.shards.record import IndexEntry, ShardError, ShardIndex, loads, parse
from mmrl.shards.writer import index_path

Places = dict[str, tuple[int, int, bytes]]  # member name -> (offset of its bytes, size, xxh3-128)


def read_index(tar: Path) -> ShardIndex:
    """The index of a shard. Raises ShardError."""
    return parse(ShardIndex, _read(tar), str(index_path(tar)))


def entries_of(tar: Path, tasks: Collection[str]) -> list[IndexEntry]:
    """Entries of the samples of the given tasks, in order. Raises ShardError."""
    return [entry for entry in read_index(tar).samples if entry.task in tasks]


class Columns:
    """Where the members of the samples of a shard stand, for the samples of some tasks."""

    __slots__ = ("_first", "_hashes", "_kinds", "_layouts", "_offsets", "_sizes")

    def __init__(self, tar: Path, tasks: Collection[str]) -> None:
        """Read the index of `tar`. Raises ShardError."""
        self._layouts: list[tuple[str, ...]] = []  # the member names of a sample; most samples share a few
        self._kinds, self._first = array("I"), array("I")  # sample -> its layout, its first member
        self._offsets, self._sizes = array("Q"), array("Q")
        hashes = bytearray()
        known: dict[tuple[str, ...], int] = {}
        data = _read(tar)
        try:
            for sample in loads(data)["samples"]:
                if sample["task"] not in tasks:
                    continue
                members = sample["members"]
                layout = tuple(members)
                self._kinds.append(known.setdefault(layout, len(known)))
                self._first.append(len(self._offsets))
                for offset, size, digest in members.values():
                    self._offsets.append(offset)
                    self._sizes.append(size)
                    hashes += bytes.fromhex(digest)
            if len(hashes) != 16 * len(self._offsets) or any("json" not in layout for layout in known):
                raise ValueError("a hash of another length, or a sample without a record")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            parse(ShardIndex, data, str(index_path(tar)))  # says which field is wrong
            raise ShardError(f"{index_path(tar)}: {error}: build the set again") from error
        self._layouts, self._hashes = list(known), bytes(hashes)

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, number: int) -> Places:
        at = self._first[number]
        hashes = self._hashes
        return {
            name: (self._offsets[n], self._sizes[n], hashes[16 * n : 16 * n + 16])
            for n, name in enumerate(self._layouts[self._kinds[number]], at)
        }


def _read(tar: Path) -> bytes:
    path = index_path(tar)
    if not path.is_file():
        raise ShardError(f"{path} is missing: build the set again")
    return path.read_bytes()
