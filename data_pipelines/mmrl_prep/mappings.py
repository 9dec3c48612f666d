"""Mappings: which column says what. A mapping turns a row of a data set into plain columns; the rest goes into `meta`.

Plain columns: `question`, `options`, `answer`, `answer_kind`, `image`, `images`, `video`, `videos`, `media` (an ordered
list of [kind, path]), `id`, `task`, and for boxes `box_format`, `box_unit`, `box_frame`, `width`, `height`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrl.registry import nearest
from mmrl_prep.places import PrepError

PLAIN = (
    *("question", "options", "answer", "answer_kind", "image", "images", "video", "videos", "media", "id", "task"),
    *("box_format", "box_unit", "box_frame", "width", "height", "puzzle", "depth"),
)
RowMap = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


class RowError(ValueError):
    """A row that cannot become a sample; `field` is the column at fault, `code` the reason in the quarantine list."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.code = code


class MappingFile(BaseModel):
    """A mapping as YAML. Values name columns, or are templates such as `videos/{source}/{name}.mp4`."""

    model_config = ConfigDict(extra="forbid")

    base: str = Field("plain", description="the built-in mapping that the columns then go through")
    columns: dict[str, str | list[str]] = Field(default_factory=dict, description="plain column -> column or template")
    constants: dict[str, Any] = Field(default_factory=dict, description="plain column -> the value for every row")
    drop: list[str] = Field(default_factory=list, description="columns that do not go into meta")
    placeholders: bool = Field(False, description="<image> and <video> in the question say where the media stand")
    shuffle_options: bool = Field(False, description="options in an order drawn once for each row from the seed")
    box_format: Literal["xyxy", "xywh"] | None = None
    box_unit: Literal["pixel", "norm_1", "norm_1000"] | None = None
    box_frame: Literal["stored", "upright"] | None = None


