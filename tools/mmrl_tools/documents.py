"""document_retrieve, document_rerank, document_crop: from a collection to a page to a part of it (UniDoc-RL).

A policy searches for pages, may order them more finely by their passages, chooses one by looking at it
(document_crop without a box) and looks closer (document_crop with a box). The results' `data` holds what the method's
rewards compare with the gold pages and boxes: the ranking of every search, the pages chosen, the boxes cut out.
Unlike in the authors' code, pages are named by ids, boxes are 0..1000 of the page, and every part is a picture of its
own.

Settings of a recipe under `rollout.tool_options`, with their defaults; those of the first group hold for all three:

    document_retrieve:
      documents: FOLDER        # of PDFs or pictures (see `collection.py`); without it the sample's own pictures
      cache: ~/.cache/mmrl/ocr # where texts read by OCR are kept
      dpi: 200                 # of PDF pages

      results: 5               # pages that a search lists, at most 20
      show: 3                  # of them, whose pictures are shown, at most 8
      max_pixels: 401408       # of such a picture
    document_crop:
      max_pixels: 1048576      # of its picture; larger parts are reduced
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PIL import Image

from mmrl.registry import register
from mmrl.rollout.arguments import short
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import MediaRef, ToolResult
from mmrl_tools.boxes import BOX, inside, pixels, thousandths
from mmrl_tools.collection import CACHE, DPI, Collection, of_media, open_folder
from mmrl_tools.options import check_options, count, path

MIN_SIDE = 28  # pixels: one vision token of Qwen2.5-VL
MOST_CANDIDATES = 20
MOST_SHOWN = 8
SHOWN_PIXELS = 512 * 28 * 28  # as in the authors' code
CROP_PIXELS = 1_048_576

_SHARED = ("documents", "cache", "dpi")
_OWN = {"document_retrieve": ("results", "show", "max_pixels"), "document_crop": ("max_pixels",)}
_QUERY = {"type": "string", "minLength": 1, "maxLength": 500}


@register(
    "tool",
    "document_retrieve",
    schema=schema("Search the documents for pages by words; gives page ids, best first", {"query": _QUERY}, ["query"]),
    limits=Limits(seconds=120, media=MOST_SHOWN),
    paper="UniDoc-RL",
)
def document_retrieve(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The pages whose texts fit the query best by BM25, the first ones with their pictures.

    `data`: `query`; `pages`, ids in order; `scores` of them; `shown`, the first ones with the `id` of their picture.
    """
    context = _shared(context)
    documents = _documents(context)
    most = count(context, "results", 5, low=1, high=MOST_CANDIDATES)
    show = count(context, "show", 3, low=0, high=MOST_SHOWN)
    area = count(context, "max_pixels", SHOWN_PIXELS, low=MIN_SIDE**2, high=16_777_216)
    query = arguments["query"]
    found = documents.search(query, most)
    refs: dict[str, MediaRef] = {}
    for id, _ in found[:show]:
        if documents.page(id).ref is None:  # a picture of the dialogue has been seen
            refs[id] = context.add(_fitted(documents.image(id), area))
    lines = [f"{n}. {id}{f' ({refs[id].id})' if id in refs else ''}" for n, (id, _) in enumerate(found, 1)]
    data = {
        "query": query,
        "pages": [id for id, _ in found],
        "scores": [round(score, 4) for _, score in found],
        "shown": [{"page": page, "id": ref.id} for page, ref in refs.items()],
    }
    return ToolResult("\n".join(lines) or "no page has any of these words", tuple(refs.values()), data=data)


