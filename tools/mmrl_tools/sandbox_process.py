"""The trainer's side of a running sandbox: start it, read what it writes, end it in time, and check its report."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from PIL import Image

PIXELS = 16_000_000  # of all pictures of a call; a quarter of it each
FLOOD = 1 << 24  # bytes of output after which a call is ended
TICK = 0.05  # seconds
_CHILD = Path(__file__).with_name("sandbox_child.py")
_MODES = {"L": 1, "RGB": 3, "RGBA": 4, "I;16": 2, "I": 4, "F": 4}  # bytes a pixel
_HEAD = 1 << 18  # bytes of the first line of a report
_READY = b"ready\n"
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    "MALLOC_ARENA_MAX": "2",  # each arena takes address space
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one call may use."""

    seconds: float = 10.0  # of wall time, and of CPU time (whole seconds, rounded up)
    memory_mb: int = 1024  # address space, of which Python with numpy, Pillow and OpenCV takes about 400
    scratch_mb: int = 64  # beyond the files that it is given; also the largest file
    files: int = 1000
    threads: int = 32
    output: int = 2000  # characters of printed text, and of the last value
    pictures: int = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call. `error` is a code and a message: code_error (an exception, or the process died),
    code_timeout, code_memory, code_output, code_scratch, code_threads."""

    text: str = ""  # what was printed, cut to `Bounds.output`
    cut: bool = False
    value: str | None = None  # `repr` of the last expression
    pictures: tuple[tuple[str, Image.Image], ...] = ()  # name and picture, not yet normalised
    refused: tuple[str, ...] = ()  # pictures that could not be taken, with reasons
    error: tuple[str, str] | None = None


class SandboxError(RuntimeError):
    """The sandbox could not be set up: a fault of the machine or of settings, not of the code."""


def run_job(job: IO[bytes], what: Mapping[str, Any], bounds: Bounds) -> Outcome:
    """Start a sandbox on a job (see `sandbox_child.py`) and wait for its end. Raises SandboxError."""
    reading, writing = os.pipe()
    said, saying = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", str(_CHILD), str(writing)],
            stdin=job,
            stdout=saying,
            stderr=saying,
            pass_fds=[writing],
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        os.close(said)
        raise
    finally:
        os.close(writing)
        os.close(saying)
    running = _Running(process.pid, what, bounds)
    try:
        running.watch(said, reading)
    finally:
        if running.status is None:
            running.end("code_error")
        process.returncode = running.code
        os.close(reading)
        os.close(said)
    return _outcome(running)


@dataclass
class _Running:
    """One sandbox and what it has written so far."""

    pid: int
    what: Mapping[str, Any]
    bounds: Bounds
    output: bytearray = field(default_factory=bytearray)  # no more than is shown
    report: bytearray = field(default_factory=bytearray)
    written: int = 0  # bytes of output
    killed: str = ""  # why
    status: int | None = None
    cpu: float = 0.0  # seconds

    @property
    def code(self) -> int:
        """Exit code of the process that ran the code, minus the signal that ended it."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        return 128 - code if code > 128 else code

    def watch(self, said: int, reading: int) -> None:
        """Read both streams until the process has ended, which a time-out or an excess makes it do."""
        deadline = time.monotonic() + self.bounds.seconds
        looked = 0.0
        with selectors.DefaultSelector() as waiting:
            for number in (said, reading):
                os.set_blocking(number, False)
                waiting.register(number, selectors.EVENT_READ)
            while self.status is None:
                # when both ends are closed, only the end of the process is left to wait for
                pause = TICK if waiting.get_map() else 0.002
                events = waiting.select(min(pause, max(deadline - time.monotonic(), 0)))
                for key, _ in events:
                    if self._read(key.fd, key.fd == said) == 0:
                        waiting.unregister(key.fd)
                now = time.monotonic()
                excess = "code_timeout" if now >= deadline else "code_output" if self._flooded else ""
                if not excess and "namespaces" not in self.what["layers"] and now - looked > TICK:
                    excess, looked = _excess(self.pid, self.what), now
                if excess:
                    self.end(excess)
                elif not events:
                    self._reap(os.WNOHANG)
        for number in (said, reading):  # what it wrote just before it ended
            while not self._flooded and self._read(number, number == said) > 0:
                continue

    @property
    def _flooded(self) -> bool:
        return self.written > FLOOD or len(self.report) > 4 * PIXELS + _HEAD

    def _read(self, number: int, output: bool) -> int:
        """Take what is there: number of bytes, 0 at the end, -1 when there is nothing now."""
        try:
            data = os.read(number, 1 << 16)
        except BlockingIOError:
            return -1
        if output:
            self.written += len(data)
            self.output += data[: max(4 * self.bounds.output + 4 - len(self.output), 0)]
        else:
            self.report += data
        return len(data)

    def _reap(self, how: int) -> None:
        if os.waitid(os.P_PID, self.pid, how | os.WEXITED | os.WNOWAIT) is None:
            return
        os.killpg(self.pid, signal.SIGKILL)  # whatever it started, while the number is still its own
        _, self.status, usage = os.wait4(self.pid, 0)
        self.cpu = usage.ru_utime + usage.ru_stime

    def end(self, reason: str) -> None:
        """Kill it with all that belongs to it, and wait."""
        self.killed = reason
        if "namespaces" in self.what["layers"]:
            # what waits for the process in the namespaces kills it and takes its remains along
            os.kill(self.pid, signal.SIGTERM)
            patience = time.monotonic() + 2
            while self.status is None and time.monotonic() < patience:
                time.sleep(0.002)
                self._reap(os.WNOHANG)
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._reap(0)


