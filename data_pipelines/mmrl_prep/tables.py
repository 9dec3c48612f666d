"""Tables: JSONL, JSON, CSV, TSV, parquet, Hugging Face dataset folders and WebDataset tars become numbered rows.

A row is a dictionary. Bytes of media stay where they are: in their place stands a `Medium` that knows its cell or its
stretch of the tar.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.shards.foreign import read_groups
from mmrl.types import MediaKind
from mmrl_prep.places import Medium, PrepError, walk

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm", ".pgm", ".mpo", ".jp2"}
VIDEOS = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".h264"}
TEXTS = (".jsonl", ".json", ".csv", ".tsv", ".txt")
TABLES = (*TEXTS, ".parquet", ".arrow", ".tar")


@dataclass(frozen=True, slots=True)
class Row:
    """A numbered row, from 1; where it cannot be read, `problem` says why."""

    number: int
    values: dict[str, Any]
    problem: str = ""


def kind_of(name: str) -> MediaKind | None:
    """By the ending of a file's name."""
    suffix = "." + name.rsplit(".", 1)[-1].lower()
    return "image" if suffix in IMAGES else "video" if suffix in VIDEOS else None


def table_files(source: Path) -> list[Path]:
    """The files of a table: the file itself, or those of a folder of parquet or arrow files, or of tars, in order.

    Returns an empty list for a folder of anything else; one with pictures or clips in it is a folder of media.
    """
    if source.is_file():
        name = source.name.removesuffix(".gz")
        return [source] if name.endswith(TABLES) else []
    if not source.is_dir():
        return []
    files = list(walk(source))
    if any(kind_of(p.name) for p in files):
        return []
    for suffix in (".arrow", ".parquet", ".tar"):
        # a Hugging Face cache keeps the results of map() beside the data
        found = [p for p in files if p.suffix == suffix and not p.name.startswith("cache-")]
        if found:
            return found
    return []


def rows(path: Path) -> Iterator[Row]:
    """The rows of a file. Raises PrepError where the file as a whole is no table."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".parquet", ".arrow")):
        yield from open_table(path).rows()
    elif name.endswith(".tar"):
        yield from _tar_rows(path)
    else:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        yield from _text_rows(path, name, data.removeprefix(b"\xef\xbb\xbf"))


def _text_rows(path: Path, name: str, data: bytes) -> Iterator[Row]:
    if name.endswith(".jsonl"):
        for number, line in enumerate(data.split(b"\n"), start=1):
            if line.strip():
                yield _json_row(number, line)
    elif name.endswith(".json"):
        yield from _json_rows(path, data)
    elif name.endswith(".txt"):  # one text a row, such as Charades-STA's
        for number, line in enumerate(data.split(b"\n"), start=1):
            if line.strip():
                yield Row(number, {"line": line.decode("utf-8", "replace").strip()})
    else:
        yield from _csv_rows(path, data, "\t" if name.endswith(".tsv") else ",")


def _json_row(number: int, line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError as error:  # bad UTF-8 as well
        return Row(number, {}, f"not JSON: {error}")
    return Row(number, value) if isinstance(value, dict) else Row(number, {}, "a row is a JSON object")


def _json_rows(path: Path, data: bytes) -> Iterator[Row]:
    """A list of objects; an object that holds one list of them; or an object of objects, whose names become `_key`."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise PrepError(f"{path}: not JSON: {error}") from error
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        if len(lists) == 1:
            value = lists[0]
        elif value and all(isinstance(v, dict) for v in value.values()):
            value = [{"_key": key, **row} for key, row in value.items()]
    if not isinstance(value, list):
        raise PrepError(f"{path}: a list of objects is needed, or an object that holds one list of them")
    for number, row in enumerate(value, start=1):
        yield Row(number, row) if isinstance(row, dict) else Row(number, {}, "a row is a JSON object")


