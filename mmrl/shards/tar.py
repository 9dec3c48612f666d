"""Tar members, written so that equal samples give equal bytes, and a reader of headers that trusts nothing.

Format: POSIX ustar, which every tar and WebDataset reads.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from mmrl.shards.record import ShardError

BLOCK = 512
END = b"\0" * (2 * BLOCK)


def header(name: str, size: int) -> bytes:
    """The header block of a plain file with fixed owner, mode and time."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def members(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, offset of the bytes, size) of each file of a tar. Raises ShardError where it is cut or damaged."""
    total = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while True:
            block = file.read(BLOCK)
            if len(block) < BLOCK:
                raise ShardError(f"{path}: cut at byte {at}: no end marker")
            if block == END[:BLOCK]:
                return
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except (tarfile.HeaderError, UnicodeDecodeError) as error:
                raise ShardError(f"{path}: byte {at} is not a tar header: {error}") from error
            start = at + BLOCK
            at = start + info.size + len(padding(info.size))
            if at > total:
                raise ShardError(f"{path}: cut inside {info.name}: {total - start} of {info.size} bytes are there")
            if info.isreg():
                yield info.name, start, info.size
            file.seek(at)
