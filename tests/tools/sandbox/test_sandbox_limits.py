"""Bombs and loops in a sandbox: contained, told, and nothing left of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from mmrl_tools.sandbox import Bounds, Outcome, isolation, run

LITTLE_TIME = Bounds(seconds=1, memory_mb=512, scratch_mb=8, files=200, threads=8)

BOMBS = {
    "fork bomb": ("while True: os.fork()", "code_error.*PermissionError"),
    "memory at once": ("x = bytearray(4 << 30)", "code_memory.*MemoryError"),
    "memory by and by": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "code_memory"),
    "memory in small pieces": ("x = None\nwhile True: x = [x, x]", "code_memory"),
    "memory of numpy": ("import numpy as np; np.ones(1 << 30)", "code_memory"),
    "memory mapped": ("import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 24))", "code_error.*allocate"),
    "text": ("'x' * (1 << 40)", "code_memory"),
    "threads": (
        "import threading, time\n"
        "for _ in range(100000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "can't start new thread|code_threads",
    ),
    "sparse file": ("open('big', 'wb').truncate(10 << 30)", "File too large"),
    "written file": (
        "f = open('big', 'wb', 0)\nfor _ in range(10 << 10): f.write(bytes(1 << 20))",
        "File too large|No space left|code_scratch",
    ),
    "files": ("for i in range(1000000): open(str(i), 'w').close()", "No space left|code_scratch"),
    "several files": (
        "import time\nfor i in range(100): open(str(i), 'wb').write(bytes(1 << 20)); time.sleep(0.002)\ntime.sleep(1)",
        "No space left|code_scratch",
    ),
    "deep folders": (
        "import time\nfor i in range(100000):\n    os.mkdir('a'); os.chdir('a')\n    time.sleep(0.0002)",
        "No space left|code_scratch",
    ),
    "hidden folder": (
        "import time\nos.mkdir('a', 0o300)\nfor i in range(300): open(f'a/{i}', 'w').close()\ntime.sleep(5)",
        "No space left|code_scratch",
    ),
    "descriptors": ("x = []\nwhile True: x.append(os.dup(1))", "Too many open files"),
    "output": ("import sys\nfor _ in range(1 << 10): sys.stdout.write('x' * (1 << 20))", "code_output"),
    "output of errors": ("while True: os.write(2, bytes(1 << 16))", "code_output"),
    "recursion": ("def f(): f()\nf()", "RecursionError"),
    "broken memory": ("ctypes.string_at(0)", "the process died: SIGSEGV"),
    "abort": ("libc.abort()", "the process died: SIG"),
    "sudden end": ("os._exit(0)", "ended without a result .exit code 0"),
    "sudden end that looks like a failed start": ("os._exit(3)", "ended without a result .exit code 3"),
    "trap": ("sys.exit('no')", "code_error.*SystemExit: no"),
    "nesting": ("eval('(' * 100000)", "code_error|code_memory"),
}  # fmt: skip

LOOPS = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "sleep that catches all": "import time\nwhile True:\n    try: time.sleep(1000)\n    except BaseException: pass",
    "deaf to signals": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nwhile True: pass",
    "long call": "9 ** 9 ** 9",
    "expression": "import re; re.match('(a+)+$', 'a' * 50 + 'b')",
    "busy threads": "import threading, hashlib\n"
    "for _ in range(6): threading.Thread(target=lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)).start()\n"
    "hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)",
    "closed streams": "import time\nos.closerange(0, 5000)\ntime.sleep(1000)",
    "waits for itself": "import threading; threading.Lock().acquire(); l = threading.Lock(); l.acquire(); l.acquire()",
    "reads nothing for ever": "a, b = os.pipe(); os.read(a, 1)",
    "slow value": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    "slow error": "class A(Exception):\n    def __str__(self):\n        while True: pass\nraise A",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_contained_and_told(attack: Any, name: str) -> None:
    code, expected = BOMBS[name]
    if (text := attack(code)) is not None:
        assert re.search(expected, text, re.DOTALL), text[-500:]
        assert len(text) < 25_000


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_stopped_and_told(attack: Any, name: str) -> None:
    if (text := attack(LOOPS[name], LITTLE_TIME)) is not None:
        assert "code_timeout\nstopped after 1 seconds" in text


def test_threads_that_go_on_end_with_the_code(attack: Any) -> None:
    code = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(900,)).start()\n'end'"
    if (text := attack(code)) is not None:
        assert text.strip() == "'end'"


def test_nothing_is_left_for_the_next_call(attack: Any) -> None:
    code = "import numpy\nprint(os.listdir('.'), hasattr(numpy, 'mark'))\nopen('note', 'w').write('x'); numpy.mark = 1"
    for _ in range(2):
        if (text := attack(code)) is not None:
            assert text.strip() == "['out'] False"


def test_many_at_once(sandboxed: Any) -> None:
    found: dict[int, Outcome | None] = {}

    def one(i: int) -> None:
        found[i] = run(f"open('a', 'w').write('{i}'); {i}", layers=isolation())

    threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i: o and o.value for i, o in found.items()} == {i: str(i) for i in range(12)}
    sandboxed("1")


def test_when_the_trainer_dies_the_code_dies(layers: tuple[str, ...], watch: Any) -> None:
    script = f"""
from mmrl_tools import sandbox, sandbox_process
start = sandbox_process.subprocess.Popen
def started(*a, **k):
    process = start(*a, **k)
    print(process.pid, flush=True)
    return process
sandbox_process.subprocess.Popen = started
sandbox.run("import time; time.sleep(600)", layers={layers!r}, bounds=sandbox.Bounds(seconds=300))
"""
    place = {**os.environ, "TMPDIR": str(watch.scratch)}
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=place)
    pid = int(trainer.stdout.readline())
    wait_for(lambda: len(watch.left(pid)) == (2 if "namespaces" in layers else 1))
    trainer.kill()
    trainer.communicate()
    wait_for(lambda: not watch.left(pid))


def wait_for(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("did not happen in 20 seconds")
