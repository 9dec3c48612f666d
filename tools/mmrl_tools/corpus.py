"""A local corpus of texts: one file or a folder of files with a row for each document, and its index on disk.

Files are .jsonl, .jsonl.gz or .parquet; a folder is read with the folders below it. Rows:

    {"id": "q42", "title": "Douglas Adams", "text": "...", "url": "https://..."}

`title` and `url` may be missing. `contents`, a text with the title as its first line in quotes, may stand for title
and text: the form of the corpora of Search-R1 (arXiv 2503.09516). Ids are texts or whole numbers, no two the same.
"""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mmrl.media import read_at
from mmrl_tools.built import CACHE, kept, once
from mmrl_tools.lexical import Ranker, Vocabulary, load_index, write_index

FORMAT = 1  # of the folder that `write_corpus` makes; another one makes all indices anew
KINDS = (".jsonl", ".jsonl.gz", ".parquet")
ROWS = 'rows are {"id": ..., "title": ..., "text": ...}'


class CorpusError(ValueError):
    """A corpus that cannot be used; the message names file and line, and says what to do."""


@dataclass(frozen=True, slots=True)
class Document:
    """One row of a corpus."""

    id: str
    title: str
    text: str
    url: str = ""


@dataclass(frozen=True)
class Corpus:
    """An open corpus: documents in the order of their ids, read from disk when they are asked for. Safe in threads."""

    path: str  # of the documents
    ranker: Ranker
    places: np.ndarray  # [N, 2] int64: offset and size of each document in the file
    keys: np.ndarray  # [K] uint64, sorted: hashes of ids and addresses ...
    owners: np.ndarray  # [K] int64: ... and the numbers of their documents

    def __len__(self) -> int:
        return len(self.places)

    def document(self, number: int) -> Document:
        offset, size = self.places[number]
        return Document(**json.loads(read_at(self.path, int(offset), int(size))))

    def search(self, query: str, top_k: int) -> list[tuple[Document, float]]:
        """The documents with any word of the query and their BM25 scores: best first, equal ones by their ids."""
        return [(self.document(number), score) for number, score in self.ranker.search(query, top_k)]

    def find(self, name: str) -> list[Document]:
        """The document of this id, else all documents of this address, in the order of their ids."""
        found = [self.document(n) for n in self._numbers(_id_key(name))]
        named = [d for d in found if d.id == name]
        if named:
            return named
        found = [self.document(n) for n in self._numbers(_url_key(name))]
        return [d for d in found if d.url and _address(d.url) == _address(name)]

    def _numbers(self, key: int) -> list[int]:
        start, stop = (int(np.searchsorted(self.keys, np.uint64(key), side)) for side in ("left", "right"))
        return sorted(int(n) for n in self.owners[start:stop])


def open_corpus(path: str | Path, cache: str | Path = CACHE) -> Corpus:
    """The corpus at `path`, opened once a process, and again when its files have changed.

    The first call of all builds the index and keeps it in `cache` under the hash of the files' bytes. Where that takes
    longer than a tool may run, call this before the training starts. Building holds the numbers of all words in memory,
    about 10 bytes a word. Raises CorpusError, OSError where the cache cannot be written.
    """
    root, store = Path(path).expanduser().resolve(), Path(cache).expanduser()
    files = corpus_files(root)
    stamp = tuple((str(f), s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()])

    def build() -> Corpus:
        name = f"corpus-{FORMAT}-{_digest(files)}"
        return kept(store, name, lambda folder: write_corpus(read_rows(files), folder), load_corpus)

    return once(("corpus", str(root), str(store)), stamp, build)


def corpus_files(root: Path) -> list[Path]:
    """The files of a corpus in order of their names. Raises CorpusError where there are none."""
    if not root.exists():
        raise CorpusError(f"no corpus at {root}: give a file or a folder of {', '.join(KINDS)}")
    if root.is_file():
        if not root.name.endswith(KINDS):
            raise CorpusError(f"{root} is none of {', '.join(KINDS)}: {ROWS}")
        return [root]
    found = (p for p in root.rglob("*") if p.name.endswith(KINDS) and p.is_file())
    files = sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(root).parts))
    if not files:
        raise CorpusError(f"no corpus in {root}: it holds no file of {', '.join(KINDS)}")
    return files


def read_rows(files: Iterable[Path]) -> Iterator[tuple[Document, str]]:
    """Each document and its place, "FILE line 3". Raises CorpusError for the first row that cannot be used."""
    for file in files:
        for place, row in _parquet(file) if file.suffix == ".parquet" else json_lines(file):
            yield _document(row, place), place