@register(
    "tool",
    "document_rerank",
    schema=schema(
        "Order pages by how well their best passage fits the query; gives the passages",
        {
            "query": _QUERY,
            "pages": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_CANDIDATES},
        },
        ["query", "pages"],
    ),
    limits=Limits(seconds=120, media=0),
    paper="UniDoc-RL",
)
def document_rerank(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The given pages ordered by their best passage: by the words of the query in it, rare ones more, and how close
    together they stand (`Collection.passage`; words alone, no learnt model). Equal ones stay in the order given.

    `data`: `query`, `pages`, `scores`, `passages`. Error: unknown_page.
    """
    documents, query = _documents(_shared(context)), arguments["query"]
    ids = [_page(documents, id) for id in dict.fromkeys(arguments["pages"])]
    found = sorted(((id, *documents.passage(id, query)) for id in ids), key=lambda it: -it[1])
    lines = [f"{n}. {id}: {passage or '(no word of the query)'}" for n, (id, _, passage) in enumerate(found, 1)]
    data = {
        "query": query,
        "pages": [id for id, _, _ in found],
        "scores": [round(score, 4) for _, score, _ in found],
        "passages": [passage for _, _, passage in found],
    }
    return ToolResult("\n".join(lines), data=data)


@register(
    "tool",
    "document_crop",
    schema=schema(
        "Look at a page, or in detail at a box x1,y1,x2,y2 of it in 0-1000 of the page",
        {"page": {"type": "string"}, "box": BOX},
        ["page"],
    ),
    limits=Limits(seconds=120, media=1),
    paper="UniDoc-RL",
)
def document_crop(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """A page or a part of it as a new picture, at the page's full resolution unless that is over `max_pixels`.

    `data`: `page`; `box`, the part shown in 0..1000 of the page (None: the page was chosen as a whole); `id` of the
    picture; `scale`, its resolution over that of the page.

    Errors: unknown_page, outside_picture.
    """
    context = _shared(context)
    documents = _documents(context)
    area = count(context, "max_pixels", CROP_PIXELS, low=MIN_SIDE**2, high=16_777_216)
    id = _page(documents, arguments["page"])
    whole = "box" not in arguments
    part = (0.0, 0.0, 1000.0, 1000.0) if whole else inside(arguments["box"])
    image = documents.image(id)
    region = pixels(part, image.size, MIN_SIDE)
    cut = image.crop(region)
    fitted = _fitted(cut, area)
    scale = fitted.width / cut.width
    box = thousandths(region, image.size)
    x1, y1, x2, y2 = region
    if documents.page(id).ref is None:
        ref = context.add(fitted)
    else:  # a picture of the dialogue: what is cut from the new one is a part of that one
        ref = context.add(fitted, id, (float(x1), float(y1), float(x2), float(y2)))
    text = f"{ref.id}: {'all' if whole else ','.join(f'{v:.0f}' for v in box)} of page {id}"
    if scale != 1:
        text += f", at {100 * scale:.0f}% of its resolution"
    return ToolResult(text, (ref,), data={"page": id, "box": None if whole else box, "id": ref.id, "scale": scale})


def _shared(context: ToolContext) -> ToolContext:
    """The context with the settings that the three tools share put to those of the running one."""
    retrieve = context.settings.get("document_retrieve", {})
    shared = {key: value for key, value in retrieve.items() if key in _SHARED}
    return replace(context, settings={context.name: {**shared, **context.options}})


def _documents(context: ToolContext) -> Collection:
    """The collection that all three tools work on. Raises ValueError for wrong settings."""
    check_options(context, (*_SHARED, *_OWN.get(context.name, ())))
    cache = path(context, "cache", CACHE, "a folder")
    dpi = count(context, "dpi", DPI, low=36, high=600)
    if "documents" in context.options:
        return open_folder(path(context, "documents", None, "a folder of PDFs or pictures"), cache=cache, dpi=dpi)
    media = context.sample.media if context.sample is not None else context.media.values()
    refs = [ref for ref in media if ref.kind == "image" and ref.parent not in context.media]
    if not refs:
        raise ValueError(
            "there are no documents: set rollout.tool_options.document_retrieve.documents to a folder, or give the "
            "sample pictures"
        )
    return of_media(refs, cache=cache)


def _page(documents: Collection, id: str) -> str:
    if id in documents.number:
        return id
    close = difflib.get_close_matches(id, documents.number, n=1)
    hint = f"did you mean {close[0]}?" if close else "take ids that document_retrieve gives"
    raise ToolError("unknown_page", f"no page {short(id)}; {hint}")


def _fitted(image: Image.Image, area: int) -> Image.Image:
    """A picture within an area of `area` pixels, at least 28 pixels on each side."""
    width, height = image.size
    scale = max(min(1.0, math.sqrt(area / (width * height))), MIN_SIDE / min(image.size))
    if scale == 1:
        return image
    size = (max(MIN_SIDE, math.floor(width * scale)), max(MIN_SIDE, math.floor(height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)