def _csv_rows(path: Path, data: bytes, delimiter: str) -> Iterator[Row]:
    """Cells that are JSON lists or objects are read as such; all else is text. `number` counts from the first row."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PrepError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from error
    csv.field_size_limit(1 << 27)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restkey="_more")
    for number, row in enumerate(reader, start=1):
        if "_more" in row or None in row.values():
            yield Row(number, {}, f"{len(reader.fieldnames or [])} columns, but this row has more or fewer cells")
        else:
            yield Row(number, {k: _cell_value(v) for k, v in row.items() if v != ""})


def _cell_value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _tar_rows(path: Path) -> Iterator[Row]:
    """A sample a row: `json` gives columns, `txt` and `cls` texts, media become `image`, `images` or `video`(s).

    Samples that cannot be read whole come as rows with a problem, in the order in which they were met.
    """
    problems: list[Any] = []
    number = 0
    with path.open("rb") as file:
        for group in read_groups(path, on_problem="collect", problems=problems):
            number += 1
            row: dict[str, Any] = {"_key": group.key}
            media: dict[MediaKind, list[Medium]] = {"image": [], "video": []}
            trouble = ""
            for name, (offset, size) in group.members.items():
                kind = kind_of("x." + name)
                if kind:
                    member = Medium(path, kind, f"{path.name}/{group.key}.{name}", number, (offset, size))
                    media[kind].append(member)
                    continue
                file.seek(offset)
                data = file.read(size)
                if name == "json" or name.endswith(".json"):
                    try:
                        value = json.loads(data)
                    except ValueError as error:
                        trouble = f"member {name}: not JSON: {error}"
                        continue
                    row |= value if isinstance(value, dict) else {name: value}
                elif size <= 1 << 20:
                    row[name] = data.decode("utf-8", "replace")
            for kind, found in media.items():
                if found:
                    row[f"{kind}s" if len(found) > 1 else kind] = found if len(found) > 1 else found[0]
            yield Row(number, row, trouble)
    for problem in problems:
        number += 1
        yield Row(number, {}, str(problem))


class Table:
    """A parquet file, or an arrow file as Hugging Face datasets write them, read a piece at a time."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self._parquet: Any = None
        self._batches: list[Any] = []
        try:
            if path.suffix == ".parquet":
                self._parquet = pq.ParquetFile(path if isinstance(path, Path) else path.open("rb"))
                schema = self._parquet.schema_arrow
                groups = range(self._parquet.num_row_groups)
                counts = [self._parquet.metadata.row_group(g).num_rows for g in groups]
            else:
                source = pa.memory_map(str(path)) if isinstance(path, Path) else path.open("rb")
                try:
                    reader = pa.ipc.open_stream(source)
                    self._batches = list(reader)
                except pa.ArrowInvalid:  # the random-access form
                    reader = pa.ipc.open_file(pa.memory_map(str(path)))
                    self._batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
                schema = reader.schema
                counts = [b.num_rows for b in self._batches]
        except (pa.ArrowInvalid, OSError) as error:
            raise PrepError(f"{path}: no {path.suffix.lstrip('.')} file: {error}") from error
        self._starts = [sum(counts[:n]) for n in range(len(counts))]
        self._counts = counts
        self.heavy = [f.name for f in schema if _holds_bytes(f.type)]  # columns with bytes of media
        self.light = [f.name for f in schema if f.name not in self.heavy]
        self._piece: tuple[int, str, Any] | None = None

    def rows(self) -> Iterator[Row]:
        for piece, start in enumerate(self._starts):
            light = self._columns(piece, self.light).to_pylist() if self.light else [{}] * self._counts[piece]
            media = {name: self._columns(piece, [name]).column(name) for name in self.heavy}
            for n, values in enumerate(light):
                row = dict(values)
                for name, column in media.items():
                    row[name] = _media_cell(self.path, name, start + n, column[n])
                yield Row(start + n + 1, row)

    def cell(self, column: str, row: int) -> Any:
        """The value of one cell; the piece that it stands in is kept for its neighbours."""
        piece = max(n for n, start in enumerate(self._starts) if start <= row)
        if self._piece is None or self._piece[:2] != (piece, column):
            self._piece = (piece, column, self._columns(piece, [column]).column(column))
        return self._piece[2][row - self._starts[piece]].as_py()

    def _columns(self, piece: int, names: list[str]) -> Any:
        if self._parquet is not None:
            return self._parquet.read_row_group(piece, columns=names)
        return self._batches[piece].select(names)


@functools.lru_cache(maxsize=4)
def open_table(path: Path) -> Table:
    return Table(path)


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _media_cell(path: Path, column: str, row: int, value: Any, element: int = -1) -> Any:
    """A Medium for bytes, the path where only that is given, a list of them for a list, None for nothing."""
    import pyarrow as pa

    if not value.is_valid:
        return None
    if pa.types.is_list(value.type) or pa.types.is_large_list(value.type):
        return [_media_cell(path, column, row, v, n) for n, v in enumerate(value)]
    name = ""
    if pa.types.is_struct(value.type):
        name = value["path"].as_py() or ""
        if not value["bytes"].is_valid:
            return name or None
        head = bytes(memoryview(value["bytes"].as_buffer())[:16])
    else:
        head = bytes(memoryview(value.as_buffer())[:16])
    kind = kind_of(name) or sniff(head)
    return Medium(path, kind, name or f"{path.name}:{column}:{row + 1}", row + 1, None, (column, row, element))


def sniff(head: bytes) -> MediaKind:
    """Picture or clip, by the first bytes."""
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in (b"avif", b"avis", b"heic", b"mif1", b"heix") else "video"
    clips = (b"\x1aE\xdf\xa3", b"\0\0\1\xba", b"\0\0\1\xb3", b"FLV")
    return "video" if head.startswith(clips) or (head[:4] == b"RIFF" and head[8:11] == b"AVI") else "image"
