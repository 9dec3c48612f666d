"""tap, type, back: acting on the screens of a small app (Mobile-R1 style), see `mmrl_tools.screens`.

The app stands in the sample's meta under `app`, the state is shared by the three tools. The reward of a call is the
share of the shortest way to the goal that it covers; it is negative for a step away, and the sum is 1 at the goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl.registry import register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import ToolResult
from mmrl_tools import screens
from mmrl_tools.games import game, refuse_ended

LIMITS = Limits(seconds=10, text=400, media=1)


@register(
    "tool",
    "tap",
    schema=schema(
        "Tap the screen at x,y in 0-1000 of its width and height",
        {"point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}},
        ["point"],
    ),
    limits=LIMITS,
    stateful=True,
    paper="Mobile-R1",
)
def tap(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """A tap opens a link, puts a field into focus, turns a tick, or sends what the screen holds.

    Errors: no_game, ended, outside_picture (the point).
    """
    app, state = _opened(context)
    x, y = arguments["point"]
    if not (0 <= x <= screens.SCALE and 0 <= y <= screens.SCALE):
        raise ToolError("outside_picture", f"point {x:g},{y:g} is outside the screen, which is 0-1000")
    row = screens.row_at((x, y))
    rows = app["screens"][state["screen"]]["rows"]
    nothing = row is None or row >= len(rows)
    said = "tapped on nothing" if nothing else f"tapped {rows[row or 0]['text']}"
    return _shown(app, state, screens.tap(app, state, row), said, context)


@register(
    "tool",
    "type",
    schema=schema(
        "Type a text into the field that was tapped, replacing what it holds",
        {"text": {"type": "string", "maxLength": 60}},
        ["text"],
    ),
    limits=LIMITS,
    stateful=True,
    paper="Mobile-R1",
)
def type_text(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Write into the field in focus. Errors: no_game, ended, no_focus."""
    app, state = _opened(context)
    if not state["focus"]:
        raise ToolError("no_focus", "no field is in focus: tap one first")
    text = " ".join(arguments["text"].split())
    return _shown(app, state, screens.write(app, state, text), "typed", context)


@register(
    "tool",
    "back",
    schema=schema("Go back to the screen before", {}),
    limits=LIMITS,
    stateful=True,
    paper="Mobile-R1",
)
def back(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Go to the screen that this one was opened from. Errors: no_game, ended."""
    app, state = _opened(context)
    said = "went back" if app["screens"][state["screen"]]["parent"] else "this is the first screen"
    return _shown(app, state, screens.back(app, state), said, context)


def _opened(context: ToolContext) -> tuple[Mapping[str, Any], screens.State]:
    app = game(context, "app", "screen")
    state = context.state.get("app") or screens.begin(app)
    refuse_ended(state)
    return app, state


def _shown(
    app: Mapping[str, Any], before: screens.State, after: screens.State, said: str, context: ToolContext
) -> ToolResult:
    """The picture of the new state, and what the step was worth."""
    out = not after["done"] and after["actions"] >= app["limit"]
    after = {**after, "done": after["done"] or out}
    context.state["app"] = after
    whole = screens.actions_left(app, screens.begin(app))
    left = [screens.actions_left(app, s) for s in (before, after)]
    if not whole or None in left:
        raise ValueError("the goal of this app cannot be reached")
    ref = context.add(screens.draw_screen(app, after))
    text = f"{ref.id}: {said}. {after['note']}" + (" No actions are left; this has ended." if out else "")
    data = {
        "reward": ((left[0] or 0) - (left[1] or 0)) / whole,
        "success": after["success"],
        "done": after["done"],
        "screen": after["screen"],
        "actions": after["actions"],
    }
    return ToolResult(text.strip(), (ref,), data=data)