def _excess(pid: int, what: Mapping[str, Any]) -> str:
    """Why a sandbox without namespaces has to end: too many threads, or too much in its scratch folder."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # ended, or no such thing on this system
        rows = []
    if any(row.startswith("Threads:") and int(row.split()[1]) > what["threads"] + 1 for row in rows):
        return "code_threads"
    size, count, pending = 0, 0, [what["scratch"]]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    if count > what["files"] or size > what["scratch_bytes"] + (1 << 20):
                        return "code_scratch"
        except FileNotFoundError:  # gone meanwhile
            continue
        except OSError:  # deeper than a path is long, or closed to us: nothing that image code does
            return "code_scratch"
    return ""


# --- the report, which the code may have forged -----------------------------------------------------------------------


def _outcome(done: _Running) -> Outcome:
    most = done.bounds.output
    printed = done.output.decode("utf-8", "replace")
    text, cut = printed[:most], len(printed) > most or done.written > len(done.output)
    if not done.report.startswith(_READY):
        why = done.report[:500].decode("utf-8", "replace") or text or f"it ended with code {done.code}"
        raise SandboxError(f"no sandbox with {', '.join(done.what['layers']) or 'no layers'}: {done.killed} {why}")
    first, _, pixels = bytes(done.report[len(_READY) :]).partition(b"\n")
    head = _head(first)
    error = _error(done, head)
    if error is not None:
        return Outcome(text, cut, error=error)
    value = head.get("value")
    value = value[:most] + " [cut]" * (len(value) > most) if isinstance(value, str) else None
    refused = tuple(str(r)[:200] for r in _list(head, "refused")[:20])
    return Outcome(text, cut, value, _pictures(_list(head, "pictures")[: done.bounds.pictures], pixels), refused)


def _head(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line) if len(line) <= _HEAD else {}
    except (ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


def _list(head: Mapping[str, Any], name: str) -> list[Any]:
    value = head.get(name)
    return value if isinstance(value, list) else []


def _error(done: _Running, head: Mapping[str, Any]) -> tuple[str, str] | None:
    """What ended the code, None where it came to its end."""
    bounds = done.bounds
    messages = {
        "code_timeout": f"stopped after {bounds.seconds:g} seconds",
        "code_output": f"stopped: it wrote more than {FLOOD >> 20} MB of output",
        "code_scratch": f"stopped: more than {bounds.scratch_mb} MB or {bounds.files} files in the scratch folder",
        "code_threads": f"stopped: more than {bounds.threads} threads",
        "code_memory": f"killed: out of memory (at most {bounds.memory_mb} MB)",
        "code_error": "stopped",
    }
    if done.killed:
        return done.killed, messages[done.killed]
    match head.get("error"):
        case ["code_error" | "code_memory" as code, str(message)]:
            return code, message[:2500]
    if head:
        return None
    if done.code == -signal.SIGKILL:
        code = "code_timeout" if done.cpu >= done.what["cpu"] - 0.1 else "code_memory"
        return code, messages[code]
    if done.code < 0:
        name = signal.Signals(-done.code).name if -done.code in set(signal.Signals) else str(-done.code)
        return "code_error", f"the process died: {name}"
    return "code_error", f"the process ended without a result (exit code {done.code})"


def _pictures(heads: list[Any], pixels: bytes) -> tuple[tuple[str, Image.Image], ...]:
    """Pictures of raw pixels, up to the first that is not as it should be."""
    found, start = [], 0
    for head in heads:
        match head:
            case {"name": str(name), "mode": str(mode), "width": int(width), "height": int(height)} if mode in _MODES:
                stop = start + width * height * _MODES[mode]
                if not (width > 0 and height > 0 and width * height <= PIXELS // 4 and stop <= len(pixels)):
                    break
                found.append((name[:100], Image.frombytes(mode, (width, height), pixels[start:stop])))
                start = stop
            case _:
                break
    return tuple(found)
