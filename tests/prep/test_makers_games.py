"""Makers of games, searches, counts and measures: each stored answer is checked by another way than it was made."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl_prep.puzzles import Puzzle, PuzzleOptions, Unpuzzling, counting, measuring, points24, search
from mmrl_prep.rng import generator

from .conftest import scene

NAMES = ("points24", "gridworld", "screen", "search", "counting", "measuring")
MAKERS = {name: importlib.import_module(f"mmrl_prep.puzzles.{name}") for name in NAMES}
OPTIONS = PuzzleOptions(size=192)
PICTURE = scene(7, 480, 360)


def made(maker: ModuleType, number: int, options: PuzzleOptions = OPTIONS) -> Puzzle:
    return maker.make(PICTURE, generator(0, str(number)), options)


@pytest.mark.parametrize("name", NAMES)
def test_same_key_same_puzzle_and_its_check_holds(name: str) -> None:
    maker = MAKERS[name]
    one, two, other = made(maker, 1), made(maker, 1), made(maker, 2)
    assert (one.question, one.answer, one.meta) == (two.question, two.answer, two.meta)
    assert one.images[0].tobytes() == two.images[0].tobytes()
    assert one.meta != other.meta
    assert json.loads(json.dumps(one.meta)) == one.meta
    assert maker.check(one, PICTURE, 0.0)
    assert not maker.check(replace(one, images=other.images), PICTURE, 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_another_answer_is_not_proved(name: str) -> None:
    maker, puzzle = MAKERS[name], made(MAKERS[name], 3)
    other = "ABCD"[(ord(str(puzzle.answer.value)[0]) - 64) % 4]
    wrong = {"number": 1, "text": "1+1", "choice": other, "expression": {"numbers": [1, 2, 3, 4], "target": 24}}
    answer = replace(puzzle.answer, value=wrong[puzzle.answer.kind])
    assert not maker.check(replace(puzzle, answer=answer), PICTURE, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_would_be_too_small_to_see_is_refused(name: str) -> None:
    with pytest.raises(Unpuzzling) as error:
        MAKERS[name].make(scene(0, 40, 30), generator(0, "x"), PuzzleOptions(size=24))
    assert error.value.code == "too_small"


def test_makers_fill_the_size_and_pictures_stay_processable() -> None:
    for name in NAMES:
        (image,) = made(MAKERS[name], 5).images
        assert image.mode == "RGB"
        assert min(image.size) >= 28
        longest = OPTIONS.size * (search.LARGER if name == "search" else 1)
        assert longest * 0.9 <= max(image.size) <= longest


# --- 24 points --------------------------------------------------------------------------------------------------------


def reachable(numbers: tuple[int, ...]) -> set[Fraction]:
    """All values of all the numbers, from the values of their parts (subsets), not by joining pairs."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    out: set[Fraction] = set()
    for size in range(1, len(numbers)):
        for places in itertools.combinations(range(len(numbers)), size):
            left = tuple(numbers[n] for n in places)
            right = tuple(numbers[n] for n in range(len(numbers)) if n not in places)
            for a in reachable(left):
                for b in reachable(right):
                    out |= {a + b, a - b, a * b} | ({a / b} if b else set())
    return out


@pytest.mark.parametrize(
    "hand", [(1, 1, 1, 1), (3, 3, 8, 8), (1, 5, 5, 5), (10, 10, 4, 4), (1, 1, 2, 10), (6, 6, 6, 6)]
)
def test_the_solver_agrees_with_the_values_of_all_subsets(hand: tuple[int, ...]) -> None:
    assert (points24.solve(hand) is not None) == (24 in reachable(hand))


def test_the_solver_on_hands_known_to_be_hard() -> None:
    assert points24.solve((3, 3, 8, 8)) is not None  # 8 / (3 - 8 / 3)
    assert points24.solve((1, 5, 5, 5)) is not None  # 5 * (5 - 1 / 5)
    assert points24.solve((1, 1, 1, 1)) is None
    assert points24.solve((10, 10, 10, 10)) is None


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_hands_come_from_one_pack_and_their_solution_is_right(number: int) -> None:
    puzzle = made(points24, number)
    cards = [tuple(card) for card in puzzle.meta["cards"]]
    assert len(set(cards)) == 4
    worth = {"A": 1, "J": 10, "Q": 10, "K": 10, **{str(n): n for n in range(2, 11)}}
    assert puzzle.meta["numbers"] == [worth[rank] for rank, _ in cards]
    text = "".join(f"Fraction({t})" if t.isdigit() else t for t in _tokens(puzzle.meta["solution"]))
    assert eval(text, {"Fraction": Fraction}) == 24
    assert sorted(int(t) for t in _tokens(puzzle.meta["solution"]) if t.isdigit()) == sorted(puzzle.meta["numbers"])


def _tokens(text: str) -> list[str]:
    return ["".join(part) for _, part in itertools.groupby(text, key=lambda c: (c.isdigit(), c * (not c.isdigit())))]


def test_a_red_suit_is_drawn_red_and_a_black_one_black() -> None:
    cards = [("7", "hearts"), ("8", "spades"), ("9", "diamonds"), ("2", "clubs")]
    image = points24.draw_cards(PICTURE, (0, 0, 480, 360), cards, 320)
    for number, ink in enumerate([points24.RED, points24.BLACK, points24.RED, points24.BLACK]):
        x = round(320 * (0.04 + 0.24 * number))
        card = image.crop((x + 2, 15, x + 62, 112))
        counts = Counter(card.getdata())
        assert counts[ink] > 100
        assert counts[(255, 255, 255)] > 1000


