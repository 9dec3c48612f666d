"""Sources: folders, single files and JSONL lists become media and questions in an order that never changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.types import MediaKind
from mmrl_prep.puzzles.puzzle import letter

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm", ".pgm", ".mpo", ".jp2"}
VIDEOS = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".h264"}
FIELDS: dict[str, MediaKind] = {"image": "image", "images": "image", "video": "video", "videos": "video"}


class PrepError(ValueError):
    """A build that cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture or clip on disk. `file` is its name below the source that it was found in."""

    path: Path
    kind: MediaKind
    file: str
    row: int | None = None  # of the JSONL that names it, from 1


@dataclass(frozen=True, slots=True)
class Question:
    """A multiple-choice question of a JSONL row; `answer` is a letter."""

    media: tuple[Medium, ...]
    text: str
    options: tuple[str, ...]
    answer: str
    id: str
    file: str
    row: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """An input that is left out: one line of `quarantine.jsonl`."""

    code: str
    file: str
    row: int | None
    message: str


class _RowError(ValueError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def list_media(sources: Sequence[Path]) -> tuple[list[Medium], list[Rejected], int]:
    """Pictures and clips of all sources; inputs rejected; number of files ignored because they are neither."""
    media: list[Medium] = []
    rejected: list[Rejected] = []
    ignored = 0
    for source in sources:
        if source.is_dir():
            for path in _walk(source):
                kind = _kind(path)
                if kind is None:
                    ignored += 1
                else:
                    media.append(Medium(path, kind, path.relative_to(source).as_posix()))
        elif source.suffix == ".jsonl" and source.is_file():
            for number, row in _rows(source):
                try:
                    media += _media(row, source, number)
                except _RowError as error:
                    rejected.append(Rejected(error.code, source.name, number, str(error)))
        elif source.is_file() and (kind := _kind(source)):
            media.append(Medium(source, kind, source.name))
        else:
            raise PrepError(f"source {source}: neither a folder, a .jsonl file, a picture nor a clip")
    return media, rejected, ignored


def list_questions(sources: Sequence[Path]) -> tuple[list[Question], list[Rejected]]:
    """Multiple-choice questions of JSONL files: `question`, `options`, `answer` and `image(s)` or `video(s)`."""
    questions: list[Question] = []
    rejected: list[Rejected] = []
    for source in sources:
        if source.suffix != ".jsonl" or not source.is_file():
            raise PrepError(
                f"source {source}: the task mcq reads .jsonl files with question, options, answer and image"
            )
        for number, row in _rows(source):
            try:
                questions.append(_question(row, source, number))
            except _RowError as error:
                rejected.append(Rejected(error.code, source.name, number, str(error)))
    return questions, rejected


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        yield from (Path(root) / f for f in sorted(files) if not f.startswith("."))


def _kind(path: Path) -> MediaKind | None:
    suffix = path.suffix.lower()
    return "image" if suffix in IMAGES else "video" if suffix in VIDEOS else None


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered rows of a JSONL file; a row that is no JSON object comes as the error that says so."""
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:  # bad UTF-8 as well
            yield number, _RowError("bad_json", f"not JSON: {error}")
            continue
        yield number, row if isinstance(row, dict) else _RowError("bad_json", "a row is a JSON object")


def _media(row: Any, source: Path, number: int) -> list[Medium]:
    """Media of a row in the order in which it names them; paths are relative to the JSONL's folder."""
    if isinstance(row, _RowError):
        raise row
    found = []
    for name, value in row.items():
        if name not in FIELDS or value is None:
            continue
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, str) or not path:
                raise _RowError("no_media", f"{name}: a path or a list of paths, not {path!r}")
            found.append(Medium(source.parent / path, FIELDS[name], path, number))
    if not found:
        raise _RowError("no_media", f"none of the fields {', '.join(FIELDS)} names a file")
    return found


def _question(row: Any, source: Path, number: int) -> Question:
    media = _media(row, source, number)
    text, options = row.get("question"), row.get("options")
    if not isinstance(text, str) or not text.strip():
        raise _RowError("missing_field", "question: a text is needed")
    if not isinstance(options, list) or not 2 <= len(options) <= 26:
        raise _RowError("bad_options", "options: a list of 2 to 26 texts is needed")
    texts = tuple(str(o).strip() for o in options)
    if len(set(texts)) < len(texts) or not all(texts):
        raise _RowError("bad_options", f"options: two are equal or one is empty: {list(texts)}")
    return Question(
        media=tuple(media),
        text=text.strip(),
        options=texts,
        answer=_answer(row.get("answer"), texts),
        id=str(row.get("id", "")),
        file=source.name,
        row=number,
    )


def _answer(answer: Any, options: tuple[str, ...]) -> str:
    """The letter of the right option, given as a letter or as the option's text."""
    if answer is None:
        raise _RowError("missing_field", "answer: a letter or the text of an option is needed")
    said = str(answer).strip()
    letters = [letter(n) for n in range(len(options))]
    readings = {letters[options.index(said)]} if said in options else set()
    if said in letters:
        readings.add(said)
    if len(readings) != 1:
        problem = "is an option's text and another one's letter" if readings else "is no letter and no option"
        raise _RowError("ambiguous_answer" if readings else "bad_answer", f"answer: {said!r} {problem}")
    return readings.pop()