def write_corpus(rows: Iterable[tuple[Document, str]], folder: Path) -> None:
    """Documents and their index into a folder. Raises CorpusError for ids that occur twice and for a corpus of none."""
    vocabulary = Vocabulary()
    seen: dict[str, str] = {}
    texts: list[array[int]] = []
    keys: list[list[int]] = []
    places: list[tuple[int, int]] = []
    with open(folder / "documents.jsonl", "wb") as out:
        for document, place in rows:
            if document.id in seen:
                raise CorpusError(
                    f"{place}: id {document.id!r} is also that of {seen[document.id]}: rename one of them"
                )
            seen[document.id] = place
            line = json.dumps(asdict(document)).encode()
            places.append((out.tell(), len(line)))
            out.write(line + b"\n")
            texts.append(vocabulary.numbers(f"{document.title}\n{document.text}"))
            keys.append([_id_key(document.id), *([_url_key(document.url)] if document.url else [])])
    if not places:
        raise CorpusError(f"the corpus has no rows: {ROWS}")
    ids = list(seen)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    write_index([texts[n] for n in order], vocabulary, folder / "bm25")
    pairs = sorted((key, new) for new, old in enumerate(order) for key in keys[old])
    np.save(folder / "places.npy", np.array(places, np.int64)[order])
    np.save(folder / "keys.npy", np.array([key for key, _ in pairs], np.uint64))
    np.save(folder / "owners.npy", np.array([number for _, number in pairs], np.int64))


def load_corpus(folder: Path) -> Corpus:
    """What `write_corpus` wrote, mapped from disk. Raises OSError or ValueError where it is damaged."""
    places, keys, owners = (np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("places", "keys", "owners"))
    path = folder / "documents.jsonl"
    if path.stat().st_size != int(places.sum(axis=1).max()) + 1:
        raise ValueError(f"{path} has been cut")
    return Corpus(str(path), load_index(folder / "bm25"), places, keys, owners)


def json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a .jsonl or .jsonl.gz file, each with its place; empty lines count but are left out."""
    place = f"{file}"
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{file} line {number}"
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise CorpusError(f"{place}: not an object but a {type(row).__name__}: {ROWS}")
                yield place, row
    except CorpusError:
        raise
    except (ValueError, RecursionError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise CorpusError(f"{place}: not {what} ({error}): mend or remove the line") from error
    except (EOFError, OSError) as error:
        raise CorpusError(f"{place}: cannot be read on ({error}): replace the file") from error


def from_contents(contents: str) -> tuple[str, str]:
    """Title and text of a passage whose first line is its title in quotes; no title where it has one line only."""
    first, end, rest = contents.partition("\n")
    return (first.strip().strip('"'), rest) if end else ("", contents)


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        with pq.ParquetFile(file) as table:
            known = [c for c in ("id", "title", "text", "url", "contents") if c in table.schema_arrow.names]
            for batch in table.iter_batches(batch_size=1024, columns=known):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file} row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{file}: cannot be read after row {number} ({error}): replace the file") from error


def _document(row: dict[str, Any], place: str) -> Document:
    id, title, text, url = (row.get(k) for k in ("id", "title", "text", "url"))
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(id)
    if not isinstance(id, str) or not id:
        raise CorpusError(f"{place}: id is {id!r}: it must be a text or a whole number; {ROWS}")
    if text is None and isinstance(row.get("contents"), str):
        own, text = from_contents(row["contents"])
        title = own if title is None else title
    if not isinstance(text, str):
        raise CorpusError(f"{place}: text is {'missing' if text is None else 'no text'}: {ROWS}")
    for name, value in (("title", title), ("url", url)):
        if value is not None and not isinstance(value, str):
            raise CorpusError(f"{place}: {name} is {value!r}: it must be a text")
    return Document(id, title or "", text, url or "")


def _digest(files: Iterable[Path]) -> str:
    digest = xxhash.xxh3_128()
    for file in files:
        digest.update(f"{file.suffix} {file.stat().st_size}\n".encode())
        with open(file, "rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _id_key(id: str) -> int:
    return xxhash.xxh3_64_intdigest(b"id " + id.encode("utf-8", "surrogatepass"))


def _url_key(url: str) -> int:
    return xxhash.xxh3_64_intdigest(b"url " + _address(url).encode("utf-8", "surrogatepass"))


def _address(url: str) -> str:
    """A web address without what seldom tells pages apart: scheme, www., the part after #, a slash at the end."""
    bare = url.strip().partition("#")[0].partition("://")
    return (bare[2] or bare[0]).removeprefix("www.").rstrip("/")
