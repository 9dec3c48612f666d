"""Sets from sets: look-alikes, contamination, filters, splits, exports and back, changed questions, difficulty."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from mmrl.media import load_image, read_bytes
from mmrl.rewards.accuracy import compare
from mmrl.shards import ShardSet, verify
from mmrl.shards.mixture import open_data
from mmrl_prep import cli
from mmrl_prep.build import build
from mmrl_prep.copies import contamination, sample_copies
from mmrl_prep.pictures import demo_sources
from mmrl_prep.scan import gray, small, tint
from mmrl_prep.similar import fingerprint, matches, parse

from .conftest import scene


def prints(pictures: list[Image.Image]) -> list[tuple[str, Any]]:
    reduced = [small(np.asarray(p.convert("RGB"))) for p in pictures]
    return [(str(n), parse([fingerprint(gray(r), tint(r))])) for n, r in enumerate(reduced)]


def altered(picture: Image.Image) -> list[Image.Image]:
    """A copy in worse quality, half the size, with borders cut, and with shifted colours."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=30)
    width, height = picture.size
    cut = (width // 40, height // 40, width - width // 40, height - height // 40)
    red, green, blue = picture.split()
    return [
        Image.open(buffer).convert("RGB"),
        picture.resize((width // 2, height // 2)),
        picture.crop(cut),
        Image.merge("RGB", (red.point(lambda v: min(255, v + 20)), green, blue.point(lambda v: max(0, v - 20)))),
    ]


def test_copies_of_real_photographs_are_found_and_different_ones_stay_apart(tmp_path: Path) -> None:
    photos = [Image.open(p).convert("RGB") for p in sorted(demo_sources(tmp_path)[0].iterdir())]
    found = {(m.first, m.second) for m in matches(prints(photos))}
    assert found == set()
    cut = 0
    for number, photo in enumerate(photos):
        pairs = list(matches(prints(photos), prints(altered(photo))))
        assert {0, 1, 3} <= {m.second for m in pairs}
        assert {m.first for m in pairs} == {number}
        cut += 2 in {m.second for m in pairs}
        assert list(matches(prints([photo]), prints([ImageOps.mirror(photo)]))) == []
    assert cut >= len(photos) - 1  # the rocket, mostly dark sky, changes more than the limit when its borders go


def test_blanks_of_different_colours_stay_apart() -> None:
    blanks = [Image.new("RGB", (64, 48), c) for c in ("white", "black", "red", "navy", "gray")]
    assert list(matches(prints(blanks))) == []
    again = [Image.new("RGB", (20, 90), "red"), Image.new("RGB", (64, 48), (128, 130, 128))]
    assert {(m.first, m.second) for m in matches(prints(blanks), prints(again))} == {(2, 0), (4, 1)}


def questions(folder: Path, pictures: list[Image.Image], texts: list[str], **more: Any) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for number, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
        picture.save(folder / f"{number}.png")
        options = [f"o{number}", "x", "y"]
        row = {"question": text, "options": options, "answer": f"o{number}", "image": f"{number}.png", **more}
        lines.append(json.dumps(row))
    (folder / "q.jsonl").write_text("\n".join(lines))
    build(folder / "q.jsonl", "qa", folder / "set", heldout=0)
    return folder / "set" / "train"


def test_contamination_reports_pairs_with_their_evidence(tmp_path: Path) -> None:
    pictures = [scene(n, 200, 150) for n in range(6)]
    # a phrase that the whole task shares is no evidence
    phrase = "Please look at the picture with great care and then say"
    mine = [f"{phrase} what is number {n}" for n in range(30)]
    ours = questions(tmp_path / "a", [scene(100 + n) for n in range(24)] + pictures, mine)
    text = "how many of the seven tall lamps stand left of the old green door"
    bench = [pictures[0], pictures[1].resize((100, 75)), scene(50), scene(51)]
    theirs = questions(tmp_path / "b", bench, [f"{phrase} who it is", f"{phrase} when it was", text, "short"])
    also = questions(tmp_path / "c", [scene(60)], [f"Look: {text}?"])
    a, b = ShardSet.open([ours, also]), ShardSet.open(theirs)
    pairs = contamination(list(a), list(b))
    places = {(p.ours, p.theirs): p for p in pairs}
    assert len(places) == len(pairs) == 3
    exact, similar, words = places[a.keys[24], b.keys[0]], places[a.keys[25], b.keys[1]], places[a.keys[30], b.keys[2]]
    assert (exact.media, exact.distance, exact.text) == ("exact", 0.0, "")
    assert similar.media == "similar"
    assert similar.distance is not None
    assert (words.media, words.overlap) == ("", 1.0)
    assert "seven tall lamps" in words.text
    assert json.loads(json.dumps(exact.to_json()))["theirs_medium"] == "000.png"


def test_samples_are_copies_only_with_the_same_words_and_media(tmp_path: Path) -> None:
    picture = scene(0, 200, 150)
    pictures = [picture, picture.resize((150, 112)), picture, scene(1, 200, 150)]
    folder = questions(tmp_path / "a", pictures, ["Which is it?", "which is it", "Where?", "Which is it?"])
    data = ShardSet.open(folder)
    assert sample_copies(data) == []  # the answers differ
    lines = [json.loads(line) for line in (tmp_path / "a" / "q.jsonl").read_text().splitlines()]
    same = [{**line, "options": ["s", "x", "y"], "answer": "s"} for line in lines]
    (tmp_path / "a" / "q2.jsonl").write_text("\n".join(map(json.dumps, same)))
    build(tmp_path / "a" / "q2.jsonl", "qa", tmp_path / "b", heldout=0)
    assert sample_copies(ShardSet.open(tmp_path / "b" / "train")) == [[0, 1]]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["mmrl-prep", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_commands_that_make_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    texts = ["What is it?", "What does it show?", "Where are they now?", "Who did that there?"]
    data = questions(
        tmp_path / "a", [scene(n, 100 + 50 * n, 90) for n in range(4)], texts, hint="look at the left side"
    )
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "filter", data, "--where", "media.0.width >= 150", "--out", "wide") == 0
    assert [s.media[0].width for s in ShardSet.open("wide")] == [150, 200, 250]
    assert verify(Path("wide")) == []
    assert run(monkeypatch, "filter", data, "--where", "media.0.widht >= 150", "--out", "no") == 1
    assert "width" in capsys.readouterr().err
    assert run(monkeypatch, "filter", data, "--where", "tokens < 16", "--out", "cheap") == 0
    assert len(ShardSet.open("cheap")) == 1
    assert run(monkeypatch, "mix", f"{data}=3", "wide=1", "--out", "m/mix.json") == 0
    assert len(open_data("m/mix.json")) > 4
    assert run(monkeypatch, "split", data, "--heldout", "0.5", "--out", "parts") == 0
    sides = [set(ShardSet.open(f"parts/{n}").keys) for n in ("train", "heldout")]
    assert [len(s) for s in sides] == [2, 2]
    assert not sides[0] & sides[1]
    for form in ("parquet", "webdataset"):
        assert run(monkeypatch, "export", data, "--format", form, "--out", form) == 0
        assert run(monkeypatch, "import", form, "--out", f"back-{form}") == 0
        one, two = ShardSet.open(data), ShardSet.open(f"back-{form}/train")
        for before, after in zip(one, two, strict=True):
            assert after.messages == before.messages
            assert after.answer == before.answer
            assert after.meta["hint"] == "look at the left side"
            assert [read_bytes(m) for m in after.media] == [read_bytes(m) for m in before.media]
    assert run(monkeypatch, "dedupe", data, "wide", "--report", "copies.jsonl", "--out", "once") == 3
    assert len(ShardSet.open("once")) == 4
    assert run(monkeypatch, "check", "wide", "--against", data, "--report", "pairs.jsonl") == 3
    assert len(Path("pairs.jsonl").read_text().splitlines()) >= 3
    assert run(monkeypatch, "preview", data, "--out", "p/preview.html", "--model", "qwen3-vl") == 0
    page = Path("p/preview.html").read_text()
    assert page.count("<article>") == 4
    assert page.count("data:image/jpeg;base64,") == 4
    assert "A) o0" in page
    assert run(monkeypatch, "documents", "--count", "2", "--out", "pages") == 0
    for sample in ShardSet.open("pages"):
        assert compare(sample.meta["text"], sample.answer) == 1.0
        assert compare("", sample.answer) < 0.5


def test_augmented_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["What is it?", "What does it show?", "Say more", "Who did that there?"]
    data = questions(tmp_path / "a", [scene(n) for n in range(4)], texts)
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "augment", data, "--change", "invert", "--out", "inv") == 3
    (left,) = [json.loads(line) for line in Path("inv/left_out.jsonl").read_text().splitlines()]
    assert left["code"] == "no_auxiliary"
    for sample in ShardSet.open("inv"):
        number = next(o for o in sample.answer.options if o.startswith("o"))
        wrong = chr(65 + sample.answer.options.index(number))
        assert sample.task == "multi"
        assert sample.answer.value == sorted({chr(65 + n) for n in range(len(sample.answer.options))} - {wrong})
        assert "n't" in sample.messages[0]["content"][-1]["text"]
        assert sample.key.endswith("-a")
    assert run(monkeypatch, "augment", data, "--change", "distractors:2", "--change", "shuffle", "--out", "more") == 0
    for before, after in zip(ShardSet.open(data), ShardSet.open("more"), strict=True):
        assert len(after.answer.options) == 5
        right = before.answer.options[ord(before.answer.value) - 65]
        assert after.answer.options[ord(after.answer.value) - 65] == right
    assert run(monkeypatch, "augment", data, "--change", "noise:gaussian:0.5", "--out", "noisy") == 0
    for before, after in zip(ShardSet.open(data), ShardSet.open("noisy"), strict=True):
        pictures = [np.asarray(load_image(s.media[0]), float) for s in (before, after)]
        assert 10 < np.abs(pictures[0] - pictures[1]).mean() < 80
        assert after.meta["noise"] == {"kind": "gaussian", "strength": 0.5}
    assert run(monkeypatch, "augment", data, "--change", "noise:gausian:0.5", "--out", "x") == 1


def test_difficulty_is_measured_by_sampling_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl.chat import Chat
    from mmrl.config import ModelConfig, RolloutConfig
    from mmrl.policy.load import load_policy
    from mmrl.rollout import make_engine
    from mmrl_prep.difficulty import measure

    (tmp_path / "p").mkdir()
    for number in range(3):
        scene(number).save(tmp_path / "p" / f"{number}.png")
    build(tmp_path / "p", "rotation", tmp_path / "r", size=64, per_image=2, heldout=0)
    data = ShardSet.open(tmp_path / "r" / "train")
    tiny = Path(__file__).parents[2] / "mmrl" / "assets" / "tiny-vlm"
    model, chat = load_policy(ModelConfig(path=str(tiny), device="cpu"))
    assert isinstance(chat, Chat)
    engine = make_engine("transformers", model, chat)
    config = RolloutConfig(group=3, max_new_tokens=48, max_turns=1, tools=[])
    whole = measure(engine, chat, data, tmp_path / "one.jsonl", config=config, batch=4)
    assert set(whole) == set(data.keys)
    assert all(m["n"] == 3 and m["rate"] == round(m["right"] / 3, 4) for m in whole.values())
    journal = tmp_path / "one.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:3]) + lines[3][:9])  # killed while writing the third
    assert measure(engine, chat, data, journal, config=config, batch=2) == whole
    command = ("difficulty", tmp_path / "r", "--model", tiny, "--n", "2", "--max-new-tokens", "32", "--max-turns", "1")
    assert run(monkeypatch, *command, "--device", "cpu", "--out", tmp_path / "hard") == 0
    for sample in ShardSet.open(tmp_path / "hard"):
        assert sample.meta["difficulty"]["n"] == 2
    kept = open_data(tmp_path / "hard", filters=["meta.difficulty.rate <= 1"])
    assert len(kept) == 6
