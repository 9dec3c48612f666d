"""A small deterministic app of screens, drawn by Pillow: what it is made of, how it reacts, how it looks.

An app is plain values:

    {"size": [width, height] in pixels, "start": name of a screen,
     "screens": {name: {"title", "parent" ("" for the start), "rows": [row, ...]}},
     "goal": {"screen", "values": {name: text or true/false}}, "code": shown when the goal is met, "limit": of actions}

Rows, at most ROWS of them: {"kind": "link", "text", "to"}, {"kind": "field", "text", "name"}, {"kind": "tick", "text",
"name"}, {"kind": "button", "text"} (sends what the screen holds: this meets the goal or not). Names of fields and ticks
are unique in the app. A state is {"screen", "focus", "values", "note", "done", "success", "actions"}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

ROWS = 6  # beneath the title and over the bar of the note
BANDS = ROWS + 2
SCALE = 1000
COLOURS = {"link": (226, 232, 240), "field": (255, 255, 255), "tick": (255, 255, 255), "button": (40, 90, 200)}
INK, BACKGROUND, TITLE, FOCUS, ON = (20, 24, 32), (246, 247, 249), (30, 41, 59), (230, 120, 20), (40, 160, 60)

State = dict[str, Any]


def begin(app: Mapping[str, Any]) -> State:
    """The state before the first action."""
    return {
        "screen": app["start"],
        "focus": "",
        "values": {},
        "note": "",
        "done": False,
        "success": False,
        "actions": 0,
    }


def box_of(row: int) -> tuple[float, float, float, float]:
    """xyxy of a row in 0..1000 of the screen."""
    top = (row + 1) * SCALE / BANDS
    return 40.0, top + 10, 960.0, top + SCALE / BANDS - 10


def row_at(point: tuple[float, float]) -> int | None:
    """Number of the row that a point in 0..1000 hits, edges included; None between rows. There may be no such row."""
    x, y = point
    for number in range(ROWS):
        left, top, right, bottom = box_of(number)
        if left <= x <= right and top <= y <= bottom:
            return number
    return None


def tap(app: Mapping[str, Any], state: State, row: int | None) -> State:
    """The state after a tap on a row (None: on nothing)."""
    rows = app["screens"][state["screen"]]["rows"]
    new = {**state, "note": "", "actions": state["actions"] + 1}
    if row is None or row >= len(rows):
        return {**new, "focus": ""}
    hit = rows[row]
    if hit["kind"] == "link":
        return {**new, "screen": hit["to"], "focus": ""}
    if hit["kind"] == "field":
        return {**new, "focus": hit["name"]}
    if hit["kind"] == "tick":
        on = not state["values"].get(hit["name"], False)
        return {**new, "focus": "", "values": {**state["values"], hit["name"]: on}}
    if not _met(app, state):
        return {**new, "focus": "", "note": "That is not right"}
    return {**new, "focus": "", "note": f"Done: {app['code']}", "done": True, "success": True}


def write(app: Mapping[str, Any], state: State, text: str) -> State:
    """The state after the field in focus got a text, in place of what it held. There must be one."""
    values = {**state["values"], state["focus"]: text}
    return {**state, "values": values, "note": "", "actions": state["actions"] + 1}


def back(app: Mapping[str, Any], state: State) -> State:
    """The state after going back to the screen before; the first screen stays."""
    parent = app["screens"][state["screen"]]["parent"] or state["screen"]
    return {**state, "screen": parent, "focus": "", "note": "", "actions": state["actions"] + 1}


def _met(app: Mapping[str, Any], state: State) -> bool:
    """Whether the state holds what the goal asks, and on its screen nothing beside it."""
    goal = app["goal"]
    names = [r["name"] for r in app["screens"][goal["screen"]]["rows"] if "name" in r]
    held = {n: state["values"].get(n) or False for n in names}
    asked = {n: goal["values"].get(n) or False for n in names}
    return state["screen"] == goal["screen"] and held == asked


def actions_left(app: Mapping[str, Any], state: State) -> int | None:
    """Fewest actions from a state to the goal, by breadth-first search over taps, the goal's texts and back; None
    where it cannot be reached."""
    if state["success"]:
        return 0
    seen = {_key(app, state)}
    queue = deque([(state, 0)])
    while queue:
        now, count = queue.popleft()
        for then in _next(app, now):
            if then["success"]:
                return count + 1
            if (key := _key(app, then)) not in seen:
                seen.add(key)
                queue.append((then, count + 1))
    return None


def _next(app: Mapping[str, Any], state: State) -> list[State]:
    """Every state that one action leads to, as far as it can matter for the goal."""
    goal = app["goal"]
    out = [tap(app, state, n) for n, _ in enumerate(app["screens"][state["screen"]]["rows"])]
    if state["focus"]:
        out.append(write(app, state, str(goal["values"].get(state["focus"], "") or "")))
    return [*out, back(app, state)]


def _key(app: Mapping[str, Any], state: State) -> tuple[Any, ...]:
    """What of a state matters for the way to the goal: fields and ticks of other screens do not."""
    names = [r["name"] for r in app["screens"][app["goal"]["screen"]]["rows"] if "name" in r]
    focus = state["focus"] if state["focus"] in names else ""
    return state["screen"], focus, tuple(state["values"].get(n) or False for n in names)


def draw_screen(app: Mapping[str, Any], state: State) -> Image.Image:
    """The screen as it looks, [height, width] of the app's size."""
    width, height = app["size"]
    screen = app["screens"][state["screen"]]
    band = height / BANDS
    image = Image.new("RGB", (width, height), BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(max(8, round(band * 0.42)))
    draw.rectangle((0, 0, width, round(band) - 1), fill=TITLE)
    arrow = "< " if screen["parent"] else ""
    draw.text((width * 0.05, band / 2), arrow + screen["title"], fill="white", font=font, anchor="lm")
    for number, row in enumerate(screen["rows"]):
        x1, y1, x2, y2 = (round(v * side / SCALE) for v, side in zip(box_of(number), (width, height) * 2, strict=True))
        focused = row.get("name") == state["focus"] != ""
        outline = FOCUS if focused else TITLE
        draw.rectangle((x1, y1, x2, y2), fill=COLOURS[row["kind"]], outline=outline, width=2 if focused else 1)
        ink = "white" if row["kind"] == "button" else INK
        text = row["text"]
        if row["kind"] == "field":
            text = f"{text}: {state['values'].get(row['name'], '')}"
        draw.text((x1 + width * 0.03, (y1 + y2) / 2), _fitted(text, font, x2 - x1 - width * 0.06), ink, font, "lm")
        if row["kind"] == "tick":
            side = (y2 - y1) * 0.5
            left, top = x2 - 1.6 * side, (y1 + y2 - side) / 2
            fill = ON if state["values"].get(row["name"]) else "white"
            draw.rectangle((left, top, left + side, top + side), fill=fill, outline=INK)
    draw.text((width / 2, height - band / 2), state["note"], fill=INK, font=font, anchor="mm")
    return image


def _fitted(text: str, font: Any, width: float) -> str:
    """The text, or its end after two dots where it is too wide."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(".." + text) > width:
        text = text[1:]
    return ".." + text
