"""The python tool: pictures in, text and pictures out, and what the policy is told when its code is wrong."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from PIL import Image

import mmrl_tools.python  # noqa: F401  registers the tool
from mmrl.media import image_ref, load_image
from mmrl.registry import get
from mmrl.rollout.calls import Tools
from mmrl.rollout.tools import ToolContext, tool_schemas
from mmrl.types import FaultKind, MediaRef, ToolCall, ToolResult
from mmrl_tools.sandbox import isolation, open_doors

CAT = skimage.data.chelsea()
# where the machine offers no isolation the tool is tested without; `sandbox/` tests that it refuses by itself
SETTINGS: dict[str, Any] = {"accept_no_isolation": True} if open_doors(isolation()) else {}


def context(**settings: Any) -> ToolContext:
    media = {
        "img_1": image_ref("img_1", Image.fromarray(CAT)),
        "vid_1": MediaRef("vid_1", "video", "h", 8, 8),
        "img_7": image_ref("img_7", Image.fromarray(skimage.data.astronaut())),
    }
    return ToolContext(media, seed=3, settings={"python": SETTINGS | settings})


def do(code: str, where: ToolContext | None = None, **arguments: Any) -> ToolResult:
    with Tools() as tools:  # one for each call: tools that fail have to rest
        return tools.submit([ToolCall("python", {"code": code, **arguments})], where or context()).result()[0]


def test_the_value_of_the_last_line_and_what_was_printed() -> None:
    assert do("x = 6 * 7\nprint('see')\nx").text == "see\n42"
    assert do("print('see')").text == "see"
    assert do("x = 6 * 7").text == "(no output)"
    assert do("'a'").text == "'a'"
    assert do("if True:\n    6 * 7").text == "(no output)"
    result = do("import sys\nprint('one'); print('two', file=sys.stderr)\n[1, 2]")
    assert result.text == "one\ntwo\n[1, 2]"
    assert result.data == {"printed": "one\ntwo\n", "value": "[1, 2]", "pictures": [], "refused": []}


def test_code_in_a_fence_is_code() -> None:
    assert do("```python\nx = 5\nx + 1\n```").text == "6"
    assert do("```\n7\n```\n").text == "7"


def test_the_pictures_of_the_dialogue_are_there() -> None:
    code = "import numpy as np\ni = images['img_1']\nsorted(images), i.mode, i.size, int(np.array(i).sum())"
    assert do(code).text == f"(['img_1', 'img_7'], 'RGB', (451, 300), {CAT.sum(dtype=int)})"
    assert do("import cv2\ncv2.imread('img_1.png')[..., ::-1].sum()").text == f"np.uint64({CAT.sum(dtype=int)})"
    assert do("list(images)", images=["img_7", "img_7"]).text == "['img_7']"
    assert "no image 'img_1'; there are: img_7" in do("images['img_1']", images=["img_7"]).text


@pytest.mark.parametrize("id", ["img_2", "vid_1", "../img_1", ""])
def test_images_that_are_not_there(id: str) -> None:
    assert do("1", images=[id]).fault.code == "unknown_image"


def test_too_many_images_have_to_be_named() -> None:
    where = context()
    where.media.update((f"img_{i}", image_ref(f"img_{i}", Image.new("RGB", (30, 30)))) for i in range(40))
    assert do("1", where).fault.code == "too_many_images"
    assert do("len(images)", where, images=["img_1", "img_7"]).text == "2"
    where.media = {"img_1": MediaRef("img_1", "image", "h", 8001, 8000)}
    assert do("1", where).fault.code == "too_many_images"


def test_shown_pictures_join_the_dialogue() -> None:
    where = context()
    result = do("show(images['img_1'].crop((100, 50, 200, 150)))\nimages['img_1'].save('out/copy.png')\n'seen'", where)
    assert result.fault is None
    assert result.text == "'seen'\nimg_8: shown 1, 100x100\nimg_9: out/copy.png, 451x300"
    assert [m.id for m in result.media] == ["img_8", "img_9"] == result.data["pictures"]
    assert np.array_equal(np.asarray(load_image(where.media["img_8"])), CAT[50:150, 100:200])
    assert np.array_equal(np.asarray(load_image(where.media["img_9"])), CAT)
    assert do("images['img_8'].size", where).text == "(100, 100)"


def test_pictures_are_made_fit_to_be_seen() -> None:
    """Alpha on white, 16 bits to 8, small ones by whole factors, large ones to 4 megapixels, lines not at all."""
    result = do(
        "import numpy as np\nfrom PIL import Image\n"
        "show(np.zeros((40, 50, 4), np.uint8))\n"
        "show(Image.fromarray(np.full((40, 50), 257 * 99, np.uint16)))\n"
        "show(np.uint8([[0, 255]]))\n"
        "show(np.zeros((3000, 4000), np.uint8))\n"
        "show(np.zeros((2, 300, 3), np.uint8))\n"
    )
    assert result.fault is None
    first, second, third, fourth = map(load_image, result.media)
    assert (first.getpixel((1, 1)), second.getpixel((1, 1))) == ((255, 255, 255), (99, 99, 99))
    assert third.size == (56, 28)
    assert (third.getpixel((27, 27)), third.getpixel((28, 0))) == ((0, 0, 0), (255, 255, 255))
    assert fourth.width * fourth.height <= 4_000_000
    assert abs(fourth.width / fourth.height - 4 / 3) < 0.01
    assert result.text.endswith("not taken: shown 5: one side is more than 100 times the other")


@pytest.mark.parametrize(
    ("code", "fault", "told"),
    [
        ("1 / 0", "code_error", "line 1: 1 / 0\nZeroDivisionError: division by zero"),
        ("def f(x):\n    return x.nope\nprint('before')\nf(5)", "code_error",
         "before\nline 4: f(5)\nline 2: return x.nope\nAttributeError: 'int' object has no attribute 'nope'"),
        ("x = (", "code_error", "SyntaxError: '(' was never closed"),
        ("import no_such_module", "code_error", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import numpy as np\nnp.ones(3) + np.ones(4)", "code_error", "line 2: np.ones(3) + np.ones(4)\nValueError"),
        ("x = bytearray(8 << 30)", "code_memory", "MemoryError"),
        ("while True: pass", "code_timeout", "stopped after 2 seconds"),
        ("import os\nwhile True: os.write(1, bytes(9999))", "code_output", "more than 16 MB of output"),
        ("raise Exception('x' * 10**6)", "code_error", "xxxx"),
        ("raise KeyboardInterrupt", "code_error", "KeyboardInterrupt"),
        ("raise SystemExit('bye')", "code_error", "SystemExit: bye"),
    ],
)  # fmt: skip
def test_what_the_policy_got_wrong(code: str, fault: str, told: str) -> None:
    result = do(code, context(seconds=2))
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, fault)
    assert told in result.text
    assert result.text == f"Error: {result.fault.message}"
    assert len(result.text) < 6000
    assert "sandbox_" not in result.text  # its frames are nothing to the policy
    assert result.media == ()


def test_output_is_cut_and_says_so() -> None:
    result = do("print('word ' * 10000)\n'x' * 10000", context(output=300))
    assert result.text == f"{('word ' * 60).rstrip()} [cut]\n'{'x' * 299} [cut]"


def test_only_the_first_eight_pictures() -> None:
    result = do("import numpy as np\nfor i in range(11): show(np.full((30, 30), 9 * i, np.uint8))")
    assert [load_image(m).getpixel((0, 0))[0] for m in result.media] == [9 * i for i in range(8)]
    assert result.text.count("not taken: shown 9") == 1
    assert result.text.count("not taken") == 3


def test_results_depend_on_the_seed_alone() -> None:
    code = "import random, numpy as np\n(random.random(), np.random.rand())"
    one, two, other = context(), context(), context()
    other.seed = 4
    assert get("tool", "python").obj({"code": code}, named(one)).text == do(code, two).text
    assert do(code, one).text != do(code, other).text


def named(where: ToolContext) -> ToolContext:
    where.name = "python"
    return where


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"second": 3}, "second is not known; there are: seconds, "),
        ({"seconds": 51}, "seconds must be a number from 0.1 to 50, got 51"),
        ({"seconds": True}, "seconds must be a number"),
        ({"memory_mb": 1.5}, "memory_mb must be a number from 256"),
        ({"output": "many"}, "output must be a number from 1 to 3000"),
        ({"read_paths": "/data"}, "read_paths must be a list of paths"),
        ({"read_paths": ["/no/such/place"]}, "read_paths: '/no/such/place' is not the absolute path"),
        ({"read_paths": ["/"]}, "read_paths: '/' is not the absolute path of a file or folder below /"),
        ({"accept_no_isolation": "yes"}, "accept_no_isolation must be true or false, got 'yes'"),
    ],
)
def test_wrong_settings_are_faults_of_the_tool(settings: dict[str, Any], told: str) -> None:
    result = do("1", context(**settings))
    assert (result.fault.kind, result.fault.code) == (FaultKind.TOOL, "tool_failed")
    assert told in result.fault.message


def test_paths_that_settings_open() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the code may run as another user
        top = Path(folder)
        (top / "fonts").mkdir()
        (top / "fonts" / "a.txt").write_text("letters")
        (top / "secret.txt").write_text("no")
        where = context(read_paths=[f"{top}/fonts"])
        assert do(f"open('{top}/fonts/a.txt').read()", where).text == "'letters'"
        if not SETTINGS:
            assert do(f"open('{top}/fonts/a.txt', 'a')", where).fault.code == "code_error"
            assert do(f"open('{top}/secret.txt').read()", where).fault.code == "code_error"


def test_the_schema_fits_in_the_prompt() -> None:
    (schema,) = tool_schemas(["python"])
    assert schema["function"]["parameters"]["required"] == ["code"]
    assert "show(image)" in schema["function"]["description"]
    assert do("1" * 20001).fault.code == "bad_arguments"
