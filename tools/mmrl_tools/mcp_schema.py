"""The argument schemas of MCP servers as a prompt shows them and `check_arguments` can check them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
_NAMED = ("properties", "$defs", "definitions", "patternProperties")  # hold schemas by name
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_DROPPED = ("title", "$schema")  # titles only repeat names
_ELSEWHERE = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if")  # may allow more names


def parameters(schema: Any) -> dict[str, Any]:
    """A server's schema of arguments, without titles and without what is no valid schema; the server itself checks
    what is not checked here.

    Unknown arguments are refused, in objects within as well, unless the schema allows them or names none at all: most
    servers say nothing of them, and would ignore a misspelt name.
    """
    return _object({"type": "object", "properties": {}, **_lean(schema)})


def _lean(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):  # true: anything goes; false: nothing, which the server says
        return {}
    kept = {key: part for key, value in schema.items() if (part := _part(key, value)) is not None}
    return _object(kept) if "properties" in kept else kept


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object whose required names are all known, open where others may say what else it holds."""
    named = schema["properties"] | {n: {} for n in schema.get("required", ()) if n not in schema["properties"]}
    out = {**schema, "properties": named}
    if not named or any(key in schema for key in _ELSEWHERE):
        out.setdefault("additionalProperties", True)
    return out


def _part(key: str, value: Any) -> Any:
    """The value of one keyword as it is kept; None: left out."""
    if key in _DROPPED:
        return None
    if key in _NAMED:
        return {str(n): _lean(part) for n, part in value.items()} if isinstance(value, Mapping) else None
    if key in _LISTS:
        return [_lean(part) for part in value] if isinstance(value, list) and value else None
    if key == "items":
        return _lean(value) if isinstance(value, Mapping) else None
    if key == "additionalProperties":
        return (_lean(value) or True) if isinstance(value, Mapping) else value if isinstance(value, bool) else None
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        return value if kinds and all(isinstance(k, str) and k in _TYPES for k in kinds) else None
    if key == "required":
        return value if isinstance(value, list) and all(isinstance(n, str) for n in value) else None
    if key == "enum":
        return value if isinstance(value, list) and value else None
    if key in _BOUNDS:
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return value
