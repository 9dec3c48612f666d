"""The arguments of calls against the JSON schemas of tools: the keywords that tools use, each with its own message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmrl.registry import nearest

LARGEST = 1e9  # of any number
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class BadArguments(ValueError):
    """Arguments that do not fit; the message is read by the policy."""


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise BadArguments where arguments do not fit the schema: missing or unknown names, types, bounds, lengths."""
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            raise BadArguments(f"argument {name!r} is missing")
    for name, value in arguments.items():
        if name in properties:
            _check(name, value, properties[name])
        elif not schema.get("additionalProperties", False):
            known = ", ".join(properties) or "none"
            hint = f" ({nearest(name, list(properties))})" if properties else ""
            raise BadArguments(f"unknown argument {short(name)}{hint}; known: {known}")


def _check(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            _check_any(name, value, schema[key])
    kinds = schema.get("type")
    if kinds is not None:
        listed = kinds if isinstance(kinds, list) else [kinds]
        if not any(_fits(value, kind) for kind in listed):
            raise BadArguments(f"{name} must be of type {' or '.join(listed)}, got {short(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise BadArguments(f"{name} must be one of {', '.join(map(str, schema['enum']))}, got {short(value)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            raise BadArguments(f"{name} must be {_between(low, high)}, got {short(value)}")
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
        most = _between(schema.get("minLength", 0), schema.get("maxLength", math.inf))
        raise BadArguments(f"{name} must have {most} characters, got {len(value)}")
    if isinstance(value, list):
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not low <= len(value) <= high:
            raise BadArguments(f"{name} must have {_between(low, high)} items, got {len(value)}")
        for item in value:
            _check(f"each item of {name}", item, schema.get("items", {}))
    if isinstance(value, dict) and "properties" in schema:
        check_arguments(value, schema)


def _check_any(name: str, value: Any, choices: list[Mapping[str, Any]]) -> None:
    errors = []
    for choice in choices:
        try:
            _check(name, value, choice)
        except BadArguments as error:
            errors.append(str(error))
        else:
            return
    raise BadArguments("; or ".join(errors))


def _fits(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    return not isinstance(value, int | float) or abs(value) <= LARGEST  # nan fails too


def _between(low: float, high: float) -> str:
    if low == high:
        return f"{low:g}"
    if high == math.inf:
        return f"at least {low:g}"
    return f"at most {high:g}" if low == -math.inf else f"{low:g} to {high:g}"


def short(value: Any) -> str:
    """A value of the policy's as it may stand in a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or lists in lists beyond its depth
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 40 else text[:37] + "..."
