"""Progress: a bar on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")
log = logging.getLogger("mmrl_prep")
EVERY = 10.0  # seconds between log lines


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items as they come, counted for the reader."""
    if total and sys.stderr.isatty():
        yield from track(items, what, total, console=Console(stderr=True), transient=True)
        return
    begin = said = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - said > EVERY:
            said = now
            log.info("%s: %d of %d, %.1f/s", what, done, total, done / (now - begin))
    if done:
        log.info("%s: %d done in %.1f s", what, done, time.monotonic() - begin)
