"""Reading answers: the one place where text becomes an answer, for rewards and for evaluation.

The rules: only what follows the last closed reasoning block is read; reasoning that is never closed is `unfinished`;
of answer tags the last complete pair counts, and without a pair there is no answer; nothing is ever guessed: what
cannot be read is `unparsed`, two candidates of equal standing are `ambiguous`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mmrl.types import Answer


class Status(StrEnum):
    """How reading an answer went."""

    OK = "ok"
    EMPTY = "empty"
    UNFINISHED = "unfinished"
    NO_ANSWER_TAG = "no_answer_tag"
    UNPARSED = "unparsed"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Extracted:
    """What was read: `value` has the type of the answer's kind and is None unless the status is ok."""

    status: Status
    value: Any = None
    text: str = ""  # what stands in the answer tag
    reasoning: str = ""  # what stands before the answer tag


_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


def extract(text: str, answer: Answer) -> Extracted:
    """The answer that a policy's last turn gives to a question whose right answer is `answer` (its kind and options
    say how to read, its value is not looked at)."""
    if not text.strip():
        return Extracted(Status.EMPTY)
    body_start = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
    if text.rfind("<think>") >= body_start:
        return Extracted(Status.UNFINISHED, reasoning=text)
    pairs = list(_ANSWER.finditer(text, body_start))
    if not pairs:
        return Extracted(Status.NO_ANSWER_TAG, reasoning=text)
    inside, reasoning = pairs[-1].group(1).strip(), text[: pairs[-1].start()]
    status, value = read(inside, answer)
    return Extracted(status, value, inside, reasoning)


