"""Puzzles: the stored answer solves them, chance is a quarter, and nothing but the picture tells the answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl_prep.puzzles import PUZZLES, Puzzle, PuzzleOptions
from mmrl_prep.puzzles.puzzle import crop, cut, difference, quadrants, spread
from mmrl_prep.rng import generator

from .conftest import scene

SQUARES = ("rotation", "jigsaw", "patchfit")  # square crops, four options; the other makers have tests of their own
SIZES = st.sampled_from([16, 33, 64, 130])


def solve(name: str, picture: Image.Image, puzzle: Puzzle, size: int) -> str:
    """The letter found from the pictures and the source alone."""
    size = puzzle.images[0].width
    original = cut(picture, *puzzle.meta["crop"], size)
    options = puzzle.answer.options
    if name == "rotation":
        errors = [
            difference(puzzle.images[0], Image.fromarray(np.rot90(np.asarray(original), -int(o) // 90)))
            for o in options
        ]
        return "ABCD"[int(np.argmin(errors))]
    places = quadrants(size)
    if name == "jigsaw":
        board, errors = puzzle.images[0], []
        for option in options:
            made = Image.new("RGB", (size, size))
            for place, tile in zip(places, option.split(), strict=True):
                made.paste(board.crop(places[int(tile) - 1]), place)
            errors.append(difference(made, original))
        return "ABCD"[int(np.argmin(errors))]
    holed, board = puzzle.images
    (hole,) = [n for n, p in enumerate(places) if holed.crop(p).getextrema() == ((128, 128),) * 3]
    errors = [difference(board.crop(p), original.crop(places[hole])) for p in places]
    return "ABCD"[int(np.argmin(errors))]


@pytest.mark.parametrize("name", SQUARES)
@settings(max_examples=40, deadline=None)
@given(number=st.integers(0, 10**6), size=SIZES, shape=st.sampled_from([(96, 72), (40, 200), (25, 25)]))
def test_the_answer_solves_it(name: str, number: int, size: int, shape: tuple[int, int]) -> None:
    picture = scene(number % 50, *shape)
    puzzle = PUZZLES[name](picture, generator(0, str(number)), size)
    assert puzzle.answer.kind == "choice"
    assert len(set(puzzle.answer.options)) == 4
    assert all(i.mode == "RGB" and i.size == (size - size % 2 * (name != "rotation"),) * 2 for i in puzzle.images)
    assert solve(name, picture, puzzle, size) == puzzle.answer.value
    assert PUZZLES[name].check(puzzle, picture, 0.0)
    lines = puzzle.question.split("\n")
    assert lines[1:] == [f"{'ABCD'[n]}) {o}" for n, o in enumerate(puzzle.answer.options)]


@pytest.mark.parametrize("name", SQUARES)
def test_same_key_same_puzzle_other_key_other_puzzle(name: str) -> None:
    picture = scene(1)
    one, two, other = (PUZZLES[name](picture, generator(5, key), 64) for key in ("a", "a", "b"))
    assert one.question == two.question
    assert one.answer == two.answer
    assert [i.tobytes() for i in one.images] == [i.tobytes() for i in two.images]
    assert [i.tobytes() for i in one.images] != [i.tobytes() for i in other.images]
    assert PUZZLES[name](picture, generator(6, "a"), 64).meta != one.meta
    assert PUZZLES[name].make(picture, generator(5, "a"), PuzzleOptions(size=64)).images == one.images


@pytest.mark.parametrize("name", SQUARES)
def test_a_wrong_answer_is_not_proved(name: str) -> None:
    picture = scene(1)
    puzzle = PUZZLES[name](picture, generator(5, "a"), 64)
    letters = [chr(65 + n) for n in range(len(puzzle.answer.options))]
    proved = [
        PUZZLES[name].check(replace(puzzle, answer=replace(puzzle.answer, value=v)), picture, 8.0) for v in letters
    ]
    assert [v for v, ok in zip(letters, proved, strict=True) if ok] == [puzzle.answer.value]
    other = PUZZLES[name](scene(2), generator(5, "a"), 64)
    assert not PUZZLES[name].check(replace(puzzle, images=other.images), picture, 8.0)


@pytest.mark.parametrize("name", SQUARES)
def test_letters_are_even_and_no_letter_goes_with_a_truth(name: str) -> None:
    picture = scene(2, 40, 40)
    made = [PUZZLES[name](picture, generator(0, str(n)), 16) for n in range(600)]
    letters = Counter(p.answer.value for p in made)
    assert set(letters) == set("ABCD")
    # chi-square with 3 degrees of freedom: under 16.3 in 999 of 1000 fair draws; the draws here are fixed
    assert sum((n - 150) ** 2 / 150 for n in letters.values()) < 16.3
    if name == "rotation":
        angles = Counter(p.meta["angle"] for p in made)
        assert set(angles) == {0, 90, 180, 270}
        assert sum((n - 150) ** 2 / 150 for n in angles.values()) < 16.3
    if name == "jigsaw":
        assert all(p.meta["order"] != [0, 1, 2, 3] for p in made)
        assert all("1 2 3 4" not in p.answer.options for p in made)
        assert len({tuple(p.meta["order"]) for p in made}) == 23


def test_rotation_turns_clockwise() -> None:
    picture = Image.new("RGB", (64, 64), "black")
    picture.paste("white", (0, 0, 64, 20))  # a bright top edge
    edges = {0: "top", 90: "right", 180: "bottom", 270: "left"}
    seen = set()
    for number in range(40):
        puzzle = PUZZLES["rotation"](picture, generator(0, str(number)), 64)
        levels = np.asarray(puzzle.images[0].convert("L"), float)
        sides = {"top": levels[0], "bottom": levels[-1], "left": levels[:, 0], "right": levels[:, -1]}
        brightest = max(sides, key=lambda s: sides[s].mean())
        if sides[brightest].mean() > 200:  # the crop holds the edge
            assert brightest == edges[puzzle.meta["angle"]]
            seen.add(brightest)
    assert seen == set(edges.values())


def test_crops_avoid_flat_places_and_do_not_enlarge() -> None:
    picture = Image.new("RGB", (300, 100), "gray")
    picture.paste(scene(3, 100, 100), (200, 0))
    for number in range(20):
        piece, (x, y, side) = crop(picture, generator(0, str(number)), 64)
        assert 64 <= side <= 100
        assert x + side <= 300
        assert y + side <= 100
        assert spread(piece) > 12
    _, (_, _, side) = crop(scene(0, 25, 30), generator(0, "small"), 64)
    assert side == 25
    flat, _ = crop(Image.new("RGB", (50, 50), "gray"), generator(0, "flat"), 16)
    assert flat.size == (16, 16)


def test_wrong_patches_differ_from_the_right_one() -> None:
    for number in range(30):
        puzzle = PUZZLES["patchfit"](scene(number), generator(0, str(number)), 64)
        patches = [puzzle.images[1].crop(p) for p in quadrants(64)]
        for a in range(4):
            for b in range(a):
                assert difference(patches[a], patches[b]) > 8
