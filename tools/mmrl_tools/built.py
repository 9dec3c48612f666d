"""What takes long to build is built once: in a process for all threads that ask, on disk for later processes."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

CACHE = Path("~/.cache/mmrl/search")

T = TypeVar("T")

_log = logging.getLogger(__name__)
_locks: dict[Hashable, threading.Lock] = {}
_built: dict[Hashable, tuple[Hashable, Any]] = {}


def once(slot: Hashable, stamp: Hashable, build: Callable[[], T]) -> T:
    """The value of `slot`, built where there is none yet or its stamp was another one. Threads that ask meanwhile
    wait for it. A build that fails leaves nothing behind: the next call tries again."""
    with _locks.setdefault(slot, threading.Lock()):
        held = _built.get(slot)
        if held is None or held[0] != stamp:
            held = _built[slot] = (stamp, build())
        value: T = held[1]
        return value


def kept(root: Path, name: str, write: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    """`load` of the folder root/name, which `write` fills first where it is missing or cannot be loaded.

    It is written under another name and renamed when it is whole, so that no process sees a part of it; of several
    that write at the same time the first one counts. Raises what write raises, OSError where root cannot be written.
    """
    folder = root / name
    if folder.is_dir():
        try:
            return load(folder)
        except (OSError, ValueError, KeyError, EOFError) as error:
            _log.warning("%s is damaged (%s) and is built again", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root)
    except OSError as error:
        hint = "set the option `cache` of the tool to a folder that can be written"
        raise OSError(f"cannot write an index in {root} ({error.strerror}): {hint}") from error
    with scratch:
        whole = Path(scratch.name) / "whole"
        whole.mkdir()
        write(whole)
        try:
            os.rename(whole, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return load(folder)
