"""image_search: pictures of a local gallery that look like one of the dialogue, or whose captions hold given words.

A gallery is a folder of pictures, with the folders below it (ids and titles come from the file names), or a .jsonl file
with a row for each picture, its path being relative to that file; all but `image` may be missing:

    {"id": "p7", "image": "pictures/7.jpg", "title": "The harbour", "text": "Seen from the north, 1911"}

Settings of a recipe under `rollout.tool_options`, with their defaults:

    image_search:
      gallery: FOLDER        # or .jsonl file
      show: 3                # pictures of a result that are shown, 0 to 8, the best ones
      max_pixels: 1048576    # of each of them; larger ones are reduced
      model: FOLDER          # of a CLIP or SigLIP model; without it, the descriptor of mmrl_tools/descriptor.py
      device: cpu            # of that model
      cache: ~/.cache/mmrl/search

The first call of all builds the index: about 100 pictures a second and processor core without a model. Where that takes
longer than a call may, `open_gallery` builds it beforehand.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.media import MediaError, content_hash, normalise_image
from mmrl.registry import register
from mmrl.rollout.arguments import short
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import ToolResult
from mmrl_tools.boxes import BOX, inside, pixels
from mmrl_tools.built import CACHE, kept, once
from mmrl_tools.corpus import CorpusError, json_lines
from mmrl_tools.descriptor import describe
from mmrl_tools.embedding import Embed, embedder, model_stamp
from mmrl_tools.lexical import Ranker, Vocabulary, load_index, write_index
from mmrl_tools.options import check_options, count, path

FORMAT = 1  # of the folder that an index is kept in, and of the descriptor
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
MOST, TOP_K = 10, 5  # results of one call
MOST_SHOWN = 8
CAPTION = 200  # characters that are shown
MIN_SIDE = 28  # pixels: one vision token of Qwen2.5-VL
MAX_RATIO = 100  # of the sides; processors refuse 200


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a gallery. `facts` are size and time of its file, by which a change is noticed."""

    id: str
    path: str
    title: str
    text: str
    facts: str


@dataclass(frozen=True)
class Gallery:
    """An open gallery: pictures in the order of their ids. Safe in threads."""

    pictures: list[Picture]
    vectors: np.ndarray  # [N, W, D] float32 of length 1: W windows of each picture, the whole one first
    ranker: Ranker  # of titles and texts
    embed: Embed | None

    def like(self, image: Image.Image, top_k: int) -> list[tuple[Picture, float]]:
        """The pictures with the window most like an RGB picture, and the cosine of the vectors: best first, equal ones
        (to five digits) by their ids."""
        vector = self.embed([image])[0] if self.embed else describe(image, [(0.0, 0.0, 1.0)])[0]
        number, windows, length = self.vectors.shape
        cosines = (self.vectors.reshape(-1, length) @ vector).reshape(number, windows)
        scores = np.round(cosines.max(axis=1).astype(np.float64), 5)
        return [(self.pictures[n], float(scores[n])) for n in np.argsort(-scores, kind="stable")[:top_k]]

    def captioned(self, query: str, top_k: int) -> list[tuple[Picture, float]]:
        """The pictures with any word of the query in title or text, and their BM25 scores: best first."""
        return [(self.pictures[n], score) for n, score in self.ranker.search(query, top_k)]


