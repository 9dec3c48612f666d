"""Samples made from samples: inverted questions, other options, frame budgets, noise, help by difficulty; and pages.

Each change is a function (record, members, rng, context) -> (record, members) that raises `Unpuzzling` where a sample
allows none. What it draws depends on the seed and the sample's key alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mmrl.media import normalise_image, read_bytes
from mmrl.shards import ShardSet
from mmrl.shards.record import VERSION
from mmrl.types import Sample
from mmrl_prep.documents import QUESTION, make_document
from mmrl_prep.places import PrepError
from mmrl_prep.puzzles.puzzle import Unpuzzling, lettered
from mmrl_prep.questions import (
    KINDS,
    OptionQuestion,
    add_hint,
    add_noise,
    augmentation,
    distractors,
    frame_budget,
    question_answer_inversion,
    shuffle_options,
)
from mmrl_prep.rewrite import record_of
from mmrl_prep.rng import generator

Record = dict[str, Any]
Members = dict[str, bytes]


@dataclass(slots=True)
class Context:
    """What a change may know of the whole set."""

    seed: int
    answers: list[str] = field(default_factory=list)  # texts of the right options of all samples
    mean_rate: float = 0.0  # of `meta.difficulty`


Change = Callable[[Record, Members, np.random.Generator, Context], tuple[Record, Members]]


def invert(record: Record, members: Members, rng: np.random.Generator, context: Context) -> tuple[Record, Members]:
    """All options but the right one become right (TW-GRPO); the question asks for several."""
    return _with_question(record, question_answer_inversion(_question(record), rng), "mcq"), members


def shuffle(record: Record, members: Members, rng: np.random.Generator, context: Context) -> tuple[Record, Members]:
    """The options in another order."""
    return _with_question(record, shuffle_options(_question(record), rng)), members


def more_options(
    record: Record, members: Members, rng: np.random.Generator, context: Context, *, count: int
) -> tuple[Record, Members]:
    """`count` more wrong options, from the right ones of other samples."""
    old = _question(record)
    wrong = distractors(old.options, context.answers, count, rng)
    wider = OptionQuestion(old.text, (*old.options, *wrong), old.right, old.several)
    return _with_question(record, shuffle_options(wider, rng)), members


def budget(record: Record, members: Members, rng: np.random.Generator, context: Context) -> tuple[Record, Members]:
    """A number of frames for each clip's question, in `meta.frame_budget` (ParaVT)."""
    if not any(m["kind"] == "video" for m in record["media"]):
        raise Unpuzzling("no_clip", "a frame budget is for samples with clips")
    return _with_meta(record, frame_budget=frame_budget(record["key"], seed=context.seed)), members


def noise(
    record: Record, members: Members, rng: np.random.Generator, context: Context, *, kind: str, strength: float
) -> tuple[Record, Members]:
    """Noise on every picture; clips stay as they are."""
    if not any(m["kind"] == "image" for m in record["media"]):
        raise Unpuzzling("no_picture", "noise is put on pictures")
    media, out = [], dict(members)
    for medium in record["media"]:
        if medium["kind"] == "image":
            buffer = io.BytesIO()
            add_noise(normalise_image(members[medium["name"]])[0], rng, strength, kind).save(  # type: ignore[arg-type]
                buffer, "PNG", compress_level=1
            )
            del out[medium["name"]]
            medium = {**medium, "name": f"{medium['name'].split('.')[0]}.png", "info": {}}
            out[medium["name"]] = buffer.getvalue()
        media.append(medium)
    return _with_meta({**record, "media": media}, noise={"kind": kind, "strength": strength}), out


def by_difficulty(
    record: Record, members: Members, rng: np.random.Generator, context: Context, *, hint: str
) -> tuple[Record, Members]:
    """Help where the measured rate is under the set's mean, from the text in `meta[hint]`, and noise where it is over
    it, the stronger the farther (DeepVideo-R1). Samples near the mean stay as they are."""
    measured = record["meta"].get("difficulty")
    if not isinstance(measured, dict) or "rate" not in measured:
        raise Unpuzzling("no_difficulty", "no meta.difficulty: run mmrl-prep difficulty first")
    todo = augmentation(float(measured["rate"]), context.mean_rate)
    done = {"augmentation": {"kind": todo.kind, "strength": round(todo.strength, 4)}}
    if todo.kind == "noise":
        changed, members = noise(record, members, rng, context, kind="gaussian", strength=todo.strength)
        return _with_meta(changed, **done), members
    if todo.kind == "hint":
        text = record["meta"].get(hint)
        if not isinstance(text, str) or not text.strip():
            raise Unpuzzling("no_hint", f"no text in meta.{hint} to give a hint from")
        words = _words(record)
        tail = _tail(record)
        head = words.removesuffix(tail)
        record = _with_words(record, add_hint(head, text, todo.strength) + tail)
    return _with_meta(record, **done), members


