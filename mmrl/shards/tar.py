"""Tar members, written so that equal samples give equal bytes, and a reader of headers that trusts nothing.

Written is POSIX ustar, which every tar and WebDataset reads. Read are ustar, GNU tar's long names and big sizes, and
PAX headers.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from mmrl.shards.record import ShardError

BLOCK = 512
END = b"\0" * (2 * BLOCK)
_FILES = (b"0", b"\0", b"7")
_EMPTY = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes: no bytes follow, whatever the size says
_ADLER = 65521


def header(name: str, size: int) -> bytes:
    """The header block of a plain file with fixed owner, mode and time."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def members(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, offset of the bytes, size) of each file of a tar; folders and links are passed over.

    Raises ShardError where the tar is cut or damaged, or goes on behind its end marker."""
    with path.open("rb") as file:
        number = file.fileno()
        total = os.fstat(number).st_size
        at, name, own, shared = 0, "", dict[str, str](), dict[str, str]()
        while True:
            block = os.pread(number, BLOCK, at)
            if len(block) < BLOCK:
                raise ShardError(f"{path}: cut at byte {at + len(block)}: no end marker")
            if block == END[:BLOCK]:
                return _check_end(path, number, at, total)
            kind, size, start = block[156:157], _size(path, at, block), at + BLOCK
            if kind in _EMPTY:
                size = 0
            if kind in b"LKxg":  # a header that speaks of the next member, or of all
                text = os.pread(number, size, start)
                if len(text) < size:
                    raise ShardError(f"{path}: cut inside the header at byte {at}")
                if kind == b"L":
                    name = _text(text)
                elif kind != b"K":
                    (own if kind == b"x" else shared).update(_pax(path, at, text))
            else:
                fields = {**shared, **own} if own or shared else own
                if kind == b"S" or any(key.startswith("GNU.sparse") for key in fields):
                    raise ShardError(f"{path}: byte {at}: a sparse file: write the tar without --sparse")
                name = fields.get("path") or name or _name(block)
                if kind not in _EMPTY and "size" in fields:
                    size = int(fields["size"])
                if start + size > total:
                    raise ShardError(f"{path}: cut inside {name}: {total - start} of {size} bytes are there")
                if kind in _FILES and not name.endswith("/"):
                    yield name, start, size
                name, own = "", {}
            at = start + size + -size % BLOCK


def _size(path: Path, at: int, block: bytes) -> int:
    """The size in a header whose checksum is right."""
    try:
        stated = int(block[148:156].strip(b" \0") or b"0", 8)
        field = block[124:136]
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise ShardError(f"{path}: byte {at} is not a tar header: {error}") from error
    body = block[:148] + b" " * 8 + block[156:]
    # Adler-32 holds 1 + the sum of the bytes: a sum in C. Very old tars summed signed bytes
    if (zlib.adler32(body) & 0xFFFF) != (1 + stated) % _ADLER and stated != sum(b - 256 * (b > 127) for b in body):
        raise ShardError(f"{path}: byte {at} is not a tar header: its checksum differs")
    return size


def _name(block: bytes) -> str:
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        return f"{_text(block[345:500])}/{name}"
    return name


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(path: Path, at: int, data: bytes) -> dict[str, str]:
    """The fields of a PAX header: lines "LENGTH KEY=VALUE"."""
    fields, place = {}, 0
    while place < len(data) and data[place]:
        digits = data[place : place + 20].partition(b" ")[0]
        if not digits.isdigit() or not 3 < int(digits) <= len(data) - place:
            raise ShardError(f"{path}: the PAX header at byte {at} is damaged")
        key, _, value = data[place + len(digits) + 1 : place + int(digits) - 1].partition(b"=")
        fields[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        place += int(digits)
    if not fields.get("size", "0").isdecimal():
        raise ShardError(f"{path}: the PAX header at byte {at} states the size {fields['size']!r}")
    return fields


def _check_end(path: Path, number: int, at: int, total: int) -> None:
    """Raise ShardError where more than zeros follows the end marker: readers would not see it."""
    while at < total:
        rest = os.pread(number, 1 << 20, at)
        if rest.strip(b"\0"):
            where = at + len(rest) - len(rest.lstrip(b"\0"))
            raise ShardError(
                f"{path}: {total - where} bytes behind the end marker, from byte {where}: tars put together?"
            )
        at += len(rest) or total
