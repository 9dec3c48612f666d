"""Question-answer inversion: what was the right option becomes the only wrong one (TW-GRPO, card qai)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl_prep.puzzles.puzzle import Unpuzzling
from mmrl_prep.questions.question import OptionQuestion, reorder

NEGATED = {
    "did": "didn't",
    "does": "doesn't",
    "do": "don't",
    "is": "isn't",
    "are": "aren't",
    "was": "wasn't",
    "were": "weren't",
}


def negate(text: str) -> str:
    """The question in lower case with its second word, an auxiliary, negated.

    Raises Unpuzzling "no_auxiliary" where the second word is none: the published code keeps such questions as they
    are, with an answer that is then wrong.
    """
    words = text.lower().split(" ")
    if len(words) < 2 or words[1] not in NEGATED:
        raise Unpuzzling("no_auxiliary", f"the second word of {text!r} is none of {', '.join(NEGATED)}")
    return " ".join([words[0], NEGATED[words[1]], *words[2:]])


def draw_order(count: int, right: int, rng: np.random.Generator) -> list[int]:
    """Places of the options that are kept, in random order: the old right one, and of the others a random number from
    1 to all, so that the number of right options tells nothing."""
    others = [n for n in range(count) if n != right]
    kept = rng.choice(others, int(rng.integers(1, len(others) + 1)), replace=False)
    return [int(n) for n in rng.permutation([right, *kept])]


def invert(question: OptionQuestion, order: Sequence[int]) -> OptionQuestion:
    """The negated question on the options at the places `order` of the old ones, the old right one among them.

    Raises Unpuzzling: "no_auxiliary", "several_right" (only a question with one right option can be inverted).
    """
    if len(question.right) != 1:
        raise Unpuzzling("several_right", f"{len(question.right)} options are right")
    (old,) = question.right
    if old not in order:
        raise ValueError(f"order {list(order)} leaves out the old right option {old}: nothing would be wrong")
    others = tuple(n for n in range(len(question.options)) if n != old)
    return reorder(OptionQuestion(negate(question.text), question.options, others, several=True), order)


def question_answer_inversion(question: OptionQuestion, rng: np.random.Generator) -> OptionQuestion:
    """The inverted question with a random order and number of options. Raises Unpuzzling as `invert`."""
    if len(question.right) != 1:
        raise Unpuzzling("several_right", f"{len(question.right)} options are right")
    return invert(question, draw_order(len(question.options), question.right[0], rng))
