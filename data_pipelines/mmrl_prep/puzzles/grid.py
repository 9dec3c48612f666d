"""Jigsaw on any grid: the tiles of a picture were shuffled on a board; which tile belongs at which place?

After Visual Jigsaw (card visual-jigsaw). Two things that would give the answer away are taken out. Neighbours on the
board do not touch and their borders are trimmed, so that edges do not simply continue. And all tiles have one size,
that of the smallest: where width or height do not divide, tiles at the low end are a pixel larger, which would tell
their place. Hence one board of equal cells, not a picture for each tile.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PIL import Image

from mmrl_prep.puzzles import orders
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import MIN_DIFFERENCE, MIN_SPREAD, TRIES, Puzzle, Unpuzzling, least_difference, spread

MIN_TILE = 8  # pixels of a side, in the source and on the board
GAP_COLOUR = (128, 128, 128)
Rectangle = tuple[int, int, int, int]


def edges(length: int, parts: int) -> list[int]:
    """The parts + 1 edges of `length` pixels cut in parts that differ by a pixel at most, larger ones first."""
    base, extra = divmod(length, parts)
    return [n * base + min(n, extra) for n in range(parts + 1)]


def tile_boxes(width: int, height: int, grid: tuple[int, int], trim: float) -> list[Rectangle]:
    """xyxy boxes of the tiles in reading order: of one size, in the middle of their parts, `trim` cut off each end."""
    rows, columns = edges(height, grid[0]), edges(width, grid[1])
    wide, high = ((e[-1] - e[-2]) for e in (columns, rows))  # the last part is the smallest
    cut_x, cut_y = int(wide * trim), int(high * trim)
    wide, high = wide - 2 * cut_x, high - 2 * cut_y
    corners = [(x + cut_x, y + cut_y) for y, _ in pairwise(rows) for x, _ in pairwise(columns)]
    return [(x, y, x + wide, y + high) for x, y in corners]


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """A board of shuffled tiles of a part of the picture, which keeps the picture's shape.

    Raises Unpuzzling: "too_small", "blank" (a tile shows nothing), "alike" (two tiles look the same).
    """
    rows, columns = options.grid
    size = _scaled(picture, options.size)
    if min(size[0] // columns, size[1] // rows, picture.width // columns, picture.height // rows) < MIN_TILE:
        raise Unpuzzling("too_small", f"{picture.width}x{picture.height} pixels: too few for {rows}x{columns} tiles")
    boxes = tile_boxes(*size, options.grid, options.trim)
    tiles, place = _tiles(picture, rng, size, boxes)
    order = orders.shuffle(len(tiles), rng)
    gap = max(2, options.size // 32)
    board = _board(orders.show(tiles, order), options.grid, gap)
    sentence = (
        f"A picture was cut into {rows} x {columns} tiles (rows x columns), and the tiles were shuffled. On this board "
        f"they are numbered from 0 to {len(tiles) - 1}, row by row from the top left. Which tile belongs at each place "
        "of the picture, row by row from the top left?"
    )
    question, answer = orders.ask(sentence, order, rng, options)
    meta = {"order": order, "grid": [rows, columns], "crop": list(place), "size": list(size), "gap": gap}
    return Puzzle((board,), question, answer, {**meta, "boxes": [list(b) for b in boxes]})


def undo(puzzle: Puzzle) -> Image.Image:
    """The picture put together by the stated answer; gray where borders were trimmed."""
    board, meta = puzzle.images[0], puzzle.meta
    restored = Image.new("RGB", tuple(meta["size"]), GAP_COLOUR)
    wide, high = _tile_size(meta["boxes"])
    for box, slot in zip(meta["boxes"], orders.stated(puzzle.answer), strict=True):
        row, column = divmod(slot, meta["grid"][1])
        x, y = column * (wide + meta["gap"]), row * (high + meta["gap"])
        restored.paste(board.crop((x, y, x + wide, y + high)), (box[0], box[1]))
    return restored


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the answer puts every tile where the picture shows it, up to `tolerance` levels on average of a tile."""
    meta, restored = puzzle.meta, undo(puzzle)
    piece = _cut(picture, tuple(meta["crop"]), tuple(meta["size"]))
    pairs = [[restored.crop(tuple(box)), piece.crop(tuple(box))] for box in meta["boxes"]]
    return orders.proves(puzzle.answer, meta["order"]) and all(least_difference(p) <= tolerance for p in pairs)


def _scaled(picture: Image.Image, size: int) -> tuple[int, int]:
    """(width, height) of the picture's shape with a longer side of `size`."""
    scale = size / max(picture.size)
    return max(1, round(picture.width * scale)), max(1, round(picture.height * scale))


def _cut(picture: Image.Image, place: Rectangle, size: tuple[int, int]) -> Image.Image:
    x, y, width, height = place
    return picture.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))


def _tiles(
    picture: Image.Image, rng: np.random.Generator, size: tuple[int, int], boxes: list[Rectangle]
) -> tuple[list[Image.Image], Rectangle]:
    """Tiles that each show something and that can be told apart, with the (x, y, width, height) they come from."""
    failure = Unpuzzling("blank", "some tile is nearly one colour wherever it is cut")
    for _ in range(TRIES):
        scale = rng.uniform(0.75, 1.0)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        x, y = int(rng.integers(picture.width - width + 1)), int(rng.integers(picture.height - height + 1))
        piece = _cut(picture, (x, y, width, height), size)
        tiles = [piece.crop(box) for box in boxes]
        if min(map(spread, tiles)) < MIN_SPREAD / 4:
            continue
        if least_difference(tiles) >= MIN_DIFFERENCE / 2:
            return tiles, (x, y, width, height)
        failure = Unpuzzling("alike", "some two tiles look the same wherever they are cut")
    raise failure


def _tile_size(boxes: list[Rectangle]) -> tuple[int, int]:
    left, top, right, bottom = boxes[0]
    return right - left, bottom - top


def _board(tiles: list[Image.Image], grid: tuple[int, int], gap: int) -> Image.Image:
    rows, columns = grid
    wide, high = tiles[0].size
    size = (columns * (wide + gap) - gap, rows * (high + gap) - gap)
    board = Image.new("RGB", size, GAP_COLOUR)
    for slot, tile in enumerate(tiles):
        row, column = divmod(slot, columns)
        board.paste(tile, (column * (wide + gap), row * (high + gap)))
    return board
