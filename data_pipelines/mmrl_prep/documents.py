"""Document pages with known text and binary tests for their transcription (olmOCR 2, card olmocr2-unit-test-reward).

Pages are drawn with the font that PIL carries, from words written for this file. A transcription is Markdown: `#` and
`##` for title and headings, tables with `|`; HTML tables are read as well. Headers and footers do not belong in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl.rewards.unit_tests import SIDES
from mmrl.types import Answer
from mmrl_prep.puzzles.puzzle import Unpuzzling

QUESTION = "Write down the text of this page as Markdown, tables included, without the page header and the page footer."
MIN_SIZE = (400, 560)  # (width, height) in pixels of the smallest page that a title, a text and a table fit on
INK, FAINT, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words("amber brisk calm dry early faint gentle hollow level narrow open patient quiet rapid steady")
NOUNS = _words(
    "bridge canal garden harbour kiln lantern market meadow mill orchard pump quay river signal station tower valley "
    "wharf winter workshop"
)
VERBS = _words("carries covers feeds follows guards joins lights measures meets passes reaches serves supplies")
TIMES = ("after the rain", "at first light", "before noon", "in the third week", "since the survey", "until evening")
TOPICS = ("Annual Survey", "Field Notes", "Inspection Report", "Local Records", "Progress Review", "Trade Summary")
MEASURES = ("Length", "Width", "Cost", "Visits", "Repairs", "Depth", "Staff", "Output")
Test = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page: `kind` title, heading, paragraph or table; `rows` are those of a table, the first its head."""

    kind: str
    sentences: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    @property
    def markdown(self) -> str:
        if self.kind == "table":
            lines = [f"| {' | '.join(row)} |" for row in self.rows]
            return "\n".join([lines[0], "|" + " --- |" * len(self.rows[0]), *lines[1:]])
        return {"title": "# ", "heading": "## "}.get(self.kind, "") + " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Document:
    """A page, its true transcription, and tests for one (see `mmrl.rewards.unit_tests`)."""

    image: Image.Image
    text: str
    header: str
    footer: str
    tests: tuple[Test, ...]

    @property
    def answer(self) -> Answer:
        """As shards hold it: kind "tests"."""
        return Answer("tests", [dict(test) for test in self.tests])


def make_document(rng: np.random.Generator, size: tuple[int, int] = (640, 896)) -> Document:
    """A page of `size` (width, height) pixels: header, title, paragraphs under headings, one table, footer.

    Same generator state, same page. Raises Unpuzzling "too_small".
    """
    if size[0] < MIN_SIZE[0] or size[1] < MIN_SIZE[1]:
        raise Unpuzzling("too_small", f"{size[0]}x{size[1]} pixels: a page has at least {MIN_SIZE[0]}x{MIN_SIZE[1]}")
    pages = int(rng.integers(3, 40))
    header = f"{_pick(TOPICS, rng)} {rng.integers(1900, 2030)}"
    footer = f"Page {rng.integers(1, pages + 1)} of {pages}"
    blocks = _blocks(rng)
    image, shown = _draw(blocks, header, footer, size)
    text = "\n\n".join(block.markdown for block in shown)
    return Document(image, text, header, footer, tuple(_tests(shown, header, footer, rng)))


