"""ask_user: a simulated user who answers clarifying questions (GRIL, Ask-to-Act).

What the user knows stands in the sample's meta:

    "user": {
      "facts": [{"about": ["price", "cost"], "say": "Each apple costs 3 euros."}, ...],
      "limit": 4,
      "unknown": "I don't know."
    }

A question is answered by the fact that most entries of `about` speak of; an entry of several words counts where all of
them are asked for. A fact without `about` answers any question that no other one does: for a question that lacks one
premise, as in GRIL, it is that premise. A sample without `user` is one whose user has nothing to add.

The reward `clarify` charges for every call of this tool; what was asked and given stands in the result's `data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.registry import nearest, register
from mmrl.rollout.tools import Limits, ToolContext, ToolError, schema
from mmrl.types import Fault, FaultKind, ToolResult

LIMIT = 4  # questions of a dialogue, where the sample does not say; GRIL's number of turns
UNKNOWN = "I don't know."


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that the user knows. `about`: the words of each entry; none: it answers any question."""

    say: str
    about: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    facts: tuple[Fact, ...] = ()
    limit: int = LIMIT
    unknown: str = UNKNOWN


@register(
    "tool",
    "ask_user",
    schema=schema(
        "Ask the user one question about what the task leaves open",
        {"question": {"type": "string", "minLength": 1, "maxLength": 500}},
        ["question"],
    ),
    limits=Limits(seconds=5, text=1000, media=0),
    stateful=True,
    paper="GRIL",
)
def ask_user(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """The user's answer to one question. The same questions in the same order get the same answers.

    `data`: `question`; `fact`, the number of the fact given (None: the user does not know), and `again`, whether it
    had been given before; `asked`, the questions of this dialogue including this one; `limit`.

    Error: too_many_questions. A `user` that cannot be read is a fault of the task (bad_user).
    """
    meta = context.sample.meta if context.sample else {}
    try:
        user = read_user(meta.get("user", {}))
    except ValueError as error:
        return ToolResult("Error: the user is not available", fault=Fault(FaultKind.TASK, "bad_user", str(error)))
    state = context.state.get("ask_user", {"asked": 0, "given": []})
    asked, given = state["asked"] + 1, state["given"]
    if asked > user.limit:
        count = f"{user.limit} question{'s' * (user.limit != 1)}"
        raise ToolError("too_many_questions", f"the user answers at most {count}; go on with what you know")
    question = arguments["question"]
    number = best_fact(question, user.facts, given)
    again = number in given
    context.state["ask_user"] = {"asked": asked, "given": given if number is None or again else [*given, number]}
    data = {"question": question, "fact": number, "again": again, "asked": asked, "limit": user.limit}
    return ToolResult(user.unknown if number is None else user.facts[number].say, data=data)


def best_fact(question: str, facts: Sequence[Fact], given: Sequence[int] = ()) -> int | None:
    """The number of the fact that answers a question: with the most entries asked for, of equal ones one that has not
    been given, then the one with the larger share of its entries, then the first. None where nothing matches."""
    words = words_of(question)
    best, answer = None, None
    for number, fact in enumerate(facts):
        hits = sum(entry <= words for entry in fact.about)
        if fact.about and not hits:
            continue
        rank = (hits, number not in given, hits / max(1, len(fact.about)), -number)
        if best is None or rank > best:
            best, answer = rank, number
    return answer


def words_of(text: str) -> frozenset[str]:
    """The words of a text in lower case, the s of a plural left out."""
    found = re.findall(r"\w+", text.casefold())
    return frozenset(w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found)


def read_user(record: Any) -> User:
    """The user of a sample's meta. Raises ValueError that says what is wrong with it."""
    fields = _fields("user", record, ("facts", "limit", "unknown"))
    limit, unknown, facts = fields.get("limit", LIMIT), fields.get("unknown", UNKNOWN), fields.get("facts", ())
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"user.limit is {limit!r}: give the number of questions, 0 or more")
    if not isinstance(unknown, str) or not unknown:
        raise ValueError(f"user.unknown is {unknown!r}: give the words for what the user does not know")
    if not isinstance(facts, list | tuple):
        raise ValueError("user.facts: give a list of {about, say}")
    return User(tuple(_fact(n, fact) for n, fact in enumerate(facts)), limit, unknown)


def _fact(number: int, record: Any) -> Fact:
    where = f"user.facts[{number}]"
    fields = _fields(where, record, ("about", "say"))
    say, about = fields.get("say"), fields.get("about", ())
    if not isinstance(say, str) or not say:
        raise ValueError(f"{where}.say is {say!r}: give the words that the user answers with")
    entries = [words_of(entry) if isinstance(entry, str) else frozenset() for entry in _list(about)]
    if not all(entries):
        raise ValueError(f"{where}.about is {about!r}: give a list of words, or leave it out for any question")
    return Fact(say, tuple(entries))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [None]


def _fields(where: str, record: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: give a mapping with {', '.join(known)}, not {type(record).__name__}")
    for key in record:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}: {nearest(str(key), list(known))}")
    return record