@register(
    "tool",
    "image_search",
    schema=schema(
        "Search a gallery for pictures like an image, or like a box x1,y1,x2,y2 of it in 0-1000, or by words of their "
        "captions (query)",
        {
            "image": {"type": "string"},
            "box": BOX,
            "query": {"type": "string", "minLength": 1, "maxLength": 1000},
            "top_k": {"type": "integer", "minimum": 1, "maximum": MOST},
        },
    ),
    limits=Limits(seconds=60.0, text=8000, media=MOST_SHOWN),
)
def image_search(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The `top_k` (default 5) best pictures: number, id, caption and score, and the first of them as new pictures.

    `data`: `results` of `id`, `title`, `text`, `score` (cosine, or BM25 of a query) and `image`, the id in the dialogue
    of those shown. Errors: bad_arguments (neither or both of image and query), unknown_image, outside_picture. Raises
    ValueError for wrong settings, CorpusError for a gallery that cannot be used.
    """
    check_options(context, ("gallery", "show", "max_pixels", "model", "device", "cache"))
    shown = count(context, "show", 3, low=0, high=MOST_SHOWN)
    most = count(context, "max_pixels", 1_048_576, low=MIN_SIDE**2, high=4_194_304)
    top_k = arguments.get("top_k", TOP_K)
    if ("image" in arguments) == ("query" in arguments):
        raise ToolError("bad_arguments", "give either image, with or without box, or query")
    if "query" in arguments and "box" in arguments:
        raise ToolError("bad_arguments", "box needs image")
    if "query" in arguments:
        found = _gallery(context).captioned(arguments["query"], top_k)
        asked = f"captions with {short(arguments['query'])}"
    else:
        ref = context.image(arguments["image"])
        image = context.load(ref)
        if "box" in arguments:
            image = image.crop(pixels(inside(arguments["box"]), image.size, MIN_SIDE))
        found, asked = _gallery(context).like(image, top_k), f"like {ref.id}"
    refs, results, lines = [], [], []
    for place, (picture, score) in enumerate(found, 1):
        result = {"id": picture.id, "title": picture.title, "text": picture.text, "score": round(score, 4)}
        line = f"{place}. [{picture.id}] {_caption(picture)} ({score:.2f})"
        if place <= shown:
            whole = _load(picture)
            ref = context.add(_fitted(whole, most))
            refs.append(ref)
            result["image"] = ref.id
            line += f": {ref.id}{', its middle part' if _is_long(whole) else ''}"
        results.append(result)
        lines.append(line)
    return ToolResult("\n".join(lines) or f"nothing found: no {asked}", tuple(refs), data={"results": results})


def open_gallery(
    source: str | Path, *, cache: str | Path = CACHE, model: str | Path | None = None, device: str = "cpu"
) -> Gallery:
    """The gallery at `source`, opened once a process, and again when it has changed: a .jsonl file by its own size and
    time, a folder by those of its pictures. The index is kept in `cache` under the hash of all rows and of sizes and
    times of all pictures. Raises CorpusError, ValueError for a folder without a model."""
    root, store = Path(source).expanduser().resolve(), Path(cache).expanduser()
    weights = Path(model).expanduser().resolve() if model is not None else None
    stamp = model_stamp(weights) if weights else ""
    listed = root.is_file()
    seen = f"{root.stat().st_size} {root.stat().st_mtime_ns}" if listed else _all_of(gallery_pictures(root))

    def build() -> Gallery:
        found = gallery_pictures(root)
        embed = embedder(weights, device) if weights else None
        name = f"gallery-{FORMAT}-{content_hash(f'{_all_of(found)} {stamp}'.encode())}"
        return kept(store, name, lambda folder: _write(found, embed, folder), lambda folder: _open(folder, embed))

    return once(("gallery", str(root), str(store), str(weights), device), (seen, stamp), build)


def gallery_pictures(root: Path) -> list[Picture]:
    """The pictures of a folder or .jsonl file in the order of their ids. Raises CorpusError."""
    if root.is_file():
        if root.suffix != ".jsonl":
            raise CorpusError(f'{root} is no gallery: give a folder of pictures or a .jsonl of {{"image": ...}} rows')
        found: dict[str, Picture] = {}
        for place, row in json_lines(root):
            picture = _row(row, place, root.parent)
            if picture.id in found:
                raise CorpusError(f"{place}: id {picture.id!r} is also that of a row before it: rename one")
            found[picture.id] = picture
    elif root.is_dir():
        found = {p.id: p for p in _files(root)}
    else:
        raise CorpusError(f"no gallery at {root}: give a folder of pictures or a .jsonl file")
    if not found:
        raise CorpusError(f"no pictures in {root}: a gallery holds {', '.join(PICTURES)}")
    return [found[id] for id in sorted(found)]


def _files(root: Path) -> Iterator[Picture]:
    for file in root.rglob("*"):
        inner = file.relative_to(root)
        if file.suffix.lower() in PICTURES and not any(part.startswith(".") for part in inner.parts):
            yield Picture(inner.as_posix(), str(file), " ".join(file.stem.replace("_", " ").split()), "", _facts(file))


def _row(row: Mapping[str, Any], place: str, folder: Path) -> Picture:
    image, id = row.get("image"), row.get("id", row.get("image"))
    if not isinstance(image, str) or not image:
        raise CorpusError(f"{place}: image is {image!r}: it must be the path of a picture")
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise CorpusError(f"{place}: id is {id!r}: it must be a text or a whole number")
    title, text = (row.get("title") or row.get("caption") or ""), (row.get("text") or "")
    if not isinstance(title, str) or not isinstance(text, str):
        raise CorpusError(f"{place}: title, caption and text must be texts")
    file = folder / image
    if not file.is_file():
        raise CorpusError(f"{place}: there is no picture {file}: mend the path, which starts at {folder}")
    return Picture(str(id), str(file), title, text, _facts(file))


def _facts(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size}:{status.st_mtime_ns}"


def _all_of(pictures: Sequence[Picture]) -> str:
    return json.dumps([asdict(p) for p in pictures])


def _write(pictures: Sequence[Picture], embed: Embed | None, folder: Path) -> None:
    def vectors(picture: Picture) -> np.ndarray | MediaError:
        try:
            image = _load(picture)
        except MediaError as error:
            return error
        return embed([image]) if embed else describe(image)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(vectors, pictures))
    broken = [f"{p.path} ({v.code})" for p, v in zip(pictures, found, strict=True) if isinstance(v, MediaError)]
    if broken:
        listed = ", ".join(broken[:5]) + (", ..." if len(broken) > 5 else "")
        raise CorpusError(f"{len(broken)} pictures of the gallery cannot be read; remove or replace them: {listed}")
    np.save(folder / "vectors.npy", np.stack([v for v in found if isinstance(v, np.ndarray)]).astype(np.float32))
    (folder / "pictures.json").write_text(_all_of(pictures))
    vocabulary = Vocabulary()
    write_index([vocabulary.numbers(f"{p.title}\n{p.text}") for p in pictures], vocabulary, folder / "bm25")


def _open(folder: Path, embed: Embed | None) -> Gallery:
    pictures = [Picture(**row) for row in json.loads((folder / "pictures.json").read_text())]
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    if len(vectors) != len(pictures):
        raise ValueError(f"{len(vectors)} vectors of {len(pictures)} pictures")
    return Gallery(pictures, vectors, load_index(folder / "bm25"), embed)


def _gallery(context: ToolContext) -> Gallery:
    source = path(context, "gallery", None, "a folder of pictures or a .jsonl file")
    model = path(context, "model", None, "the folder of a model") if "model" in context.options else None
    device = str(context.options.get("device", "cpu"))
    return open_gallery(source, cache=path(context, "cache", CACHE, "a folder"), model=model, device=device)


def _load(picture: Picture) -> Image.Image:
    return normalise_image(Path(picture.path))[0]


def _caption(picture: Picture) -> str:
    words = " ".join(": ".join(filter(None, (picture.title, picture.text))).split()) or "(no caption)"
    return words if len(words) <= CAPTION else f"{words[:CAPTION].rstrip()}…"


def _is_long(image: Image.Image) -> bool:
    return max(image.size) > MAX_RATIO * min(image.size)


def _fitted(image: Image.Image, max_pixels: int) -> Image.Image:
    """A picture within an area of `max_pixels`, at least 28 pixels on each side, the longer side cut around its middle
    to 100 times the other."""
    width, height = image.size
    if _is_long(image):
        long = MAX_RATIO * min(image.size)
        left, top = max(0, (width - long) // 2), max(0, (height - long) // 2)
        image = image.crop((left, top, min(width, left + long), min(height, top + long)))
        width, height = image.size
    scale = max(min(1.0, math.sqrt(max_pixels / (height * width))), MIN_SIDE / min(height, width))
    if scale == 1:
        return image
    size = (max(MIN_SIDE, math.floor(width * scale)), max(MIN_SIDE, math.floor(height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)
