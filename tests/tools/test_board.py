"""The board of puzzles: its order is an answer, its picture is the pieces in that order, and it gives nothing away."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data

from mmrl.media import content_hash, image_ref, load_image, media_info
from mmrl.rewards.extract import extract
from mmrl.rollout import call_tool
from mmrl.rollout.tools import ToolContext, ToolError
from mmrl.types import Answer, MediaRef, Sample, ToolCall, ToolResult
from mmrl_prep.puzzles import PUZZLES, Puzzle, PuzzleOptions
from mmrl_tools.board import LINES, board, cells, moved

OPTIONS = PuzzleOptions(size=160, grid=(2, 3))


def photo() -> Image.Image:
    return Image.fromarray(data.astronaut())


def puzzle(task: str, seed: int = 0, source: Any = None, **options: Any) -> tuple[Puzzle, ToolContext]:
    """A puzzle as mmrl-prep makes it, and the dialogue about it."""
    made = PUZZLES[task].make(source or photo(), np.random.default_rng(seed), replace(OPTIONS, **options))
    clips = [video_ref(f"vid_{n}", clip) for n, clip in enumerate(made.clips, 1)]
    media = (*clips, *(image_ref(f"img_{n}", image) for n, image in enumerate(made.images, 1)))
    sample = Sample(f"{task}-{seed}", media, (), made.answer, task, made.meta)
    return made, ToolContext({m.id: m for m in media}, sample=sample)


def video_ref(id: str, clip: bytes) -> MediaRef:
    width, height, info = media_info(clip, "video")
    return MediaRef(id, "video", content_hash(clip), width, height, data=clip, info=info)


def clip(colours: int = 5, frames: int = 20) -> bytes:
    """A short film in which every part looks different: a photograph that wanders."""
    file = io.BytesIO()
    picture = np.asarray(photo())
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=10, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for n in range(colours * frames):
            part = picture[4 * n : 4 * n + 64, 3 * n : 3 * n + 96]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def act(where: ToolContext, action: str, **arguments: Any) -> ToolResult:
    result = call_tool(ToolCall("board", {"action": action, **arguments}), where)
    assert result.fault is None, result.fault
    (ref,) = result.media
    assert (ref.parent, ref.region) == ("", None)
    return result


def solve(where: ToolContext, right: list[int]) -> ToolResult:
    """Put the right piece at each place in turn."""
    first = min(right)
    result = act(where, "show")
    for place, piece in enumerate(right):
        result = act(where, "place", piece=piece, place=place + first)
    return result


def said(result: ToolResult) -> str:
    """The order as the board tells it."""
    return result.text.rsplit(": ", 1)[1]


def tile(ref: MediaRef, grid: tuple[int, int], place: int) -> np.ndarray:
    """The inner part of a cell of the board's picture, where neither lines nor numbers are."""
    image = load_image(ref)
    wide, high = image.width / grid[1], image.height / grid[0]
    row, column = divmod(place, grid[1])
    box = [(column + 0.4) * wide, (row + 0.4) * high, (column + 0.8) * wide, (row + 0.8) * high]
    return np.asarray(image.crop([round(v) for v in box])).astype(int)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grid", [(2, 2), (2, 3), (3, 3), (1, 4)])
def test_a_solved_grid_reads_off_as_the_right_answer(grid: tuple[int, int], seed: int) -> None:
    made, where = puzzle("jigsaw_grid", seed, grid=grid)
    before = act(where, "show")
    assert said(before) == ", ".join(str(n) for n in range(grid[0] * grid[1]))
    result = solve(where, made.answer.value)
    assert extract(f"<answer>{said(result)}</answer>", made.answer).value == made.answer.value
    assert result.data == {"order": made.answer.value, "grid": list(grid)}


