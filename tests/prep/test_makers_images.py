"""Makers on pictures: the answer undoes the puzzle exactly, and nothing but the picture tells it."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.images import normalise_image
from mmrl.rewards.accuracy import compare
from mmrl.rewards.extract import Status, extract
from mmrl.shards.record import AnswerEntry
from mmrl.types import Answer
from mmrl_prep.pictures import demo_sources
from mmrl_prep.puzzles import PUZZLES, Puzzle, PuzzleOptions, Unpuzzling, grid, hard, orders
from mmrl_prep.puzzles.maker import Style
from mmrl_prep.puzzles.puzzle import MIN_DIFFERENCE, difference, least_difference, source_crop
from mmrl_prep.rng import generator

from .conftest import scene

MAKERS = ("jigsaw_grid", "patchfit_hard", "scene")
GRIDS = [(1, 3), (2, 2), (3, 3), (2, 5), (4, 4)]


def read(text: str, answer: Answer) -> float:
    """The score that the rewards give to a text in the answer tag."""
    found = extract(f"<answer>{text}</answer>", answer)
    assert found.status is Status.OK
    return compare(found.value, answer)


def stated(answer: Answer) -> str:
    """The right answer in the words that the question asks for."""
    return ", ".join(map(str, answer.value)) if answer.kind == "order" else answer.value


def stored(puzzle: Puzzle) -> Puzzle:
    """The puzzle as a shard gives it back: pictures went through JPEG, the rest through JSON and its schema."""
    images = []
    for image in puzzle.images:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=92, subsampling=0)
        images.append(Image.open(buffer).convert("RGB"))
    answer = AnswerEntry(
        kind=puzzle.answer.kind, value=puzzle.answer.value, options=list(puzzle.answer.options)
    ).model_dump_json()
    back = AnswerEntry.model_validate_json(answer)
    return Puzzle(
        tuple(images),
        puzzle.question,
        Answer(back.kind, back.value, tuple(back.options)),
        json.loads(json.dumps(puzzle.meta)),
    )


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25, deadline=None)
@given(
    number=st.integers(0, 10**6),
    size=st.sampled_from([64, 97, 160]),
    shape=st.sampled_from([(96, 72), (100, 64), (73, 111), (320, 200)]),
    cells=st.sampled_from(GRIDS),
    distractors=st.sampled_from([3, 5, 7]),
    style=st.sampled_from(["order", "choice"]),
    trim=st.sampled_from([0.0, 0.1, 0.25]),
)
def test_the_answer_undoes_it(
    name: str,
    number: int,
    size: int,
    shape: tuple[int, int],
    cells: tuple[int, int],
    distractors: int,
    style: Style,
    trim: float,
) -> None:
    picture = scene(number % 50, *shape)
    options = PuzzleOptions(size=size, grid=cells, distractors=distractors, style=style, trim=trim)
    maker = PUZZLES[name]
    try:
        one, two = (maker.make(picture, generator(0, str(number)), options) for _ in range(2))
    except Unpuzzling:
        return  # which is tested below
    assert [i.tobytes() for i in one.images] == [i.tobytes() for i in two.images]
    assert (one.question, one.answer, one.meta) == (two.question, two.answer, two.meta)
    assert maker.check(one, picture, 0.0)
    assert maker.check(stored(one), picture, 8.0)
    assert read(stated(one.answer), one.answer) == 1.0
    if one.answer.kind == "choice":
        assert one.question.split("\n")[1:] == [f"{chr(65 + n)}) {o}" for n, o in enumerate(one.answer.options)]
        assert len(set(one.answer.options)) == len(one.answer.options)


@pytest.mark.parametrize(("cells", "shape"), [((3, 3), (100, 64)), ((2, 4), (64, 100)), ((1, 3), (75, 75))])
def test_grid_tiles_come_back_pixel_exact_and_show_no_size(cells: tuple[int, int], shape: tuple[int, int]) -> None:
    picture = scene(4, *shape)
    puzzle = PUZZLES["jigsaw_grid"].make(picture, generator(1, "x"), PuzzleOptions(size=100, grid=cells, trim=0.1))
    x, y, width, height = puzzle.meta["crop"]
    size = tuple(puzzle.meta["size"])
    assert max(size) == 100
    piece = picture.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
    restored = grid.undo(puzzle)
    boxes = [tuple(box) for box in puzzle.meta["boxes"]]
    tiles = [piece.crop(box) for box in boxes]
    assert all(restored.crop(box).tobytes() == tile.tobytes() for box, tile in zip(boxes, tiles, strict=True))
    assert len({tile.size for tile in tiles}) == 1
    assert least_difference(tiles) >= MIN_DIFFERENCE / 2
    # neighbours in the picture are trimmed apart, neighbours on the board do not touch
    columns = cells[1]
    assert all(b[0] > a[2] for a, b in pairwise(boxes) if b[1] == a[1])
    cell = (puzzle.images[0].width + puzzle.meta["gap"]) // columns
    gaps = np.asarray(puzzle.images[0])[:, cell - puzzle.meta["gap"] : cell]
    assert (gaps == 128).all()


def test_tile_boxes_without_trim_cover_all_but_the_uneven_rest() -> None:
    boxes = grid.tile_boxes(100, 64, (3, 3), 0.0)
    assert boxes[0] == (0, 0, 33, 21)
    assert boxes[-1] == (67, 43, 100, 64)
    assert grid.edges(7, 3) == [0, 3, 5, 7]


def test_orders_are_even_and_never_the_identity() -> None:
    rng = generator(0, "orders")
    seen = Counter(tuple(orders.shuffle(3, rng)) for _ in range(1000))
    assert (0, 1, 2) not in seen
    assert len(seen) == 5
    assert min(seen.values()) > 150
    assert orders.inverse([2, 0, 3, 1]) == [1, 3, 0, 2]  # not its own inverse: the direction matters
    with pytest.raises(ValueError, match="cannot be shuffled"):
        orders.shuffle(1, rng)
    assert not orders.proves(Answer("order", [0, 1, 2]), [0, 1, 2])
    assert not orders.proves(Answer("order", [2, 0, 3, 1]), [2, 0, 3, 1])


def test_every_number_stands_at_every_place_of_the_answer() -> None:
    picture, options = scene(2, 64, 64), PuzzleOptions(size=48, trim=0.0)
    made = [PUZZLES["jigsaw_grid"].make(picture, generator(0, str(n)), options) for n in range(300)]
    places = Counter((place, slot) for p in made for place, slot in enumerate(p.answer.value))
    assert len(places) == 16
    assert min(places.values()) > 40
    assert [0, 1, 2, 3] not in [p.answer.value for p in made]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jigsaw_grid", PuzzleOptions(size=48, style="choice")),
        ("patchfit_hard", PuzzleOptions(size=48, distractors=5)),
        ("scene", PuzzleOptions(size=48)),
    ],
)
def test_letters_are_even(name: str, options: PuzzleOptions) -> None:
    picture = scene(2, 64, 64)
    made = [PUZZLES[name].make(picture, generator(0, str(n)), options) for n in range(300)]
    letters = Counter(p.answer.value for p in made)
    count = len(made[0].answer.options)
    assert len(letters) == count
    assert min(letters.values()) > 300 / count / 2
    if name == "jigsaw_grid":
        assert all("0, 1, 2, 3" not in p.answer.options for p in made)


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_tampered_with_is_not_proved(name: str) -> None:
    picture = scene(1)
    puzzle = PUZZLES[name].make(picture, generator(5, "a"), PuzzleOptions(size=64, style="choice"))
    for wrong in {chr(65 + n) for n in range(len(puzzle.answer.options))} - {puzzle.answer.value}:
        assert not PUZZLES[name].check(replace(puzzle, answer=replace(puzzle.answer, value=wrong)), picture, 8.0)
    other = PUZZLES[name].make(scene(9), generator(6, "b"), PuzzleOptions(size=64))
    assert not PUZZLES[name].check(replace(puzzle, images=other.images), picture, 8.0)


@pytest.mark.parametrize("distractors", [3, 5, 7])
def test_decoys_are_the_same_changes_of_two_patches(distractors: int) -> None:
    for number in range(10):
        picture = scene(number)
        options = PuzzleOptions(size=64, distractors=distractors)
        puzzle = PUZZLES["patchfit_hard"].make(picture, generator(0, str(number)), options)
        names = puzzle.meta["patches"]
        assert len(names) == distractors + 1
        changes = {n for n in names if n in hard.FORMS}
        assert set(names) == {"right", "other", *changes, *(f"other_{c}" for c in changes)}
        assert len(changes) == (distractors - 1) // 2
        original = source_crop(puzzle, picture)
        assert hard.undo(puzzle).tobytes() == original.tobytes()
        errors = [difference(hard._filled(puzzle, n), original) for n in range(distractors + 1)]
        assert sorted(errors)[1] * 4 >= MIN_DIFFERENCE  # of the whole picture a quarter is the patch


def test_sources_that_allow_no_puzzle_say_why() -> None:
    flat, half = Image.new("RGB", (200, 200), "gray"), scene(3, 200, 200)
    half.paste("gray", (0, 0, 200, 120))
    tiled = Image.new("RGB", (128, 128))
    for x in (0, 64):
        for y in (0, 64):
            tiled.paste(scene(5, 64, 64), (x, y))
    cases = [
        ("jigsaw_grid", flat, PuzzleOptions(), "blank"),
        ("jigsaw_grid", half, PuzzleOptions(grid=(4, 1)), "blank"),
        ("jigsaw_grid", scene(0, 20, 20), PuzzleOptions(grid=(3, 3)), "too_small"),
        ("jigsaw_grid", scene(0, 400, 40), PuzzleOptions(size=64), "too_small"),
        ("patchfit_hard", flat, PuzzleOptions(), "alike"),
        ("patchfit_hard", scene(0, 12, 12), PuzzleOptions(), "too_small"),
    ]
    for name, picture, options, code in cases:
        with pytest.raises(Unpuzzling) as error:
            PUZZLES[name].make(picture, generator(0, "x"), options)
        assert error.value.code == code
        assert str(error.value).startswith(code)
    # equal tiles are told apart by nothing: no crop of this picture that cuts it in four like parts is taken
    puzzle = PUZZLES["jigsaw_grid"].make(tiled, generator(0, "x"), PuzzleOptions(size=128, trim=0.0))
    boxes = [tuple(b) for b in puzzle.meta["boxes"]]
    assert least_difference([grid.undo(puzzle).crop(b) for b in boxes]) >= MIN_DIFFERENCE / 2


def test_options_name_what_is_wrong() -> None:
    wrong = {
        "size": 8,
        "grid": (1, 2),
        "clips": 2,
        "trim": 0.5,
        "points": 1,
        "distractors": 4,
        "style": "both",
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            PuzzleOptions(**{name: value})
    with pytest.raises(ValueError, match=r"size 8.*points 1"):
        PuzzleOptions(size=8, points=1)


def test_scene_meta_and_names() -> None:
    for number in range(40):
        puzzle = PUZZLES["scene"].make(scene(number), generator(0, str(number)), PuzzleOptions(size=64))
        assert {s["quarter"] for s in puzzle.meta["shapes"]} <= set(range(4))
        assert puzzle.meta["asks"] in ("colour", "count", "position")
    assert {name: maker.needs for name, maker in PUZZLES.items() if maker.needs != "image"} == {
        "video_jigsaw": "video",
        "temporal_order": "video",
        "depth_order": "depth",
    }


def test_real_photographs(tmp_path: Path) -> None:
    photos, _, faces = demo_sources(tmp_path)
    made = Counter()
    for path in [*sorted(photos.iterdir()), *sorted(faces.iterdir())[:4]]:
        picture = normalise_image(path.read_bytes())[0]
        for name in MAKERS:
            try:
                puzzle = PUZZLES[name].make(picture, generator(0, path.name), PuzzleOptions(grid=(3, 3), distractors=5))
            except Unpuzzling:
                continue
            assert PUZZLES[name].check(puzzle, picture, 0.0)
            assert PUZZLES[name].check(stored(puzzle), picture, 8.0)
            made[name] += 1
    assert min(made[name] for name in MAKERS) >= 9  # of 11
