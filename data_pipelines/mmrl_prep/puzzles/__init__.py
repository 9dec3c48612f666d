"""Puzzles by name. One more: a file with `make` and `check`, and a line here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from mmrl_prep.puzzles import (
    counting,
    depth,
    grid,
    gridworld,
    hard,
    jigsaw,
    measuring,
    patchfit,
    points24,
    rotation,
    scene,
    screen,
    search,
    video,
)
from mmrl_prep.puzzles.depth import DepthPicture
from mmrl_prep.puzzles.maker import Maker, PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling


def _sized(
    make: Callable[[Image.Image, np.random.Generator, int], Puzzle],
) -> Callable[[Image.Image, np.random.Generator, PuzzleOptions], Puzzle]:
    """A maker of which only the size can be set."""
    return lambda picture, rng, options: make(picture, rng, options.size)


PUZZLES: dict[str, Maker] = {
    "rotation": Maker(_sized(rotation.rotation), "image", rotation.check),
    "jigsaw": Maker(_sized(jigsaw.jigsaw), "image", jigsaw.check),
    "patchfit": Maker(_sized(patchfit.patchfit), "image", patchfit.check),
    "jigsaw_grid": Maker(grid.make, "image", grid.check),
    "patchfit_hard": Maker(hard.make, "image", hard.check),
    "scene": Maker(scene.make, "image", scene.check),
    "video_jigsaw": Maker(video.video_jigsaw, "video", video.check_video),
    "temporal_order": Maker(video.temporal_order, "video", video.check_temporal),
    "depth_order": Maker(depth.make, "depth", depth.check),
    "jigsaw_board": Maker(grid.make, "image", grid.check),
    "visual_search": Maker(search.make, "image", search.check),
    "counting": Maker(counting.make, "image", counting.check),
    "measuring": Maker(measuring.make, "image", measuring.check),
    "points24": Maker(points24.make, "image", points24.check),
    "gridworld": Maker(gridworld.make, "image", gridworld.check),
    "screen": Maker(screen.make, "image", screen.check),
}

__all__ = ["PUZZLES", "DepthPicture", "Maker", "Puzzle", "PuzzleOptions", "Unpuzzling"]
