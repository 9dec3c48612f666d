"""Looking at shards that are there: are they whole, and what is in them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl.shards import ShardSet, verify
from mmrl.shards.record import MANIFEST
from mmrl_prep.plan import SPLITS
from mmrl_prep.sources import PrepError


def shard_sets(folder: Path) -> dict[str, Path]:
    """Shard sets by name: those of a build's folder, or the folder itself."""
    found = {name: folder / name for name in SPLITS if (folder / name / MANIFEST).is_file()}
    if (folder / MANIFEST).is_file():
        found = {folder.name: folder}
    if not found:
        raise PrepError(f"{folder} holds no complete shard set (no {MANIFEST}): finish it with mmrl-prep build")
    return found


def check(folder: Path) -> list[str]:
    """What is wrong with a build: each set (see `mmrl.shards.verify`), and sources on both sides of the split."""
    begun = [name for name in SPLITS if (folder / name).is_dir() and not (folder / name / MANIFEST).is_file()]
    problems = [f"{folder / name}: not complete, no {MANIFEST}: finish it with mmrl-prep build" for name in begun]
    sources: dict[str, set[str]] = {}
    for name, path in shard_sets(folder).items():
        found = verify(path)
        problems += found
        if not found:
            sources[name] = {str(s.meta["source"]) for s in ShardSet.open(path) if "source" in s.meta}
    both = sources.get("train", set()) & sources.get("heldout", set())
    return problems + [f"{folder}: source {name} is in train and in heldout" for name in sorted(both)]


def stats(folder: Path) -> dict[str, dict[str, Any]]:
    """For each set: samples, shards, bytes, sources, answers of each task, media by kind and size."""
    out: dict[str, dict[str, Any]] = {}
    for name, path in shard_sets(folder).items():
        data = ShardSet.open(path)
        answers: dict[str, Counter[str]] = {}
        media: Counter[str] = Counter()
        widths: list[int] = []
        heights: list[int] = []
        words: list[int] = []
        sources: set[str] = set()
        for sample in data:
            answers.setdefault(sample.task, Counter())[str(sample.answer.value)] += 1
            media.update(ref.kind for ref in sample.media)
            widths += [ref.width for ref in sample.media]
            heights += [ref.height for ref in sample.media]
            words.append(sum(len(_text(m["content"])) for m in sample.messages))
            if "source" in sample.meta:
                sources.add(sample.meta["source"])
        tars = list(path.glob("*.tar"))
        out[name] = {
            "samples": len(data),
            "shards": len(tars),
            "bytes": sum(p.stat().st_size for p in tars),
            "sources": len(sources),
            "media": dict(sorted(media.items())),
            "width": _range(widths),
            "height": _range(heights),
            "characters": _range(words),
            "answers": {task: dict(sorted(c.items())) for task, c in sorted(answers.items())},
        }
    return out


def _text(content: str | Sequence[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def _range(values: list[int]) -> list[int]:
    """Least, median, largest."""
    return [min(values), sorted(values)[len(values) // 2], max(values)] if values else []
