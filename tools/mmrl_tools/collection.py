"""A local collection of document pages: their texts, a BM25 index over them (`lexical.py`), and their pictures.

Pages are those of PDF files (read through pypdfium2, where it is installed), or pictures, in a folder and the folders
below it. A page's id is its path in the folder without suffix, for a PDF with the number of the page, from 1, added:
`manual/page-001` is manual/page-001.png, `manual/12` page 12 of manual.pdf. Its text is a file beside the picture
(manual/page-001.txt), the text layer of the PDF, or what RapidOCR reads, kept on disk under the hash of the file.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.images import MAX_PIXELS
from mmrl.media import MediaError, content_hash, load_image, normalise_image
from mmrl.types import MediaRef
from mmrl_tools.built import once
from mmrl_tools.lexical import Ranker, Vocabulary, load_index, spans, words, write_index
from mmrl_tools.ocr import read_lines

CACHE = Path("~/.cache/mmrl/ocr")
DPI = 200  # of a PDF page's picture
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
CONFIDENCE = 0.5  # of a line that counts as text of a page
PASSAGE, STEP = 40, 20  # words of a passage, and from one to the next

_pdfium = threading.Lock()  # the library is not made for threads
_locks: dict[str, threading.Lock] = {}  # of pages that are being read


@dataclass(frozen=True)
class Page:
    """One page: of a PDF where it has a `number` (from 0), of the dialogue where it has a `ref`, else a picture."""

    id: str
    path: Path = Path()
    number: int | None = None
    ref: MediaRef | None = None


@dataclass
class Collection:
    """Pages in order. Their texts are read by `read` when they are first searched. Safe in threads."""

    pages: Sequence[Page]
    read: Callable[[Page], str]
    dpi: int = DPI
    number: dict[str, int] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)
    _texts: tuple[list[str], Ranker] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.number = {page.id: n for n, page in enumerate(self.pages)}

    def texts(self) -> tuple[list[str], Ranker]:
        """The texts of all pages, and the index over them. Raises what `read` raises, RuntimeError without bm25s."""
        with self._lock:
            if self._texts is None:
                texts = [self.read(page) for page in self.pages]
                vocabulary = Vocabulary()
                numbers = [vocabulary.numbers(text) for text in texts]
                with tempfile.TemporaryDirectory(prefix="mmrl-documents-") as folder:
                    write_index(numbers, vocabulary, Path(folder))
                    self._texts = texts, load_index(Path(folder))  # mapped: it outlives the folder
            return self._texts

    def search(self, query: str, top_k: int) -> list[tuple[str, float]]:
        """Ids and BM25 scores of the pages that hold any word of the query, best first, equal ones in page order."""
        return [(self.pages[n].id, score) for n, score in self.texts()[1].search(query, top_k)]

    def passage(self, id: str, query: str) -> tuple[float, str]:
        """How well the best passage of a page fits a query, and its text; 0 and none where it has no word of it.

        A passage is 40 words. It scores the sum of BM25's idf over the query's distinct words in it, times
        1 + (k - 1) / span, where k is the number of these words and span that of the words between the first and the
        last of them, in the shortest stretch that has them all: words side by side count up to twice.
        """
        texts, ranker = self.texts()
        text = texts[self.number[id]]
        idf = {word: ranker.weight(word) for word in sorted(set(words(query)))}
        places = list(spans(text))
        best, start = 0.0, 0
        for at in range(0, max(1, len(places) - PASSAGE + STEP), STEP):
            inside = [word for word, _, _ in places[at : at + PASSAGE]]
            held = idf.keys() & set(inside)
            if held:
                score = sum(idf[w] for w in sorted(held)) * (1 + (len(held) - 1) / _span(inside, held))
                best, start = max((best, start), (score, at), key=lambda it: it[0])
        if not best:
            return 0.0, ""
        stop = min(start + PASSAGE, len(places)) - 1
        return best, " ".join(text[places[start][1] : places[stop][2]].split())

    def page(self, id: str) -> Page:
        """The page of this id. Raises KeyError."""
        return self.pages[self.number[id]]

    def image(self, id: str) -> Image.Image:
        """The picture of a page at full resolution. Raises MediaError."""
        return page_image(self.page(id), self.dpi)


def open_folder(folder: str | Path, *, cache: str | Path = CACHE, dpi: int = DPI) -> Collection:
    """The collection of a folder, opened once a process, and again when its files have changed.

    The first search reads the texts, and what has none by OCR, which takes seconds a page: where that is long, call
    `texts` of the collection before a run; what OCR read is kept.

    Raises ValueError for a folder without pages or with two of the same id, RuntimeError where a package is missing.
    """
    root, kept = Path(folder).expanduser().resolve(), Path(cache).expanduser()
    files = _files(root)
    stamp = tuple((str(f), s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()])

    def build() -> Collection:
        pages = [page for file in files for page in _pages(root, file)]
        if not pages:
            raise ValueError(f"no pages in {root}: it should hold PDF files or pictures ({', '.join(PICTURES)})")
        twice = [i for i, n in Counter(p.id for p in pages).items() if n > 1]
        if twice:
            raise ValueError(f"{root}: two pages have the id {twice[0]!r}; rename one of the files")
        return Collection(pages, lambda page: page_text(page, kept, dpi), dpi)

    return once(("documents", str(root), str(kept), dpi), stamp, build)


def of_media(refs: Sequence[MediaRef], *, cache: str | Path = CACHE) -> Collection:
    """The pictures of a dialogue as pages, under their own ids."""
    kept = Path(cache).expanduser()
    return Collection([Page(ref.id, ref=ref) for ref in refs], lambda page: page_text(page, kept, DPI))


def page_text(page: Page, cache: Path, dpi: int) -> str:
    """The text of a page: written beside it, in the PDF, or read by OCR. Raises MediaError, ValueError for a text that
    is no UTF-8, OSError where the cache cannot be written."""
    if page.ref is None and page.number is None and (beside := page.path.with_suffix(".txt")).is_file():
        try:
            return beside.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{beside} is not UTF-8 ({error}): convert or remove it") from error
    if page.number is not None:
        with _pdfium, _pdf(page.path) as pdf:
            text = str(pdf[page.number].get_textpage().get_text_range())
        if words(text):
            return text
    key = page.ref.hash if page.ref is not None else content_hash(page.path.read_bytes())
    if page.number is not None:
        key += f"-{page.number + 1}-{dpi}"
    with _locks.setdefault(key, threading.Lock()):
        kept = cache / f"{key}.txt"
        if not kept.is_file():
            found = (line.text for line in read_lines(page_image(page, dpi)) if line.confidence >= CONFIDENCE)
            _write(kept, "\n".join(found))
        return kept.read_text(encoding="utf-8")


def page_image(page: Page, dpi: int) -> Image.Image:
    """The picture of a page, upright RGB; of a PDF at `dpi`, less where it would be too large. Raises MediaError."""
    if page.ref is not None:
        return load_image(page.ref)
    try:
        if page.number is None:
            return normalise_image(page.path)[0]
        with _pdfium, _pdf(page.path) as pdf:
            sheet = pdf[page.number]
            width, height = sheet.get_size()  # points, 72 an inch
            scale = min(dpi / 72, math.sqrt(MAX_PIXELS / 2 / (width * height)))
            return normalise_image(sheet.render(scale=scale).to_pil())[0]
    except MediaError as error:
        raise MediaError(error.code, f"page {page.id} in {page.path}: {error.message}: replace the file") from error


def _files(root: Path) -> list[Path]:
    """Files that may matter, texts included: page-2 before page-10, none that are hidden."""
    found = (p for p in root.rglob("*") if p.suffix.lower() in (*PICTURES, ".pdf", ".txt") and p.is_file())
    return sorted((p for p in found if not any(i.startswith(".") for i in p.relative_to(root).parts)), key=_natural)


def _pages(root: Path, file: Path) -> Iterator[Page]:
    id = file.relative_to(root).with_suffix("").as_posix()
    if file.suffix.lower() in PICTURES:
        yield Page(id, file)
    elif file.suffix.lower() == ".pdf":
        with _pdfium, _pdf(file) as pdf:
            count = len(pdf)
        yield from (Page(f"{id}/{n + 1}", file, n) for n in range(count))


def _natural(path: Path) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]+)", path.as_posix())
    return [(0, int(p)) if n % 2 else (1, p) for n, p in enumerate(parts)]


def _pdf(path: Path) -> Any:
    try:
        import pypdfium2
    except ImportError as error:
        raise RuntimeError(f"reading {path} needs pypdfium2: install it, or give the pages as pictures") from error
    try:
        return pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        raise ValueError(f"{path} cannot be read ({error}): replace or remove it") from error


def _span(inside: Sequence[str], held: set[str]) -> int:
    """Length of the shortest stretch of words that has all of `held`."""
    last: dict[str, int] = {}
    best = len(inside)
    for at, word in enumerate(inside):
        if word in held:
            last[word] = at
            if len(last) == len(held):
                best = min(best, at - min(last.values()) + 1)
    return best


def _write(path: Path, text: str) -> None:
    """Whole or not at all, also where several processes write."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    except OSError as error:
        hint = "set the option `cache` of document_retrieve to a folder that can be written"
        raise OSError(f"cannot keep texts in {path.parent} ({error.strerror}): {hint}") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)
