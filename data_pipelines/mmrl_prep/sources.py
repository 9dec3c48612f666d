"""Sources become media and questions in an order that never changes.

A source is a folder of pictures and clips, a single one, a shard set of ours, or a table (see `mmrl_prep.tables`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrl.shards import ShardSet
from mmrl.shards.record import MANIFEST
from mmrl.types import Answer, MediaKind
from mmrl_prep.answers import Frame, frame_of, typed
from mmrl_prep.mappings import PLAIN, RowError, RowMap, load_mapping, plain
from mmrl_prep.places import Medium, PrepError, place, walk
from mmrl_prep.rng import generator
from mmrl_prep.tables import Row, kind_of, rows, table_files

__all__ = ["Medium", "PrepError", "Question", "Rejected", "list_media", "list_questions"]

DEPTH = (".depth.png", ".depth.npy")
FIELDS: dict[str, MediaKind] = {"image": "image", "images": "image", "video": "video", "videos": "video"}
TASKS = {  # of an answer whose row names none
    "choice": "mcq",
    "choices": "multi",
    "number": "number",
    "text": "text",
    "box": "grounding",
    "boxes": "grounding_all",
    "point": "pointing",
    "span": "temporal_grounding",
    "order": "ordering",
    "rotation": "rotation_angle",
    "tests": "transcription",
    "expression": "points24",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a table's row. Boxes of `answer` are as the row writes them, in `frame`, until media are known."""

    media: tuple[Medium, ...]
    text: str
    answer: Answer
    id: str
    file: str
    row: int
    task: str = "mcq"
    frame: Frame = field(default_factory=Frame)
    inline: bool = False  # <image> and <video> in the text say where the media stand
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """An input that is left out: one line of `quarantine.jsonl`."""

    code: str
    file: str
    row: int | None
    message: str


def list_media(
    sources: Sequence[Path], mapping: RowMap = plain, *, root: Path | None = None, animated: bool = False
) -> tuple[list[Medium], list[Rejected], int]:
    """Pictures and clips of all sources; inputs rejected; number of files ignored because they are neither.

    root: where relative paths of rows begin, instead of the folder of their table. animated: GIF files with several
    frames are clips.
    """
    media: list[Medium] = []
    rejected: list[Rejected] = []
    ignored = 0
    for source in sources:
        if (source / MANIFEST).is_file() or _splits(source):
            media += _shard_media(source)
        elif files := table_files(source):
            for file in files:
                for row in rows(file):
                    try:
                        media += _media(_mapped(row, mapping, 0, file), file, row.number, root)
                    except RowError as error:
                        rejected.append(Rejected(error.code, file.name, row.number, str(error)))
        elif source.is_dir():
            for path in walk(source):
                kind = kind_of(path.name)
                if kind is None:
                    ignored += 1
                else:
                    if path.name.endswith(DEPTH):  # belongs to the picture beside it
                        continue
                    media.append(Medium(path, kind, path.relative_to(source).as_posix(), options=_beside(path)))
        elif source.is_file() and (kind := kind_of(source.name)):
            media.append(Medium(source, kind, source.name))
        else:
            raise PrepError(f"source {source}: neither a folder, a table, a shard set, a picture nor a clip")
    return ([_as_clip(m) for m in media] if animated else media), rejected, ignored


def list_questions(
    sources: Sequence[Path], mapping: RowMap = plain, *, seed: int = 0, root: Path | None = None, task: str = ""
) -> tuple[list[Question], list[Rejected]]:
    """Questions of tables. `task` mcq wants options; an empty one takes what each row's answer is.

    Rows that cannot be used are rejected with the field that is wrong.
    """
    questions: list[Question] = []
    rejected: list[Rejected] = []
    for source in sources:
        if (source / MANIFEST).is_file() or _splits(source):
            raise PrepError(f"source {source}: shards already; use mmrl-prep filter, split, augment or puzzle on them")
        files = table_files(source)
        if not files:
            raise PrepError(
                f"source {source}: questions are read from tables: .jsonl, .json, .csv, .tsv, .parquet, .arrow, .tar, "
                "or a folder of parquet, arrow or tar files"
            )
        for file in files:
            for row in rows(file):
                try:
                    questions.append(_question(_mapped(row, mapping, seed, file), file, row.number, root, task))
                except RowError as error:
                    rejected.append(Rejected(error.code, file.name, row.number, str(error)))
    return questions, rejected


