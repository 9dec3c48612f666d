"""What comes back from a sandbox: pixels, text and lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl_tools.sandbox import Bounds, run

# finds the descriptor of the report, and writes there what it likes
FORGE = """
import json, os, stat
def is_fifo(n):
    try:
        return n not in (1, 2) and stat.S_ISFIFO(os.fstat(n).st_mode)
    except OSError:
        return False
report = next(n for n in range(5000) if is_fifo(n))
"""
PICTURE = {"name": "x", "mode": "RGB", "width": 10, "height": 10}


@pytest.mark.parametrize(
    ("head", "size", "code", "pictures"),
    [
        ({"pictures": [PICTURE]}, 300, 0, 1),
        ({"pictures": [PICTURE]}, 299, 0, 0),
        ({"pictures": [PICTURE] * 20}, 6000, 0, 8),
        ({"pictures": [PICTURE | {"width": 10**9, "height": 10**9}]}, 300, 0, 0),
        ({"pictures": [PICTURE | {"width": -1}]}, 300, 0, 0),
        ({"pictures": [PICTURE | {"width": 1e1}]}, 300, 0, 0),
        ({"pictures": [PICTURE | {"mode": "P;9"}]}, 300, 0, 0),
        ({"pictures": [PICTURE | {"name": None}]}, 300, 0, 0),
        ({"pictures": {"a": 1}, "refused": 3, "value": 5, "error": "no"}, 0, 1, 0),
        ({"error": ["code_evil", "x"]}, 0, 0, 0),
        ({"setup": "failed"}, 0, 3, 0),
        ([1, 2], 0, 0, None),
        ({"value": "x" * 300_000}, 0, 0, None),
    ],
)
def test_reports_can_be_forged_but_not_believed(
    sandboxed: Any, head: Any, size: int, code: int, pictures: int | None
) -> None:
    forged = f"{FORGE}\nos.write(report, json.dumps({head}).encode() + b'\\n' + bytes({size}))\nos._exit({code})"
    if (outcome := sandboxed(forged)) is not None:
        assert (outcome.error is None) == (pictures is not None)
        assert len(outcome.pictures) == (pictures or 0)


@pytest.mark.parametrize("data", ["[" * 100000, "1e999", "\\xff\\xfe", "", "{" + '"a":' * 9000])
def test_reports_that_are_none(sandboxed: Any, data: str) -> None:
    if (outcome := sandboxed(f"{FORGE}\nos.write(report, b'{data}' + b'\\n')\nos._exit(0)")) is not None:
        assert outcome.error == ("code_error", "the process ended without a result (exit code 0)")


def test_a_report_without_end(sandboxed: Any) -> None:
    if (outcome := sandboxed(f"{FORGE}\nwhile True: os.write(report, bytes(1 << 16))")) is not None:
        assert outcome.error[0] == "code_output"


def test_pictures_of_all_kinds_keep_their_pixels(sandboxed: Any) -> None:
    code = """
