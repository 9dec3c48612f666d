"""Shard sets made from shard sets: filter, split, without copies, exported as tables.

Bytes of media are copied as they are. Everything is a function of the input and the settings, so a run that was killed
is simply started again; what it had begun is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.media import read_bytes
from mmrl.shards import ShardSet, ShardWriter
from mmrl.shards.record import MANIFEST, VERSION, ShardError
from mmrl.types import Sample
from mmrl_prep.places import PrepError
from mmrl_prep.progress import progress
from mmrl_prep.rng import rank

Change = Callable[[dict[str, Any]], dict[str, Any]]
ROW_GROUP = 64  # samples of a parquet row group: what is read at a time


def record_of(sample: Sample) -> dict[str, Any]:
    """The record that the writer takes: what the sample was read from."""
    media = [
        {"id": m.id, "kind": m.kind, "name": m.name, "width": m.width, "height": m.height, "info": dict(m.info)}
        for m in sample.media
    ]
    answer = {"kind": sample.answer.kind, "value": sample.answer.value, "options": list(sample.answer.options)}
    return {
        "version": VERSION,
        "key": sample.key,
        "task": sample.task,
        "media": media,
        "messages": list(sample.messages),
        "answer": answer,
        "meta": dict(sample.meta),
    }


def write_set(
    samples: Iterable[Sample], total: int, out: Path, *, what: str, change: Change | None = None, limit: int = 1000
) -> int:
    """Write samples as a shard set; `change` alters their records. Returns how many there are."""
    unchanged = ((record_of(s), {m.name: read_bytes(m) for m in s.media}) for s in samples)
    return write_records(((change(r) if change else r, m) for r, m in unchanged), total, out, what=what, limit=limit)


def write_records(
    records: Iterable[tuple[Mapping[str, Any], Mapping[str, bytes]]],
    total: int,
    out: Path,
    *,
    what: str,
    limit: int = 1000,
) -> int:
    """Write records with their members as a shard set. Returns how many there are.

    Raises PrepError where `out` already holds a set.
    """
    if (out / MANIFEST).is_file():
        raise PrepError(f"{out} already holds a shard set: choose another --out or remove it")
    for left in [*out.glob("*.tar"), *out.glob("*.idx.json")] if out.is_dir() else []:
        left.unlink()  # of a run that was killed
    count = 0
    with ShardWriter(out, max_samples=limit) as writer:
        for record, members in progress(records, total, what):
            writer.write(record, members)
            count += 1
    return count


def split_set(data: ShardSet, out: Path, *, heldout: float, seed: int, by: str = "source") -> dict[str, int]:
    """`out/train` and `out/heldout`: samples with the same `meta[by]` fall on one side; the same rule as in builds.

    Returns the number of samples of each. Raises PrepError where a sample has no such field.
    """
    names: list[str] = []
    for sample in data:
        if by not in sample.meta:
            raise PrepError(f"sample {sample.key}: no meta.{by} to split by; it has {', '.join(sample.meta)}")
        names.append(str(sample.meta[by]))
    order = sorted(set(names), key=lambda name: rank(seed, name))
    count = round(heldout * len(order))
    if 0 < heldout < 1 and len(order) > 1:
        count = min(max(count, 1), len(order) - 1)
    away = set(order[:count])
    found = {}
    for side, wanted in (("train", False), ("heldout", True)):
        places = [n for n, name in enumerate(names) if (name in away) is wanted]
        if places:
            found[side] = write_set((data[n] for n in places), len(places), out / side, what=f"write {side}")
    return found


def question(sample: Sample) -> str:
    """All words of a sample's messages."""
    texts = []
    for message in sample.messages:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [p["text"] for p in content if p.get("type") == "text"]
    return "\n".join(texts)


def stem(sample: Sample) -> str:
    """The words without the lettered options at their end."""
    options = sample.answer.options
    tail = "".join(f"\n{chr(65 + n)}) {text}" for n, text in enumerate(options))
    return question(sample).removesuffix(tail)


