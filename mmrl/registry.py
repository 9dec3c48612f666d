"""The one registry: components, rewards, signals, tools, tasks and engines are found by (kind, name).

    @register("advantage", "grpo", paper="2402.03300")
    def grpo(batch, *, std: bool = True): ...

Modules named in the entry-point group `mmrl.plugins` are imported on the first look-up, so third parties add
components by one line in their own pyproject.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

KINDS = (
    "shaping",
    "advantage",
    "credit",
    "ratio",
    "surrogate",
    "aggregation",
    "regularizer",
    "curriculum",
    "prompt",
    "rollout",
    "metric",
    "filter",
    "reward",
    "signal",
    "tool",
    "task",
    "engine",
)
STAGES = KINDS[:12]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered object with what is known of it."""

    kind: str
    name: str
    obj: Any
    paper: str = ""
    needs: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.obj.__doc__ or "")

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters, which a recipe may set."""
        if not callable(self.obj):
            return {}
        return {k: p for k, p in inspect.signature(self.obj).parameters.items() if p.kind is p.KEYWORD_ONLY}


class UnknownName(KeyError):
    """A name that nothing was registered under; the message holds the nearest known ones."""

    def __str__(self) -> str:
        return str(self.args[0])


_entries: dict[tuple[str, str], Entry] = {}


def nearest(name: str, known: list[str]) -> str:
    """A hint for an error message: the closest known name, or the whole list when none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"


def register(
    kind: str, name: str, *, paper: str = "", needs: tuple[str, ...] | set[str] = (), **info: Any
) -> Callable[[T], T]:
    """Decorator that files an object under (kind, name). A name taken by another object is an error."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of component {kind!r}: {nearest(kind, list(KINDS))}")

    def add(obj: T) -> T:
        old = _entries.get((kind, name))
        if old is not None and (
            getattr(old.obj, "__module__", None),
            getattr(old.obj, "__qualname__", old.name),
        ) != (getattr(obj, "__module__", None), getattr(obj, "__qualname__", name)):
            raise ValueError(f"{kind} {name!r} is already registered by {getattr(old.obj, '__module__', old.obj)}")
        _entries[(kind, name)] = Entry(kind, name, obj, paper, tuple(needs), dict(info))
        return obj

    return add


@functools.cache
def load_plugins() -> None:
    """Import every module of the entry-point group `mmrl.plugins`, once."""
    for point in importlib.metadata.entry_points(group="mmrl.plugins"):
        point.load()


def get(kind: str, name: str) -> Entry:
    """The entry under (kind, name). Raises UnknownName with a hint."""
    load_plugins()
    if (kind, name) not in _entries:
        raise UnknownName(f"no {kind} named {name!r}: {nearest(name, [n for k, n in _entries if k == kind])}")
    return _entries[(kind, name)]


def entries(kind: str | None = None) -> list[Entry]:
    """All entries, or those of one kind, sorted by kind and name."""
    load_plugins()
    return [e for (k, _), e in sorted(_entries.items()) if kind in (None, k)]


def bind(kind: str, name: str, params: dict[str, Any]) -> Callable[..., Any]:
    """The registered function with its keyword parameters set. An unknown parameter is an error with a hint."""
    entry = get(kind, name)
    for key in params:
        if key not in entry.parameters:
            raise ValueError(f"{kind} {name!r} has no parameter {key!r}: {nearest(key, list(entry.parameters))}")
    return functools.partial(entry.obj, **params)
