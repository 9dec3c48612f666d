"""Progress: a bar with rate and time left on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
log = logging.getLogger("mmrl_prep")
EVERY = 10.0  # seconds between log lines


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items as they come, counted for the reader."""
    begin = said = time.monotonic()
    done = 0
    if total and sys.stderr.isatty():
        rate = TextColumn("{task.fields[rate]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total, rate="")
            for item in items:
                yield item
                done += 1
                bar.update(task, advance=1, rate=f"{done / (time.monotonic() - begin):.1f}/s")
        return
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - said > EVERY:
            said = now
            speed = done / (now - begin)
            left = f", {(total - done) / speed:.0f} s left" if total else ""
            log.info("%s: %d of %d, %.1f/s%s", what, done, total, speed, left)
    if done:
        seconds = time.monotonic() - begin
        log.info("%s: %d done in %.1f s, %.1f/s", what, done, seconds, done / max(seconds, 1e-9))