def export_parquet(data: ShardSet, out: Path, *, rows_per_file: int = 10_000) -> int:
    """Parquet files that `datasets.load_dataset("parquet")` reads: a row a sample, media as {bytes, path} as Hugging
    Face datasets keep them. Returns the number of rows. `mmrl-prep import` reads them back."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    medium = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("task", pa.string()),
            ("question", pa.string()),
            ("options", pa.list_(pa.string())),
            ("answer", pa.string()),
            ("answer_kind", pa.string()),
            ("images", pa.list_(medium)),
            ("videos", pa.list_(medium)),
            ("meta", pa.string()),
        ],
        metadata={b"huggingface": json.dumps(_features()).encode()},
    )
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for number, start in enumerate(range(0, len(data), rows_per_file)):
        stop = min(start + rows_per_file, len(data))
        path = out / f"data-{number:05d}.parquet"
        temp = path.with_suffix(".tmp")
        with pq.ParquetWriter(temp, schema) as writer:
            rows = progress((data[n] for n in range(start, stop)), stop - start, f"write {path.name}")
            for group in _chunks(rows, ROW_GROUP):
                writer.write_table(pa.Table.from_pylist([_row(s) for s in group], schema=schema))
                count += len(group)
        temp.replace(path)
    return count


def _features() -> dict[str, Any]:
    """What Hugging Face datasets need to know to decode pictures."""
    text = {"dtype": "string", "_type": "Value"}
    names = ("id", "task", "question", "answer", "answer_kind", "meta")
    features: dict[str, Any] = dict.fromkeys(names, text)
    features["options"] = {"feature": text, "_type": "List"}
    features["images"] = {"feature": {"_type": "Image"}, "_type": "List"}
    features["videos"] = {
        "feature": {"bytes": {"dtype": "binary", "_type": "Value"}, "path": text},
        "_type": "List",
    }
    return {"info": {"features": features}}


def _row(sample: Sample) -> dict[str, Any]:
    options = list(sample.answer.options)
    value = sample.answer.value
    media: dict[str, list[dict[str, Any]]] = {"image": [], "video": []}
    for ref in sample.media:
        media[ref.kind].append({"bytes": read_bytes(ref), "path": f"{sample.key}.{ref.name}"})
    return {
        "id": sample.key,
        "task": sample.task,
        "question": stem(sample),
        "options": options or None,
        "answer": value if isinstance(value, str) else json.dumps(value),
        "answer_kind": sample.answer.kind,
        "images": media["image"],
        "videos": media["video"],
        "meta": json.dumps(dict(sample.meta), ensure_ascii=False, sort_keys=True),
    }


def export_webdataset(data: ShardSet, out: Path, *, limit: int = 1000) -> int:
    """Plain WebDataset tars for other tools: `KEY.json` with question, options, answer and meta, the media beside it.

    No index and no manifest of ours; bytes depend on the samples only. Returns the number of samples.
    """
    from mmrl.shards.tar import END, header, padding
    from mmrl.shards.writer import dumps

    out.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(data), limit)):
        stop = min(start + limit, len(data))
        path = out / f"{number:06d}.tar"
        temp = path.with_suffix(".tmp")
        with temp.open("wb") as file:
            for sample in progress((data[n] for n in range(start, stop)), stop - start, f"write {path.name}"):
                row = _row(sample)
                words = {k: row[k] for k in ("id", "task", "question", "options", "answer", "answer_kind")}
                words["meta"] = dict(sample.meta)
                members = {"json": dumps(words)} | {m.name: read_bytes(m) for m in sample.media}
                for name, content in members.items():
                    file.write(header(f"{sample.key}.{name}", len(content)) + content + padding(len(content)))
            file.write(END)
        temp.replace(path)
    return len(data)


def _chunks(items: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    chunk: list[Sample] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def fields(sample: Sample) -> Mapping[str, Any]:
    """What filters see of a sample: its record and the length of its words."""
    record = record_of(sample)
    return {**record, "text": question(sample), "characters": len(question(sample))}


def open_sets(folders: Sequence[Path]) -> ShardSet:
    """Shard sets, or builds with train and heldout, as one. Raises PrepError."""
    found: list[Path] = []
    for folder in folders:
        parts = [folder / n for n in ("train", "heldout") if (folder / n / MANIFEST).is_file()]
        found += [folder] if (folder / MANIFEST).is_file() else parts
        if not (folder / MANIFEST).is_file() and not parts:
            raise PrepError(f"{folder} holds no complete shard set (no {MANIFEST}): finish it with mmrl-prep build")
    try:
        return ShardSet.open(found)
    except ShardError as error:
        raise PrepError(str(error)) from error
