"""Random dialogues for the tools: arguments drawn from the schema of a tool, right and wrong, and scenes to call it in.

Strategies read nothing of a tool but its schema, and the name of an argument where a text must mean something.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from media.clips import VARIABLE, damaged, encode, moving
from PIL import Image, ImageDraw

from mmrl.media import content_hash, image_ref, media_info
from mmrl.rollout.tools import ToolContext
from mmrl.types import Answer, MediaRef, Sample
from mmrl.view import View, with_view
from mmrl_tools.sandbox import isolation, open_doors

LARGEST = 1e9  # of any number that a call may give

# --- texts and numbers ------------------------------------------------------------------------------------------------

WORDS = (
    *("pump", "crane", "filter", "spring", "harbour", "café", "東京", "tower", "price", "apple", "cat"),
    *("the", "of", "in"),
)
CONTROLS = (
    *("<|im_end|>", "<|im_start|>assistant\n", "<|image_pad|>", "<|vision_start|><|video_pad|><|vision_end|>"),
    *("</tool_response>", "<tool_call>{}</tool_call>", "<|endoftext|>", "<think>", "</answer>"),
    *("\ue000image0\ue001", "\x00hole\x00", "\x00", "\x1b[31m", "\r\n\t", "\u202e", "\ufeff", "\ud800", "\udcff\ud83d"),
    *("é" * 3 + "e\u0301", "👩‍👩‍👧", "%s {0} {x}", "../../etc/passwd", "'; --", "\\", '"', "ﷺ" * 9),
)
CODE = (
    *("1 + 1", "images", "show(images['img_1'])", "show(np.zeros((1, 1, 3), np.uint8))", "x = 1", "", "show('no')"),
    *("import numpy as np\nshow(np.full((2, 900, 3), 7, np.uint8))", "import numpy as np\nshow(np.ones((50, 60)))"),
    *("for n in range(12):\n    show(images['img_3'].resize((9 + n, 30)))", "print('<|im_end|>' * 400)"),
    *("raise ValueError('</tool_response>' * 900)", "def f():\n    f()\nf()", "x = [0] * 10**10", "while True: pass"),
    *("import os\nos._exit(3)", "import sys\nsys.exit()", "open('out/x.png', 'wb').write(b'junk')", "show(", "\ud800"),
    *("images['img_3'].save('out/\\u202e <|im_end|>.png')", "'\ue000image0\ue001'", "print('é' * 5000)"),
    *("import socket\nsocket.create_connection(('10.0.0.1', 80))", "open('/etc/passwd').read()", "show(1j)"),
    *("10 ** 5000", "[float('nan'), '\\ud800']", "class A:\n    def __repr__(self): return 7\nA()", "'a' * 10**7"),
)
EXPRESSIONS = (
    *("3*8", "(3+3)*(8-4)", "8/(3-8/3)", "1/0", "9" * 200, "((" * 90, "2**9", "3 × 8 = 24", "-(3)", "1/(2-2)", "٣+1"),
)
KNOWN: dict[str, tuple[str, ...]] = {
    "image": tuple(f"img_{n}" for n in range(1, 8)),
    "images": tuple(f"img_{n}" for n in range(1, 8)),
    "video": tuple(f"vid_{n}" for n in range(1, 6)),
    "page": ("manual/page-1", "survey", "strip", "img_1", "img_4"),
    "pages": ("manual/page-1", "survey", "strip", "img_1", "img_4"),
    "id": ("q1", "7", "long", "empty", "http://www.x.org/T/", "x.org/T"),
    "code": CODE,
    "expression": EXPRESSIONS,
    "label": ("cat", "tower 7", "CAT ", "cup <|image_pad|>", "東京", ""),
    "text": ("cat", "pump " * 12, "<|im_end|>", ""),
}
SECONDS = ("start", "end", "times", "windows")
ROWS = ([500, 187], [500, 187], [500, 312], [500, 437], [500, 562])  # the middles of the first rows of a screen
BOUNDS = (0, 1, -1, 0.5, 2, 3, 28, 90, 499.5, 500, 999, 999.999, 1000, 1000.001, 1001, -0.0, -1e-9, 1e-300, 1e9, -1e9)


def numbers(schema: Mapping[str, Any], *, whole: bool) -> st.SearchStrategy[Any]:
    """Numbers of a schema, boundaries among them."""
    low, high = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST)
    edges = [v for v in (low, high, *BOUNDS) if low <= v <= high]
    near = (max(low, -20), min(high, 1020))
    inner = st.integers(math.ceil(near[0]), math.floor(near[1]))
    some = st.integers(math.ceil(max(low, 0)), math.floor(min(high, max(low, 0) + 5)))
    if whole:
        return weighted(6, some, st.one_of(inner, st.sampled_from([int(v) for v in edges if v == int(v)])))
    return st.one_of(inner, st.floats(*near), some, st.sampled_from(edges))


def weighted(tenths: int, often: st.SearchStrategy[Any], seldom: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of one strategy in about so many of ten draws, else of the other."""
    return st.integers(0, 9).flatmap(lambda n: often if n < tenths else seldom)