def _pick(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def _sentence(rng: np.random.Generator, used: set[str]) -> str:
    """A sentence that is not on the page yet, so that tests of it are clear."""
    while True:
        one, other = (_pick(NOUNS, rng) for _ in range(2))
        told = f"The {_pick(ADJECTIVES, rng)} {one} {_pick(VERBS, rng)} {rng.integers(2, 100)} {other}s"
        sentence = f"{told} {_pick(TIMES, rng)}."
        if sentence not in used:
            used.add(sentence)
            return sentence


def _blocks(rng: np.random.Generator) -> list[Block]:
    """Title and table always, and more paragraphs than a page may hold; the rest is left out when drawing."""
    used: set[str] = set()
    nouns = [NOUNS[n] for n in rng.permutation(len(NOUNS))]

    def paragraph() -> Block:
        return Block("paragraph", tuple(_sentence(rng, used) for _ in range(rng.integers(2, 5))))

    columns = [MEASURES[n] for n in rng.choice(len(MEASURES), int(rng.integers(2, 4)), replace=False)]
    names = [noun.capitalize() for noun in nouns[: rng.integers(3, 6)]]
    # all numbers of the table differ, so that a cell is found by its text
    numbers = iter(rng.choice(np.arange(100, 10_000), len(names) * len(columns), replace=False).tolist())
    rows = [("Place", *columns), *((name, *(str(next(numbers)) for _ in columns)) for name in names)]
    title = Block("title", (f"The {nouns[6].capitalize()} and the {nouns[7].capitalize()}",))
    blocks = [title, paragraph(), Block("table", rows=tuple(rows))]
    for noun in nouns[8:11]:
        blocks += [Block("heading", (f"On the {noun.capitalize()}",)), paragraph(), paragraph()]
    return blocks


def _draw(blocks: Sequence[Block], header: str, footer: str, size: tuple[int, int]) -> tuple[Image.Image, list[Block]]:
    """The page and the blocks that found room on it."""
    width, height = size
    margin, body = width // 12, max(12, min(width // 44, height // 60))  # title, text and table always fit
    page = Image.new("RGB", size, PAPER)
    draw, small = ImageDraw.Draw(page), ImageFont.load_default(size=max(10, round(body * 0.8)))
    draw.text((width - margin, margin // 2), header, FAINT, small, "ra")
    draw.text((width // 2, height - margin // 2), footer, FAINT, small, "ms")
    y, bottom, shown = margin + body, height - margin - body, []
    for number, block in enumerate(blocks):
        below = _height(draw, block, body, width - 2 * margin)
        following = blocks[number + 1] if block.kind == "heading" else None  # a heading never ends a page
        if y + below + (_height(draw, following, body, width - 2 * margin) if following else 0) > bottom:
            break
        _draw_block(draw, block, (margin, y), body, width - 2 * margin)
        y += below
        shown.append(block)
    return page, shown


def _font(block: Block, body: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=round(body * {"title": 1.8, "heading": 1.3}.get(block.kind, 1.0)))


def _lines(draw: ImageDraw.ImageDraw, block: Block, body: int, width: int) -> list[str]:
    """The words of a block broken in lines that are no wider than `width`."""
    font, lines = _font(block, body), [""]
    for word in " ".join(block.sentences).split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pitch(block: Block, body: int) -> int:
    """Distance of lines, or height of a table's row, in pixels."""
    return round(body * {"title": 2.3, "heading": 1.7, "table": 1.9}.get(block.kind, 1.45))


def _height(draw: ImageDraw.ImageDraw, block: Block, body: int, width: int) -> int:
    count = len(block.rows) if block.kind == "table" else len(_lines(draw, block, body, width))
    return count * _pitch(block, body) + (body if block.kind in ("table", "paragraph") else body // 3)


def _draw_block(draw: ImageDraw.ImageDraw, block: Block, corner: tuple[int, int], body: int, width: int) -> None:
    (left, top), pitch, font = corner, _pitch(block, body), _font(block, body)
    if block.kind != "table":
        for number, line in enumerate(_lines(draw, block, body, width)):
            draw.text((left, top + number * pitch), line, INK, font)
        return
    wide = width // len(block.rows[0])
    for row, cells in enumerate(block.rows):
        for column, cell in enumerate(cells):
            x, y = left + column * wide, top + row * pitch
            draw.rectangle((x, y, x + wide, y + pitch), outline=INK)
            draw.text((x + body // 2, y + pitch // 2), cell, INK, font, "lm")


def _tests(blocks: Sequence[Block], header: str, footer: str, rng: np.random.Generator) -> list[Test]:
    """Two tests that the header and the footer are absent, and more of what an empty transcription fails."""
    sentences = [s for block in blocks if block.kind == "paragraph" for s in block.sentences]
    tests: list[Test] = [{"type": "absent", "text": header}, {"type": "absent", "text": footer}]
    titles = [block.sentences[0] for block in blocks if block.kind in ("title", "heading")]
    picked = [sentences[n] for n in sorted(rng.choice(len(sentences), min(3, len(sentences)), replace=False).tolist())]
    tests += [{"type": "present", "text": text} for text in (*titles, *picked)]
    parts = [part for block in blocks for part in (block.sentences if block.kind != "table" else ())]
    for _ in range(3):
        first, second = sorted(rng.choice(len(parts), 2, replace=False).tolist())
        tests.append({"type": "order", "before": parts[first], "after": parts[second]})
    (rows,) = [block.rows for block in blocks if block.kind == "table"]
    for _ in range(3):
        row, column = int(rng.integers(1, len(rows))), int(rng.integers(1, len(rows[0])))
        test: Test = {"type": "table", "cell": rows[row][column], "head": rows[0][column], "first": rows[row][0]}
        side = list(SIDES)[int(rng.integers(len(SIDES)))]
        r, c = row + SIDES[side][0], column + SIDES[side][1]
        if 0 <= r < len(rows) and 0 <= c < len(rows[0]):
            test[side] = rows[r][c]
        tests.append(test)
    return tests
