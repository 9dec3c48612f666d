"""Small apps for the tools `tap`, `type` and `back`: fill in one page; the code that it then shows is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, difference
from mmrl_tools.screens import actions_left, begin, draw_screen

SECTIONS = ("Mail", "Notes", "Clock", "Music", "Maps", "Photos", "Files", "Phone")
PAGES = ("Work", "Home", "School", "Travel", "Family", "Sport")
FIELDS = ("Title", "Name", "Place", "Time")
TICKS = ("Pinned", "Private", "Shared", "Sound")
BUTTONS = ("Save", "Send", "Add")
WORDS = ("milk", "train", "garden", "piano", "lunch", "river", "noon", "paper", "sugar", "ticket", "lamp", "bread")
MIN_SIZE = 160  # pixels of height: smaller text cannot be read


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """An app of sections with pages; one or two fields to fill in and ticks to set on one page. The picture is not
    shown: each gives apps of its own. Raises Unpuzzling "too_small"."""
    if options.size < MIN_SIZE:
        raise Unpuzzling("too_small", f"size {options.size}: a screen needs {MIN_SIZE} pixels")
    sections = _some(SECTIONS, 4, rng)
    screens: dict[str, Any] = {
        "home": {"title": "Home", "parent": "", "rows": [_link(s, s) for s in sections]},
    }
    for section in sections:
        pages = _some(PAGES, 3, rng)
        rows = [_link(p, f"{section}/{p}") for p in pages]
        screens[section] = {"title": section, "parent": "home", "rows": rows}
        for page in pages:
            screens[f"{section}/{page}"] = _page(section, page, rng)
    at = str(rng.choice(sorted(name for name in screens if "/" in name)))
    rows = screens[at]["rows"]
    fields, ticks = ([r for r in rows if r["kind"] == kind] for kind in ("field", "tick"))
    chosen = [fields[n] for n in sorted(rng.choice(len(fields), int(rng.integers(1, 3)), replace=False))]
    words = _some(WORDS, len(chosen), rng)
    values: dict[str, Any] = {row["name"]: word for row, word in zip(chosen, words, strict=True)}
    on = [row for row in ticks if rng.random() < 0.5]
    values |= {row["name"]: True for row in on}
    code = int(rng.integers(1000, 10000))
    app: dict[str, Any] = {
        "size": [round(options.size * 0.6), options.size],
        "start": "home",
        "screens": screens,
        "goal": {"screen": at, "values": values},
        "code": str(code),
    }
    shortest = actions_left(app, begin(app))
    app["limit"] = 2 * (shortest or 0) + 4
    parts = [f'write "{values[row["name"]]}" in the field {row["text"]}' for row in chosen]
    parts += [f"switch on {row['text']}" for row in on]
    section, page = at.split("/")
    question = (
        f"This is the screen of an app. On the page {page} of {section}, {', '.join(parts)}, and leave the rest as it "
        f"is. Then press {rows[-1]['text']}: a code appears. Answer with this code. You have {app['limit']} actions."
    )
    image = draw_screen(app, begin(app))
    return Puzzle((image,), question, Answer("number", code), {"app": app, "shortest": shortest})


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the goal can be reached within the limit, the code is the answer, and the picture shows the start."""
    app = puzzle.meta["app"]
    shortest = actions_left(app, begin(app))
    solvable = shortest is not None and shortest == puzzle.meta["shortest"] and shortest <= app["limit"]
    drawn, image = draw_screen(app, begin(app)), puzzle.images[0]
    shown = drawn.size == image.size and difference(drawn, image) <= tolerance
    return solvable and puzzle.answer.value == int(app["code"]) and shown


def _page(section: str, page: str, rng: np.random.Generator) -> dict[str, Any]:
    """Two fields and one or two ticks in random order, then a button."""
    names = [("field", f) for f in _some(FIELDS, 2, rng)]
    names += [("tick", t) for t in _some(TICKS, int(rng.integers(1, 3)), rng)]
    rows: list[dict[str, str]] = [
        {"kind": kind, "text": text, "name": f"{section}/{page}/{text}"}
        for kind, text in (names[n] for n in rng.permutation(len(names)))
    ]
    button = {"kind": "button", "text": BUTTONS[int(rng.integers(len(BUTTONS)))]}
    return {"title": page, "parent": section, "rows": [*rows, button]}


def _link(text: str, to: str) -> dict[str, str]:
    return {"kind": "link", "text": text, "to": to}


def _some(names: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [names[int(n)] for n in rng.permutation(len(names))[:count]]
