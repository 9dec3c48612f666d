"""Saving what is whole of a damaged shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmrl.media import content_hash, read_at
from mmrl.shards.foreign import scan
from mmrl.shards.index import read_index
from mmrl.shards.record import MANIFEST, Manifest, Record, ShardError, parse
from mmrl.shards.verify import check_shard
from mmrl.shards.writer import ShardFile, summary, write_manifest


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of a repair: samples kept, and keys lost with the reason. `damaged` is where the old file is now."""

    tar: Path
    kept: int
    lost: dict[str, str]
    damaged: Path | None


def repair(tar: Path | str, out: Path | str | None = None) -> Repair:
    """Write a new shard and index with the samples of `tar` whose record and media are whole, byte for byte.

    Args:
        tar: a shard that mmrl wrote and that was cut or changed since; its index may be missing.
        out: the new shard, a name not taken. None: in its place; the damaged file then stays beside it as
            `NAME.tar.damaged`, and `dataset.json` of the folder, if it lists the shard, is brought up to date.

    A shard with nothing wrong stays as it is. Raises ShardError when no sample is whole; nothing has changed then.
    """
    tar = Path(tar)
    target = tar if out is None else Path(out)
    in_place = target.absolute() == tar.absolute()
    if target.exists() and not in_place:
        raise ShardError(f"{target} is already there: choose another name for what is kept of {tar}")
    if in_place and (good := _good(tar)) is not None:
        return Repair(tar, good, {}, None)
    lost: dict[str, str] = {}
    shard = ShardFile(target)
    try:
        for record, media in _whole(tar, lost):
            shard.add(record.model_dump(), media)
        if not shard.samples:
            raise ShardError(f"{tar}: no sample of it is whole, there is nothing to keep: build the set again")
    except BaseException:
        shard.abort()
        raise
    damaged = None
    if in_place:
        damaged = tar.with_name(tar.name + ".damaged")
        damaged.unlink(missing_ok=True)
        os.link(tar, damaged)  # a second name, so that there is a shard of the first one at every moment
    index = shard.commit()
    listed = target.parent / MANIFEST
    if in_place and listed.is_file():
        manifest = parse(Manifest, listed.read_bytes(), str(listed))
        shards = [summary(index) if s.tar == tar.name else s for s in manifest.shards]
        if shards != manifest.shards:
            write_manifest(target.parent, shards, manifest.info)
    return Repair(target, len(index.samples), lost, damaged)


def _good(tar: Path) -> int | None:
    """Number of samples of a shard with nothing wrong; None for any other."""
    try:
        index = read_index(tar)
        return len(index.samples) if not any(check_shard(tar, index)) and index.size == tar.stat().st_size else None
    except ShardError:
        return None


def _whole(tar: Path, lost: dict[str, str]) -> Iterator[tuple[Record, dict[str, bytes]]]:
    """Record and media of each whole sample, in order; the others go into `lost` with the reason."""
    for key, places in _places(tar, lost).items():
        try:
            data = {name: read_at(str(tar), offset, size) for name, (offset, size) in places.items()}
            record = parse(Record, data.pop("json", b""), "json")
            wrong = [m.name for m in record.media if content_hash(data.get(m.name, b"")) != m.hash]
            if wrong or record.key != key or len(data) != len(record.media):
                raise ShardError(f"{', '.join(wrong) or 'json'}: cut, changed or missing")
        except ShardError as error:
            lost[key] = str(error)
            continue
        yield record, data


def _places(tar: Path, lost: dict[str, str]) -> dict[str, dict[str, tuple[int, int]]]:
    """Where the members of each sample should stand: by the index, or by the headers where there is none to read."""
    try:
        entries = read_index(tar).samples
    except ShardError:
        found = scan(tar)
        lost.update({f"(problem {n})": str(p) for n, p in enumerate(found.problems, 1)})
        # the last sample before a cut may well be whole: its record says what belongs to it
        return {g.key: g.members for g in [*found.groups, *found.doubtful]}
    return {e.key: {name: (offset, size) for name, (offset, size, _) in e.members.items()} for e in entries}
