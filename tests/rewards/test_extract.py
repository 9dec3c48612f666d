"""Reading answers: the values that the scoring contract calls right, where other harnesses are known to be wrong."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.extract import Status, extract, read
from mmrl.types import Answer

FOUR = Answer("choice", "A", ("red", "green", "blue", "grey"))
TEN = Answer("choice", "A", tuple(f"option number {n}" for n in range(10)))
NUMBER = Answer("number", 1.0)


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("The correct answer is (B).", "B"),
        ("Based on the image, (C)", "C"),
        ("Based on the frames, the answer is C.", "C"),
        ("Considering the clip, (D)", "D"),
        ("The Cash Flow is read from the diagram, so the answer is (D)", "D"),
        ("Antwort:\n\nAnswer: C", "C"),
        ("Certainly! The answer is (D).", "D"),
        ("(B)", "B"),
        ("B.", "B"),
        ("b", "B"),
        ("Answer: B", "B"),
        ("B. green", "B"),
        ("A man walks in; so the answer is (C)", "C"),
        ("not A, the answer is B", "B"),
        ("It is green", "B"),
        (r"\boxed{C}", "C"),
        ("**D**", "D"),
    ],
)
def test_a_letter_is_read(said: str, letter: str) -> None:
    assert read(said, FOUR) == (Status.OK, letter)


def test_a_letter_named_in_an_explanation_does_not_win() -> None:
    assert read("The answer is C because I computed the integral.", TEN) == (Status.OK, "C")
    assert read("ANSWER: A ... actually, ANSWER: B", FOUR) == (Status.OK, "B")
    assert read("**Answer: D**, earlier \\boxed{\\langle H\\rangle \\ll \\Delta E}", FOUR) == (Status.OK, "D")


@pytest.mark.parametrize("said", ["I cannot see the image", "It is a dog", "AB", "ANSWER: AB", "E", "no idea", "(E)"])
def test_what_names_no_option_is_never_guessed(said: str) -> None:
    assert read(said, FOUR)[1] is None
    assert read(said, FOUR)[0] is Status.UNPARSED


@pytest.mark.parametrize("said", ["A or B or C or D", "red or green", "A, B"])
def test_two_candidates_are_ambiguous(said: str) -> None:
    assert read(said, FOUR) == (Status.AMBIGUOUS, None)


def test_only_the_letters_that_a_record_has() -> None:
    two = Answer("choice", "A", ("yes", "no"))
    assert read("(C)", two)[0] is Status.UNPARSED
    assert read("J", TEN) == (Status.OK, "J")


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("0.0015.", 0.0015),
        ("1,200", 1200.0),
        ("-.5", -0.5),
        ("3.0", 3.0),
        ("6.5e-4", 6.5e-4),
        ("3/4", 0.75),
        (r"\frac{1}{8}", 0.125),
        (r"-\dfrac{1}{8}", -0.125),
        ("12%", 12.0),
        ("$12$", 12.0),
        ("15 cm", 15.0),
        ("+7", 7.0),
        ("−7", -7.0),
        (r"\boxed{42}", 42.0),
    ],
)
def test_a_number_is_read(said: str, value: float) -> None:
    assert read(said, NUMBER) == (Status.OK, value)


@pytest.mark.parametrize("said", ["3-4", "3 or 4", "[1, 2]", "about", "1/0", "1,2", "12:00", "1e999"])
def test_what_is_no_single_number_is_not_read(said: str) -> None:
    assert read(said, NUMBER) == (Status.UNPARSED, None)


@pytest.mark.parametrize(
    ("kind", "said", "value"),
    [
        ("span", "3-4 people appear. The event happens in 12.0 - 18.0 seconds", [12.0, 18.0]),
        ("span", "from 00:12 to 01:02.5", [12.0, 62.5]),
        ("span", "1:00:01 – 1:00:05", [3601.0, 3605.0]),
        ("span", "[3.5, 7]", [3.5, 7.0]),
        ("span", "at 5 s", None),
        ("box", "[10, 20.5, 30, 40]", [10.0, 20.5, 30.0, 40.0]),
        ("box", "(1, 2, 3)", None),
        ("boxes", "[[1,2,3,4],[5,6,7,8]]", [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]),
        ("boxes", "1 2 3", None),
        ("point", "(12, 34)", [12.0, 34.0]),
        ("order", "3, 1, 2", [3, 1, 2]),
        ("order", "1.5, 2", None),
        ("order", "none", None),
        ("rotation", "90°", 90.0),
        ("rotation", "270 degrees", 270.0),
        ("text", " a red cup ", "a red cup"),
    ],
)
def test_other_kinds(kind: str, said: str, value: Any) -> None:
    assert read(said, Answer(kind, None)) == (Status.UNPARSED if value is None else Status.OK, value)


@pytest.mark.parametrize(
    ("text", "status", "value"),
    [
        ("<think>Option B looks right, but wait", Status.UNFINISHED, None),
        ("<think>a</think><answer>B</answer> wait <answer>C</answer>", Status.OK, "C"),
        ("<think>is it <answer>A</answer>?</think><answer>B</answer>", Status.OK, "B"),
        ("<think>a</think><think>b <answer>A</answer>", Status.UNFINISHED, None),
        ("<think>so</think>The answer is B", Status.NO_ANSWER_TAG, None),
        ("B", Status.NO_ANSWER_TAG, None),
        ("<answer>B", Status.NO_ANSWER_TAG, None),
        ("<answer>C</answer><answer>B", Status.OK, "C"),
        ("<answer></answer>", Status.UNPARSED, None),
        ("  \n", Status.EMPTY, None),
    ],
)
def test_where_the_answer_stands(text: str, status: Status, value: str | None) -> None:
    found = extract(text, FOUR)
    assert (found.status, found.value) == (status, value)


@given(st.text(alphabet=string.printable + "−°²³<>/", max_size=60), st.sampled_from(["<answer>{}</answer>", "{}"]))
def test_no_text_breaks_the_reader_and_values_come_only_with_ok(text: str, form: str) -> None:
    for answer in (FOUR, NUMBER, *(Answer(k, None) for k in ("text", "box", "boxes", "span", "point", "order"))):
        found = extract(form.format(text), answer)
        assert (found.value is not None) == (found.status is Status.OK)
