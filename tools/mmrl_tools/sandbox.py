"""A process that can reach nothing but a scratch folder: the boundary around code that a policy wrote.

Each call starts a fresh Python (`sandbox_child.py`) that closes these layers behind itself and then runs the code in
the same process, so nothing is left of one call when the next begins. `isolation()` says which of them hold here: each
is tried for real, once a process.

    namespaces  Own mounts, network, processes, IPC and host name (as root, or in a namespace of users). The root is a
                small read-only file system in memory with the Python library, site-packages and system libraries; no
                /proc, /sys, /home, /tmp, /etc. The scratch folder is memory with a limit on bytes and files.
    landlock    Files are reachable under the readable paths and the scratch folder only. Alone, it still lets code see
                whether a path exists, and its size, owner and times. From Linux 6.2 (version 3) on.
    own_uid     As root: every call runs as a user of its own whom nothing belongs to, without privileges.
    seccomp     A list of allowed system calls (`sandbox_filter.py`): no sockets, no new processes, no signals, no
                reading of other processes. x86_64 and aarch64.

Isolation is offered where seccomp and one of namespaces and landlock hold, and an attempt to reach files, network and
processes from inside fails (`open_doors` is empty). Always: a process and a session of its own, an environment of its
own, a scratch folder that is removed, and limits of the kernel on address space, CPU time, file size, threads and open
files; wall time and output are limited from here. One process means that its address space bounds its memory; the
scratch folder in memory (`scratch_mb`, and the pictures that it is given) comes on top. Without namespaces the scratch
folder is on disk, and its size and the number of threads are looked at every 50 ms: code may be over them that long,
and files that it deletes but holds open (at most 64) are not counted until it ends. When the trainer is killed its
sandboxes end too; a folder `mmrl-python-*`, empty with namespaces, is left where temporary files are.

With fewer layers (the caller's decision) code can do what those that are missing would forbid. Its process group is
killed at the end in any case; without seccomp and namespaces, processes that left the group live on.

What remains possible: using all of the limits; measuring time and the load of the machine (side channels of caches and
timing); reading the Python installation, site-packages and the kernel's version; errors of the kernel in an allowed
call. The code can forge its report, since it shares a process with what writes it: the report is only its own text
and pixels, and is checked. Pictures come back as pixels, so that no decoder runs outside on what the code wrote.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import re
import secrets
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmrl_tools.sandbox_filter import program
from mmrl_tools.sandbox_process import PIXELS, Bounds, Outcome, SandboxError, run_job

__all__ = ["LAYERS", "Bounds", "Outcome", "SandboxError", "isolation", "open_doors", "run"]

LAYERS = ("namespaces", "landlock", "own_uid", "seccomp")
DOORS = ("files", "network", "processes")


def isolation() -> tuple[str, ...]:
    """The layers of `LAYERS` that hold on this machine together. Takes a second the first time."""
    with _lock:
        return _isolation()


def open_doors(layers: Sequence[str]) -> tuple[str, ...]:
    """Which of files, network and processes these layers leave open; empty where they isolate."""
    closed = _probe(tuple(layers))
    if closed is None or "seccomp" not in layers or not {"namespaces", "landlock"} & set(layers):
        return DOORS
    return tuple(d for d in DOORS if d not in closed)


_lock = threading.Lock()


@functools.cache
def _isolation() -> tuple[str, ...]:
    if sys.platform != "linux":
        return ()
    if not open_doors(LAYERS):
        return LAYERS
    held: tuple[str, ...] = ()
    for layer in LAYERS:
        if _probe((*held, layer)) is not None:
            held += (layer,)
    return held


_ATTEMPTS = """
import os, socket, numpy, PIL.Image
def works(attempt):
    try:
        attempt()
    except (OSError, MemoryError):
        return False
    return True
def fork():
    if not os.fork():
        os._exit(0)
