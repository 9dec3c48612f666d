"""The schema of a sample's JSON member, and of a shard's index. Errors name the shard, the key and the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from mmrl.types import Answer, AnswerKind, MediaKind, MediaRef, Sample

loads: Callable[[bytes], Any]
try:
    from orjson import loads
except ImportError:  # the same values, slower: the writer refuses the integers that orjson would round
    loads = json.loads

VERSION: Literal[1] = 1
T = TypeVar("T", bound=BaseModel)
MANIFEST = "dataset.json"

# WebDataset takes all before the first dot of a base name for the key, so a key has none; names between double
# underscores are skipped as metadata, so a key does not begin with one.
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$")]
# lower case because WebDataset lowers it when reading
MemberName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(\.[a-z0-9]+)*$", max_length=20)]


class ShardError(ValueError):
    """A shard, index or sample that cannot be used."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MediaEntry(_Model):
    """A medium of a sample: member `name` of the shard holds its bytes."""

    id: Annotated[str, StringConstraints(min_length=1)]
    kind: MediaKind
    name: MemberName
    width: int = Field(gt=0, description="upright pixels")
    height: int = Field(gt=0)
    hash: str = Field("", description="xxh3-128 of the bytes; the writer fills it in")
    info: dict[str, Any] = Field(default_factory=dict)


class AnswerEntry(_Model):
    kind: AnswerKind
    value: Any
    options: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _value_fits_kind(self) -> AnswerEntry:
        problem = _problem(self.kind, self.value, self.options)
        if problem:
            raise ValueError(f"a {self.kind} answer {problem}, not {self.value!r}")
        return self


class Record(_Model):
    """One sample as JSON: what `KEY.json` of a shard holds. Anything beyond the schema goes into `meta`."""

    version: Literal[1] = VERSION
    key: Key
    task: Annotated[str, StringConstraints(min_length=1)]
    media: list[MediaEntry] = Field(default_factory=list)
    messages: list[dict[str, Any]] = Field(min_length=1)
    answer: AnswerEntry
    meta: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _media_fit_messages(self) -> Record:
        kinds = {m.id: m.kind for m in self.media}
        if len(kinds) < len(self.media) or len({m.name for m in self.media}) < len(self.media):
            raise ValueError("media: two have the same id or the same member name")
        for number, message in enumerate(self.messages):
            if message.get("role") not in ("system", "user", "assistant"):
                raise ValueError(f"messages.{number}.role: system, user or assistant, not {message.get('role')!r}")
            content = message.get("content")
            if isinstance(content, str):
                continue
            if not isinstance(content, list):
                raise ValueError(f"messages.{number}.content: text or a list of parts, not {content!r}")
            for place, part in enumerate(content):
                problem = _part_problem(part, kinds)
                if problem:
                    raise ValueError(f"messages.{number}.content.{place}: {problem}")
        return self


def sample_of(record: Mapping[str, Any], refs: Mapping[str, MediaRef]) -> Sample:
    """A record that was checked when it was written, with the given references to its media, by member name."""
    answer = record["answer"]
    return Sample(
        key=record["key"],
        media=tuple([refs[m["name"]] for m in record["media"]]),
        messages=tuple(record["messages"]),
        answer=Answer(answer["kind"], answer["value"], tuple(answer["options"])),
        task=record["task"],
        meta=record["meta"],
    )


class IndexEntry(_Model):
    """Where the members of a sample stand in their shard: name -> (offset of the bytes, size, xxh3-128)."""

    key: str
    task: str
    members: dict[str, tuple[int, int, str]]


class ShardIndex(_Model):
    version: Literal[1] = VERSION
    tar: str
    size: int
    samples: list[IndexEntry]


class ShardSummary(_Model):
    """A shard as the manifest lists it."""

    tar: str
    size: int
    tasks: dict[str, int] = Field(description="samples of each task")

    @property
    def samples(self) -> int:
        return sum(self.tasks.values())


class Manifest(_Model):
    """`dataset.json`: the shards of a complete set in order."""

    version: Literal[1] = VERSION
    shards: list[ShardSummary]
    info: dict[str, Any] = Field(default_factory=dict, description="how the set was made")


def parse(model: type[T], data: bytes | dict[str, Any], where: str) -> T:
    """Validate JSON bytes or a dictionary. Raises ShardError that names `where` and each field that is wrong."""
    try:
        return model.model_validate_json(data) if isinstance(data, bytes) else model.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'record'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors(include_url=False)
        ]
        raise ShardError(f"{where}: " + "; ".join(lines)) from error


def _part_problem(part: Any, kinds: dict[str, MediaKind]) -> str:
    if not isinstance(part, dict):
        return f"a part is a mapping, not {part!r}"
    if part.get("type") == "text":
        return "" if isinstance(part.get("text"), str) else "a text part has its words in `text`"
    kind = kinds.get(part.get("id", ""))
    if kind is None:
        return f"no medium with the id {part.get('id')!r}; there are {', '.join(kinds) or 'none'}"
    return "" if part.get("type") == kind else f"medium {part['id']!r} is of kind {kind}, not {part.get('type')!r}"


def _problem(kind: str, value: Any, options: Sequence[str]) -> str:
    """What the value of an answer must be where it is not."""
    if kind == "choice":
        letters = [chr(ord("A") + n) for n in range(len(options))]
        return "" if value in letters else f"is one of the letters {', '.join(letters) or '(it has no options)'}"
    if kind == "choices":
        letters = [chr(ord("A") + n) for n in range(len(options))]
        fits = isinstance(value, list) and value and value == sorted(set(value)) and set(value) <= set(letters)
        return "" if fits else f"is a sorted list of some of the letters {', '.join(letters) or '(it has no options)'}"
    if kind == "tests":
        fits = isinstance(value, list) and value and all(isinstance(t, dict) and "type" in t for t in value)
        return "" if fits else "is a list of unit tests, each an object with a type"
    if kind == "expression":
        fits = isinstance(value, dict) and set(value) == {"numbers", "target"} and isinstance(value["numbers"], list)
        whole = fits and all(type(n) is int and n >= 0 for n in (*value["numbers"], value["target"]))
        return "" if whole and value["numbers"] else 'is {"numbers": [...], "target": ...}, whole numbers from 0 on'
    if kind == "number":
        return "" if _is_number(value) else "is a number"
    if kind == "rotation":
        return "" if value in (0, 90, 180, 270) else "is 0, 90, 180 or 270 degrees clockwise"
    if kind == "text":
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list) and texts and all(isinstance(t, str) and t for t in texts)
        return "" if fits else "is a text or a list of accepted texts"
    if kind == "order":
        fits = isinstance(value, list) and sorted(map(repr, value)) == sorted(repr(n) for n in range(len(value)))
        return "" if fits and value else "is a list of the numbers 0 .. n-1"
    if kind == "boxes":
        return "" if isinstance(value, list) and all(map(_is_box, value)) else "is a list of boxes [x1, y1, x2, y2]"
    if kind == "box":
        return "" if _is_box(value) else "is a box [x1, y1, x2, y2] with x1 < x2 and y1 < y2"
    fits = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    if kind == "span":
        return "" if fits and value[0] <= value[1] else "is seconds [from, to]"
    return "" if fits else "is a point [x, y]"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_box(value: Any) -> bool:
    fits = isinstance(value, list | tuple) and len(value) == 4 and all(map(_is_number, value))
    return fits and value[0] < value[2] and value[1] < value[3]
