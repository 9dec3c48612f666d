"""Which samples to keep, said in expressions on the fields of a record.

    meta.difficulty.rate <= 0.9        task == rotation        media.0.width >= 64        answer.kind in [choice, order]

An expression is a field, an operator (== != < <= > >= in, not in) and a value: JSON, or a bare word for a text. A
field is a path of names and of numbers of list entries. A record without the field, or with null there, never matches.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.registry import nearest
from mmrl.shards.record import ShardError

_EXPRESSION = re.compile(
    r"\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*(==|!=|<=|>=|<|>|not\s+in\b|in\b)\s*(\S.*?)\s*", re.DOTALL
)
_WORD = re.compile(r"[^\W\d][\w./:+-]*")
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SPELLINGS = {"True": True, "False": False, "None": None}


class FilterError(ShardError):
    """An expression that cannot be read, or that does not fit the records. `expression` is its text."""

    def __init__(self, expression: str, message: str) -> None:
        super().__init__(f"filter {expression!r}: {message}")
        self.expression = expression
        self.message = message

    def __reduce__(self) -> tuple[type[FilterError], tuple[str, str]]:
        return FilterError, (self.expression, self.message)  # crosses process borders


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed expression."""

    expression: str
    path: tuple[str, ...]
    operator: str
    value: Any

    def __call__(self, record: Mapping[str, Any]) -> bool | None:
        """Whether a record matches; None where it has no such field. Raises FilterError for values of other kinds."""
        found = _field(record, self.path)
        if found is None:
            return None
        if self.operator in _ORDER:
            if _kind(found) != _kind(self.value) or _kind(found) not in ("number", "text"):
                key = record.get("key")
                raise FilterError(
                    self.expression,
                    f"{'.'.join(self.path)} of the sample {key!r} is the {_kind(found)} {found!r}: no order with the "
                    f"{_kind(self.value)} {self.value!r}",
                )
            return _ORDER[self.operator](found, self.value)
        if self.operator in ("==", "!="):
            return _same(found, self.value) == (self.operator == "==")
        return any(_same(found, v) for v in self.value) == (self.operator == "in")


def parse_filter(expression: str) -> Filter:
    """Read an expression. Raises FilterError."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise FilterError(
            expression, "write FIELD OPERATOR VALUE, such as meta.level <= 3; operators: == != < <= > >= in"
        )
    path, sign, text = match.groups()
    sign = " ".join(sign.split())
    value = _value(expression, text)
    if sign in ("in", "not in") and not isinstance(value, list):
        raise FilterError(expression, f"`{sign}` wants a list such as [a, b], not {text}")
    if sign in _ORDER and _kind(value) not in ("number", "text"):
        raise FilterError(expression, f"`{sign}` wants a number or a text, not {text}")
    if value is None:
        raise FilterError(expression, "null is never compared: a field without a value matches no filter")
    return Filter(expression, tuple(path.split(".")), sign, value)


class Selection:
    """Filters applied one after the other to many records, with a look at the end at whether they made sense."""

    def __init__(self, expressions: Sequence[str]) -> None:
        self.filters = [parse_filter(e) for e in expressions]
        self._asked = [0] * len(self.filters)
        self._found = [0] * len(self.filters)
        self._fields: set[str] = set()

    def keeps(self, record: Mapping[str, Any]) -> bool:
        """Whether a record passes all filters. Raises FilterError."""
        for number, test in enumerate(self.filters):
            verdict = test(record)
            self._asked[number] += 1
            if verdict is None:
                if not self._found[number]:
                    self._fields.update(_fields(record))
                return False
            self._found[number] += 1
            if not verdict:
                return False
        return True

    def check(self) -> None:
        """Raise FilterError for a filter whose field none of the records had: most likely it is misspelt."""
        for test, asked, found in zip(self.filters, self._asked, self._found, strict=True):
            if asked and not found:
                hint = nearest(".".join(test.path), sorted(self._fields))
                raise FilterError(test.expression, f"none of {asked} samples has this field: {hint}")


def _value(expression: str, text: str) -> Any:
    """The value that a text means: JSON first, then a word, then a list of words."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    if _WORD.fullmatch(text):
        return text
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [_value(expression, part.strip()) for part in text[1:-1].split(",")]
    raise FilterError(expression, f'{text} is no JSON value and no word: put texts into quotes, such as "two words"')


def _field(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _fields(value: Any, before: str = "", depth: int = 4) -> list[str]:
    """Paths of all fields of a record, for hints."""
    if isinstance(value, list):
        value = {str(n): v for n, v in enumerate(value[:1])}
    if not isinstance(value, Mapping) or not depth:
        return [before] if before else []
    return [p for n, v in value.items() for p in _fields(v, f"{before}.{n}" if before else n, depth - 1)]


def _kind(value: Any) -> str:
    """JSON's name of the kind of a value."""
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float):
        return "number"
    return {str: "text", list: "list", type(None): "null"}.get(type(value), "object")


def _same(a: Any, b: Any) -> bool:
    return _kind(a) == _kind(b) and bool(a == b)