def load_mapping(name: str) -> RowMap:
    """A built-in mapping by name, or the mapping of a YAML file. Raises PrepError with the nearest name or key."""
    if name in MAPPINGS:
        return MAPPINGS[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise PrepError(f"no mapping {name!r}: {nearest(name, list(MAPPINGS))}; or give a .yaml file")
    try:
        return _from_file(MappingFile.model_validate(yaml.safe_load(path.read_text()) or {}), path)
    except OSError as error:
        raise PrepError(f"{path}: cannot read it: {error.strerror}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise PrepError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        known = list(MappingFile.model_fields)
        hint = f": {nearest(key, known)}" if first["type"] == "extra_forbidden" else ""
        raise PrepError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}{hint}") from error


def _from_file(mapping: MappingFile, path: Path) -> RowMap:
    if mapping.base not in MAPPINGS:
        raise PrepError(f"{path}: base: no mapping {mapping.base!r}: {nearest(mapping.base, list(MAPPINGS))}")
    for name in (*mapping.columns, *mapping.constants):
        if mapping.base == "plain" and name not in PLAIN:
            raise PrepError(f"{path}: columns: no plain column {name!r}: {nearest(name, list(PLAIN))}")
    base = MAPPINGS[mapping.base]
    used = {c for v in mapping.columns.values() for n in ([v] if isinstance(v, str) else v) for c in _names(n)}

    def apply(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        kept = {k: v for k, v in row.items() if k not in used and k not in mapping.drop}
        for name, source in mapping.columns.items():
            kept[name] = _fill(row, source) if isinstance(source, str) else [_fill(row, s) for s in source]
        plain = base({**kept, **mapping.constants}, rng)
        for setting in ("box_format", "box_unit", "box_frame"):
            if value := getattr(mapping, setting):
                plain[setting] = value
        plain["_placeholders"] = mapping.placeholders
        return shuffled(plain, rng) if mapping.shuffle_options else plain

    return apply


def _names(source: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", source) or [source]


def _fill(row: Mapping[str, Any], source: str) -> Any:
    """The value of a column, or a template filled with columns."""
    for name in _names(source):
        if name not in row:
            raise RowError("missing_field", name, f"the row has no such column; it has {', '.join(map(str, row))}")
    if "{" not in source:
        return row[source]
    return re.sub(r"\{(\w+)\}", lambda m: str(row[m.group(1)]), source)


def need(row: Mapping[str, Any], field: str) -> Any:
    """The value of a column that must be there. Raises RowError."""
    if row.get(field) in (None, ""):
        raise RowError("missing_field", field, "a value is needed")
    return row[field]


def rest(row: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The columns that a mapping does not use: they are kept."""
    return {k: v for k, v in row.items() if k not in used}


def shuffled(plain: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Options in an order drawn once, with the answer given as the text of an option; meta keeps the order.

    The answer must be the text of one option, or its letter.
    """
    options = plain.get("options")
    if not isinstance(options, list) or not options:
        return plain
    letters = [chr(65 + n) for n in range(len(options))]
    answer = plain.get("answer")
    place = options.index(answer) if answer in options else letters.index(answer) if answer in letters else -1
    if place < 0:
        return plain
    order = [int(n) for n in rng.permutation(len(options))]
    new = [options[n] for n in order]
    return {**plain, "options": new, "answer": letters[order.index(place)], "_answer_is_letter": True, "order": order}


def plain(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Columns that are called by their plain names already; an object in `meta`, as `mmrl-prep export` writes it, is
    taken apart."""
    out = dict(row)
    meta = out.pop("meta", None)
    if isinstance(meta, str):
        with suppress(ValueError):
            meta = json.loads(meta)
    return {**meta, **out} if isinstance(meta, dict) else dict(row)


def seed_bench_r1(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """SEED-Bench-R1: three of the negative answers of a training row are drawn and the options shuffled, once and for
    ever; a validation row keeps the order of choice_a .. choice_d. The clip of past progress comes before the picture
    of now; a row without progress has no clip."""
    used = ["question", "answer", "negative_answers", "golden_choice_idx", "video_source", "video_basename"]
    used += ["task_progress_metadata", "current_observation_basename", *(f"choice_{c}" for c in "abcd")]
    media = []
    source = need(row, "video_source")
    if row.get("task_progress_metadata") not in (None, [], "[]", ""):
        media.append(["video", f"videos/{source}/{need(row, 'video_basename')}"])
    if row.get("current_observation_basename"):
        media.append(["image", f"images/{source}/{row['current_observation_basename']}"])
    out = {"question": need(row, "question"), "media": media, **rest(row, *used), "video_source": source}
    if row.get("task_progress_metadata"):
        out["task_progress_metadata"] = row["task_progress_metadata"]
    if "choice_a" in row:
        options = [str(row[f"choice_{c}"]) for c in "abcd" if row.get(f"choice_{c}") is not None]
        answer = _golden(need(row, "golden_choice_idx"), len(options))
        return {**out, "options": options, "answer": answer, "_answer_is_letter": True}
    wrong = need(row, "negative_answers")
    wrong = json.loads(wrong) if isinstance(wrong, str) else list(wrong)
    right = str(need(row, "answer"))
    wrong = [w for w in dict.fromkeys(map(str, wrong)) if w != right]
    if not wrong:
        raise RowError("bad_options", "negative_answers", "no answer that differs from the right one")
    drawn = [wrong[n] for n in rng.choice(len(wrong), min(3, len(wrong)), replace=False)]
    return shuffled({**out, "options": [right, *drawn], "answer": right}, rng)


def _golden(value: Any, count: int) -> str:
    """The letter of a golden choice written as a letter, as choice_b, or as a number from 0."""
    text = str(value).strip().lower().removeprefix("choice_")
    place = int(text) if text.isdigit() else ord(text) - 97 if len(text) == 1 else -1
    if not 0 <= place < count:
        raise RowError("bad_answer", "golden_choice_idx", f"{value!r} names none of {count} choices")
    return chr(65 + place)


def video_r1(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Video-R1: problem, problem_type, options such as "A. a cat", data_type, path, solution inside <answer> tags."""
    used = ("problem", "problem_type", "options", "data_type", "path", "solution", "problem_id")
    kind = need(row, "data_type")
    if kind not in ("image", "video"):
        raise RowError("missing_field", "data_type", f"image or video, not {kind!r}")
    path = str(need(row, "path"))
    solution = str(need(row, "solution"))
    found = re.search(r"<answer>(.*?)</answer>", solution, re.DOTALL)
    answer = (found.group(1) if found else solution).strip()
    kinds = {"multiple choice": "choice", "numerical": "number", "regression": "number", "OCR": "text"}
    kinds["free-form"] = "text"
    problem = need(row, "problem_type")
    if problem not in kinds:
        raise RowError("missing_field", "problem_type", f"one of {', '.join(kinds)}, not {problem!r}")
    out = {
        "question": need(row, "problem"),
        "answer": answer,
        "answer_kind": kinds[problem],
        "media": [[kind, path.removeprefix("./")]],
        "id": row.get("problem_id"),
        "problem_type": problem,
    }
    if kinds[problem] == "choice":
        out["options"] = [re.sub(r"^\s*\(?[A-Z]\)?[.:)]?\s+", "", str(o)) for o in need(row, "options")]
        out["_answer_is_letter"] = True
    return out | rest(row, *used)


def visual_jigsaw(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Visual Jigsaw: rows that say which media become puzzles, and how they are cut."""
    entry = row.get("image") or row.get("video") or row
    kind = "image" if row.get("image") or "jigsaw_config" in entry else "video"
    if not isinstance(entry, dict):
        raise RowError("missing_field", kind, "an object with path and its jigsaw settings is needed")
    paths = need(entry, "path")
    puzzle: dict[str, Any] = {}
    if kind == "image" and entry.get("jigsaw_config"):
        puzzle["grid"] = tuple(int(n) for n in entry["jigsaw_config"])
    if kind == "video" and entry.get("jigsaw_clip_num"):
        puzzle["clips"] = int(entry["jigsaw_clip_num"])
    media = [[kind, str(p)] for p in (paths if isinstance(paths, list) else [paths])]
    return {"media": media, "puzzle": puzzle, **rest(row, "image", "video"), **rest(entry, "path")}


def grit(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """GRIT: question, short answer and the boxes that bear on it; the boxes go into meta, moved with the picture."""
    out = {"question": need(row, "question"), "answer": str(need(row, "answer")), "image": need(row, "image")}
    out |= {k: row[k] for k in ("width", "height") if k in row}
    count = str(row["answer"]).strip()
    out["answer_kind"] = "number" if re.fullmatch(r"\d+", count) else "text"
    if row.get("bboxs"):
        out["_boxes"] = row["bboxs"]
    return out | rest(row, "question", "answer", "image", "width", "height", "bboxs")


def vsi_100k(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """VSI-100k and VSI-Bench rows: questions of choice have options, all others a number."""
    answer = row.get("ground_truth", row.get("answer"))
    if answer is None:
        raise RowError("missing_field", "ground_truth", "a value is needed")
    video = row.get("video") or row.get("video_path") or f"{need(row, 'dataset')}/{need(row, 'scene_name')}.mp4"
    options = row.get("options")
    options = json.loads(options) if isinstance(options, str) else options
    out: dict[str, Any] = {"question": need(row, "question"), "video": video, "answer": str(answer)}
    if options:
        out["options"] = [re.sub(r"^\s*\(?[A-Z]\)?[.:)]\s*", "", str(o)) for o in options]
        out["_answer_is_letter"] = True
    else:
        out["answer_kind"] = "number"
    used = ("question", "options", "answer", "ground_truth", "video", "video_path")
    return out | rest(row, *used)


def refcoco(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """RefCOCO style: an expression and its box; `bbox` is COCO's [x, y, width, height], `solution` is xyxy pixels."""
    names = ("expression", "sentence", "sent", "problem", "question", "phrase")
    words = next((row[k] for k in names if row.get(k)), "")
    if not words:
        raise RowError("missing_field", "expression", "an expression, sentence or problem is needed")
    box, form = (row["solution"], "xyxy") if row.get("solution") else (need(row, "bbox"), "xywh")
    used = (*names, "solution", "bbox", "image", "file_name")
    ask = str(words) if "problem" in row or "question" in row else f"Where is this: {str(words).strip().rstrip('.')}?"
    out = {"question": ask, "answer": box, "answer_kind": "box", "box_format": form, "expression": str(words)}
    out["image"] = row.get("image") or need(row, "file_name")
    return out | rest(row, *used)


def charades_sta(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Charades-STA: lines `VIDEO START END##SENTENCE`, or columns video, start and end or timestamp, and sentence."""
    if "line" in row:
        found = re.fullmatch(r"(\S+)\s+([\d.]+)\s+([\d.]+)\s*##(.+)", row["line"])
        if not found:
            raise RowError("missing_field", "line", "of the form VIDEO START END##SENTENCE")
        video, start, end, words = found.groups()
    else:
        video, words = need(row, "video"), row.get("sentence") or need(row, "caption")
        start, end = row["timestamp"] if "timestamp" in row else (need(row, "start"), need(row, "end"))
    used = ("line", "video", "sentence", "caption", "timestamp", "start", "end")
    name = video if "." in str(video) else f"{video}.mp4"
    question = f"When does this happen: {str(words).strip().rstrip('.')}? Give its start and end in seconds."
    span = [float(start), float(end)]
    return {"question": question, "video": name, "answer": span, "answer_kind": "span", **rest(row, *used)}


MAPPINGS: dict[str, RowMap] = {
    "plain": plain,
    "seed-bench-r1": seed_bench_r1,
    "video-r1": video_r1,
    "visual-jigsaw": visual_jigsaw,
    "grit": grit,
    "vsi-100k": vsi_100k,
    "refcoco": refcoco,
    "charades-sta": charades_sta,
}