# --- grid worlds and screens ------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_worlds_can_be_solved_in_the_stored_number_of_moves(number: int) -> None:
    """A flood from the start, where the maker searches from the goal."""
    world, shortest = made(MAKERS["gridworld"], number).meta["gridworld"], None
    cells = {(r, c): s for r, row in enumerate(world["rows"]) for c, s in enumerate(row)}
    reached = {place for place, sign in cells.items() if sign == "S"}
    (goal,) = (place for place, sign in cells.items() if sign == "G")
    for count in range(1, 50):
        around = {(r + a, c + b) for r, c in reached for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))}
        reached |= {place for place in around if cells.get(place, "#") in ".SG"}
        if goal in reached:
            shortest = count
            break
    assert shortest == made(MAKERS["gridworld"], number).meta["shortest"] <= world["limit"]
    assert shortest >= min(len(world["rows"]), len(world["rows"][0]))


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_apps_ask_for_what_their_goal_holds(number: int) -> None:
    """Two taps to the page, a tap and a text for each field, a tap for each tick, and the button."""
    puzzle = made(MAKERS["screen"], number)
    app = puzzle.meta["app"]
    values = app["goal"]["values"]
    texts = [v for v in values.values() if isinstance(v, str)]
    assert puzzle.meta["shortest"] == 3 + 2 * len(texts) + (len(values) - len(texts))
    section, page = app["goal"]["screen"].split("/")
    assert f"the page {page} of {section}," in puzzle.question
    assert all(f'"{text}"' in puzzle.question for text in texts)
    assert str(puzzle.answer.value) not in puzzle.question


# --- searching, counting, measuring -----------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_the_target_box_holds_the_disc_asked_for_and_no_other(number: int) -> None:
    puzzle = made(search, number)
    pixels = np.asarray(puzzle.images[0]).astype(int)
    colour = puzzle.question.split("small ")[1].split(" ")[0]
    right = np.argwhere((pixels == search.COLOURS[colour]).all(-1))
    x1, y1, x2, y2 = puzzle.meta["target"]
    inside = right[(right[:, 0] >= y1) & (right[:, 0] <= y2) & (right[:, 1] >= x1) & (right[:, 1] <= x2)]
    assert len(inside) > 0.3 * math.pi * search.RADIUS**2  # the rest is the number, and the rim
    assert len(right) - len(inside) < 0.05 * len(inside)
    for name, _, x, y in puzzle.meta["discs"][1:]:
        assert name != colour
        assert not (x1 <= x <= x2 and y1 <= y <= y2)
    height, width = pixels.shape[:2]
    assert (x2 - x1) * (y2 - y1) < 0.01 * width * height


@pytest.mark.parametrize("number", [11, 38, 70, 94])
def test_digits_are_of_few_pixels_in_the_shrunk_picture_and_of_enough_near_by(number: int) -> None:
    image = search.draw_discs(Image.new("RGB", (480, 360), "gray"), (768, 576), [("black", number, 300, 200)])
    inner = round(search.RADIUS * 0.65)  # a square inside the rim
    levels = np.asarray(image.convert("L"))[200 - inner : 200 + inner, 300 - inner : 300 + inner]
    rows = np.flatnonzero((levels > 128).any(1))
    height = rows[-1] - rows[0] + 1
    assert height >= 11
    assert height / search.LARGER <= search.LETTERS


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_counts_are_those_of_connected_regions_of_the_colour(number: int) -> None:
    """Shapes found in the pixels: a square fills its box, a triangle half, a circle more than seven tenths."""
    cv2 = pytest.importorskip("cv2")
    puzzle = made(counting, number)
    colour, form = puzzle.meta["colour"], puzzle.meta["form"]
    mask = (np.asarray(puzzle.images[0]) == counting.COLOURS[colour]).all(-1).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    forms = Counter()
    for _, _, width, height, area in stats[1:]:
        if area >= 20:
            share = area / (width * height)
            forms["square" if share > 0.95 else "circle" if share > 0.68 else "triangle"] += 1
    assert forms[form] == puzzle.answer.value
    assert 3 <= puzzle.answer.value <= 12


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_measures_by_other_formulas(number: int) -> None:
    puzzle = made(measuring, number)
    points = [complex(x, y) for x, y in puzzle.meta["points"]]
    a, b = points[:2]
    if puzzle.meta["measures"] == "distance":
        truth = abs(a - b)
    else:
        c = points[2]
        sides = [abs(b - c), abs(a - c), abs(a - b)]
        half = sum(sides) / 2
        area = math.sqrt(max(0.0, half * math.prod(half - s for s in sides)))  # Heron
        cosine = (sides[0] ** 2 + sides[2] ** 2 - sides[1] ** 2) / (2 * sides[0] * sides[2])
        truth = area if puzzle.meta["measures"] == "area" else math.degrees(math.acos(cosine))
    assert puzzle.meta["value"] == pytest.approx(truth, rel=1e-3, abs=2e-3)
    errors = [abs(float(o) - truth) for o in puzzle.answer.options]
    assert "ABCD"[int(np.argmin(errors))] == puzzle.answer.value
    assert min(errors) <= 0.5 + 1e-3
    if puzzle.meta["measures"] == "angle":
        assert float(puzzle.answer.options[-1]) <= 180


def test_right_options_stand_anywhere() -> None:
    letters = Counter(made(measuring, n).answer.value for n in range(200))
    assert set(letters) == set("ABCD")
    assert min(letters.values()) > 30
