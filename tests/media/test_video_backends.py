"""Optional decoders give the same pixels at the same times, or PyAV does it and the clip says so."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrl.media import file_ref, load_video, probe_video, read_times
from mmrl.video import read_clip, read_windows

from .clips import BIKES, BUNNY, CARPHONE, VARIABLE, damaged, edited, encode, moving, turned


def installed(backend: Any) -> bool:
    """Whether it and the libraries that it needs are here: then it does not say what to install."""
    try:
        read_clip(BIKES, backend=backend)
    except ImportError:
        return False
    return True


both: Any = pytest.mark.parametrize(
    "backend",
    [pytest.param(b, marks=pytest.mark.skipif(not installed(b), reason=f"no {b}")) for b in ("torchcodec", "decord")],
)
SOURCES: dict[str, Callable[[], bytes | Path]] = {
    "bikes": lambda: BIKES,
    "carphone": lambda: CARPHONE,
    "bunny": lambda: BUNNY,
    "bytes": BIKES.read_bytes,
    "turned right": lambda: turned((0, 1, -1, 0)),
    "turned left": lambda: turned((0, -1, 1, 0)),
    "upside down": lambda: turned((-1, 0, 0, -1)),
    "edit list": edited,
    "variable rate": lambda: encode(VARIABLE, b_frames=2),
    "variable rate, matroska": lambda: encode(VARIABLE, container="matroska"),
    "late start": lambda: encode([1000 + t for t in VARIABLE], container="matroska"),
    "one frame": lambda: encode([0]),
    "open groups": lambda: moving(options={"x264-params": "keyint=15:bframes=3:scenecut=0:open-gop=1"}),
    "hevc": lambda: moving("libx265", options={"x265-params": "keyint=15:bframes=3:log-level=none"}),
    "transport stream": lambda: moving(container="mpegts"),
    "program stream": lambda: moving("mpeg2video", "mpeg", options={"bf": "2"}),
    "avi": lambda: moving(container="avi"),
    "raw": lambda: encode([40 * n for n in range(10)], container="h264"),
    "damaged": damaged,
}
# what they would get wrong, or cannot open, and PyAV decodes in their place
NEITHER = {"transport stream", "program stream", "avi", "raw", "damaged"}
REPLACED = {"torchcodec": NEITHER, "decord": NEITHER | {"edit list", "open groups", "hevc"}}


@both
@pytest.mark.parametrize("name", SOURCES)
def test_the_same_frames(backend: Any, name: str) -> None:
    source = SOURCES[name]()
    wanted = np.linspace(0, probe_video(source).times[-1], 9).tolist()[::-1]
    ours, theirs = read_times(source, wanted), read_times(source, wanted, backend=backend)
    assert theirs.times == ours.times
    assert theirs.frames.shape == ours.frames.shape
    assert np.array_equal(theirs.frames, ours.frames)  # equal, not close: the same FFmpeg colour conversion
    if (backend, name) != ("decord", "late start"):  # whose time stamps there are sometimes memory never written
        assert theirs.backend == ("pyav" if name in REPLACED[backend] else backend)
    assert ours.backend == "pyav"


@both
def test_windows_and_the_index(backend: Any) -> None:
    ref = file_ref("vid_1", BIKES, "video")
    ours, theirs = (load_video(ref, start=3, end=6, backend=b) for b in ("pyav", backend))
    assert (theirs.backend, theirs.times) == (backend, ours.times)
    assert np.array_equal(theirs.frames, ours.frames)
    pairs = [(7.0, 8.0), (0.5, 1.5)]
    for a, b in zip(read_windows(BIKES, pairs), read_windows(BIKES, pairs, backend=backend), strict=True):
        assert a.times == b.times
        assert np.array_equal(a.frames, b.frames)


@both
def test_refreshed_bit_by_bit(backend: Any) -> None:
    """Key frames that are no whole pictures: only decoding tells, so the timeline must be one that was probed."""
    data = moving(options={"x264-params": "intra-refresh=1:keyint=15:bframes=0"})
    info = probe_video(data)
    ours, theirs = read_times(data, [2.0]), read_times(data, [2.0], info.timeline, backend=backend)
    assert theirs.backend == "pyav"
    assert np.array_equal(theirs.frames, ours.frames)


@both
def test_a_replacement_is_logged(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert read_times(damaged(), [1.0, 3.0], backend=backend).backend == "pyav"
    assert "PyAV" in caplog.text
    assert backend in caplog.text


@pytest.mark.parametrize("backend", ["torchcodec", "decord"])
@pytest.mark.parametrize("error", [ImportError("no module"), RuntimeError("Could not load libtorchcodec")])
def test_a_missing_backend_says_what_to_install(
    backend: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith(backend):
            raise error
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=f"pip install {backend}"):
        read_clip(BIKES, backend=backend)
    assert read_clip(BIKES).backend == "pyav"


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"opencv.*torchcodec"):
        read_clip(BIKES, backend="opencv")  # type: ignore[arg-type]
