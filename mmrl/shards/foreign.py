"""Tars that others wrote for WebDataset (its own writers, img2dataset, Energon), read without their bytes.

WebDataset's rules: the key is the path up to the first dot of the base name, the rest in lower case is the extension,
the members of a sample stand together, and names such as `__meta__` or below a folder `__meta__/` are left out.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmrl.shards.record import ShardError
from mmrl.shards.tar import members

log = logging.getLogger(__name__)

_PARTS = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_META = re.compile(r"__[^/]*__(?:$|/)")


@dataclass(frozen=True, slots=True)
class Group:
    """The members of a sample: extension -> (offset of the bytes in the tar, size)."""

    key: str
    members: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Scan:
    """What a tar holds: whole samples in order, those that are not or may not be, what is wrong, what looks odd."""

    groups: list[Group] = field(default_factory=list)
    doubtful: list[Group] = field(default_factory=list)
    problems: list[ShardError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def tars(folder: Path) -> list[Path]:
    """The tars below a folder in order of their names, without those in hidden folders such as `.nv-meta`."""
    found = (p for p in folder.rglob("*.tar") if not any(n.startswith(".") for n in p.relative_to(folder).parts))
    return sorted(found)


def read_groups(
    tar: Path | str,
    *,
    on_problem: Literal["raise", "collect"] = "raise",
    problems: list[ShardError] | None = None,
) -> Iterator[Group]:
    """The samples of a tar, in order.

    All headers are read first, since only then is it known whether a sample is whole. Problems are a cut or damaged
    tar, a member that a sample has twice, and a key that comes back after another one.

    Args:
        on_problem: `raise` the first problem as ShardError; or `collect`: leave out the samples concerned and append
            the problems to the list `problems`. They are logged too.

    Raises ShardError that names tar, key and byte; OSError where the file cannot be opened.
    """
    found = scan(Path(tar))
    if found.problems and on_problem == "raise":
        raise found.problems[0]
    for problem in [*found.problems, *found.warnings]:
        log.warning("%s", problem)
    if problems is not None:
        problems += found.problems
    return iter(found.groups)


def scan(tar: Path) -> Scan:
    """Group the members of a tar. The sample before a cut counts as cut too: its last members may be missing."""
    groups: dict[str, Group] = {}
    bad: set[str] = set()
    result = Scan()
    current, last, nameless = None, None, list[str]()
    try:
        for name, offset, size in members(tar):
            if _META.match(name):
                continue
            parts = _PARTS.fullmatch(name)
            if parts is None:
                nameless.append(name)
                continue
            key, extension = parts[1], parts[2].lower()
            if current is None or current.key != key:
                last, current = current, groups.get(key)
                if current is not None:
                    bad.add(key)
                    first = next(iter(current.members.values()))[0]
                    result.problems.append(
                        ShardError(
                            f"{tar}, key {key!r}, byte {offset}: {name} stands apart from the other members of its "
                            f"sample at byte {first}: sort the members by name and pack them again"
                        )
                    )
                else:
                    current = groups[key] = Group(key, {})
            if extension in current.members:
                bad.add(key)
                first = current.members[extension][0]
                result.problems.append(
                    ShardError(f"{tar}, key {key!r}, byte {offset}: {name} is there twice, first at byte {first}")
                )
            current.members.setdefault(extension, (offset, size))
    except ShardError as error:
        if current is not None:
            bad.add(current.key)
        good = f"the last good key is {last.key!r}" if last else "no sample is whole"
        result.problems.append(
            ShardError(f"{error}; {good}" + (f", {current.key!r} may lack members" if current else ""))
        )
    for group in groups.values():
        (result.doubtful if group.key in bad else result.groups).append(group)
    result.warnings.extend(_oddities(tar, list(groups.values()), nameless))
    return result


def _oddities(tar: Path, groups: list[Group], nameless: list[str]) -> Iterator[str]:
    if nameless:
        yield f"{tar}: {len(nameless)} members without an extension belong to no sample, such as {nameless[0]!r}"
    counts = Counter(extension for group in groups for extension in group.members)
    single = [extension for extension, count in counts.items() if count == 1]
    if len(groups) > 4 and len(single) > max(3, len(groups) // 10):
        yield (
            f"{tar}: {len(single)} of {len(counts)} extensions come only once, such as {single[0]!r}: a dot in the "
            "names? The key ends at the first one"
        )
