"""text_search and page_fetch: documents of a local corpus by words, and their whole texts (extra `mmrl[search]`).

Settings of a recipe under `rollout.tool_options`, with their defaults:

    text_search:
      corpus: FOLDER         # or file, see mmrl_tools/corpus.py ...
      url: http://HOST/retrieve  # ... or a retrieval server instead, see mmrl_tools/retriever.py
      snippet: 300           # characters of each result
      timeout: 10            # seconds for the server
      cache: ~/.cache/mmrl/search
    page_fetch:
      corpus: FOLDER
      part: 3000             # characters of one part
      cache: ~/.cache/mmrl/search

The first call of all builds the index of a corpus. Where that takes longer than a call may, `open_corpus` of
mmrl_tools/corpus.py builds it beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmrl.registry import register
from mmrl.rollout.arguments import short
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import ToolResult
from mmrl_tools.built import CACHE
from mmrl_tools.corpus import Corpus, Document, open_corpus
from mmrl_tools.lexical import passage
from mmrl_tools.options import check_options, count, number, path, where
from mmrl_tools.retriever import retrieve

MOST = 10  # results of one call
TOP_K = 5
SECONDS = 60.0
TITLE = 120  # characters of a title that are shown


@register(
    "tool",
    "text_search",
    schema=schema(
        "Search documents by words; gives ids, titles and snippets",
        {
            "query": {"type": "string", "minLength": 1, "maxLength": 1000},
            "top_k": {"type": "integer", "minimum": 1, "maximum": MOST},
        },
        ["query"],
    ),
    limits=Limits(seconds=SECONDS, text=16_000, media=0),
)
def text_search(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The `top_k` (default 5) best documents: number, id, title, and the passage around the words of the query.

    `data`: `query` and `results` of `id`, `title`, `url`, `score` (BM25, or the server's) and `snippet`. Nothing found
    is a result like any other. Raises ValueError for wrong settings, CorpusError, and ConnectionError or RuntimeError
    where the server cannot be asked or answers something else.
    """
    check_options(context, ("corpus", "url", "snippet", "timeout", "cache"))
    query, top_k = arguments["query"], arguments.get("top_k", TOP_K)
    length = count(context, "snippet", 300, low=40, high=1200)
    weight: Callable[[str], float] = lambda word: 1.0  # noqa: E731
    if "url" in context.options:
        found = _from_server(context, query, top_k)
    else:
        corpus = _corpus(context)
        found, weight = corpus.search(query, top_k), corpus.ranker.weight
    results: list[dict[str, Any]] = [
        {
            "id": document.id,
            "title": document.title,
            "url": document.url,
            "score": round(score, 4),
            "snippet": passage(document.text, query, length, weight),
        }
        for document, score in found
    ]
    lines = [f"{n}. {_headline(r['id'], r['title'])}: {r['snippet']}" for n, r in enumerate(results, 1)]
    told = "\n".join(lines) or f"nothing found for {short(query)}"
    return ToolResult(told, data={"query": query, "results": results})


@register(
    "tool",
    "page_fetch",
    schema=schema(
        "Read a document by the id or URL of a search result; long ones come in parts 1, 2, ...",
        {"id": {"type": "string", "minLength": 1}, "part": {"type": "integer", "minimum": 1}},
        ["id"],
    ),
    limits=Limits(seconds=SECONDS, text=10_000, media=0),
)
def page_fetch(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The text of a document, or part `part` of it (default 1). The parts in order are the whole text.

    `data`: `id`, `title`, `url`, `part`, `parts` and `text`. Errors: unknown_page, no_such_part. Raises ValueError for
    wrong settings, CorpusError.
    """
    check_options(context, ("corpus", "part", "cache"))
    size = count(context, "part", 3000, low=200, high=8000)
    asked, part = arguments["id"], arguments.get("part", 1)
    found = _corpus(context).find(asked)
    if not found:
        raise ToolError("unknown_page", f"no document {short(asked)}: give an id as text_search shows it in brackets")
    document = found[0]
    parts = parts_of(document.text, size)
    if part > len(parts):
        have = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
        raise ToolError("no_such_part", f"{short(document.id)} has {have}, there is no part {part}")
    told = [_headline(document.id, document.title)]
    if len(parts) > 1:
        told.append(f"part {part} of {len(parts)}")
    if len(found) > 1:
        others = ", ".join(f"[{d.id}]" for d in found[1:MOST])
        told.append(f"{len(found)} documents have this URL, also {others}{', …' if len(found) > MOST else ''}")
    text = parts[part - 1]
    data = {"id": document.id, "title": document.title, "url": document.url, "part": part, "parts": len(parts)}
    return ToolResult(f"{', '.join(told)}\n{text.strip() or '(no text)'}", data={**data, "text": text})


def parts_of(text: str, size: int) -> list[str]:
    """A text cut into parts of at most `size` characters that together are all of it, at least one.

    Cuts lie behind a paragraph, else a line, a sentence or a word, the last one in the second half of the part.
    """
    parts, start = [], 0
    while len(text) - start > size:
        stop = start + size
        for mark in ("\n\n", "\n", ". ", "。", " "):
            at = text.rfind(mark, start + size // 2, stop)
            if at >= 0:
                stop = at + len(mark)
                break
        parts.append(text[start:stop])
        start = stop
    return [*parts, text[start:]]


def _headline(id: str, title: str) -> str:
    title = " ".join(title.split())
    shown = title if len(title) <= TITLE else f"{title[:TITLE].rstrip()}…"
    return " ".join(filter(None, (f"[{id}]" if id else "", shown)))


def _corpus(context: ToolContext) -> Corpus:
    source = path(context, "corpus", None, "a file or folder of .jsonl or .parquet")
    return open_corpus(source, path(context, "cache", CACHE, "a folder"))


def _from_server(context: ToolContext, query: str, top_k: int) -> list[tuple[Document, float]]:
    url = context.options["url"]
    if "corpus" in context.options:
        raise ValueError(f"{where(context, 'url')} and corpus are both set: remove one")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"{where(context, 'url')} is {url!r}: set it to the http address of a retrieval server")
    return retrieve(url, query, top_k, number(context, "timeout", 10, low=0.1, high=SECONDS - 10))
