"""Memory, leaks and worker processes: what only a process of its own can show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .clips import BIKES, BUNNY, CARPHONE, remux

MEMORY = """
import resource, sys
from pathlib import Path
from mmrl.video import read_times

def grown(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB
"""


def run(code: str, *arguments: object) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(n) for n in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux")
def test_a_window_of_a_long_clip_needs_little_memory(tmp_path: Path) -> None:
    """660 frames of 1280x720 are 1.8 GB in RGB. Four of them, wherever they lie, take 11 MB, and as much again while
    they are stacked; the decoder holds at most 16 more of 1.4 MB."""
    path = tmp_path / "long.mp4"
    remux(BUNNY, path, repeats=5)
    code = (
        MEMORY
        + """
small, long = Path(sys.argv[1]), Path(sys.argv[2])
read_times(small, [1.0])
before = grown()
clip = read_times(long, [0.1, 9.0, 17.3, 26.2])
print(len(clip.times), clip.frames.shape[1], grown() - before)
"""
    )
    frames, height, megabytes = run(code, CARPHONE, path)
    assert (frames, height) == (4, 720)
    assert megabytes < 60


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident size from /proc")
def test_opening_leaks_nothing() -> None:
    code = (
        MEMORY
        + """
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
path, broken = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()[:20000]
def once():
    read_times(path, [0.0])
    try: read_times(broken, [0.0])
    except ValueError: pass
for _ in range(50): once()
before = resident()
for _ in range(1000): once()
print(resident() - before)
"""
    )
    assert run(code, CARPHONE)[0] < 50  # 2,000 opens; half of them fail


WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import numpy as np
from mmrl.video import read_times

if __name__ == "__main__":
    path, method = Path(sys.argv[1]), sys.argv[2]
    here = read_times(path, [5.0])
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        there = list(pool.map(read_times, [path] * 4, [[5.0]] * 4, timeout=60))
    print(sum(np.array_equal(clip.frames, here.frames) for clip in there))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_a_process_that_has_decoded(method: str, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, script, BIKES, method], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4"]


def test_reading_leaves_no_thread_behind() -> None:
    """So that PyAV alone is no danger even to a process that forks."""
    code = (
        MEMORY
        + """
def threads(): return len(list(Path("/proc/self/task").iterdir()))
before = threads()
read_times(Path(sys.argv[1]), [1.0, 9.0])
print(threads() - before)
"""
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("counts threads in /proc")
    assert run(code, BIKES) == [0]