def _mapped(row: Row, mapping: RowMap, seed: int, file: Path) -> dict[str, Any]:
    if row.problem:
        raise RowError("bad_json" if "JSON" in row.problem else "bad_row", "", row.problem)
    # what a row draws depends on the row, not on where its file lies
    words = json.dumps(row.values, sort_keys=True, default=lambda m: getattr(m, "file", str(m)))
    try:
        return mapping(row.values, generator(seed, f"row/{words}"))
    except RowError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RowError("bad_row", "", f"does not fit the mapping: {type(error).__name__}: {error}") from error


def _media(row: Mapping[str, Any], source: Path, number: int, root: Path | None) -> list[Medium]:
    """Media of a row in the order in which it names them; paths are relative to the table's folder, or to `root`."""
    found: list[Medium] = []
    listed = row.get("media") or []
    if not isinstance(listed, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in listed):
        raise RowError("no_media", "media", "a list of [kind, path] is needed, kind being image or video")
    named = [(k, v) for k, v in row.items() if k in FIELDS] + [(str(k), p) for k, p in listed]
    own = dict(row.get("puzzle") or {})
    if row.get("depth"):
        own["depth"] = str((root or source.parent) / str(row["depth"]))
    options = tuple(sorted(own.items()))
    for name, value in named:
        if value is None or value == "":
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Medium):
                kind = FIELDS[name] if item.cell and kind_of(item.file) is None and "video" in name else item.kind
                found.append(replace(item, kind=kind, options=options))
                continue
            if not isinstance(item, str) or not item or name not in FIELDS:
                raise RowError("no_media", name, f"a path or a list of paths, not {item!r}")
            path = place(item) if "://" in item else (root or source.parent) / item
            found.append(Medium(path, FIELDS[name], item, number, options=options))
    if not found:
        raise RowError("no_media", "", f"none of the fields {', '.join(FIELDS)} names a file")
    return found


def _question(row: Mapping[str, Any], source: Path, number: int, root: Path | None, task: str) -> Question:
    text, options = row.get("question"), row.get("options")
    media = _media(row, source, number, root)
    if not isinstance(text, str) or not text.strip():
        raise RowError("missing_field", "question", "a text is needed")
    if task == "mcq" and not options:
        raise RowError("bad_options", "options", "a list of 2 to 26 texts is needed")
    answer = typed(row, clip=any(m.kind == "video" for m in media))
    inline = bool(row.get("_placeholders")) and any(t in text for t in ("<image>", "<video>"))
    if inline:
        marks, kinds = list(_marks(text)), [m.kind for m in media]
        if marks != kinds:
            raise RowError("placeholders", "question", f"its placeholders stand for {marks}, its media are {kinds}")
    kept = {k: _plain_value(v) for k, v in row.items() if k not in PLAIN and not k.startswith("_")}
    if row.get("_boxes"):
        kept["boxes"] = row["_boxes"]
    return Question(
        media=tuple(media),
        text=text.strip(),
        answer=answer,
        id=str(row.get("id") or row.get("_key") or ""),
        file=source.name,
        row=number,
        task=str(row.get("task") or (task if task else TASKS[answer.kind])),
        frame=frame_of(row),
        inline=inline,
        meta=kept,
    )


def _marks(text: str) -> Iterator[MediaKind]:
    for piece in text.split("<")[1:]:
        if piece.startswith("image>"):
            yield "image"
        elif piece.startswith("video>"):
            yield "video"


def _plain_value(value: Any) -> Any:
    """A value that JSON can hold."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return value.file if isinstance(value, Medium) else str(value)
    return value


def _splits(source: Path) -> list[Path]:
    return [source / n for n in ("train", "heldout") if (source / n / MANIFEST).is_file()]


def _shard_media(source: Path) -> list[Medium]:
    """The media of shards that are there, by reference, each content once."""
    folders = [source] if (source / MANIFEST).is_file() else _splits(source)
    found: dict[str, Medium] = {}
    for sample in ShardSet.open(folders):
        for ref in sample.media:
            name = f"{sample.key}.{ref.name}"
            assert ref.size is not None
            found.setdefault(ref.hash, Medium(Path(ref.path), ref.kind, name, None, (ref.offset, ref.size)))
    return list(found.values())


def _beside(path: Path) -> tuple[tuple[str, Any], ...]:
    """The depth map of a picture, where a file NAME.depth.png or NAME.depth.npy stands beside it."""
    found = [path.with_name(path.stem + ending) for ending in DEPTH]
    return tuple(("depth", str(p)) for p in found if p.is_file())[:1]


def _as_clip(medium: Medium) -> Medium:
    return replace(medium, kind="video") if medium.file.lower().endswith(".gif") else medium


def mapping_of(name: str | None) -> RowMap:
    """The mapping of that name; without a name, columns are plain."""
    return load_mapping(name) if name else plain
