"""Several shard sets as one stream with given shares, and the file that names them."""

from __future__ import annotations

import bisect
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mmrl.shards.dataset import ShardSet
from mmrl.shards.order import schedule, shares, shuffled
from mmrl.shards.record import ShardError, parse
from mmrl.shards.writer import atomic_write
from mmrl.types import Sample


class Part(BaseModel):
    """A part of a mixture: the set in a folder, or those samples of it that pass, and its share of the draws."""

    model_config = ConfigDict(extra="forbid")
    path: Annotated[str, StringConstraints(min_length=1)]
    weight: float = Field(gt=0, allow_inf_nan=False)
    tasks: list[str] = Field(default_factory=list)
    filters: list[str] = Field(default_factory=list)


class MixtureFile(BaseModel):
    """What a mixture file holds."""

    model_config = ConfigDict(extra="forbid")
    version: Literal[1] = 1
    parts: list[Part] = Field(min_length=1)


class Mixture:
    """Samples of several sets, numbered one set after the other, and drawn by weight.

    The n-th draw from a part takes place n of that part's own endless shuffled stream, so within a part every sample
    comes equally often. Which part a place of the mixture draws from is fixed by the weights alone: after any number
    of places every part has had its share, give or take less than one sample. As many draws as there are samples count
    as an epoch; which samples they are depends on the weights.

    Args:
        sets: at least one, none of them empty.
        weights: shares of the draws, numbers above 0 in any unit; exact where they have a period of at most 10,000
            draws, else rounded to that.
    """

    def __init__(self, sets: Sequence[ShardSet], weights: Sequence[float]) -> None:
        if len(sets) != len(weights) or not sets or not all(map(len, sets)):
            raise ShardError(f"a mixture of {[len(s) for s in sets]} samples with the weights {list(weights)}")
        self.sets = tuple(sets)
        try:
            self._counts = shares(weights)
        except ValueError as error:
            raise ShardError(f"a mixture: {error}") from error
        self._parts, self._draws = schedule(self._counts)
        self._ends = list(itertools.accumulate(map(len, sets)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Sample:
        """A sample by its number. Raises ShardError, IndexError."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        part = bisect.bisect_right(self._ends, number)
        return self.sets[part][number - self._before(part)]

    def __iter__(self) -> Iterator[Sample]:
        return itertools.chain.from_iterable(self.sets)

    def at(self, place: int, seed: int) -> int:
        """Number of the sample that stands at a place of the endless stream."""
        turn, rest = divmod(place, len(self._parts))
        part = self._parts[rest]
        draw = turn * self._counts[part] + self._draws[rest]
        # a set that is in the mixture twice must not come in the same order twice
        return self._before(part) + shuffled(draw, len(self.sets[part]), (seed << 20) + part)

    @property
    def tasks(self) -> dict[str, int]:
        """Number of samples of each task."""
        total = Counter[str]()
        for part in self.sets:
            total.update(part.tasks)
        return dict(sorted(total.items()))

    @property
    def keys(self) -> list[str]:
        """Keys of all samples in order; reads every index."""
        return [key for part in self.sets for key in part.keys]

    def _before(self, part: int) -> int:
        return self._ends[part - 1] if part else 0


def write_mixture(path: Path | str, parts: Sequence[Part | Mapping[str, Any]]) -> None:
    """Write a mixture file.

    Args:
        path: of the file, e.g. `mixture.json`.
        parts: each with `path` (a shard set; relative to the folder of the file), `weight`, and optionally `tasks` and
            `filters`.

    Raises ShardError for parts that could not be read back.
    """
    path = Path(path)
    plain = [p.model_dump() if isinstance(p, Part) else {**p, "path": str(p["path"])} for p in parts]
    whole = parse(MixtureFile, {"version": 1, "parts": plain}, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(whole.model_dump(exclude_defaults=True) | {"version": 1}, indent=1).encode() + b"\n")


def read_mixture(path: Path, tasks: Sequence[str] = (), filters: Sequence[str] = ()) -> Mixture:
    """Open a mixture file; `tasks` and `filters` narrow every part further. Raises ShardError that names the part."""
    whole = parse(MixtureFile, path.read_bytes(), str(path))
    sets = []
    for number, part in enumerate(whole.parts):
        wanted = [t for t in part.tasks or tasks if not tasks or t in tasks]
        try:
            if part.tasks and not wanted:
                raise ShardError(f"its tasks are {', '.join(part.tasks)}; none of {', '.join(tasks)} is among them")
            sets.append(ShardSet.open(path.parent / part.path, wanted, [*part.filters, *filters]))
            if not len(sets[-1]):
                raise ShardError(f"{path.parent / part.path} has no sample")
        except ShardError as error:
            raise ShardError(f"{path}, part {number}: {error}") from error
    return Mixture(sets, [part.weight for part in whole.parts])


def open_data(
    paths: Sequence[Path | str] | Path | str, tasks: Sequence[str] = (), filters: Sequence[str] = ()
) -> ShardSet | Mixture:
    """Open what a loader deals out: shard folders as one set, or a mixture file.

    Args:
        paths: a shard folder, several, or one mixture file.
        tasks, filters: keep only samples of these tasks that pass these expressions.

    Raises ShardError.
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    files = [p for p in given if p.is_file()]
    if not files:
        return ShardSet.open(given, tasks, filters)
    if len(given) > 1:
        raise ShardError(f"{files[0]} is a mixture file and stands alone: name the other folders as parts of it")
    return read_mixture(files[0], tasks, filters)
