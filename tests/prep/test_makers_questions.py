"""Makers of questions: letters follow the options, wrong options are wrong, every draw is seeded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl_prep.puzzles.puzzle import Unpuzzling, difference
from mmrl_prep.questions import (
    KINDS,
    LEVELS,
    Augmentation,
    OptionQuestion,
    add_hint,
    add_noise,
    augmentation,
    distractors,
    draw_order,
    frame_budget,
    invert,
    negate,
    question_answer_inversion,
    reorder,
    shuffle_options,
    with_distractors,
)
from mmrl_prep.questions.noise import Kind
from mmrl_prep.rng import generator

from .conftest import scene

QUESTION = OptionQuestion("What did the person do?", ("sat", "stood", "ran", "slept"), (2,))


def truths(question: OptionQuestion) -> set[str]:
    return {question.options[n] for n in question.right}


def test_letters_follow_shuffled_options() -> None:
    seen = Counter()
    for number in range(200):
        one, two = (shuffle_options(QUESTION, generator(0, str(number))) for _ in range(2))
        assert one == two
        assert sorted(one.options) == sorted(QUESTION.options)
        assert truths(one) == {"ran"}
        assert one.answer.options[ord(one.answer.value) - 65] == "ran"
        seen[one.letters] += 1
    assert set(seen) == set("ABCD")
    assert min(seen.values()) > 30
    assert QUESTION.lettered == "What did the person do?\nA) sat\nB) stood\nC) ran\nD) slept"
    several = reorder(OptionQuestion("Which?", ("a", "b", "c"), (0, 2), several=True), [2, 1, 0])
    assert (several.letters, several.answer.kind, several.answer.value) == ("A,C", "choices", ["A", "C"])


@pytest.mark.parametrize(
    ("options", "right", "several", "says"),
    [
        (("a",), (0,), False, "1 options"),
        (("a", "b"), (), True, "right"),
        (("a", "b"), (2,), False, "right"),
        (("a", "b"), (1, 0), True, "increasing"),
        (("a", "b"), (0, 1), False, "one option"),
        (("Cat.", " cat"), (0,), False, "same"),
    ],
)
def test_what_is_no_question_is_refused(
    options: tuple[str, ...], right: tuple[int, ...], several: bool, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        OptionQuestion("q", options, right, several)


@settings(max_examples=60, deadline=None)
@given(
    pool=st.lists(st.sampled_from(["cat", "Cat", "dog.", "dog", "a cow", "owl", " owl ", "", "bee"]), max_size=12),
    count=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_wrong_options_are_wrong_and_different(pool: list[str], count: int, seed: int) -> None:
    kinds = {p.strip().rstrip(".").casefold() for p in pool} - {"", "cat"}
    if len(kinds) < count:
        with pytest.raises(Unpuzzling, match="few_options"):
            distractors(["CAT"], pool, count, generator(0, str(seed)))
        return
    drawn = distractors(["CAT"], pool, count, generator(0, str(seed)))
    assert drawn == distractors(["CAT"], pool[::-1], count, generator(0, str(seed)))
    assert len({d.strip().rstrip(".").casefold() for d in drawn} & kinds) == count
    question = with_distractors("What?", ["CAT"], pool, count, generator(0, str(seed)))
    assert truths(question) == {"CAT"}


def test_several_right_options() -> None:
    pool = ["red", "green", "blue", "gray", "pink"]
    made = [
        with_distractors("Which?", ["red", "blue"], pool, 2, generator(0, str(n)), several=True) for n in range(100)
    ]
    assert all(truths(q) == {"red", "blue"} and len(q.options) == 4 for q in made)
    assert len({q.letters for q in made}) == 6


def test_inversion_makes_the_right_option_the_only_wrong_one() -> None:
    counts = Counter()
    for number in range(300):
        made = question_answer_inversion(QUESTION, generator(0, str(number)))
        assert made == question_answer_inversion(QUESTION, generator(0, str(number)))
        assert made.text == "what didn't the person do?"
        assert truths(made) == set(made.options) - {"ran"}
        assert "ran" in made.options
        assert made.answer.kind == "choices"
        counts[len(made.options)] += 1
    assert set(counts) == {2, 3, 4}
    assert min(counts.values()) > 60  # the number of right ones is uniform
    assert len({tuple(draw_order(4, 2, generator(0, str(n)))) for n in range(300)}) > 30


def test_inversion_refuses_what_it_would_make_wrong() -> None:
    for text in ("Why the cat?", "Which cat is it?", "Why"):
        with pytest.raises(Unpuzzling, match="no_auxiliary"):
            negate(text)
    assert negate("Where Were they?") == "where weren't they?"
    several = OptionQuestion("What did it do?", ("a", "b", "c"), (0, 1), several=True)
    for call in (lambda: invert(several, [0, 2]), lambda: question_answer_inversion(several, generator(0, "x"))):
        with pytest.raises(Unpuzzling, match="several_right"):
            call()
    with pytest.raises(ValueError, match="leaves out"):
        invert(QUESTION, [0, 1])
    with pytest.raises(ValueError, match="1 options"):
        invert(QUESTION, [2])


def test_frame_budgets_are_even_and_stable() -> None:
    budgets = Counter(frame_budget(f"key {n}") for n in range(2000))
    assert set(budgets) == {4, 8, 16, 32, 64}
    assert min(budgets.values()) > 330
    assert [frame_budget("a", seed=s) for s in range(8)] != [frame_budget("b", seed=s) for s in range(8)]
    assert frame_budget("é", (3,)) == 3
    with pytest.raises(ValueError, match="at least one"):
        frame_budget("a", ())


@pytest.mark.parametrize("kind", KINDS)
def test_noise_grows_with_its_strength(kind: Kind) -> None:
    picture = scene(0, 120, 90)
    errors = [difference(picture, add_noise(picture, generator(0, "x"), s, kind)) for s in (0, *LEVELS.values())]
    assert errors[0] == 0
    assert errors == sorted(errors)
    assert errors[-1] > 2 * errors[1] > 0
    one, two = (add_noise(picture, generator(0, "x"), 0.5, kind) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    assert one.size == picture.size
    frames = np.stack([np.asarray(picture)] * 3)
    noisy = add_noise(frames, generator(0, "x"), 0.5, kind)
    assert noisy.shape == frames.shape
    assert noisy.dtype == np.uint8
    assert (np.asarray(add_noise(frames, generator(0, "x"), 0.0, kind)) == frames).all()
    assert (noisy[0] != noisy[1]).any() == (kind == "gaussian")


def test_noise_refuses_what_it_cannot_do() -> None:
    picture, rng = scene(0), generator(0, "x")
    with pytest.raises(ValueError, match="strength"):
        add_noise(picture, rng, 1.5)
    with pytest.raises(ValueError, match="one of"):
        add_noise(picture, rng, 0.5, "rain")
    with pytest.raises(ValueError, match="uint8"):
        add_noise(np.zeros((2, 4, 4, 3), np.float32), rng, 0.5)


def test_augmentation_grows_with_the_gap() -> None:
    assert augmentation(0.5, 0.5) == Augmentation("none")
    assert augmentation(0.52, 0.5) == Augmentation("none")
    assert augmentation(float("nan"), 0.5) == Augmentation("none")
    assert augmentation(0.0, 0.9) == Augmentation("hint", 1.0)
    assert augmentation(1.0, 0.2) == Augmentation("noise", 1.0)
    assert augmentation(0.2, 0.475).strength == pytest.approx(0.5)
    strengths = [augmentation(m, 0.3).strength for m in np.linspace(0.3, 1, 20)]
    assert strengths == sorted(strengths)
    with pytest.raises(ValueError, match="tolerance"):
        augmentation(0, 0, tolerance=0.5)


def test_hints_grow_with_the_level() -> None:
    hint = "look at the left half"
    assert add_hint("Why?", hint, 0) == "Why?"
    assert add_hint("Why?", "", 1) == "Why?"
    assert add_hint("Why?", hint, 0.3) == "Why?\nHint: look at ..."
    assert add_hint("Why?", hint, 1) == "Why?\nHint: look at the left half"
    with pytest.raises(ValueError, match="level"):
        add_hint("Why?", hint, 2)
