"""move, calculate, tap, type and back: rules, rewards step by step, the end of an episode, and branches."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.media import load_image
from mmrl.rollout import call_tool
from mmrl.rollout.tools import ToolContext
from mmrl.types import Answer, Sample, ToolCall, ToolResult
from mmrl_tools import games, screen, screens
from mmrl_tools.gridworld import MOVES, PLAYER, Grid, distances, draw_grid

ROWS = ("S.O", ".#.", "..G")  # the only way leads down and right: 4 moves
WORLD = {"rows": list(ROWS), "limit": 8, "code": "4711", "size": 120}
APP: dict[str, Any] = {
    "size": [180, 300],
    "start": "home",
    "screens": {
        "home": {"title": "Home", "parent": "", "rows": [{"kind": "link", "text": "Notes", "to": "notes"}]},
        "notes": {
            "title": "Notes",
            "parent": "home",
            "rows": [
                {"kind": "field", "text": "Title", "name": "title"},
                {"kind": "field", "text": "Place", "name": "place"},
                {"kind": "tick", "text": "Pinned", "name": "pinned"},
                {"kind": "button", "text": "Save"},
            ],
        },
    },
    "goal": {"screen": "notes", "values": {"title": "milk", "pinned": True}},
    "code": "1234",
    "limit": 12,
}


def context(**meta: Any) -> ToolContext:
    return ToolContext({}, sample=Sample("k", (), (), Answer("number", 1), "game", meta))


def walked(where: ToolContext, *moves: str) -> ToolResult:
    return call_tool(ToolCall("move", {"moves": list(moves)}), where)


def tapped(where: ToolContext, row: int) -> ToolResult:
    x1, y1, x2, y2 = screens.box_of(row)
    return call_tool(ToolCall("tap", {"point": [(x1 + x2) / 2, (y1 + y2) / 2]}), where)


def typed(where: ToolContext, text: str) -> ToolResult:
    return call_tool(ToolCall("type", {"text": text}), where)


# --- grid world -------------------------------------------------------------------------------------------------------


def test_the_way_to_the_goal_pays_one_in_all_and_tells_the_code() -> None:
    where = context(gridworld=WORLD)
    first = walked(where, "down")
    assert (first.data["reward"], first.data["success"], first.data["done"]) == (0.25, False, False)
    assert "4711" not in first.text
    last = walked(where, "down", "right", "right")
    assert (last.data["reward"], last.data["success"], last.data["done"], last.data["at"]) == (0.75, True, True, [2, 2])
    assert "4711" in last.text
    assert [m.id for m in first.media + last.media] == ["img_1", "img_2"]


def test_walls_and_the_edge_stop_a_walk_without_ending_it() -> None:
    where = context(gridworld=WORLD)
    result = walked(where, "up", "right", "down")
    assert (result.data["at"], result.data["reward"], result.data["moves"]) == ([0, 1], -0.25, 3)
    assert "wall stopped you" in result.text


def test_a_hole_ends_with_the_sum_of_a_fall_whatever_was_gained_before() -> None:
    for before in ((), ("down", "up"), ("down", "down")):
        where = context(gridworld=WORLD)
        way = [*before, *(["up"] * (before == ("down", "down")) * 2), "right", "right"]
        results = [walked(where, m) for m in way]
        assert sum(r.data["reward"] for r in results) == pytest.approx(-1)
        assert (results[-1].data["done"], results[-1].data["success"]) == (True, False)
        assert "4711" not in results[-1].text
    where = context(gridworld=WORLD)
    where.settings = {"move": {"fall": -0.5}}
    assert walked(where, "right", "right", "down").data["reward"] == pytest.approx(-0.5)
    where = context(gridworld=WORLD)
    where.settings = {"move": {"fell": 1}}
    assert "did you mean 'fall'" in walked(where, "up").fault.message  # type: ignore[union-attr]


def test_the_limit_of_moves_ends_it_and_moves_beyond_are_not_made() -> None:
    where = context(gridworld={**WORLD, "limit": 3})
    result = walked(where, "down", "down", "right", "right")
    assert (result.data["at"], result.data["done"], result.data["success"]) == ([2, 1], True, False)
    assert "No moves are left" in result.text


def test_after_the_end_every_call_says_so_and_changes_nothing() -> None:
    where = context(gridworld=WORLD)
    walked(where, "right", "right")
    state = copy.deepcopy(where.state)
    again = walked(where, "down")
    assert again.fault is not None
    assert (again.fault.code, again.media, where.state) == ("ended", (), state)
    assert "give the answer" in again.text


def test_a_dialogue_without_a_world_is_told_so() -> None:
    for call in (ToolCall("move", {"moves": ["up"]}), ToolCall("back", {})):
        for where in (context(), ToolContext({})):
            result = call_tool(call, where)
            assert result.fault is not None
            assert result.fault.code == "no_game"
    assert walked(context(gridworld=WORLD), "north").fault.code == "bad_arguments"  # type: ignore[union-attr]
    assert walked(context(gridworld=WORLD)).fault.code == "bad_arguments"  # type: ignore[union-attr]


def test_branches_go_their_own_ways_from_one_state() -> None:
    trunk = context(gridworld=WORLD)
    walked(trunk, "down")
    one, two = (ToolContext(dict(trunk.media), sample=trunk.sample, state=copy.deepcopy(trunk.state)) for _ in range(2))
    assert walked(one, "down").data["at"] == [2, 0]
    assert walked(two, "up").data["at"] == [0, 0]
    assert trunk.state["gridworld"]["at"] == [1, 0]


def test_pictures_show_where_the_walker_is() -> None:
    grid = Grid(ROWS)
    for place in itertools.product(range(3), range(3)):
        image = np.asarray(draw_grid(grid, place, 120))
        assert image.shape == (120, 120, 3)
        seen = np.argwhere((image == PLAYER).all(-1)).mean(0)
        assert np.abs(seen - [place[0] * 40 + 19.5, place[1] * 40 + 19.5]).max() < 1
    where = context(gridworld=WORLD)
    shown = load_image(walked(where, "down").media[0])
    assert shown.tobytes() == draw_grid(grid, (1, 0), 120).tobytes()


@pytest.mark.parametrize("rows", [(), ("S.", "G"), ("S.",), ("SG", "S."), ("SG", ".x")])
def test_what_is_no_world_is_refused(rows: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="grid"):
        Grid(rows)


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=4), max_size=8))
def test_rewards_are_differences_of_the_way_left(turns: list[list[str]]) -> None:
    where, total = context(gridworld=WORLD), 0.0
    left = distances(Grid(ROWS))
    assert left == {(2, 2): 0, (2, 1): 1, (1, 2): 1, (2, 0): 2, (1, 0): 3, (0, 0): 4, (0, 1): 5}
    for moves in turns:
        result = walked(where, *moves)
        if result.fault is not None:
            assert result.fault.code == "ended"
            continue
        total += result.data["reward"]
        at = tuple(result.data["at"])
        assert total == pytest.approx(-1 if ROWS[at[0]][at[1]] == "O" else 1 - left[at] / 4)
        assert result.data["success"] == (at == (2, 2))
        assert result.data["moves"] <= 8


# --- calculate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "success", "says"),
    [
        ("8/(3-8/3)", "24", True, "uses each card once"),
        ("3*8", "24", False, "does not use each card"),
        ("3+3+8+8", "22", False, "is not 24"),
        ("3/8*8+3", "6", False, "is not 24"),
        ("8/3", "8/3", False, "is not 24"),
    ],
)
def test_calculate_is_exact_and_checks_the_hand(text: str, value: str, success: bool, says: str) -> None:
    where = context(numbers=[3, 3, 8, 8], target=24)
    result = call_tool(ToolCall("calculate", {"expression": text}), where)
    assert result.fault is None
    assert (result.data["value"], result.data["success"]) == (value, success)
    assert says in result.text


def test_calculate_without_a_game_and_with_nonsense() -> None:
    assert call_tool(ToolCall("calculate", {"expression": "7/2"}), context()).text == "7/2 = 7/2"
    for text in ("2**9**9**9", "__import__('os')", "1/0", "3(4)", "-3"):
        result = call_tool(ToolCall("calculate", {"expression": text}), context())
        assert result.fault is not None
        assert result.fault.code == "bad_expression"


# --- screens ----------------------------------------------------------------------------------------------------------


def test_the_shortest_way_pays_evenly_and_shows_the_code() -> None:
    where = context(app=APP)
    steps = [tapped(where, 0), tapped(where, 0), typed(where, " milk "), tapped(where, 2), tapped(where, 3)]
    assert [s.fault for s in steps] == [None] * 5
    assert [s.data["reward"] for s in steps] == pytest.approx([0.2] * 5)
    assert [s.data["done"] for s in steps] == [False] * 4 + [True]
    assert steps[-1].data["success"]
    assert "1234" in steps[-1].text
    assert not any("1234" in s.text for s in steps[:-1])
    for late in (tapped(where, 0), typed(where, "x"), call_tool(ToolCall("back", {}), where)):
        assert late.fault is not None
        assert late.fault.code == "ended"


def test_wrong_steps_take_away_what_it_costs_to_mend_them() -> None:
    where = context(app=APP)
    tapped(where, 0)
    assert tapped(where, 1).data["reward"] == 0  # a field that is not asked for, with nothing written in it
    spoilt = typed(where, "there")  # to empty it is one step, as it is still in focus
    assert spoilt.data["reward"] == pytest.approx(-0.2)
    assert typed(where, "").data["reward"] == pytest.approx(0.2)
    assert tapped(where, 2).data["reward"] == pytest.approx(0.2)
    assert tapped(where, 2).data["reward"] == pytest.approx(-0.2)
    sent = tapped(where, 3)
    assert (sent.data["done"], sent.data["reward"]) == (False, 0)
    assert "not right" in sent.text
    assert call_tool(ToolCall("back", {}), where).data["reward"] == pytest.approx(-0.2)
    assert call_tool(ToolCall("back", {}), where).text.endswith("this is the first screen.")


def test_what_the_policy_did_wrong_on_a_screen() -> None:
    where = context(app=APP)
    assert typed(where, "milk").fault.code == "no_focus"  # type: ignore[union-attr]
    assert where.state == {}
    outside = call_tool(ToolCall("tap", {"point": [500, 1200]}), where)
    assert outside.fault.code == "outside_picture"  # type: ignore[union-attr]
    nothing = call_tool(ToolCall("tap", {"point": [500, 60]}), where)
    assert "nothing" in nothing.text
    assert nothing.data["reward"] == 0
    assert tapped(where, 5).text.startswith("img_2: tapped on nothing")


def test_actions_are_limited() -> None:
    where = context(app={**APP, "limit": 2})
    assert not tapped(where, 0).data["done"]
    last = tapped(where, 3)
    assert (last.data["done"], last.data["success"]) == (True, False)
    assert "No actions are left" in last.text


def test_edges_of_a_row_count_as_inside() -> None:
    for row in range(screens.ROWS):
        x1, y1, x2, y2 = screens.box_of(row)
        assert [screens.row_at(p) for p in ((x1, y1), (x2, y2), (x1, y2), (x2, y1))] == [row] * 4
        assert screens.row_at((x1 - 1, y1)) is None
        assert screens.row_at((x1, y2 + 1)) is None


def test_a_screen_shows_its_state() -> None:
    state = {**screens.begin(APP), "screen": "notes"}
    plain = np.asarray(screens.draw_screen(APP, state)).astype(int)
    assert plain.shape == (300, 180, 3)
    changes = {
        "values": {"title": "milk"},
        "focus": "title",
        "note": "Done: 1234",
    }
    rows = {"values": 0, "focus": 0, "note": None}
    for name, value in changes.items():
        other = np.asarray(screens.draw_screen(APP, {**state, name: value})).astype(int)
        changed = np.argwhere(np.abs(other - plain).max(-1) > 0)[:, 0] * 1000 / 300
        low, high = (875, 1000) if rows[name] is None else screens.box_of(0)[1::2]
        assert len(changed) > 10
        assert low - 5 <= changed.min() <= changed.max() <= high + 5
    ticked = np.asarray(screens.draw_screen(APP, {**state, "values": {"pinned": True}}))
    assert (ticked == screens.ON).all(-1).sum() > 50


def test_a_long_text_keeps_its_end() -> None:
    where = context(app=APP)
    tapped(where, 0)
    tapped(where, 0)
    shown = [load_image(typed(where, text).media[0]).tobytes() for text in ("a" * 60, "a" * 59 + "b")]
    assert shown[0] != shown[1]


@settings(max_examples=40)
@given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["milk", "x", "", "back"])), max_size=12))
def test_any_actions_on_a_screen(actions: list[int | str]) -> None:
    where, total = context(app=APP), 0.0
    for action in actions:
        if isinstance(action, int):
            result = tapped(where, action)
        else:
            result = call_tool(ToolCall("back", {}), where) if action == "back" else typed(where, action)
        if result.fault is not None:
            assert result.fault.code in ("ended", "no_focus")
            continue
        total += result.data["reward"]
        assert total <= 1 + 1e-9
        assert result.data["success"] == (total == pytest.approx(1))
        assert load_image(result.media[0]).size == (180, 300)


def test_names_are_registered_with_their_units() -> None:
    from mmrl.registry import get

    assert get("tool", "move").obj is games.move
    assert get("tool", "type").obj is screen.type_text
    assert "0-1000" in get("tool", "tap").info["schema"]["description"]
    assert all(get("tool", name).info["stateful"] for name in ("move", "tap", "type", "back"))