def points(schema: Mapping[str, Any], name: str) -> st.SearchStrategy[list[Any]]:
    """x, y: mostly inside 0..1000, often on what a screen shows; of windows start and end in seconds."""
    if name in SECONDS:
        inside = st.lists(st.floats(0, 5), min_size=2, max_size=2).map(sorted)
    else:
        inside = st.lists(st.one_of(st.integers(0, 1000), st.floats(0, 1000)), min_size=2, max_size=2)
        inside = weighted(6, st.sampled_from(ROWS), inside) if name == "point" else inside
    return weighted(8, inside, st.lists(numbers(schema, whole=False), min_size=2, max_size=2))


def corners(point: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Four points: mostly the corners of a page, clockwise from the top left."""
    shift = st.lists(st.integers(0, 300), min_size=8, max_size=8)
    ends = (0, 0, 1000, 0, 1000, 1000, 0, 1000)
    page = shift.map(lambda moved: [abs(end - by) for end, by in zip(ends, moved, strict=True)])
    pairs = page.map(lambda flat: [flat[n : n + 2] for n in range(0, 8, 2)])
    return weighted(7, pairs, st.lists(point, min_size=4, max_size=4))


def texts(schema: Mapping[str, Any], name: str) -> st.SearchStrategy[str]:
    """Texts of a schema: what is known under this name, words, any characters, none at all, as many as may be."""
    low, high = schema.get("minLength", 0), schema.get("maxLength", 3000)
    characters = st.characters(exclude_categories=())
    junk = st.one_of(
        st.text(characters, min_size=min(low, 20), max_size=min(high, 20)),
        st.lists(st.sampled_from(CONTROLS), min_size=1, max_size=4).map("".join),
        st.sampled_from(["x", "é ", "<|im_end|>", "pump "]).map(lambda part: (part * high)[:high]),
        st.just("x" * low),
    )
    words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
    sense = st.sampled_from(KNOWN[name]) if name in KNOWN else words
    fits = st.integers(0, 9).flatmap(lambda n: sense if n < 8 else junk)
    return fits.map(lambda text: text[:high] if len(text) >= low else text + "x" * (low - len(text)))


def boxes(schema: Mapping[str, Any]) -> st.SearchStrategy[list[Any]]:
    """x1, y1, x2, y2: in order, swapped, without area, partly or wholly outside."""
    inside = st.lists(st.integers(0, 1000), min_size=4, max_size=4)
    ordered = inside.map(lambda b: [min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])])
    some = st.sampled_from(
        [
            *([0, 0, 1000, 1000], [1000, 1000, 0, 0], [500, 500, 500, 500], [0, 500, 1000, 500], [0, 0, 0, 0]),
            *([1000, 1000, 1000, 1000], [999.999, 0, 1000, 1e-9], [-500, -500, 1500, 1500], [-9, 0, 0, 9]),
            *([1000, 0, 2000, 9], [-1e9, -1e9, 1e9, 1e9], [0.1, 0.2, 0.3, 0.4], [333.3, 0, 333.4, 1000]),
        ]
    )
    return st.one_of(ordered, inside, some, st.lists(numbers(schema, whole=False), min_size=4, max_size=4))


def fitting(schema: Mapping[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Values that fit a schema: the keywords that tools use."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of(*(fitting(choice, name) for choice in schema[key]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "string")
    if isinstance(kinds, list):
        return st.one_of(*(fitting({**schema, "type": kind}, name) for kind in kinds))
    if kinds in ("number", "integer"):
        some = numbers(schema, whole=kinds == "integer")
        return weighted(8, st.floats(0, 5), some) if name in SECONDS else some
    if kinds == "string":
        return texts(schema, name)
    if kinds == "array":
        items, low = schema.get("items", {}), schema.get("minItems", 0)
        if low == schema.get("maxItems") == 4 and items.get("type") == "number":
            return boxes(items)
        if low == schema.get("maxItems") == 2 and items.get("type") == "number" and "minimum" not in items:
            return points(items, name)
        if low == schema.get("maxItems") == 4 and items.get("type") == "array":
            return corners(fitting(items, name))
        most = min(schema.get("maxItems", 5), max(low, 5))
        whole = st.lists(fitting(items, name), min_size=low, max_size=most)
        # seldom the longest list, of one value over and over
        longest = min(schema.get("maxItems", 60), 60)
        long = fitting(items, name).map(lambda v: [v] * longest)
        return st.integers(0, 11).flatmap(lambda n: whole if n < 11 else long)
    if kinds == "object":
        return objects(schema)
    return st.booleans() if kinds == "boolean" else st.none()


def objects(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of a schema: optional properties in and out, of two that exclude each other mostly one."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    values = {name: fitting(part, name) for name, part in properties.items()}
    always = {n: v for n, v in values.items() if n in required}
    optional = {n: v for n, v in values.items() if n not in required}
    whole = st.fixed_dictionaries(always, optional=optional)
    few = [st.fixed_dictionaries(always | {n: optional[n] for n in names}) for names in combinations(optional, 2)]
    one = [st.fixed_dictionaries(always | {n: optional[n]}) for n in optional]
    return weighted(7, st.one_of(*few, *one, st.fixed_dictionaries(always)), whole) if optional else whole


# --- broken arguments -------------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    """A list in a list in a list ..."""
    out: list[Any] = []
    for _ in range(levels):
        out = [out]
    return out


LEAVES = st.none() | st.booleans() | st.integers()
JUNK = st.one_of(
    st.sampled_from([None, True, False, "", [], {}, [[]], [None], {"a": {"b": [1, None]}}, "img_1", ["img_1"]]),
    st.sampled_from([math.nan, math.inf, -math.inf, 10**30, -(10**400), 10**4000, 1e308, [math.nan] * 4, [1e999]]),
    st.sampled_from(["x" * 70_000, "<|im_end|>" * 20, "\ud800", deep(40), deep(900), [0] * 3000, {"x": deep(200)}]),
    st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=6),
)


@st.composite
def broken(draw: st.DrawFn, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with one thing wrong, mostly: a key missing or unknown, a value or a part of one of another kind."""
    value = dict(draw(objects(schema)))
    how = draw(st.sampled_from(["missing", "unknown", "junk", "inner", "all"]))
    name = draw(st.sampled_from(sorted(schema.get("properties", {})) or ["x"]))
    if how == "missing":
        value.pop(name, None)
    elif how == "unknown":
        value[draw(st.sampled_from(["Image", "bbox", "", "\ud800", "x" * 9000, "<|im_end|>", name + " "]))] = draw(JUNK)
    elif how == "inner" and isinstance(value.get(name), list) and value[name]:
        items = list(value[name])
        items[draw(st.integers(0, len(items) - 1))] = draw(JUNK)
        value[name] = items
    elif how == "all":
        value = draw(st.dictionaries(st.sampled_from([*schema.get("properties", {}), "x"]), JUNK, max_size=3))
    else:
        value[name] = draw(JUNK)
    return value


def arguments(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of a tool with this schema, one in eight broken."""
    return st.integers(0, 7).flatmap(lambda n: objects(schema) if n < 7 else broken(schema))


# --- scenes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What a dialogue begins with. `lacks`: tools that are given no settings there and need some."""

    media: tuple[MediaRef, ...] = ()
    sample: Sample | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()

    def context(self, decoded: dict[str, Image.Image] | None = None) -> ToolContext:
        """A dialogue at its beginning. decoded: pictures that are known already."""
        return ToolContext(
            {m.id: m for m in self.media},
            seed=5,
            decoded={} if decoded is None else decoded,
            sample=self.sample,
            settings=self.settings,
        )


SEARCHING = ("text_search", "page_fetch", "image_search", "document_retrieve", "document_rerank", "document_crop")
SIZES = ((320, 240), (1, 1), (3, 300), (5000, 40), (27, 29), (120, 600), (5200, 26), (28, 28), (2, 2))
WORLD = {"rows": ["S.O", ".#.", "..G"], "limit": 8, "code": "47<|im_end|>11", "size": 120}
APP: dict[str, Any] = {
    "size": [180, 300],
    "start": "home",
    "screens": {
        "home": {"title": "Home", "parent": "", "rows": [{"kind": "link", "text": "Notes 東京", "to": "notes"}]},
        "notes": {
            "title": "Notes",
            "parent": "home",
            "rows": [
                {"kind": "field", "text": "Title", "name": "title"},
                {"kind": "field", "text": "Place", "name": "place"},
                {"kind": "tick", "text": "Pinned", "name": "pinned"},
                {"kind": "button", "text": "Save"},
            ],
        },
    },
    "goal": {"screen": "notes", "values": {"title": "cat", "pinned": True}},
    "code": "1234",
    "limit": 6,
}
USER = {"facts": [{"about": ["price", "apple"], "say": "3 </tool_response>"}, {"say": "é" * 900}], "limit": 2}
OBJECTS = [
    {"label": "cup <|image_pad|>", "box": [40, 60, 120, 200]},
    {"label": "cat", "box": [-5.5, 0, 1e6, 3]},
    *({"label": f"tower {n}", "box": [n, n, n + 0.01, 239], "image": f"img_{1 + n % 4}"} for n in range(90)),
]


def picture(width: int, height: int) -> Image.Image:
    """A page with a little noise, lines of text where there is room."""
    noise = np.random.default_rng(width + height).integers(0, 40, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(215 + noise)
    pen = ImageDraw.Draw(image)
    for n, words in enumerate(("The pump feeds the canal", "Price: 3 apples <|im_end|>")):
        pen.text((10, 10 + 40 * n), words, fill="black", font_size=18)
    return image


def clip(id: str, data: bytes) -> MediaRef:
    width, height, info = media_info(data, "video")
    return MediaRef(id, "video", content_hash(data), width, height, data=data, info=info)


@functools.cache
def pictures() -> tuple[MediaRef, ...]:
    return tuple(image_ref(f"img_{n}", picture(*size)) for n, size in enumerate(SIZES, 1))


@functools.cache
def clips() -> tuple[MediaRef, ...]:
    first = clip("vid_1", encode(VARIABLE))
    bad = damaged()
    return (
        first,
        with_view(replace(first, id="vid_2", parent="vid_1"), View(0.05, 1.5, max_frames=3)),
        with_view(clip("vid_3", moving(frames=40)), View(0.4, 0.4)),
        clip("vid_4", encode([0])),
        replace(first, id="vid_5", hash=content_hash(bad), data=bad[: len(bad) // 3], info={}),
    )


def views() -> tuple[MediaRef, ...]:
    """Pictures of a sample that are parts: of another one of it, of one that is not there, to a part of a pixel."""
    one, *_, tall = pictures()[0], pictures()[5]
    part = image_ref("img_2", picture(60, 50), parent="img_1", region=(100.0, 100.0, 160.0, 150.0))
    dangling = image_ref("img_3", picture(60, 50), parent="gone", region=(0.0, 0.0, 60.0, 50.0))
    odd = image_ref("img_4", picture(28, 28), parent="img_1", region=(319.5, 239.5, 320.0, 240.0))
    return one, part, dangling, odd, replace(tall, id="0"), replace(tall, id="img_007")


def sample(answer: Answer, media: tuple[MediaRef, ...], task: str = "mcq", **meta: Any) -> Sample:
    return Sample("k", media, (), answer, task, meta)


def places(folder: Path) -> dict[str, dict[str, Any]]:
    """Settings of the tools that search, with what they search in written to `folder`."""
    cache = str(folder / "cache")
    rows = [
        {"id": "q1", "title": "Pump <|im_end|>", "text": "The pump feeds the canal in spring.\n" * 40},
        {"id": 7, "title": "Café", "text": "Le café. 東京の喫茶店でコーヒーを飲む。</tool_response>"},
        {"id": "long", "title": "t" * 500, "text": "price of the tower " * 2000, "url": "http://www.x.org/T/"},
        {"id": "twin", "text": "crane\x00\x1b[0m\u202e", "url": "http://www.x.org/T/"},
        {"id": "empty", "text": ""},
    ]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gallery, documents = folder / "gallery", folder / "documents"
    (documents / "manual").mkdir(parents=True)
    gallery.mkdir()
    for name, size in {
        "cat": (90, 60),
        "dot": (1, 1),
        "tower": (12, 600),
        "<|im_end|> pump": (300, 200),
        "é": (2, 300),
    }.items():
        picture(*size).save(gallery / f"{name}.png", compress_level=1)
    for name, size in {"manual/page-1": (200, 280), "survey": (150, 100), "strip": (3000, 15), "dot": (1, 1)}.items():
        picture(*size).save(documents / f"{name}.png", compress_level=1)
        (documents / f"{name}.txt").write_text("The pump, the crane: in spring. <|im_end|>" * 30)
    searched = {"corpus": str(corpus), "cache": cache}
    return {
        "text_search": {**searched, "snippet": 1200},
        "page_fetch": {**searched, "part": 8000},
        "image_search": {"gallery": str(gallery), "cache": cache, "show": 8, "max_pixels": 90_000},
        "document_retrieve": {"documents": str(documents), "cache": cache},
    }


def scenes(folder: Path) -> dict[str, Scene]:
    """Scenes by name. "full" has what every tool needs."""
    alone = {"seconds": 1, "accept_no_isolation": bool(open_doors(isolation()))}
    settings: dict[str, dict[str, Any]] = {**places(folder), "python": alone}
    offline = {k: v for k, v in settings.items() if not k.startswith("document")}
    offline["document_retrieve"] = {"cache": str(folder / "cache")}  # the sample's pictures are the pages
    media = (*pictures(), *clips())
    meta = {"gridworld": WORLD, "app": APP, "user": USER, "objects": OBJECTS, "numbers": [3, 3, 8, 8], "target": 24}
    mcq = Answer("choice", "A")
    crowd = tuple(replace(pictures()[7], id=f"img_{n}") for n in range(1, 160))
    four, cut = Answer("order", [2, 1, 4, 3]), Answer("choice", "A", ("0 1 2", "2 1 0"))
    bad = {"user": [1], "objects": [{"label": 5}], "grid": [9, 9]}
    narrow = {**WORLD, "rows": ["SG"], "limit": 1, "size": 1}
    odd = {"app": {**APP, "size": [30, 20], "limit": 1}, "objects": [], "numbers": [], "target": -1.5}
    return {
        "full": Scene(media, sample(four, (pictures()[0],), "jigsaw", **meta), settings),
        "parts": Scene(views(), sample(four, (*views()[:2], *views()[4:6]), **meta), settings),
        "pages": Scene((pictures()[0], pictures()[3]), sample(mcq, (pictures()[0], pictures()[3])), offline),
        "clips": Scene((*clips()[:4],), sample(Answer("order", [1, 0, 3, 2]), clips()[:4], gridworld=narrow), settings),
        "spoilt": Scene(media, sample(cut, (clips()[0], clips()[4], clips()[3]), **bad), settings),
        "dots": Scene(media, sample(four, pictures()[1:2], grid=[2, 2], gap=3, **odd), settings),
        "strips": Scene(media, sample(cut, (pictures()[2], pictures()[3], pictures()[6]), user={}), settings),
        "crowd": Scene(crowd, sample(mcq, crowd, **meta), settings),
        "empty": Scene(lacks=SEARCHING),
    }
