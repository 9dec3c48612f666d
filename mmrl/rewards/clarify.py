"""GRIL (cards gril, gril-text): notice that a premise is missing, ask for it, then solve; and ask for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.registry import register
from mmrl.rewards.accuracy import compare, plain
from mmrl.rewards.extract import Status, extract
from mmrl.types import Origin, Trajectory

PHRASES = ("[missing premise detected]", "insufficient information", "not enough information")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One turn: whether it says that a premise is missing, the answer it gives (may be empty), and if that is right."""

    asks: bool = False
    answer: str = ""
    right: bool = False


@register("reward", "clarify", paper="GRIL")
def clarify(trajectory: Trajectory, *, phrases: Sequence[str] = ()) -> float | None:
    """`staged` of the policy's turns. A call of ask_user says that a premise is missing, as does one of `phrases`
    (`PHRASES` are the published ones) in the turn's text; an answer tag is an answer. Turns of neither kind, such as a
    look at the picture, are no attempts and make nothing late.

    None for a sample whose meta does not say with `missing` (true or false) whether the question lacks a premise.
    """
    sample = trajectory.prompt.sample
    if not isinstance(missing := sample.meta.get("missing"), bool):
        return None
    attempts = []
    for turn in (t for t in trajectory.turns if t.origin is Origin.POLICY):
        found = extract(turn.text, sample.answer)
        right = found.status is Status.OK and compare(found.value, sample.answer) >= 0.5
        asks = any(c.name == "ask_user" for c in turn.calls) or says_missing(turn.text, phrases)
        if asks or found.text:
            attempts.append(Attempt(asks, plain(found.text), right))
    return staged(missing, attempts)


def says_missing(text: str, phrases: Sequence[str] = PHRASES) -> bool:
    """Whether a text claims that a premise is missing. A plain search, as in the source: "there is not enough
    information to divide yet" claims it too."""
    return any(phrase in text.lower() for phrase in phrases)


def staged(
    missing: bool,
    attempts: Sequence[Attempt],
    *,
    turns: int = 4,
    decay: float = 0.3,
    never: float = -1.0,
    again: float = -2.0,
    alarm: float = -1.0,
    weights: tuple[float, float] = (0.3, 0.7),
    repeat: float = 0.5,
) -> float:
    """What a dialogue is worth, of which at most `turns` attempts count.

    A premise is missing: asking at attempt k (from 1) earns decay^(k-1), never asking `never` and nothing else. After
    it there is one answer at least: a right one earns 1 and ends, another question earns `again` and ends. The two
    sums are weighted. Nothing is missing: asking is worth `alarm` and ends, a right answer earns 1 and ends. Where no
    needless question ended it, `repeat` is taken off for the share of answers that were given before; those before
    the question do not count, and empty ones do where a premise was missing (both as in ZJU-REAL/GRIL).
    """
    if not missing:
        return _complete(attempts[:turns], alarm, repeat)
    first = next((n for n, a in enumerate(attempts[:turns]) if a.asks), None)
    if first is None:
        return never
    answers: list[str] = []
    solved = 0.0
    for attempt in attempts[first + 1 : max(turns, first + 2)]:
        if attempt.asks:
            return weights[0] * decay**first + weights[1] * again
        answers.append(attempt.answer)
        if attempt.right:
            solved = 1.0
            break
    return weights[0] * decay**first + weights[1] * solved - repeat * _repeated(answers)


def _complete(attempts: Sequence[Attempt], alarm: float, repeat: float) -> float:
    answers: list[str] = []
    for attempt in attempts:
        if attempt.asks:
            return alarm
        answers += [attempt.answer] if attempt.answer else []
        if attempt.right:
            return 1.0 - repeat * _repeated(answers)
    return -repeat * _repeated(answers)


def _repeated(answers: Sequence[str]) -> float:
    """Share of answers that were given before."""
    return 1 - len(set(answers)) / len(answers) if answers else 0.0
