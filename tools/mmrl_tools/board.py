"""board: the pieces of a puzzle to be moved about before the order is given as an answer.

Pieces are those that mmrl-prep shuffles (`jigsaw`, `jigsaw_grid`, `temporal_order`, `video_jigsaw`): the cells of one
picture, several pictures, or several clips, of which the board shows the frame in the middle. Their numbers, and the
way in which a list of them is written, are those of the task's answer. The board begins as the task shows the pieces,
and its order, read off place by place, is what an answer states. It does not know which order is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmrl.images import MediaError
from mmrl.media import load_times, timeline_of
from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import Answer, Fault, FaultKind, MediaRef, Sample, ToolResult
from mmrl_tools import options
from mmrl_tools.geometry import Size, fitted, max_pixels

BOARD_PIXELS = 1_048_576  # of the picture of a board, by default
COLUMNS = 4  # of a board of pieces that lie in a row
LINES = (128, 128, 128)  # colour of the grid, and around pieces of another shape
LONGEST = 6  # times a cell's shorter side is its longer one at most, so that whole boards stay within 100 to 1
LEAST_NUMBERED = 40  # pixels of a piece's shorter side under which a number would hide too much of it
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a sample's pieces are: `count` of them in a grid (rows, columns), numbered from `first`; `between` stands
    between the numbers of an order; `gap` pixels lie between the cells of one picture that holds all pieces."""

    count: int
    grid: tuple[int, int]
    first: int
    between: str
    media: tuple[MediaRef, ...]
    gap: int = 0

    def text(self, order: Sequence[int]) -> str:
        return self.between.join(str(n) for n in order)


