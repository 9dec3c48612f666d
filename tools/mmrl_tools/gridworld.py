"""A grid world: ice to walk on, holes to fall into, walls, one goal (after the frozen lake of Gymnasium, not slippery).

A world is plain rows of text: `S` start, `.` ice, `#` wall, `O` hole, `G` goal. Places are (row, column) from 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
COLOURS = {".": (222, 236, 246), "S": (222, 236, 246), "#": (92, 82, 76), "O": (222, 236, 246), "G": (222, 236, 246)}
WATER, GOLD, LINE, PLAYER = (24, 60, 120), (240, 190, 30), (140, 160, 175), (214, 40, 40)

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Grid:
    """A world and what it asks. Raises ValueError for rows that are none."""

    rows: tuple[str, ...]

    def __post_init__(self) -> None:
        text = "".join(self.rows)
        if not self.rows or len({len(r) for r in self.rows}) > 1 or set(text) - set(COLOURS):
            raise ValueError(f"grid {list(self.rows)}: rows of one length out of {' '.join(COLOURS)}")
        if text.count("S") != 1 or text.count("G") != 1:
            raise ValueError(f"grid {list(self.rows)}: one S and one G are needed")

    @property
    def start(self) -> Place:
        return self.find("S")

    @property
    def goal(self) -> Place:
        return self.find("G")

    def find(self, sign: str) -> Place:
        return next((r, row.index(sign)) for r, row in enumerate(self.rows) if sign in row)

    def at(self, place: Place) -> str:
        """The sign at a place; what lies outside is wall."""
        row, column = place
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        return self.rows[row][column] if inside else "#"

    def step(self, place: Place, move: str) -> Place:
        """Where a move leads; a wall stops it."""
        down, right = MOVES[move]
        to = (place[0] + down, place[1] + right)
        return place if self.at(to) == "#" else to


def distances(grid: Grid) -> dict[Place, int]:
    """Fewest moves to the goal from every place from which it can be reached without falling into a hole."""
    found = {grid.goal: 0}
    queue = deque([grid.goal])
    while queue:
        place = queue.popleft()
        for down, right in MOVES.values():
            before = (place[0] - down, place[1] - right)
            if grid.at(before) not in "#O" and before not in found:
                found[before] = found[place] + 1
                queue.append(before)
    return found


def draw_grid(grid: Grid, place: Place, size: int) -> Image.Image:
    """The world with the walker (a red disc) at a place; the longer side has about `size` pixels, cells are whole."""
    height, width = len(grid.rows), len(grid.rows[0])
    cell = max(8, size // max(height, width))
    image = Image.new("RGB", (width * cell, height * cell), LINE)
    draw = ImageDraw.Draw(image)
    for row, signs in enumerate(grid.rows):
        for column, sign in enumerate(signs):
            x, y = column * cell, row * cell
            draw.rectangle((x + 1, y + 1, x + cell - 2, y + cell - 2), fill=COLOURS[sign])
            if sign == "O":
                draw.ellipse(_inside(x, y, cell, 0.1), fill=WATER)
            elif sign == "G":
                left, top, right, bottom = _inside(x, y, cell, 0.15)
                middle = ((left + right) // 2, (top + bottom) // 2)
                draw.polygon([(middle[0], top), (right, middle[1]), (middle[0], bottom), (left, middle[1])], fill=GOLD)
    draw.ellipse(_inside(place[1] * cell, place[0] * cell, cell, 0.28), fill=PLAYER)
    return image


def _inside(x: int, y: int, cell: int, margin: float) -> tuple[int, int, int, int]:
    off = round(cell * margin)
    return x + off, y + off, x + cell - 1 - off, y + cell - 1 - off


def walk(grid: Grid, place: Place, moves: Sequence[str]) -> list[Place]:
    """The places after each move; a hole and the goal end the walk."""
    places = []
    for move in moves:
        place = grid.step(place, move)
        places.append(place)
        if grid.at(place) in "OG":
            break
    return places
