"""The sandboxes that tests start, what they must not reach, and what has to be as it was afterwards.

Where the machine offers no isolation, each of these tests asserts that the code is refused instead.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mmrl_tools.python  # noqa: F401  registers the tool
from mmrl.rollout.calls import Tools
from mmrl.rollout.tools import ToolContext
from mmrl.types import FaultKind, ToolCall
from mmrl_tools import sandbox, sandbox_process
from mmrl_tools.sandbox import Bounds, Outcome, isolation, open_doors, run

REPO = Path(__file__).parents[3]
# all that there is, and each way to close the files alone
_COMBINATIONS = [isolation(), ("namespaces", "own_uid", "seccomp"), ("landlock", "seccomp")]
ISOLATING = [c for c in dict.fromkeys(_COMBINATIONS) if not open_doors(c)] or [()]
SMALL = Bounds(seconds=20, memory_mb=512, scratch_mb=8, files=200, threads=8, output=20000)


class Watch:
    """The sandboxes that a test starts, and what they must not reach."""

    def __init__(self, folder: Path) -> None:
        self.pids: list[int] = []
        self.uids: list[int] = []
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self.canary = folder / "canary"
        self.canary.write_text("a secret")
        self.canary.chmod(0o666)
        self.bystander = subprocess.Popen(["sleep", "600"], env={"SECRET": "xyzzy"})
        self.server = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(b"\0mmrl-test-" + os.urandom(8).hex().encode())
        self.abstract.listen()

    @property
    def names(self) -> str:
        """Code that names the targets, and says what became of an attempt on them."""
        return (
            f"PARENT, BYSTANDER, CANARY, REPO = {os.getpid()}, {self.bystander.pid}, {str(self.canary)!r}, "
            f"{str(REPO)!r}\nPORT, ABSTRACT = {self.server.getsockname()[1]}, {self.abstract.getsockname()!r}\n"
            "import os, sys, ctypes\nX86 = os.uname().machine == 'x86_64'\n"
            "def attempt(name, what):\n"
            "    try:\n        got = what()\n"
            "    except (Exception, SystemExit) as error:\n        print(name, 'closed', type(error).__name__)\n"
            "    else:\n        print(name, 'OPEN', repr(got)[:60])\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "def syscall(*a):\n"
            "    got = libc.syscall(*[ctypes.c_long(v) if isinstance(v, int) else v for v in a])\n"
            "    if got < 0:\n        raise OSError(ctypes.get_errno(), 'failed')\n"
            "    return got\n"
        )

    def check(self) -> None:
        """Nothing of the sandboxes is left, and nothing outside has changed."""
        assert self.canary.read_text() == "a secret"
        assert self.canary.stat().st_mode & 0o777 == 0o666
        assert sorted(p.name for p in self.canary.parent.iterdir()) == ["canary", "tmp"]
        assert list(self.scratch.iterdir()) == []
        assert self.bystander.poll() is None
        assert os.sched_getaffinity(self.bystander.pid) == os.sched_getaffinity(0)
        self.server.setblocking(False)
        self.abstract.setblocking(False)
        for listening in (self.server, self.abstract):
            with pytest.raises(BlockingIOError):
                listening.accept()
        assert not self.left(*self.pids)
        with pytest.raises(ChildProcessError):
            os.waitpid(self.pids[-1], os.WNOHANG)

    def left(self, *sessions: int) -> list[str]:
        """Processes of these sessions, or of users that sandboxes had, zombies included."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                uid = path.stat().st_uid
            except (OSError, ValueError):
                continue
            if session in sessions or uid in self.uids:
                found.append(f"{path.name} of session {session}, user {uid}")
        return found

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.wait()
        self.server.close()
        self.abstract.close()


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch = Watch(tmp_path)
    start, number = subprocess.Popen, sandbox._fresh_uid

    def started(*args: Any, **kwargs: Any) -> Any:
        process = start(*args, **kwargs)
        watch.pids.append(process.pid)
        return process

    def numbered() -> int | None:
        uid = number()
        watch.uids += [uid] if uid else []
        return uid

    monkeypatch.setattr(sandbox_process.subprocess, "Popen", started)
    monkeypatch.setattr(sandbox, "_fresh_uid", numbered)
    monkeypatch.setattr("tempfile.tempdir", str(watch.scratch))
    yield watch
    watch.close()


@pytest.fixture(params=ISOLATING, ids="+".join)
def layers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Each combination of layers that isolates here; () where none does."""
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def attack(watch: Watch, layers: tuple[str, ...]) -> Callable[..., str | None]:
    """Runs code that knows its targets and gives what came of it as one text; None where it was refused."""

    def attack(code: str, bounds: Bounds = SMALL) -> str | None:
        if not layers:
            return assert_refused()
        outcome = run(watch.names + code, layers=layers, bounds=bounds)
        watch.check()
        return "\n".join([outcome.text, outcome.value or "", *(outcome.error or ())])

    return attack


@pytest.fixture
def sandboxed(watch: Watch) -> Callable[..., Outcome | None]:
    """`run` behind all layers there are; None where it was refused."""

    def sandboxed(code: str, **options: Any) -> Outcome | None:
        if not ISOLATING[0]:
            return assert_refused()
        outcome = run(code, layers=ISOLATING[0], **options)
        watch.check()
        return outcome

    return sandboxed


def assert_refused() -> None:
    with Tools() as tools:  # one of its own: tools that fail have to rest
        result = tools.submit([ToolCall("python", {"code": "print(1)"})], ToolContext({})).result()[0]
    assert result.fault.kind is FaultKind.TOOL
    assert "accept_no_isolation: true" in result.fault.message
    assert "1" not in result.text
