"""Questions with lettered options of which one or several are right, as plain data, and their shuffling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmrl.types import Answer
from mmrl_prep.puzzles.puzzle import Unpuzzling, letter, lettered

MAX_OPTIONS = 26  # letters


@dataclass(frozen=True, slots=True)
class OptionQuestion:
    """A question, its options in the order shown, and the places of the right ones, increasing.

    several: all right options are asked for, even where there is one; else it is a question with one right option.
    Raises ValueError for what is no such question.
    """

    text: str
    options: tuple[str, ...]
    right: tuple[int, ...]
    several: bool = False

    def __post_init__(self) -> None:
        places = range(len(self.options))
        if not 2 <= len(self.options) <= MAX_OPTIONS:
            raise ValueError(f"{len(self.options)} options: 2 to {MAX_OPTIONS} are possible")
        if not self.right or list(self.right) != sorted(set(self.right)) or any(n not in places for n in self.right):
            raise ValueError(f"right {self.right}: increasing places of the {len(self.options)} options, at least one")
        if len(self.right) > 1 and not self.several:
            raise ValueError(f"right {self.right}: a question that asks for one option")
        if len({same(option) for option in self.options}) < len(self.options):
            raise ValueError(f"two options are the same: {', '.join(self.options)}")

    @property
    def letters(self) -> str:
        """The right letters as an answer states them: "B", or "A,B,D"."""
        return ",".join(letter(n) for n in self.right)

    @property
    def answer(self) -> Answer:
        """As shards hold it: kind "choices" with a list of letters, or "choice" with one letter."""
        letters = [letter(n) for n in self.right]
        return Answer("choices", letters, self.options) if self.several else Answer("choice", letters[0], self.options)

    @property
    def lettered(self) -> str:
        """The text of the question with its options, a line each."""
        return lettered(self.text, self.options)


def same(text: str) -> str:
    """What two options share that a reader takes for the same: case, spaces and a final stop do not count."""
    return " ".join(text.split()).rstrip(".").casefold()


def reorder(question: OptionQuestion, order: Sequence[int]) -> OptionQuestion:
    """The options at the places `order`, in that order; some may be left out as long as a right one stays."""
    right = tuple(place for place, old in enumerate(order) if old in question.right)
    return replace(question, options=tuple(question.options[old] for old in order), right=right)


def shuffle_options(question: OptionQuestion, rng: np.random.Generator) -> OptionQuestion:
    """All options in random order; the letters follow."""
    return reorder(question, [int(n) for n in rng.permutation(len(question.options))])


def distractors(right: Sequence[str], pool: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`count` different wrong options drawn from other rows' answers, none equal to a right one but for case, spaces
    and a final stop. Raises Unpuzzling "few_options" where the pool has too few.

    The draw depends on what the pool holds, not on its order.
    """
    taken = {same(text) for text in right}
    wrong = {same(text): text for text in sorted(pool, reverse=True) if same(text) and same(text) not in taken}
    if len(wrong) < count:
        raise Unpuzzling("few_options", f"{len(wrong)} wrong options in the pool, {count} are wanted")
    names = sorted(wrong)
    return [wrong[names[n]] for n in rng.choice(len(names), count, replace=False)]


def with_distractors(
    text: str, right: Sequence[str], pool: Sequence[str], count: int, rng: np.random.Generator, *, several: bool = False
) -> OptionQuestion:
    """A question with its right option (with `several`, any number of them) and `count` wrong ones from the pool, in
    random order. Raises Unpuzzling "few_options", and ValueError as `OptionQuestion`."""
    options = (*right, *distractors(right, pool, count, rng))
    return shuffle_options(OptionQuestion(text, options, tuple(range(len(right))), several), rng)
