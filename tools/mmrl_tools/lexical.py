"""Search by words: the words of texts, BM25 over them (bm25s, arXiv 2407.03618), and the passage that fits a query.

BM25 is the Lucene variant, k1 = 1.5, b = 0.75. A text scores the sum over the query's distinct words w in it of

    log(1 + (N - n_w + 0.5) / (n_w + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length)).

No word is left out for being common, and none is stemmed.
"""

from __future__ import annotations

import logging
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

K1, B = 1.5, 0.75
LONGEST = 30  # characters of a part of a word that a passage leaves out at its ends
MISSING = "searching needs bm25s: install mmrl[search]"

# characters of Chinese, Japanese and Korean count as words; marks that belong to the letters before them are none
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(rf"[{_SINGLE}]|(?:[^\W_{_SINGLE}]|[{_MARKS}])+")
_ASCII = re.compile("[A-Za-z0-9]+")


def spans(text: str) -> Iterator[tuple[str, int, int]]:
    """The words of a text in order, each as it is searched for and with its characters [start, stop)."""
    for match in (_ASCII if text.isascii() else _WORD).finditer(text):
        yield _folded(match.group()), match.start(), match.end()


def words(text: str) -> list[str]:
    """The words of a text in order, without case, accents and differences of width."""
    return [_folded(word) for word in (_ASCII if text.isascii() else _WORD).findall(text)]


@lru_cache(maxsize=1 << 18)
def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", word.casefold())
    plain = "".join(c for c in apart if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFKC", plain) or word


class Vocabulary(dict[str, int]):
    """Words and their numbers, in the order in which they were first met; the empty word is number 0."""

    def __init__(self) -> None:
        super().__init__({"": 0})

    def numbers(self, text: str) -> array[int]:
        """The numbers of the words of a text; new words are added."""
        return array("i", (self.setdefault(word, len(self)) for word in words(text)))


@dataclass(frozen=True)
class Ranker:
    """BM25 over numbered texts. Safe in threads."""

    index: Any  # bm25s.BM25

    def search(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """Numbers and scores of the texts with any word of the query: best first, equal ones by their number."""
        asked = sorted({self.index.vocab_dict[w] for w in words(query) if w in self.index.vocab_dict})
        if not asked:
            return []
        scores = self.index.get_scores_from_ids(asked)
        found = np.flatnonzero(scores > 0)
        if top_k < len(found):
            found = found[scores[found] >= np.partition(scores[found], -top_k)[-top_k]]
        order = found[np.argsort(-scores[found], kind="stable")][:top_k]
        return [(int(n), float(scores[n])) for n in order]

    def weight(self, word: str) -> float:
        """The idf of a word, 0 where no text has it."""
        number = self.index.vocab_dict.get(word)
        if number is None:
            return 0.0
        total, starts = self.index.scores["num_docs"], self.index.scores["indptr"]
        having = int(starts[number + 1] - starts[number])
        return math.log(1 + (total - having + 0.5) / (having + 0.5))


def write_index(texts: Sequence[Sequence[int]], vocabulary: Vocabulary, folder: Path) -> None:
    """Index texts, given as numbers of words, into a folder. Raises RuntimeError where bm25s is missing."""
    index = _bm25s().BM25(k1=K1, b=B, method="lucene")
    with np.errstate(invalid="ignore"):  # texts of no words at all have a mean length of 0
        index.index(_bm25s().tokenization.Tokenized(ids=texts, vocab=dict(vocabulary)), show_progress=False)
    index.save(folder, show_progress=False)


def load_index(folder: Path) -> Ranker:
    """What `write_index` wrote, mapped from disk. Raises OSError or ValueError where it is damaged."""
    return Ranker(_bm25s().BM25.load(folder, mmap=True, show_progress=False))


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise RuntimeError(MISSING) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to tell of every step
    return bm25s


def passage(text: str, query: str, length: int, weight: Callable[[str], float] = lambda word: 1.0) -> str:
    """The stretch of at most `length` characters of a text that holds the query's words of the greatest summed weight,
    each counted once; the first of equal ones; the beginning where there are none. On one line; what is left out
    before and after it shows as an ellipsis."""
    asked = set(words(query))
    weights = {word: weight(word) for word in sorted(asked)}
    first, last = _heaviest([hit for hit in spans(text) if hit[0] in asked], weights, length)
    start = max(0, min((first + last - length) // 2, len(text) - length))
    stop = min(len(text), start + length)
    # parts of words at the ends are left out, as long as no word that was found goes with them
    if start and not text[start - 1].isspace():
        cut = re.search(r"\s", text[start : min(first, start + LONGEST)])
        start += cut.end() if cut else 0
    if stop < len(text) and not text[stop].isspace():
        tail = max(start, last, stop - LONGEST)
        cut = re.search(r"\s\S*$", text[tail:stop])
        stop = tail + cut.start() if cut else stop
    told = " ".join(text[start:stop].split())
    return f"{'…' if text[:start].strip() else ''}{told}{'…' if text[stop:].strip() else ''}"


def _heaviest(hits: Sequence[tuple[str, int, int]], weights: dict[str, float], length: int) -> tuple[int, int]:
    """The first and the last character of the best run of hits that fits into `length` characters; (0, 0) of none."""
    inside: Counter[str] = Counter()
    best, found, total, first = 0.0, (0, 0), 0.0, 0
    for last, (word, _, stop) in enumerate(hits):
        total += 0.0 if inside[word] else weights[word]
        inside[word] += 1
        while first < last and hits[first][1] < stop - length:
            gone = hits[first][0]
            inside[gone] -= 1
            total -= 0.0 if inside[gone] else weights[gone]
            first += 1
        if total > best + 1e-9:
            best, found = total, (hits[first][1], min(stop, hits[first][1] + length))
    return found
