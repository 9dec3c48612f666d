"""What a maker of puzzles is, and the settings that makers read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image

from mmrl_prep.puzzles.puzzle import Puzzle

Needs = Literal["image", "video", "depth"]
Style = Literal["order", "choice"]
PIECES = range(3, 17)  # two pieces have one order beside the identity: the answer would be known without looking
DISTRACTORS = (3, 5, 7)


@dataclass(frozen=True, slots=True)
class PuzzleOptions:
    """Settings of all makers; each reads those that it needs. Raises ValueError that names the bad one."""

    size: int = 224  # pixels of the longer side of a puzzle's pictures and clips
    grid: tuple[int, int] = (2, 2)  # rows and columns of `jigsaw_grid`
    clips: int = 4  # pieces of `video_jigsaw` and `temporal_order`
    trim: float = 0.1  # share of a piece that is cut off at each of its ends, so that borders do not match
    points: int = 6  # marks of `depth_order`
    distractors: int = 3  # wrong patches of `patchfit_hard`, wrong options of the style "choice"
    style: Style = "order"  # how orders are asked for: the list of numbers, or one of several lists by its letter

    def __post_init__(self) -> None:
        rows, columns = self.grid
        problems = [
            (self.size < 16, f"size {self.size}: at least 16 pixels"),
            (min(self.grid) < 1 or rows * columns not in PIECES, f"grid {rows}x{columns}: 3 to 16 pieces"),
            (self.clips not in PIECES, f"clips {self.clips}: 3 to 16"),
            (not 0 <= self.trim <= 0.4, f"trim {self.trim}: a share from 0 to 0.4"),
            (self.points not in range(3, 10), f"points {self.points}: 3 to 9"),
            (self.distractors not in DISTRACTORS, f"distractors {self.distractors}: 3, 5 or 7"),
            (self.style not in ("order", "choice"), f"style {self.style!r}: order or choice"),
        ]
        wrong = [message for bad, message in problems if bad]
        if wrong:
            raise ValueError(f"puzzle options: {'; '.join(wrong)}")


class Check(Protocol):
    def __call__(self, puzzle: Puzzle, source: Any, tolerance: float = 0.0, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Maker:
    """One kind of puzzle.

    make: (source, rng, options) -> Puzzle, a function of these three only; raises Unpuzzling where the source allows
        none. The source is a normalised picture ("image"), the bytes or path of a clip ("video"), or a
        `mmrl_prep.puzzles.depth.DepthPicture` ("depth").
    check: (puzzle, source, tolerance=0) -> bool proves the stored answer by undoing the puzzle. `tolerance` is the mean
        difference in levels that is put down to lossy storage: 0 for a puzzle as made, about 8 for one read from JPEG.
    """

    make: Callable[[Any, np.random.Generator, PuzzleOptions], Puzzle]
    needs: Needs
    check: Check

    def __call__(self, picture: Image.Image, rng: np.random.Generator, size: int) -> Puzzle:
        """With the default settings but for the size in pixels."""
        return self.make(picture, rng, PuzzleOptions(size=size))
