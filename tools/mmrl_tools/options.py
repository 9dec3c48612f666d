"""The settings of a tool, as a recipe gives them under `rollout.tool_options`, checked; errors name the key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl.registry import nearest
from mmrl.rollout.tools import ToolContext


def check_options(context: ToolContext, known: Sequence[str]) -> None:
    """Raise ValueError where the running tool is given a setting that it does not have."""
    for key in context.options:
        if key not in known:
            raise ValueError(f"{where(context, key)}: unknown setting: {nearest(str(key), list(known))}")


def number(context: ToolContext, name: str, default: float, *, low: float, high: float) -> float:
    """A number from low to high. Raises ValueError."""
    value = context.options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{where(context, name)} is {value!r}: set it to a number from {low:g} to {high:g}")
    return value


def count(context: ToolContext, name: str, default: int, *, low: int, high: int) -> int:
    """A whole number from low to high. Raises ValueError."""
    value = number(context, name, default, low=low, high=high)
    if value != int(value):
        raise ValueError(f"{where(context, name)} is {value!r}: set it to a whole number from {low} to {high}")
    return int(value)


def path(context: ToolContext, name: str, default: Path | None, what: str) -> Path:
    """A file or folder, `~` being the home folder. `what` says what it should hold. Raises ValueError."""
    value: Any = context.options.get(name, default)
    if not isinstance(value, str | Path) or not str(value):
        said = "not set" if value is None else repr(value)
        raise ValueError(f"{where(context, name)} is {said}: set it to {what}")
    return Path(value).expanduser()


def where(context: ToolContext, name: str) -> str:
    """The key of a recipe that sets `name` for the running tool."""
    return f"rollout.tool_options.{context.name}.{name}"