doors = {
    "files": [lambda: open(CANARY), lambda: os.listdir(os.path.dirname(CANARY)), lambda: open("/etc/passwd")],
    "network": [lambda: socket.socket(f, k) for f in (1, 2, 10, 16) for k in (1, 2)],
    "processes": [lambda: os.kill(PARENT, 0), lambda: open(f"/proc/{PARENT}/environ"), fork],
}
print(*(d for d, attempts in doors.items() if not any(map(works, attempts))), "probed")
"""


@functools.cache
def _probe(layers: tuple[str, ...]) -> frozenset[str] | None:
    """The doors that code inside these layers found closed, None where they cannot be set up or Python does not work
    in them."""
    with tempfile.NamedTemporaryFile() as canary:
        code = f"CANARY, PARENT = {canary.name!r}, {os.getpid()}\n{_ATTEMPTS}"
        try:
            outcome = run(code, layers=layers, bounds=Bounds(seconds=30))
        except SandboxError:
            return None
    words = outcome.text.split()
    return frozenset(words[:-1]) if words[-1:] == ["probed"] else None


def run(
    code: str,
    inputs: Mapping[str, bytes] | None = None,
    *,
    layers: Sequence[str],
    bounds: Bounds | None = None,
    seed: int = 0,
    read_paths: Sequence[str] = (),
) -> Outcome:
    """Run Python code behind `layers` (see `isolation`) and wait for it.

    Args:
        inputs: PNG files by id; they lie in the scratch folder, and in `images` of the code.
        read_paths: absolute folders or files that the code may read beside the Python installation.

    Raises SandboxError where the layers cannot be set up.
    """
    bounds, inputs = bounds or Bounds(), inputs or {}
    if bad := [id for id in inputs if not re.fullmatch(r"\w[\w.-]*", id)]:
        raise SandboxError(f"{bad[0]!r} cannot name a file")
    files = {f"{id}.png": data for id, data in inputs.items()}
    paths, links = _readable(tuple(read_paths))
    with _scratch() as scratch, tempfile.TemporaryFile() as job:
        what = {
            "code": code,
            "seed": seed,
            "parent": os.getpid(),
            "layers": list(layers),
            "scratch": scratch,
            "paths": paths,
            "links": links,
            "sys_path": _sys_path(),
            "uid": _fresh_uid(),
            "filter": (program(os.uname().machine) or b"").hex(),
            "memory": bounds.memory_mb << 20,
            "cpu": math.ceil(bounds.seconds),
            "scratch_bytes": (bounds.scratch_mb << 20) + sum(map(len, files.values())),
            "files": bounds.files + len(files) + 4,
            "threads": bounds.threads,
            "output": bounds.output,
            "pictures": bounds.pictures,
            "pixels": PIXELS,
            "ids": list(inputs),
            "inputs": [(name, len(data)) for name, data in files.items()],
        }
        job.write(json.dumps(what).encode() + b"\n")
        job.writelines(files.values())
        job.seek(0)
        return run_job(job, what, bounds)


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder, gone afterwards whatever was put into it."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="mmrl-python-"))
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: str) -> None:
    """Remove a folder that may be nested deeper than paths and recursion go: folders move up before they go away."""
    free = f"{path}/.{secrets.token_hex(8)}-"
    moved = 0
    pending = [path]
    while pending:
        folder = pending.pop()
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            moved += 1
            pending.append(f"{free}{moved}")
            os.chmod(entry.path, 0o700)
            os.rename(entry.path, pending[-1])
    shutil.rmtree(path)


def _sys_path() -> list[str]:
    """Where modules of the standard library and of installed packages are, folders of the project left out."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [os.path.realpath(sysconfig.get_path(n)) for n in names]
    dynamic = os.path.join(found[0], "lib-dynload")
    return [p for p in dict.fromkeys([found[0], dynamic, *found[2:]]) if os.path.isdir(p)]


@functools.cache
def _readable(more: tuple[str, ...]) -> tuple[list[str], list[tuple[str, str]]]:
    """Real paths that may be read, none inside another, and links (path, target) that lead into them."""
    for path in more:
        if not os.path.isabs(path) or not os.path.exists(path) or os.path.realpath(path) == "/":
            raise SandboxError(f"read_paths: {path!r} is not the absolute path of a file or folder below /")
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    wanted = [*system, os.path.join(sys.base_prefix, "lib"), *_sys_path(), *more]
    there = [p for p in dict.fromkeys(wanted) if os.path.exists(p)]
    real = sorted({os.path.realpath(p) for p in there})
    paths = [p for p in real if not any(p.startswith(other + "/") for other in real)]
    links = [(p, os.path.realpath(p)) for p in there if os.path.islink(p)]
    inside = [(p, target) for p, target in links if not any(p.startswith(other + "/") for other in paths)]
    return paths, inside


def _fresh_uid() -> int | None:
    """A number of a user that nothing belongs to, new for each call: what the kernel counts by user is its own."""
    try:
        rows = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    first, _, count = max(rows, key=lambda row: row[2], default=(0, 0, 0))
    if count < 1000:
        return None
    low, high = (1 << 30, 3 << 29) if count > 3 << 29 else (first + count // 2, first + count)
    return random.SystemRandom().randrange(low, high)