CHANGES = ("invert", "shuffle", "distractors:N", "frame-budget", "noise:KIND:STRENGTH", "difficulty[:FIELD]")


def change_of(text: str) -> Change:
    """The change that a text names, such as `invert`, `distractors:3` or `noise:gaussian:0.5`. Raises PrepError."""
    name, *settings = text.split(":")
    try:
        if name in ("invert", "shuffle", "frame-budget") and not settings:
            return {"invert": invert, "shuffle": shuffle, "frame-budget": budget}[name]
        if name == "distractors" and len(settings) == 1:
            return partial(more_options, count=int(settings[0]))
        if name == "noise" and len(settings) == 2 and settings[0] in KINDS and 0 <= float(settings[1]) <= 1:
            return partial(noise, kind=settings[0], strength=float(settings[1]))
        if name == "difficulty" and len(settings) <= 1:
            return partial(by_difficulty, hint=(settings or ["hint"])[0])
    except ValueError:
        pass
    raise PrepError(f"no change {text!r}; there are {', '.join(CHANGES)}; kinds of noise: {', '.join(KINDS)}")


def augmented(
    data: ShardSet, changes: Sequence[str], failed: list[tuple[str, str, str]], *, seed: int, suffix: str
) -> Iterator[tuple[Record, Members]]:
    """The changed samples, one after the other; (key, code, message) of those that allow no change go to `failed`."""
    todo = [change_of(text) for text in changes]
    context = Context(seed)
    samples = list(data)
    rates = [s.meta["difficulty"]["rate"] for s in samples if isinstance(s.meta.get("difficulty"), dict)]
    context.mean_rate = sum(rates) / len(rates) if rates else 0.0
    context.answers = [o for s in samples for o in _right_options(s)]
    for sample in samples:
        record, members = record_of(sample), {m.name: read_bytes(m) for m in sample.media}
        rng = generator(seed, f"augment/{'/'.join(changes)}/{sample.key}")
        try:
            for change in todo:
                record, members = change(record, members, rng, context)
        except Unpuzzling as error:
            failed.append((sample.key, error.code, error.message))
            continue
        yield {**record, "key": f"{sample.key}{suffix}"}, members


def documents(count: int, *, seed: int, size: tuple[int, int]) -> Iterator[tuple[Record, Members]]:
    """Pages with known text, to be written down; the answer is the tests that a transcription must pass."""
    for number in range(count):
        key = f"page-{seed}-{number:06d}"
        page = make_document(generator(seed, key), size)
        buffer = io.BytesIO()
        page.image.save(buffer, "PNG")
        medium = {"id": "img_1", "kind": "image", "name": "000.png", "width": size[0], "height": size[1]}
        content = [{"type": "image", "id": "img_1"}, {"type": "text", "text": QUESTION}]
        record = {
            "version": VERSION,
            "key": key,
            "task": "transcription",
            "media": [medium],
            "messages": [{"role": "user", "content": content}],
            "answer": {"kind": "tests", "value": page.answer.value, "options": []},
            "meta": {"source": key, "text": page.text, "header": page.header, "footer": page.footer},
        }
        yield record, {"000.png": buffer.getvalue()}


def _right_options(sample: Sample) -> list[str]:
    answer = sample.answer
    if answer.kind not in ("choice", "choices"):
        return []
    return [answer.options[ord(c) - 65] for c in answer.value if ord(c) - 65 < len(answer.options)]


def _words(record: Record) -> str:
    """The words of the last message of the user."""
    content = record["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def _with_words(record: Record, words: str) -> Record:
    message = record["messages"][-1]
    content = message["content"]
    if isinstance(content, str):
        content = words
    elif sum(p["type"] == "text" for p in content) == 1:
        content = [{**p, "text": words} if p["type"] == "text" else p for p in content]
    else:
        raise Unpuzzling("inline", "media stand between the words of this question")
    return {**record, "messages": [*record["messages"][:-1], {**message, "content": content}]}


def _tail(record: Record) -> str:
    """The lettered options at the end of the words."""
    options = record["answer"]["options"]
    return lettered("", options) if options else ""


def _question(record: Record) -> OptionQuestion:
    answer = record["answer"]
    if answer["kind"] not in ("choice", "choices"):
        raise Unpuzzling("no_options", f"an answer of kind {answer['kind']} has no options")
    head = _words(record).removesuffix(_tail(record))
    right = tuple(sorted(ord(c) - 65 for c in answer["value"]))
    return OptionQuestion(head, tuple(answer["options"]), right, several=answer["kind"] == "choices")


def _with_question(record: Record, question: OptionQuestion, was: str = "") -> Record:
    answer = question.answer
    changed = {"kind": answer.kind, "value": answer.value, "options": list(answer.options)}
    task = "multi" if was and record["task"] == was and answer.kind == "choices" else record["task"]
    return _with_words({**record, "task": task, "answer": changed}, question.lettered)


def _with_meta(record: Record, **more: Any) -> Record:
    return {**record, "meta": {**record["meta"], **more}}