def test_a_solved_grid_shows_the_picture() -> None:
    made, where = puzzle("jigsaw_grid", 1, size=320, trim=0.0)
    result = solve(where, made.answer.value)
    x, y, width, height = made.meta["crop"]
    truth = photo().resize(tuple(made.meta["size"]), Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
    shown = load_image(result.media[0]).resize(truth.size)
    unsolved = load_image(act(where, "reset").media[0]).resize(truth.size)
    error = [np.abs(np.asarray(i).astype(int) - np.asarray(truth)).mean() for i in (shown, unsolved)]
    assert error[0] < 25
    assert error[1] > 2 * error[0]


def test_cells_are_those_that_the_maker_drew() -> None:
    made, _ = puzzle("jigsaw_grid", 2, grid=(3, 3))
    image, (x1, y1, x2, y2) = made.images[0], made.meta["boxes"][0]
    found = cells(image.size, (3, 3), made.meta["gap"])
    assert all((r - x, b - y) == (x2 - x1, y2 - y1) for x, y, r, b in found)
    assert found[-1][2:] == image.size
    assert [(x, y) for x, y, _, _ in found[:4]] == [
        (0, 0),
        (x2 - x1 + made.meta["gap"], 0),
        (2 * (x2 - x1 + made.meta["gap"]), 0),
        (0, y2 - y1 + made.meta["gap"]),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_first_jigsaw_is_numbered_from_one_as_its_options_are(seed: int) -> None:
    made, where = puzzle("jigsaw", seed)
    assert said(act(where, "show")) == "1 2 3 4"
    right = made.answer.options[ord(made.answer.value) - ord("A")]
    result = solve(where, [int(n) for n in right.split()])
    assert said(result) == right
    assert call_tool(ToolCall("board", {"action": "swap", "piece": 0, "other": 1}), where).fault is not None


def test_options_of_orders_are_written_as_the_options_are() -> None:
    made, where = puzzle("jigsaw_grid", 5, style="choice")
    right = made.answer.options[ord(made.answer.value) - ord("A")]
    assert said(solve(where, [int(n) for n in right.split(", ")])) == right


def test_frames_and_clips_are_pieces_in_the_order_shown() -> None:
    film = clip()
    made, where = puzzle("temporal_order", 3, film, clips=5)
    result = act(where, "show")
    assert result.data["grid"] == [2, 4]
    for place, image in enumerate(made.images):
        # cells are as large as the frames, which were stored without loss
        got = tile(result.media[0], (2, 4), place).mean((0, 1))
        box = [round(v) for v in (0.4 * image.width, 0.4 * image.height, 0.8 * image.width, 0.8 * image.height)]
        assert np.abs(got - np.asarray(image.crop(box)).mean((0, 1))).max() < 8
    assert said(solve(where, made.answer.value)) == ", ".join(map(str, made.answer.value))
    made, where = puzzle("video_jigsaw", 3, film, clips=4)
    assert said(solve(where, made.answer.value)) == ", ".join(map(str, made.answer.value))


def numbered(count: int = 6, first: int = 0) -> ToolContext:
    """A board of pieces of one colour each: piece n has the gray level 40 n."""
    image = Image.new("RGB", (300, 200))
    for n in range(count):
        row, column = divmod(n, 3)
        image.paste((40 * n,) * 3, (100 * column, 100 * row, 100 * column + 100, 100 * row + 100))
    ref = image_ref("img_1", image)
    answer = Answer("order", [n + first for n in range(count)][::-1])
    return ToolContext({"img_1": ref}, sample=Sample(f"n{first}", (ref,), (), answer, "x", {"grid": [2, 3]}))


def levels(result: ToolResult) -> list[int]:
    """Which piece the picture shows at each place."""
    return [round(tile(result.media[0], (2, 3), place).mean() / 40) for place in range(6)]


def test_picture_and_order_say_the_same_after_every_action() -> None:
    where = numbered()
    for action, wanted in [
        ({"action": "show"}, [0, 1, 2, 3, 4, 5]),
        ({"action": "swap", "piece": 0, "other": 5}, [5, 1, 2, 3, 4, 0]),
        ({"action": "place", "piece": 0, "place": 1}, [5, 0, 2, 3, 4, 1]),  # 1 goes where 0 came from
        ({"action": "place", "piece": 2, "place": 2}, [5, 0, 2, 3, 4, 1]),
        ({"action": "swap", "piece": 4, "other": 4}, [5, 0, 2, 3, 4, 1]),
        ({"action": "show"}, [5, 0, 2, 3, 4, 1]),
        ({"action": "reset"}, [0, 1, 2, 3, 4, 5]),
    ]:
        result = act(where, **action)
        assert result.data["order"] == levels(result) == wanted
        assert said(result) == ", ".join(map(str, wanted))


def test_numbers_from_one_where_the_answer_counts_from_one() -> None:
    where = numbered(first=1)
    result = act(where, "place", piece=6, place=1)
    assert (said(result), levels(result)) == ("6, 2, 3, 4, 5, 1", [5, 1, 2, 3, 4, 0])


def test_lines_part_the_pieces() -> None:
    image = load_image(act(numbered(), "show").media[0])
    assert {image.getpixel((0, y)) for y in range(image.height)} == {LINES}
    assert image.getpixel((image.width // 3, 20)) == LINES


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"action": "swap", "piece": 0}, "bad_arguments"),
        ({"action": "swap", "piece": 0, "place": 1}, "bad_arguments"),
        ({"action": "place", "piece": 0, "place": 1, "other": 2}, "bad_arguments"),
        ({"action": "show", "piece": 0}, "bad_arguments"),
        ({"action": "swap", "piece": 0, "other": 6}, "unknown_piece"),
        ({"action": "place", "piece": 6, "place": 0}, "unknown_piece"),
        ({"action": "place", "piece": 0, "place": 6}, "unknown_place"),
    ],
)
def test_actions_that_cannot_be_done_change_nothing(arguments: dict[str, Any], code: str) -> None:
    where = numbered()
    act(where, "swap", piece=0, other=1)
    with pytest.raises(ToolError) as error:
        board(arguments, where)
    assert error.value.code == code
    assert act(where, "show").data["order"] == [1, 0, 2, 3, 4, 5]