@register(
    "tool",
    "board",
    schema=schema(
        "Move the puzzle's pieces on a board and see it. swap: piece and other; place: piece to place (what lay there "
        "goes where it came from); show; reset. Places are numbered like pieces, row by row",
        {
            "action": {"type": "string", "enum": ["show", "swap", "place", "reset"]},
            "piece": _NUMBER,
            "other": _NUMBER,
            "place": _NUMBER,
        },
        ["action"],
    ),
    limits=Limits(seconds=30, text=600, media=1),
    stateful=True,
    paper="Visual Jigsaw",
)
def board(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The board after an action, as a picture and as the list of pieces place by place.

    `rollout.tool_options.board`: `max_pixels` of the picture (default 1,048,576).

    `data`: `order`, the numbers of the pieces place by place, and `grid` (rows, columns).

    Errors: bad_arguments (an argument that the action needs is missing or is not for it), unknown_piece,
    unknown_place. A sample without pieces is a fault of the task (no_puzzle), as are media that cannot be read.
    """
    options.check_options(context, ("max_pixels",))
    most = max_pixels(context, BOARD_PIXELS)
    try:
        layout = layout_of(context.sample)
        start = list(range(layout.first, layout.first + layout.count))
        order = list(context.state.get("board", {}).get("order", start))
        order = moved(order, layout.first, arguments)
        pieces = _pieces(layout, context)
    except NoPuzzle as error:
        fault = Fault(FaultKind.TASK, "no_puzzle", str(error))
        return ToolResult("Error: this task has no pieces for a board", fault=fault)
    except MediaError as error:
        fault = Fault(FaultKind.TASK, error.code, str(error))
        return ToolResult(f"Error: the pieces cannot be read: {error.code}", fault=fault)
    context.state["board"] = {"order": order}
    shown = [pieces[n - layout.first] for n in order]
    new = context.add(fitted(draw_board(shown, layout.grid, order, most), most))
    rows, columns = layout.grid
    text = f"{new.id}: board of {rows}x{columns} places (rows x columns), pieces row by row: {layout.text(order)}"
    return ToolResult(text, (new,), data={"order": order, "grid": [rows, columns]})


class NoPuzzle(ValueError):
    """A sample whose pieces are not known; the message says why."""


def moved(order: Sequence[int], first: int, arguments: Mapping[str, Any]) -> list[int]:
    """The order (piece at each place) after an action; pieces and places are numbered from `first`.

    Raises ToolError bad_arguments, unknown_piece, unknown_place.
    """
    action = arguments["action"]
    needs = {"swap": {"piece", "other"}, "place": {"piece", "place"}}.get(action, set())
    given = set(arguments) - {"action"}
    if given != needs:
        takes = f"takes {' and '.join(sorted(needs, reverse=action == 'swap'))}" if needs else "takes nothing else"
        raise ToolError("bad_arguments", f"action {action} {takes}, got {', '.join(sorted(given)) or 'nothing'}")
    last = first + len(order) - 1
    for name in sorted(needs):
        if not first <= arguments[name] <= last:
            code = "unknown_place" if name == "place" else "unknown_piece"
            raise ToolError(code, f"{name} {arguments[name]} is not there: they are numbered from {first} to {last}")
    if action == "reset":
        return sorted(order)
    out = list(order)
    if action != "show":
        one = out.index(arguments["piece"])
        other = out.index(arguments["other"]) if action == "swap" else arguments["place"] - first
        out[one], out[other] = out[other], out[one]
    return out


def layout_of(sample: Sample | None) -> Layout:
    """How the pieces of a sample lie and are numbered, from its media, `grid` and `gap` of its meta, and the form (not
    the order) of its answer. Raises NoPuzzle."""
    if sample is None:
        raise NoPuzzle("there is no sample")
    numbers, between = _form(sample.answer)
    count, first = len(numbers), min(numbers, default=0)
    if count < 2 or sorted(numbers) != list(range(first, first + count)):
        raise NoPuzzle(f"sample {sample.key}: its answer is not an order of pieces")
    kind = "video" if any(m.kind == "video" for m in sample.media) else "image"
    media = tuple(m for m in sample.media if m.kind == kind)
    grid = sample.meta.get("grid")
    if grid is None and len(media) == count:
        columns = min(COLUMNS, count)
        grid = (math.ceil(count / columns), columns)
    elif grid is None and len(media) == 1 and kind == "image" and sample.task == "jigsaw" and count == 4:
        grid = (2, 2)
    if grid is None or len(media) not in (1, count) or (len(media) == 1 and kind == "video"):
        raise NoPuzzle(f"sample {sample.key}: {len(media)} media and an order of {count} without meta.grid")
    rows, columns = (int(n) for n in grid)
    if (rows * columns != count) if len(media) == 1 else (rows * columns < count):
        raise NoPuzzle(f"sample {sample.key}: meta.grid is {rows}x{columns} for {count} pieces")
    return Layout(count, (rows, columns), first, between, media, int(sample.meta.get("gap", 0)))


def cells(size: Size, grid: tuple[int, int], gap: int) -> list[tuple[int, int, int, int]]:
    """Boxes xyxy of the equal cells of a picture of shuffled pieces, row by row, with `gap` pixels between them."""
    rows, columns = grid
    wide, high = (size[0] + gap) // columns - gap, (size[1] + gap) // rows - gap
    if wide < 1 or high < 1:
        raise NoPuzzle(f"{size[0]}x{size[1]} pixels are too few for {rows}x{columns} cells with gaps of {gap}")
    corners = [(c * (wide + gap), r * (high + gap)) for r in range(rows) for c in range(columns)]
    return [(x, y, x + wide, y + high) for x, y in corners]


def draw_board(pieces: Sequence[Image.Image], grid: tuple[int, int], numbers: Sequence[int], most: int) -> Image.Image:
    """Pieces row by row with lines between and around them, each with its number in the corner where it is large
    enough; cells of `most` pixels at most in all. Pieces of other shapes than the first keep theirs."""
    rows, columns = grid
    wide, high = pieces[0].size
    wide, high = max(wide, high // LONGEST), max(high, wide // LONGEST)
    scale = min(1.0, math.sqrt(most / (wide * high * rows * columns)))
    wide, high = max(1, math.floor(wide * scale)), max(1, math.floor(high * scale))
    line = max(2, min(wide, high) // 48)
    out = Image.new("RGB", (columns * (wide + line) + line, rows * (high + line) + line), LINES)
    pen = ImageDraw.Draw(out)
    for place, (piece, number) in enumerate(zip(pieces, numbers, strict=True)):
        row, column = divmod(place, columns)
        x, y = line + column * (wide + line), line + row * (high + line)
        inner = _within(piece, (wide, high))
        out.paste(inner, (x + (wide - inner.width) // 2, y + (high - inner.height) // 2))
        if min(wide, high) >= LEAST_NUMBERED:
            _number(pen, number, (x, y), min(wide, high))
    return out


def _within(piece: Image.Image, size: Size) -> Image.Image:
    """The piece scaled to the largest size of its shape within `size`."""
    if piece.size == size:
        return piece
    scale = min(size[0] / piece.width, size[1] / piece.height)
    wide, high = (min(max(1, round(side * scale)), most) for side, most in zip(piece.size, size, strict=True))
    return piece.resize((wide, high), Image.Resampling.BICUBIC)


def _number(pen: ImageDraw.ImageDraw, number: int, at: tuple[int, int], side: int) -> None:
    font = ImageFont.load_default(size=max(10, side // 8))
    left, top, right, bottom = pen.textbbox((0, 0), str(number), font=font)
    (x, y), edge = at, 2
    pen.rectangle((x, y, x + right - left + 2 * edge, y + bottom - top + 2 * edge), fill="white")
    pen.text((x + edge - left, y + edge - top), str(number), fill="black", font=font)


def _pieces(layout: Layout, context: ToolContext) -> list[Image.Image]:
    """The pieces in the order of their numbers. Raises MediaError."""
    if layout.media[0].kind == "video":
        return [_middle(ref) for ref in layout.media]
    pictures = [context.load(ref) for ref in layout.media]
    if len(pictures) == 1:
        return [pictures[0].crop(box) for box in cells(pictures[0].size, layout.grid, layout.gap)]
    return pictures


def _middle(ref: MediaRef) -> Image.Image:
    """The frame in the middle of a clip."""
    frames = load_times(ref, [float(timeline_of(ref).duration) / 2]).frames
    return Image.fromarray(frames[0])


def _form(answer: Answer) -> tuple[list[int], str]:
    """The numbers of an answer that is an order, and what stands between them; none for other answers. Of options all
    orders hold the same numbers, so the first one tells them as well as the right one."""
    if answer.kind == "order" and isinstance(answer.value, list | tuple):
        return [int(n) for n in answer.value], ", "
    option = answer.options[0] if answer.kind == "choice" and answer.options else ""
    if not re.fullmatch(r"\d{1,2}((, ?| )\d{1,2})+", option):
        return [], ", "
    return [int(n) for n in re.findall(r"\d+", option)], re.findall(r"\D+", option)[0]
