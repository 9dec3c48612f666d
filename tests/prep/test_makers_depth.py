"""Depth order: marks stand on places of clearly different depth, in a real picture too."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl_prep.puzzles import PUZZLES, DepthPicture, PuzzleOptions, Unpuzzling, depth, orders
from mmrl_prep.rng import generator

from .conftest import scene

MAKER = PUZZLES["depth_order"]


def ramp(width: int = 240, height: int = 180) -> DepthPicture:
    """Depth grows in steps from left to right; a band of it is unknown."""
    levels = np.repeat(1.3 ** np.arange(8), width // 8)
    distances = np.tile(levels, (height, 1))
    distances[80:100] = 0
    return DepthPicture(scene(3, width, height), distances)


@pytest.mark.parametrize("points", [3, 4, 6])
def test_answer_goes_from_near_to_far(points: int) -> None:
    source = ramp()
    for number in range(10):
        options = PuzzleOptions(points=points, style="choice" if number % 2 else "order")
        one, two = (MAKER.make(source, generator(0, str(number)), options) for _ in range(2))
        assert one.images[0].tobytes() == two.images[0].tobytes()
        assert (one.question, one.answer, one.meta) == (two.question, two.answer, two.meta)
        assert MAKER.check(one, source, 0.0)
        assert json.loads(json.dumps(one.meta)) == one.meta
        found = depth.undo(one)
        assert all(far >= near * 1.0999 for near, far in pairwise(found))
        assert one.meta["order"] != sorted(one.meta["order"])
        wrong = replace(one, answer=replace(one.answer, kind="order", value=one.meta["order"][::-1], options=()))
        assert wrong.answer.value == orders.inverse(one.meta["order"]) or not MAKER.check(wrong, source, 8.0)
        for _, y in one.meta["marks"]:
            assert not 80 <= (y + 0.5) * 180 / one.meta["size"][1] < 100  # nothing is known there
    assert not MAKER.check(one, DepthPicture(source.picture, source.depth[:, ::-1]), 8.0)
    assert not MAKER.check(one, DepthPicture(scene(4, 240, 180), source.depth), 8.0)


def test_every_mark_is_nearest_and_farthest_at_times() -> None:
    source = ramp(96, 72)
    made = [MAKER.make(source, generator(0, str(n)), PuzzleOptions(size=96, points=3)) for n in range(60)]
    assert len(Counter((k, mark) for p in made for k, mark in enumerate(p.answer.value))) == 9


def test_marks_do_not_overlap() -> None:
    puzzle = MAKER.make(ramp(), generator(0, "x"), PuzzleOptions(points=6))
    marks, radius = puzzle.meta["marks"], puzzle.meta["radius"]
    gaps = [np.hypot(a[0] - b[0], a[1] - b[1]) for n, a in enumerate(marks) for b in marks[:n]]
    assert min(gaps) > 3 * radius
    assert all(radius <= x < puzzle.images[0].width - radius for x, _ in marks)


def test_sources_that_allow_no_puzzle_say_why() -> None:
    picture = scene(0, 240, 180)
    cases = {
        "no_depth": np.zeros((180, 240)),
        "flat_depth": np.full((180, 240), 5.0),
    }
    for code, distances in cases.items():
        with pytest.raises(Unpuzzling) as error:
            MAKER.make(DepthPicture(picture, distances), generator(0, "x"), PuzzleOptions())
        assert error.value.code == code
    noise = np.random.default_rng(0).uniform(1, 9, (180, 240))
    noise[::3] = np.nan
    with pytest.raises(Unpuzzling, match="no_depth"):
        MAKER.make(DepthPicture(picture, noise), generator(0, "x"), PuzzleOptions())
    with pytest.raises(Unpuzzling, match="too_small"):
        MAKER.make(DepthPicture(scene(0, 200, 20), np.ones((20, 200))), generator(0, "x"), PuzzleOptions())
    with pytest.raises(Unpuzzling, match="depth_shape"):
        DepthPicture(picture, np.ones((240, 180)))


def test_depth_maps_are_read_from_png_and_npy(tmp_path: Path) -> None:
    values = np.arange(64 * 80, dtype=np.uint16).reshape(64, 80) * 12
    for suffix in ("png", "npy"):
        file, buffer = tmp_path / f"depth.{suffix}", io.BytesIO()
        if suffix == "png":
            Image.fromarray(values).save(buffer, "PNG")
        else:
            np.save(buffer, values)
        file.write_bytes(buffer.getvalue())
        assert np.array_equal(depth.read_depth(file), values)
        assert np.array_equal(depth.read_depth(buffer.getvalue()), values)
    colour = io.BytesIO()
    scene(0).save(colour, "PNG")
    for bad in (b"nothing", colour.getvalue()):
        with pytest.raises(Unpuzzling, match="not_depth"):
            depth.read_depth(bad)


def test_a_real_stereo_pair() -> None:
    cv2 = pytest.importorskip("cv2")
    spec = importlib.util.find_spec("skimage")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    pair = [
        Image.open(folder / f"motorcycle_{side}.png").convert("RGB").resize((370, 250)) for side in ("left", "right")
    ]
    matcher = cv2.StereoSGBM_create(0, 64, 5, P1=600, P2=2400)
    shift = matcher.compute(*(np.asarray(p) for p in pair)).astype(float) / 16
    source = DepthPicture(pair[0], np.where(shift > 1, 1000 / np.maximum(shift, 1), 0))
    for number in range(6):
        puzzle = MAKER.make(source, generator(0, str(number)), PuzzleOptions(size=320))
        assert MAKER.check(puzzle, source, 0.0)
        assert len(puzzle.answer.value) == 6
    assert not MAKER.check(puzzle, DepthPicture(pair[0], source.depth[::-1]), 0.0)
