"""Grid worlds that can be solved, for the tool `move`; at the goal a code is told, which is the answer."""

from __future__ import annotations

import numpy as np
from PIL import Image

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, difference
from mmrl_tools.gridworld import Grid, distances, draw_grid

SIDES = range(4, 8)  # cells
SIGNS, SHARES = (".", "O", "#"), (0.7, 0.2, 0.1)
MIN_SIZE = 64
TRIES = 200


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """A world of 4 to 7 cells a side whose goal lies at least a side away. The picture is not shown: each gives worlds
    of its own. Raises Unpuzzling "too_small"."""
    if options.size < MIN_SIZE:
        raise Unpuzzling("too_small", f"size {options.size}: a world needs {MIN_SIZE} pixels")
    grid, shortest = _world(rng)
    limit, code = 2 * shortest + 4, int(rng.integers(1000, 10000))
    world = {"rows": list(grid.rows), "limit": limit, "code": str(code), "size": options.size}
    question = (
        "The red disc stands on a grid. Bring it to the yellow diamond with the tool move. Blue holes end the walk, "
        f"brown cells are walls, and you have {limit} moves. At the goal you are told a code: answer with it."
    )
    meta = {"gridworld": world, "shortest": shortest}
    return Puzzle((draw_grid(grid, grid.start, options.size),), question, Answer("number", code), meta)


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the goal can be reached within the limit, the code is the answer, and the picture shows the start."""
    world = puzzle.meta["gridworld"]
    grid = Grid(tuple(world["rows"]))
    shortest = distances(grid).get(grid.start, 0)
    drawn = draw_grid(grid, grid.start, world["size"])
    image = puzzle.images[0]
    shown = drawn.size == image.size and difference(drawn, image) <= tolerance
    solvable = shortest == puzzle.meta["shortest"] and 0 < shortest <= world["limit"]
    return solvable and puzzle.answer.value == int(world["code"]) and shown


def _world(rng: np.random.Generator) -> tuple[Grid, int]:
    for _ in range(TRIES):
        rows, columns = (int(n) for n in rng.choice(SIDES, 2))
        cells = [str(sign) for sign in rng.choice(SIGNS, rows * columns, p=SHARES)]
        start, goal = (int(n) for n in rng.choice(rows * columns, 2, replace=False))
        cells[start], cells[goal] = "S", "G"
        grid = Grid(tuple("".join(cells[r * columns : (r + 1) * columns]) for r in range(rows)))
        shortest = distances(grid).get(grid.start, 0)
        if shortest >= min(rows, columns):
            return grid, shortest
    raise Unpuzzling("unsolvable", f"{TRIES} worlds without a way")
