"""Arithmetic that an answer must spell out, as in the card game of 24 points (card gtr): read by its syntax, never run,
and worked out in exact fractions."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction

LONGEST = 200  # characters of an expression
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")", "{": "(", "}": ")"})
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(text: str) -> tuple[Fraction, list[int]] | None:
    """(value, whole numbers in the order written) of an expression of + - * / and brackets; an ending "= 24" is left
    out. None for anything else: signs of numbers, powers, names, division by zero, more than LONGEST characters."""
    plain = re.sub(r"\s*=\s*\d+\s*$", "", text.strip().strip("$")).translate(_SIGNS).strip()
    # only these characters reach the parser, so that 0x18, 1_0, 1e9 and names never do
    if len(plain) > LONGEST or not re.fullmatch(r"[0-9+\-*/() \n]+", plain):
        return None
    numbers: list[int] = []
    try:
        return _value(ast.parse(plain, mode="eval").body, numbers), numbers
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def makes(text: str, numbers: Sequence[int], target: int) -> bool:
    """Whether an expression has the value `target` and uses each of the numbers exactly once."""
    found = evaluate(text)
    return found is not None and found[0] == target and sorted(found[1]) == sorted(numbers)


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value: Fraction = _OPERATORS[type(node.op)](_value(node.left, numbers), _value(node.right, numbers))
        return value
    raise ValueError(f"no arithmetic: {type(node).__name__}")
