"""Where bytes stand: a whole file, a stretch of a tar, a cell of a table; on this disk or behind fsspec."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mmrl.media import MediaError, content_hash
from mmrl.shards.writer import atomic_write
from mmrl.types import MediaKind

CHUNK = 1 << 22  # bytes read at a time of files that are only hashed


class PrepError(ValueError):
    """A build that cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture or clip by its place. `file` is its name below the source that it was found in.

    The bytes are the whole file `path`; or `stretch` (offset, size) of it, the member of a tar; or the `cell` (column,
    row, element of the list or -1) of the table `path`.
    """

    path: Path
    kind: MediaKind
    file: str
    row: int | None = None  # of the table that names it, from 1
    stretch: tuple[int, int] | None = None
    cell: tuple[str, int, int] | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of the puzzles made of it, where its row says so

    @property
    def place(self) -> tuple[str, tuple[int, int] | None, tuple[str, int, int] | None]:
        """What tells two places apart."""
        return str(self.path), self.stretch, self.cell

    @property
    def is_file(self) -> bool:
        return self.stretch is None and self.cell is None

    def read(self) -> bytes:
        """The bytes. Raises MediaError (missing, truncated)."""
        try:
            if self.cell is not None:
                return _read_cell(self.path, *self.cell)
            if self.stretch is None:
                return self.path.read_bytes()
            with self.path.open("rb") as file:
                file.seek(self.stretch[0])
                data = file.read(self.stretch[1])
        except OSError as error:
            raise MediaError("missing", f"cannot read it: {error.strerror or error}") from error
        if len(data) != self.stretch[1]:
            raise MediaError("truncated", f"{self.path} ends {self.stretch[1] - len(data)} bytes too early")
        return data

    def source(self) -> bytes | Path:
        """What decoders open: the path of a whole local file, else the bytes, so that a long clip is not held."""
        return self.path if self.is_file and is_local(self.path) else self.read()

    def hash(self) -> str:
        """xxh3-128 of the bytes. Raises MediaError."""
        if not self.is_file:
            return content_hash(self.read())
        digest = xxhash.xxh3_128()
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise MediaError("missing", f"cannot read it: {error.strerror or error}") from error
        return digest.hexdigest()


def place(text: Path | str) -> Path:
    """A path, or an object that acts like one behind a URL such as s3://bucket/folder or memory://x (extra `cloud`)."""
    if "://" not in str(text):
        return Path(text)
    try:
        from upath import UPath
    except ImportError as error:
        raise PrepError(f"{text}: URLs need the extra cloud: pip install 'mmrl[cloud]'") from error
    return UPath(str(text))  # type: ignore[return-value]


def is_local(path: Path) -> bool:
    return isinstance(path, Path)


def walk(folder: Path) -> Iterator[Path]:
    """Files below a folder, folder after folder in the order of their names; hidden ones are left out."""
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_dir(), p.name)):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path


def _read_cell(path: Path, column: str, row: int, element: int) -> bytes:
    from mmrl_prep.tables import open_table

    value = open_table(path).cell(column, row)
    if element >= 0:
        value = value[element] if value is not None and element < len(value) else None
    if isinstance(value, dict):
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise MediaError("missing", f"no bytes in column {column!r}, row {row + 1}")
    return value


def put(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; behind a URL an object appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_local(path):
        atomic_write(path, data)
    else:
        path.write_bytes(data)


def move_up(local: Path, folder: Path) -> None:
    """Move a finished file to a folder behind a URL."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / local.name
    with local.open("rb") as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, CHUNK)
    local.unlink()


def workshop(shelf: Path) -> Path:
    """The folder on this machine in which a build for a URL works: journals, and shards until they are moved."""
    root = Path(os.environ.get("MMRL_WORK", Path.home() / ".cache" / "mmrl" / "prep"))
    return root / content_hash(str(shelf).encode())[:16]
