"""`mmrl tools`: schemas, and single calls from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import skimage.data
from PIL import Image

from mmrl import cli
from mmrl.registry import entries


@pytest.fixture
def mmrl(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process; returns exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(skimage.data.astronaut()).save(path)
    return path


def test_every_tool_is_listed(mmrl: Any) -> None:
    code, out, _ = mmrl("tools", "list")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()[1:] if line.strip()]
    assert set(names) >= {e.name for e in entries("tool")}
    assert "image point [factor]" in out


def test_schemas_are_those_of_a_prompt(mmrl: Any) -> None:
    code, out, _ = mmrl("tools", "list", "--schema", "crop")
    (line,) = out.splitlines()
    assert code == 0
    assert json.loads(line)["function"]["name"] == "crop"
    assert json.loads(line)["function"]["parameters"]["required"] == ["image", "box"]


def test_a_call_prints_the_observation_and_writes_the_picture(mmrl: Any, photo: Path, tmp_path: Path) -> None:
    arguments = json.dumps({"image": "img_1", "box": [0, 0, 500, 250]})
    code, out, _ = mmrl("tools", "call", "crop", arguments, "--media", str(photo), "--out", str(tmp_path / "new"))
    text, record = out.splitlines()
    assert (code, text) == (0, "img_2: region 0,0,500,250 of img_1")
    (shown,) = json.loads(record)["media"]
    assert (shown["id"], shown["parent"], shown["region"]) == ("img_2", "img_1", [0, 0, 256, 128])
    with Image.open(shown["file"]) as new:
        assert new.tobytes() == Image.fromarray(skimage.data.astronaut()[:128, :256]).tobytes()


def test_calls_that_go_wrong(mmrl: Any, photo: Path, tmp_path: Path) -> None:
    crop = ("tools", "call", "crop")
    code, out, _ = mmrl(*crop, '{"image": "img_2", "box": [0, 0, 9, 9]}', "--media", str(photo))
    assert (code, json.loads(out.splitlines()[-1])["error"]) == (1, "unknown_image")
    (tmp_path / "text.png").write_text("no picture")
    for arguments, said in [
        (("tools", "call", "corp"), "did you mean 'crop'"),
        ((*crop, "{"), "not valid JSON"),
        ((*crop, "[1]"), "an object {...} is wanted"),
        ((*crop, "{}", "--media", str(tmp_path / "text.png")), "text.png"),
        ((*crop, "{}", "--media", str(tmp_path / "none.png")), "cannot read"),
        ((*crop, "{}", "--option", "corpus"), "write KEY=VALUE"),
        (("tools", "list", "zom"), "did you mean 'zoom'"),
    ]:
        code, out, err = mmrl(*arguments)
        assert code == 2, arguments
        assert said in err
        assert "Traceback" not in err
