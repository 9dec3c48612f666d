"""Orders of shuffled pieces, in one convention for all puzzles.

`order` is what was done: slot i of what is shown holds piece order[i]. The answer is the way back: for each piece in
its true place, the slot that shows it, i.e. the inverse of `order` (card visual-jigsaw, counted from 0 here, as
`mmrl.types.Answer` holds orders). The card puzzlecraft-puzzles asks for `order` itself; the two agree for orders only
that are their own inverse, so every question says which is meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import choice, chosen, lettered

T = TypeVar("T")


def shuffle(count: int, rng: np.random.Generator) -> list[int]:
    """An order of 0 .. count-1, each but the identity equally likely. Raises ValueError for fewer than two pieces."""
    if count < 2:
        raise ValueError(f"{count} pieces cannot be shuffled")
    while True:
        order = [int(n) for n in rng.permutation(count)]
        if order != sorted(order):
            return order


def inverse(order: Sequence[int]) -> list[int]:
    """Piece -> the slot that shows it."""
    return [order.index(piece) for piece in range(len(order))]


def show(pieces: Sequence[T], order: Sequence[int]) -> list[T]:
    """The pieces in the order in which they are shown."""
    return [pieces[piece] for piece in order]


def restore(shown: Sequence[T], order: Sequence[int]) -> list[T]:
    """The shown pieces back in their true places: restored[order[i]] = shown[i]."""
    return [shown[slot] for slot in inverse(order)]


def ask(sentence: str, order: Sequence[int], rng: np.random.Generator, options: PuzzleOptions) -> tuple[str, Answer]:
    """Question and answer for a sentence that says what the pieces are, how they are numbered (from 0), and for which
    list it asks. Style "choice": right and wrong lists are drawn alike, all different, none the identity."""
    right = inverse(order)
    if options.style == "order":
        return f"{sentence} Give all {len(right)} numbers, separated by commas.", Answer("order", right)
    lists = [right]
    while len(lists) < min(options.distractors, math.factorial(len(right)) - 2) + 1:
        other = shuffle(len(right), rng)
        if other not in lists:
            lists.append(other)
    answer = choice([text(slots) for slots in lists], 0, rng)
    return lettered(sentence, answer.options), answer


def stated(answer: Answer) -> list[int]:
    """The slots that an answer of either style names."""
    return list(answer.value) if answer.kind == "order" else [int(n) for n in chosen(answer).split(", ")]


def proves(answer: Answer, order: Sequence[int]) -> bool:
    """Whether the answer undoes `order`, and `order` is an order of its pieces other than the identity."""
    pieces = list(range(len(order)))
    return sorted(order) == pieces and list(order) != pieces and stated(answer) == inverse(order)


def text(slots: Sequence[int]) -> str:
    return ", ".join(map(str, slots))
