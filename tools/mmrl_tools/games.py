"""Environments that a policy acts in: `move` walks a grid world, `calculate` checks a hand of the card game 24.

Every result's `data` has `reward` (of this call), `success` and `done`. Rewards of moves are differences of potential:
the share of the way to the goal that a call has covered. They sum to 1 at the goal whatever way was taken, so walking
to and fro earns nothing. A world that is done stays done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl.registry import register
from mmrl.rewards.expression import evaluate, makes
from mmrl.rollout.arguments import short
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import ToolResult
from mmrl_tools import options
from mmrl_tools.gridworld import MOVES, Grid, distances, draw_grid, walk

FALL = -1.0  # sum of the rewards of a dialogue that ends in a hole
ENDED = "ended"


def game(context: ToolContext, name: str, what: str) -> Mapping[str, Any]:
    """The description of an environment in the sample's meta. Raises ToolError where there is none."""
    found = context.sample.meta.get(name) if context.sample is not None else None
    if not isinstance(found, Mapping):
        raise ToolError("no_game", f"there is no {what} in this dialogue; answer without this tool")
    return found


def refuse_ended(state: Mapping[str, Any]) -> None:
    """Raises ToolError for a call to an environment whose episode has ended."""
    if state.get("done"):
        raise ToolError(ENDED, "this has ended; make no more calls and give the answer now")


@register(
    "tool",
    "move",
    schema=schema(
        "Walk one cell for each move, in order; shows the new state",
        {"moves": {"type": "array", "items": {"enum": list(MOVES)}, "minItems": 1, "maxItems": 8}},
        ["moves"],
    ),
    limits=Limits(seconds=10, text=400, media=1),
    stateful=True,
    paper="GTR",
)
def move(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Moves of the walker in `meta["gridworld"]`: {"rows", "limit" of moves, "code" told at the goal, "size" pixels}.

    `rollout.tool_options.move`: `fall`, the reward of a dialogue that ends in a hole (default -1).

    `data`: reward, success, done, at [row, column], moves made. Errors: no_game,
    ended.
    """
    options.check_options(context, ("fall",))
    world = game(context, "gridworld", "grid")
    grid = Grid(tuple(world["rows"]))
    state = context.state.get("gridworld") or {"at": list(grid.start), "moves": 0, "done": False}
    refuse_ended(state)
    limit = int(world["limit"])
    before = (int(state["at"][0]), int(state["at"][1]))
    way = walk(grid, before, arguments["moves"][: limit - state["moves"]])
    place, used = way[-1], state["moves"] + len(way)
    sign = grid.at(place)
    done = sign in "OG" or used >= limit
    context.state["gridworld"] = {"at": list(place), "moves": used, "done": done}
    left = distances(grid)
    whole = left[grid.start]
    fall = options.number(context, "fall", FALL, low=-10, high=0)
    gained = fall - (1 - left[before] / whole) if sign == "O" else (left[before] - left[place]) / whole
    told = [f"{len(way)} of {len(arguments['moves'])} moves made, {limit - used} left."]
    told += ["A wall stopped you."] if _bumped(before, way) else []
    told += [f"You reached the goal. The code is {world['code']}."] if sign == "G" else []
    told += ["You fell into a hole; this has ended."] if sign == "O" else []
    told += ["No moves are left; this has ended."] if done and sign not in "OG" else []
    ref = context.add(draw_grid(grid, place, int(world["size"])))
    data = {"reward": gained, "success": sign == "G", "done": done, "at": list(place), "moves": used}
    return ToolResult(f"{ref.id}: {' '.join(told)}", (ref,), data=data)


def _bumped(before: tuple[int, int], way: list[tuple[int, int]]) -> bool:
    return any(a == b for a, b in zip([before, *way], way, strict=False))


@register(
    "tool",
    "calculate",
    schema=schema(
        "Value of an arithmetic expression of + - * / ( ), and whether it solves the card game",
        {"expression": {"type": "string", "minLength": 1, "maxLength": 200}},
        ["expression"],
    ),
    limits=Limits(seconds=5, text=400, media=0),
    paper="GTR",
)
def calculate(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The exact value of an expression. For a sample with `numbers` and `target` in its meta: whether it makes the
    target and uses each card once; which cards there are is not told.

    `data`: value (as text, a fraction where it is no whole number), success. Errors: bad_expression.
    """
    text = arguments["expression"]
    found = evaluate(text)
    if found is None:
        raise ToolError(
            "bad_expression", f"{short(text)} is no expression of whole numbers, + - * / and ( ), or divides by 0"
        )
    value, used = found
    meta = context.sample.meta if context.sample is not None else {}
    if not {"numbers", "target"} <= set(meta):
        return ToolResult(f"{text} = {value}", data={"value": str(value)})
    right = makes(text, meta["numbers"], meta["target"])
    cards = "uses each card once" if sorted(used) == sorted(meta["numbers"]) else "does not use each card exactly once"
    hit = "is" if value == meta["target"] else "is not"
    told = f"{text} = {value}, which {hit} {meta['target']}; it {cards}."
    return ToolResult(told, data={"value": str(value), "success": right})
