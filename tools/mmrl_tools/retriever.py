"""A retrieval server in the form of Search-R1 (arXiv 2503.09516), asked over HTTP (httpx).

    POST {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\nText"}, "score": 12.3}, ...]]}

Documents may have title, text and url of their own, and no id; servers that return no scores list bare documents.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from mmrl_tools.corpus import Document, from_contents


def retrieve(url: str, query: str, top_k: int, timeout: float) -> list[tuple[Document, float]]:
    """The server's documents with their scores (0 without), in its order. `timeout` is in seconds.

    Raises ConnectionError where the server cannot be reached or is too slow, RuntimeError where it answers an error or
    something else.
    """
    client, httpx = _client()
    body = {"queries": [query], "topk": top_k, "return_scores": True}
    try:
        response = client.post(url, json=body, timeout=timeout)
    except httpx.HTTPError as error:
        raise ConnectionError(f"the search server {url} cannot be asked: {type(error).__name__}: {error}") from error
    if response.status_code != 200:
        raise RuntimeError(f"the search server {url} answered {response.status_code}: {response.text[:200]!r}")
    try:
        (found,) = response.json()["result"]
        return [_result(item) for item in found[:top_k]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        form = '{"result": [[{"document": {"contents": ...}, "score": ...}]]}'
        raise RuntimeError(f"the search server {url} answered {response.text[:200]!r} instead of {form}") from error


def _result(item: Mapping[str, Any]) -> tuple[Document, float]:
    row, score = (item["document"], float(item["score"])) if "document" in item else (item, 0.0)
    title, text = row.get("title"), row.get("text")
    if text is None:
        own, text = from_contents(row["contents"])
        title = own if title is None else title
    id = row.get("id")
    return Document("" if id is None else str(id), str(title or ""), str(text), str(row.get("url") or "")), score


@functools.cache
def _client() -> tuple[Any, Any]:
    """One pool of connections for all threads, and the package."""
    try:
        import httpx
    except ImportError as error:
        raise RuntimeError("asking a search server needs httpx: install mmrl[search]") from error
    return httpx.Client(), httpx