import numpy as np
from PIL import Image
a = np.random.default_rng(5).integers(0, 256, (30, 40, 4), dtype=np.uint8)
show(a[..., 0]); show(a[..., :3]); show(a); show(a[..., :1] // 2); show(a[..., 1] > 99)
show(Image.fromarray(a[..., 0].astype(np.uint16) * 257)); show(Image.fromarray(a[..., :3]).convert("P"))
Image.fromarray(a[:, ::-1, :3]).save("out/b.png")
Image.fromarray(a[..., :3]).save("out/c.PNG")  # the same as one that was shown
"""
    if (outcome := sandboxed(code)) is None:
        return
    a = np.random.default_rng(5).integers(0, 256, (30, 40, 4), dtype=np.uint8)
    want = [a[..., 0], a[..., :3], a, a[..., 0] // 2, (a[..., 1] > 99) * np.uint8(1), a[..., 0].astype(np.uint16) * 257]
    assert (outcome.error, outcome.refused) == (None, ())
    assert [name for name, _ in outcome.pictures] == [f"shown {i}" for i in range(1, 8)] + ["out/b.png"]
    shown = [np.asarray(picture) for _, picture in outcome.pictures]
    for got, expected in zip(shown[:6], want, strict=True):
        assert np.array_equal(got, expected)
    assert shown[6].shape == (30, 40, 3)
    assert np.array_equal(shown[7], a[:, ::-1, :3])


def test_saved_photos_are_upright(sandboxed: Any) -> None:
    code = """
from PIL import Image
exif = Image.Exif(); exif[0x0112] = 6
Image.new("RGB", (60, 30), "red").save("out/a.jpg", exif=exif)
"""
    if (outcome := sandboxed(code)) is not None:
        assert outcome.pictures[0][1].size == (30, 60)


@pytest.mark.parametrize(
    "wrong",
    ["np.zeros((4, 4))", "np.zeros(4, np.uint8)", "np.zeros((4, 4, 2), np.uint8)", "'out/a.png'", "None", "[[1]]"],
)
def test_what_is_no_picture_is_told(sandboxed: Any, wrong: str) -> None:
    if (outcome := sandboxed(f"import numpy as np\nshow({wrong})")) is not None:
        assert outcome.error[0] == "code_error"
        assert "uint8 array of shape HxW, HxWx3 (RGB) or HxWx4 (RGBA), got" in outcome.error[1]


def test_hostile_files_in_out_are_refused_and_told(sandboxed: Any) -> None:
    code = """
import os, struct, zlib
from PIL import Image
os.symlink("/etc/passwd", "out/a.png")
os.mkdir("out/b.png")
open("out/c.png", "w").write("no picture")
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
head = chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0))
bomb = b"\\x89PNG\\r\\n\\x1a\\n" + head + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
open("out/d.png", "wb").write(bomb)
Image.new("RGB", (60, 60), "red").save("e.png")
open("out/e.png", "wb").write(open("e.png", "rb").read()[:80])
Image.new("RGB", (60, 60), "red").save("out/f.gif"); os.rename("out/f.gif", "out/f.jpg")
open("out/g.png", "w").close()
os.symlink("../e.png", "out/h.png")
open("out/ignored.txt", "w").write("x")
Image.new("RGB", (3000, 3000), "blue").save("out/z.png")
"""
    if (outcome := sandboxed(code)) is None:
        return
    assert outcome.error is None
    assert [r[:9] for r in outcome.refused] == [f"out/{c}.{'jpg' if c == 'f' else 'png'}" for c in "abcdefgh"]
    assert "20000x20000 pixels" in outcome.refused[3]
    ((name, picture),) = outcome.pictures
    assert (name, picture.size, picture.getpixel((5, 5))) == ("out/z.png", (2000, 2000), (0, 0, 255))


def test_a_fifo_in_out_is_no_picture(watch: Any) -> None:
    """Where code can make one at all: without seccomp."""
    outcome = run("import os; os.mkfifo('out/a.png')", layers=())
    assert outcome.refused == ("out/a.png: not a regular file",)
    watch.check()


def test_too_many_pictures(sandboxed: Any) -> None:
    code = "import numpy as np\nfor i in range(12): show(np.full((30, 30), i, np.uint8))"
    if (outcome := sandboxed(code, bounds=Bounds(pictures=3))) is None:
        return
    assert [p.getpixel((0, 0)) for _, p in outcome.pictures] == [0, 1, 2]
    assert len(outcome.refused) == 9
    large = sandboxed("import numpy as np\nfor i in range(6): show(np.full((2000, 2000), i, np.uint8))")
    assert (len(large.pictures), len(large.refused)) == (4, 2)


def test_results_are_the_same_each_time_and_follow_the_seed(sandboxed: Any) -> None:
    code = """
import random, uuid
import numpy as np
print(random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid4(), hash("a"), {"b", "c", "a"})
object()
"""
    if (one := sandboxed(code, seed=7)) is None:
        return
    assert one == sandboxed(code, seed=7)
    assert one.value == "<object object>"
    other = sandboxed(code, seed=8)
    assert not set(one.text.split()[:4]) & set(other.text.split()[:4])


def test_printed_text_and_values_are_cut(sandboxed: Any) -> None:
    if (outcome := sandboxed("print('é' * 5000)\n'x' * 5000", bounds=Bounds(output=100))) is not None:
        assert (outcome.text, outcome.cut) == ("é" * 100, True)
        assert outcome.value == "'" + "x" * 99 + " [cut]"


def test_any_text_is_code(sandboxed: Any) -> None:
    """Whatever is wrong with it, it is told as a fault of the code."""

    @settings(max_examples=40, deadline=None)
    @given(st.text(max_size=60) | st.sampled_from(["\ud800", "\0", "'\\N{x}'", "# coding: utf-7\n+AAA-", "(" * 300]))
    def check(code: str) -> None:
        if (outcome := sandboxed(f"if 0:\n pass\n{code}")) is not None:
            assert outcome.error is None or outcome.error[0] in ("code_error", "code_memory")

    check()