def test_calls_of_one_turn_are_done_in_their_order() -> None:
    from mmrl.rollout import Tools

    where = numbered()
    calls = [ToolCall("board", {"action": "swap", "piece": 0, "other": n}) for n in (1, 2, 9, 3)]
    with Tools() as tools:
        results = tools.submit(calls, where).result(timeout=60)
    assert [r.fault.code if r.fault else "" for r in results] == ["", "", "unknown_piece", ""]
    assert results[-1].data["order"] == [1, 2, 3, 0, 4, 5]
    assert [m.id for r in results for m in r.media] == ["img_2", "img_3", "img_4"]


@given(st.permutations(range(6)))
@settings(max_examples=10)
def test_nothing_depends_on_the_right_order(right: list[int]) -> None:
    """Only the numbers of the pieces are read off an answer, and only the form of its meta."""
    where, other = numbered(), numbered()
    assert other.sample is not None
    meta = {"grid": [2, 3], "order": right, "boxes": [[n, n, n + 9, n + 9] for n in right]}
    other.sample = replace(other.sample, answer=Answer("order", right), meta=meta)
    for action in ({"action": "show"}, {"action": "swap", "piece": right[0], "other": right[3]}):
        one, two = board(action, where), board(action, other)
        assert one.text == two.text
        assert one.data == two.data
        assert [m.hash for m in one.media] == [m.hash for m in two.media]


@given(st.lists(st.tuples(st.sampled_from(["swap", "place"]), st.integers(1, 5), st.integers(1, 5)), max_size=12))
def test_the_board_always_holds_each_piece_once(actions: list[tuple[str, int, int]]) -> None:
    order = [1, 2, 3, 4, 5]
    for action, piece, other in actions:
        before = list(order)
        order = moved(order, 1, {"action": action, "piece": piece, {"swap": "other", "place": "place"}[action]: other})
        assert sorted(order) == [1, 2, 3, 4, 5]
        assert sum(a != b for a, b in zip(before, order, strict=True)) in (0, 2)
        if action == "place":
            assert order[other - 1] == piece
        else:
            assert order.index(piece) == before.index(other)


@pytest.mark.parametrize(
    "sample",
    [
        {"answer": Answer("choice", "A", ("red", "blue"))},
        {"answer": Answer("number", 3.0)},
        {"answer": Answer("order", [0, 1, 2])},  # of a picture in six parts
        {"answer": Answer("order", [0, 0, 2, 3, 4, 5])},
        {"meta": {}},
        {"meta": {"grid": [2, 3], "gap": 500}},
    ],
)
def test_a_sample_without_pieces_is_a_fault_of_the_task(sample: dict[str, Any]) -> None:
    where = numbered()
    assert where.sample is not None
    result = board({"action": "show"}, replace(where, sample=replace(where.sample, **sample)))
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == ("task", "no_puzzle")


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (10, 2000), (3000, 2000), (40, 40)])
@pytest.mark.parametrize("count", [3, 16])
def test_boards_of_any_pieces_are_pictures_that_processors_take(size: tuple[int, int], count: int) -> None:
    refs = tuple(image_ref(f"img_{n}", Image.new("RGB", size, (n, 0, 0))) for n in range(1, count + 1))
    sample = Sample(f"{size}", refs, (), Answer("order", list(range(count))), "temporal_order")
    ref = act(ToolContext({r.id: r for r in refs}, sample=sample), "show").media[0]
    assert min(ref.width, ref.height) >= 28
    assert max(ref.width, ref.height) <= 100 * min(ref.width, ref.height)
    assert ref.width * ref.height <= 1_048_576