def read(text: str, answer: Answer) -> tuple[Status, Any]:
    """The value that `text` (the inside of an answer tag) states, by the kind of answer."""
    if not text.strip():
        return Status.UNPARSED, None
    if answer.kind == "choice":
        return read_choice(text, answer.options or _letters_up_to(str(answer.value)))
    if answer.kind == "choices":
        return read_choices(text, answer.options)
    if answer.kind in ("number", "rotation"):
        value = read_number(text.removesuffix("°").removesuffix("degrees") if answer.kind == "rotation" else text)
        return (Status.OK, value) if value is not None else (Status.UNPARSED, None)
    if answer.kind in ("text", "tests", "expression"):
        return Status.OK, text.strip()
    numbers = _numbers(text)
    if answer.kind == "order":
        whole = [int(n) for n in numbers if n == int(n)]
        ok = bool(whole) and len(whole) == len(numbers)
        return (Status.OK, whole) if ok else (Status.UNPARSED, None)
    if answer.kind == "span":
        return read_span(text)
    size = {"box": 4, "point": 2}.get(answer.kind)
    if answer.kind == "boxes":
        if not numbers or len(numbers) % 4:
            return Status.UNPARSED, None
        return Status.OK, [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    return (Status.OK, numbers) if len(numbers) == size else (Status.UNPARSED, None)


def _letters_up_to(last: str) -> tuple[str, ...]:
    """Placeholders for the options of a question that does not list them: at least A to D."""
    return ("",) * max(4, ord(last.strip()[:1].upper() or "D") - ord("A") + 1)


def read_choice(text: str, options: Sequence[str]) -> tuple[Status, str | None]:
    """A letter of the options that the question has (S3).

    In this order: the letter alone; the last explicit declaration ("the answer is B", \\boxed{B}, **B**); the last
    bracketed letter, or a leading "B." or "B)"; the text of exactly one option. A letter that is named only to be
    rejected does not count.
    """
    letters = "".join(chr(ord("A") + i) for i in range(len(options)))
    plain = text.strip()
    alone = re.fullmatch(rf"[(\[]?\s*([{letters}{letters.lower()}])\s*[)\].:]?", plain)
    if alone:
        return Status.OK, alone.group(1).upper()
    kept = re.sub(rf"\b(?:not|isn't|rather than|instead of)\s+(?:option\s+)?\(?[{letters}]\)?(?![\w])", " ", plain)
    declared = re.compile(
        rf"(?i:\b(?:answer(?:\s+is|:)?|choose|option))\s*:?\s*\(?\**([{letters}])\**\)?(?![\w'])"
        rf"|\\boxed\{{\s*(?:\\text\{{)?\(?([{letters}])\)?\}}|\*\*\(?([{letters}])[).]?\*\*",
    )
    for pattern in (declared, re.compile(rf"\(([{letters}])\)"), re.compile(rf"\A([{letters}])[).:]\s")):
        found = [next(g for g in m.groups() if g) for m in pattern.finditer(kept)]
        if found:
            return Status.OK, found[-1]
    texts = [o.strip().casefold() for o in options]
    said = plain.casefold().rstrip(".")
    exact = [i for i, t in enumerate(texts) if t and t == said]
    inside = exact or [i for i, t in enumerate(texts) if t and re.search(rf"(?<!\w){re.escape(t)}(?!\w)", said)]
    # an option's text inside another's ("left" in "top left") is not named by the longer one
    inside = [i for i in inside if not any(i != j and texts[i] in texts[j] for j in inside)]
    if len(inside) == 1:
        return Status.OK, letters[inside[0]]
    named = set(re.findall(rf"(?<!\w)[{letters}](?!\w)", kept))
    return (Status.AMBIGUOUS if len(inside) > 1 or len(named) > 1 else Status.UNPARSED), None


def read_choices(text: str, options: Sequence[str]) -> tuple[Status, list[str] | None]:
    """Letters of several options, separated by commas, spaces, `and` or nothing ("A, C", "AC", "(A) and (C)"), sorted
    and each once; any other word makes it unparsed."""
    letters = "".join(chr(ord("A") + i) for i in range(len(options)))
    left = re.sub(r"\b(?:and|options?|answers?)\b", " ", text.strip().rstrip("."), flags=re.IGNORECASE)
    found = re.sub(r"[\s,;&()\[\].:]+", "", left)
    if not found or not re.fullmatch(rf"[{letters}]+|[{letters.lower()}]+", found):
        return Status.UNPARSED, None
    return Status.OK, sorted(set(found.upper()))


_NUMBER = r"[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d)\.)?(?:[eE][-+]?\d+)?"
_ONE_NUMBER = re.compile(rf"{_NUMBER}")


def read_number(text: str) -> float | None:
    """One number (S7): sign, thousands separators, leading point, scientific notation, simple fractions, LaTeX \\frac,
    a trailing unit. Percent is a unit: "12%" reads as 12. Ranges, lists and several numbers are not a number."""
    plain = text.strip().strip("$").strip()
    plain = re.sub(r"\\boxed\{(.*)\}", r"\1", plain)
    fraction = re.fullmatch(r"([-+−]?)\s*\\[dt]?frac\{\s*(\d+(?:\.\d+)?)\s*\}\{\s*(\d+(?:\.\d+)?)\s*\}", plain)
    if not fraction:
        fraction = re.fullmatch(r"([-+−]?)\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)", plain)
    if fraction:
        sign, over, under = fraction.groups()
        return None if float(under) == 0 else (-1 if sign in ("-", "−") else 1) * float(over) / float(under)
    match = re.fullmatch(rf"({_NUMBER})\s*(?:%|°|[A-Za-z²³/ ]*)\.?", plain)
    if not match or not re.search(r"\d", match.group(1)):
        return None
    value = float(match.group(1).replace(",", "").replace("−", "-"))
    return value if abs(value) != float("inf") else None


def _numbers(text: str) -> list[float]:
    """All numbers of a list, box or point, whatever separates them."""
    found = re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text)
    return [float(n) for n in found]


_TIME = r"(?:\d+:)?\d+:\d+(?:\.\d+)?|\d+(?:\.\d+)?"


def read_span(text: str) -> tuple[Status, list[float] | None]:
    """The last two times in seconds (S9): seconds, mm:ss or hh:mm:ss, joined by -, –, "to", "and" or a comma."""
    pair = rf"({_TIME})\s*s?(?:ec(?:ond)?s?)?\s*(?:-|–|to|and|,)\s*({_TIME})"
    found = re.findall(pair, text)
    if not found:
        return Status.UNPARSED, None
    start, stop = (_seconds(t) for t in found[-1])
    return Status.OK, [start, stop]


def _seconds(text: str) -> float:
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total
