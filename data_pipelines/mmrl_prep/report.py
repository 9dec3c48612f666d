"""Looking at shards that are there: are they whole, and what is in them?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmrl.media import MediaError, media_info, read_bytes
from mmrl.shards import ShardSet, verify, write_manifest
from mmrl.shards.dataset import read_manifest
from mmrl.shards.index import read_index
from mmrl.shards.record import MANIFEST
from mmrl.shards.writer import summary
from mmrl.tokens import Profile, count_tokens
from mmrl.types import Sample
from mmrl_prep.places import PrepError
from mmrl_prep.plan import SPLITS


def shard_sets(folder: Path) -> dict[str, Path]:
    """Shard sets by name: those of a build's folder, or the folder itself."""
    found = {name: folder / name for name in SPLITS if (folder / name / MANIFEST).is_file()}
    if (folder / MANIFEST).is_file():
        found = {folder.name: folder}
    if not found:
        raise PrepError(f"{folder} holds no complete shard set (no {MANIFEST}): finish it with mmrl-prep build")
    return found


def check(folder: Path, *, decode: bool = False) -> list[str]:
    """What is wrong with a build: each set (see `mmrl.shards.verify`), and sources on both sides of the split.

    decode: every picture and clip is decoded as well, and its size compared with the record's.
    """
    begun = [name for name in SPLITS if (folder / name).is_dir() and not (folder / name / MANIFEST).is_file()]
    problems = [f"{folder / name}: not complete, no {MANIFEST}: finish it with mmrl-prep build" for name in begun]
    sources: dict[str, set[str]] = {}
    for name, path in shard_sets(folder).items():
        found = verify(path)
        problems += found
        if not found and decode:
            problems += [line for sample in ShardSet.open(path) for line in _undecodable(sample)]
        if not found:
            sources[name] = {str(s.meta["source"]) for s in ShardSet.open(path) if "source" in s.meta}
    both = sources.get("train", set()) & sources.get("heldout", set())
    return problems + [f"{folder}: source {name} is in train and in heldout" for name in sorted(both)]


def _undecodable(sample: Sample) -> Iterator[str]:
    for ref in sample.media:
        try:
            width, height, info = media_info(read_bytes(ref), ref.kind)
        except MediaError as error:
            yield f"key {sample.key!r}: {ref.name}: {error}"
            continue
        if (width, height) != (ref.width, ref.height):
            yield f"key {sample.key!r}: {ref.name}: {width}x{height}, the record says {ref.width}x{ref.height}"
        if ref.kind == "video" and "frames" in ref.info and info["frames"] != ref.info["frames"]:
            yield f"key {sample.key!r}: {ref.name}: {info['frames']} frames, the record says {ref.info['frames']}"


def write_manifests(folder: Path) -> None:
    """Manifests anew from the indexes that are there: after a repair."""
    for path in [folder, *(folder / n for n in SPLITS)]:
        tars = sorted(path.glob("*.tar")) if path.is_dir() else []
        if tars:
            old = read_manifest(path).info if (path / MANIFEST).is_file() else {}
            write_manifest(path, [summary(read_index(tar)) for tar in tars], {**old, "repaired": True})


def quarantined(folder: Path) -> dict[str, int]:
    """Inputs that the build left out, by reason."""
    path = folder / "quarantine.jsonl"
    codes = [json.loads(line)["code"] for line in path.read_text().splitlines()] if path.is_file() else []
    return dict(sorted(Counter(codes).items()))


def stats(folder: Path, profile: Profile | None = None) -> dict[str, dict[str, Any]]:
    """For each set: samples, shards, bytes, sources, answers of each task, media by kind, size, format and mode, times
    of clips, and the tokens that the media of a sample cost under `profile`."""
    out: dict[str, dict[str, Any]] = {}
    for name, path in shard_sets(folder).items():
        data = ShardSet.open(path)
        answers: dict[str, Counter[str]] = {}
        media: Counter[str] = Counter()
        widths: list[int] = []
        heights: list[int] = []
        words: list[int] = []
        seconds: list[float] = []
        rates: list[float] = []
        tokens: list[int] = []
        kinds: dict[str, Counter[str]] = {"formats": Counter(), "modes": Counter(), "flags": Counter()}
        sources: set[str] = set()
        for sample in data:
            answers.setdefault(sample.task, Counter())[str(sample.answer.value)] += 1
            media.update(ref.kind for ref in sample.media)
            widths += [ref.width for ref in sample.media]
            heights += [ref.height for ref in sample.media]
            words.append(sum(len(_text(m["content"])) for m in sample.messages))
            for ref in sample.media:
                info = ref.info
                kinds["formats"][str(info.get("format") or ref.name.rsplit(".", 1)[-1])] += 1
                kinds["modes"].update([info["mode"]] if "mode" in info else [])
                kinds["flags"].update(info.get("flags", ()))
                seconds += [info["duration"]] if "duration" in info else []
                rates += [info["fps"]] if info.get("fps") else []
            if profile is not None:
                with suppress(MediaError, ValueError):  # a clip without facts: its tokens are not known
                    tokens.append(count_tokens(profile, sample.media).total)
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
            "seconds": _range(seconds),
            "fps": _range(rates),
            "tokens": _range(tokens),
            **{name: dict(sorted(c.items())) for name, c in kinds.items()},
            "answers": {task: dict(sorted(c.items())) for task, c in sorted(answers.items())},
        }
    return out


def _text(content: str | Sequence[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def _range(values: Sequence[float]) -> list[float]:
    """Least, median, largest."""
    return [min(values), sorted(values)[len(values) // 2], max(values)] if values else []
