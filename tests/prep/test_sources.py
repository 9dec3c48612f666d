"""Sources: every format gives the same questions, mappings read published rows, bad rows name file, row and field."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from mmrl.media import read_bytes
from mmrl.shards import ShardSet
from mmrl_prep.answers import Frame, move
from mmrl_prep.build import build
from mmrl_prep.mappings import MAPPINGS, RowError, load_mapping
from mmrl_prep.places import PrepError
from mmrl_prep.sources import list_media, list_questions

from .conftest import scene


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    scene(number).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [
        {"question": f"Which {n}?", "options": ["cat", "dog"], "answer": "AB"[n % 2], "level": f"L{n}"}
        for n in range(count)
    ]


def write(kind: str, folder: Path) -> Path:
    """The rows with their pictures as a table of that kind."""
    folder.mkdir()
    for n in range(3):
        (folder / f"p{n}.png").write_bytes(png(n))
    named = [{**row, "image": f"p{n}.png"} for n, row in enumerate(rows())]
    inside = [{**row, "image": {"bytes": png(n), "path": f"p{n}.png"}} for n, row in enumerate(rows())]
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, named)))
    elif kind == "json":
        path.write_text(json.dumps({"info": "x", "data": named}))
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, named[0], delimiter="," if kind == "csv" else "\t")
            out.writeheader()
            out.writerows({**r, "options": json.dumps(r["options"])} for r in named)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(inside), path, row_group_size=2)
    elif kind == "arrow":
        table = pa.Table.from_pylist(inside)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    else:
        with webdataset.TarWriter(str(path)) as tar:
            for n, row in enumerate(rows()):
                tar.write({"__key__": f"s{n}", "json": row, "png": png(n)})
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet", "arrow", "tar"])
def test_every_format_gives_the_same_samples(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path / "in")
    result = build(path, "qa", tmp_path / "out", heldout=0)
    assert result.samples == {"train": 3}
    assert result.quarantined == {}
    for n, sample in enumerate(ShardSet.open(tmp_path / "out" / "train")):
        assert sample.messages[0]["content"][-1]["text"] == f"Which {n}?\nA) cat\nB) dog"
        assert sample.answer.value == "AB"[n % 2]
        assert sample.meta["level"] == f"L{n}"
        assert read_bytes(sample.media[0]) == png(n)


def test_hugging_face_folders(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("int64"), "image": datasets.Image()}
    )
    data = [{"question": f"How many {n}?", "answer": n, "image": {"bytes": png(n), "path": None}} for n in range(4)]
    datasets.Dataset.from_list(data, features=features).save_to_disk(str(tmp_path / "disk"))
    build(tmp_path / "disk", "qa", tmp_path / "out", heldout=0)
    found = list(ShardSet.open(tmp_path / "out" / "train"))
    assert [s.answer.value for s in found] == [0, 1, 2, 3]
    assert [read_bytes(s.media[0]) for s in found] == [png(n) for n in range(4)]


def one(mapping: str, row: dict[str, Any]) -> dict[str, Any]:
    return MAPPINGS[mapping](row, np.random.default_rng(0))


def test_seed_bench_r1() -> None:
    media = {"video_source": "ego", "video_basename": "a.mp4", "current_observation_basename": "a.png"}
    wrong = ["w1", "w2", "w3", "w4", "right"]
    row = {"question": "Next?", "answer": "right", "negative_answers": wrong, "task_progress_metadata": [1], **media}
    plain = one("seed-bench-r1", row)
    assert plain["media"] == [["video", "videos/ego/a.mp4"], ["image", "images/ego/a.png"]]
    assert len(plain["options"]) == 4
    assert plain["options"][ord(plain["answer"]) - 65] == "right"
    assert len(set(plain["options"])) == 4
    assert one("seed-bench-r1", row) == plain
    letters = [MAPPINGS["seed-bench-r1"](row, np.random.default_rng(n))["answer"] for n in range(60)]
    assert set(letters) == set("ABCD")
    still = {"question": "Q", "golden_choice_idx": "C", "task_progress_metadata": [], **media}
    choices = {f"choice_{c}": c * 2 for c in "abcd"}
    plain = one("seed-bench-r1", {**still, **choices})
    assert plain["media"] == [["image", "images/ego/a.png"]]
    assert (plain["options"], plain["answer"]) == (["aa", "bb", "cc", "dd"], "C")
    with pytest.raises(RowError, match="golden_choice_idx"):
        one("seed-bench-r1", {**still, **choices, "golden_choice_idx": "E"})


def test_other_mappings() -> None:
    base = {"problem": "P", "data_type": "video", "path": "./v/a.mp4", "problem_id": 7}
    choice = {"problem_type": "multiple choice", "options": ["A. yes", "B. no"], "solution": "<answer>B</answer>"}
    plain = one("video-r1", {**base, **choice})
    assert (plain["options"], plain["answer"], plain["media"]) == (["yes", "no"], "B", [["video", "v/a.mp4"]])
    number = one("video-r1", {**base, "problem_type": "regression", "solution": "<answer>3.5</answer>"})
    assert (number["answer_kind"], number["answer"]) == ("number", "3.5")
    with pytest.raises(RowError, match="problem_type"):
        one("video-r1", {**base, "problem_type": "x", "solution": "1"})
    box = one("refcoco", {"expression": "the cup", "bbox": [10, 20, 30, 40], "image": "a.jpg"})
    assert (box["answer"], box["box_format"]) == ([10, 20, 30, 40], "xywh")
    assert one("refcoco", {"problem": "p", "solution": [1, 2, 3, 4], "image": "a.jpg"})["box_format"] == "xyxy"
    line = one("charades-sta", {"line": "AO8RW 0.0 6.9##a person is putting a book on a shelf."})
    assert (line["video"], line["answer"], line["answer_kind"]) == ("AO8RW.mp4", [0.0, 6.9], "span")
    sample = {"question": "q", "answer": "tv", "image": "1.jpg", "width": 640, "height": 354}
    grit = one("grit", {**sample, "bboxs": [[343.87, 94.03, 396.81, 126.06]], "dataset": "vsr"})
    assert (grit["answer_kind"], grit["_boxes"], grit["dataset"]) == ("text", [[343.87, 94.03, 396.81, 126.06]], "vsr")
    assert one("grit", {**sample, "answer": 2})["answer_kind"] == "number"
    vsi = {"question": "How many?", "scene_name": "s1", "dataset": "scannet", "ground_truth": "4"}
    assert one("vsi-100k", vsi)["video"] == "scannet/s1.mp4"
    assert one("vsi-100k", {**vsi, "options": ["A. left", "B. right"], "ground_truth": "B"})["options"] == [
        "left",
        "right",
    ]
    jigsaw = one("visual-jigsaw", {"image": {"path": "a.jpg", "jigsaw_config": [3, 2], "resize_size": 512}})
    assert (jigsaw["media"], jigsaw["puzzle"]["grid"]) == ([["image", "a.jpg"]], (3, 2))


def test_visual_jigsaw_rows_set_their_own_grid(tmp_path: Path) -> None:
    scene(0, 320, 240).save(tmp_path / "a.png")
    scene(1, 320, 240).save(tmp_path / "b.png")
    entries = [{"path": "a.png", "jigsaw_config": [2, 2]}, {"path": "b.png", "jigsaw_config": [1, 3]}]
    (tmp_path / "r.jsonl").write_text("\n".join(json.dumps({"image": e}) for e in entries))
    build(
        tmp_path / "r.jsonl",
        "jigsaw_grid",
        tmp_path / "out",
        mapping="visual-jigsaw",
        heldout=0,
        per_image=1,
        size=96,
    )
    assert [len(s.answer.value) for s in ShardSet.open(tmp_path / "out" / "train")] == [4, 3]


def test_mapping_files(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "columns: {question: prompt, options: [right, wrong], answer: right, image: 'img/{id}.png'}\n"
        "drop: [secret]\nshuffle_options: true\n"
    )
    row = {"prompt": "Q?", "right": "yes", "wrong": "no", "id": "7", "secret": 1, "extra": 2}
    mapped = [load_mapping(str(path))(row, np.random.default_rng(n)) for n in range(20)]
    assert {m["options"][ord(m["answer"]) - 65] for m in mapped} == {"yes"}
    assert Counter(m["answer"] for m in mapped).keys() == {"A", "B"}
    assert mapped[0]["image"] == "img/7.png"
    assert mapped[0]["extra"] == 2
    assert "secret" not in mapped[0]
    with pytest.raises(RowError, match="prompt"):
        load_mapping(str(path))({"right": "a"}, np.random.default_rng(0))
    path.write_text("colums: {}")
    with pytest.raises(PrepError, match="columns"):
        load_mapping(str(path))
    path.write_text("columns: {queston: a}")
    with pytest.raises(PrepError, match="question"):
        load_mapping(str(path))
    with pytest.raises(PrepError, match="video-r1"):
        load_mapping("video-r2")


def test_placeholders_say_where_media_stand_only_where_the_mapping_says_so(tmp_path: Path) -> None:
    for n in range(2):
        (tmp_path / f"{n}.png").write_bytes(png(n))
    row = {"question": "Is <image> like <image>?", "answer": "no", "images": ["0.png", "1.png"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (tmp_path / "m.yaml").write_text("placeholders: true")
    build(tmp_path / "q.jsonl", "qa", tmp_path / "a", heldout=0)
    (plain,) = ShardSet.open(tmp_path / "a" / "train")
    assert plain.messages[0]["content"][-1]["text"] == "Is <image> like <image>?"
    build(tmp_path / "q.jsonl", "qa", tmp_path / "b", heldout=0, mapping=str(tmp_path / "m.yaml"))
    (inline,) = ShardSet.open(tmp_path / "b" / "train")
    assert [p.get("id") or p["text"] for p in inline.messages[0]["content"]] == ["Is ", "img_1", " like ", "img_2", "?"]
    (tmp_path / "q.jsonl").write_text(json.dumps({**row, "images": ["0.png"]}))
    questions, rejected = list_questions([tmp_path / "q.jsonl"], load_mapping(str(tmp_path / "m.yaml")))
    assert questions == []
    assert [r.code for r in rejected] == ["placeholders"]


def test_bad_rows_name_file_row_and_field(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(png(0))
    good = {"question": "Q", "answer": 1, "image": "0.png"}
    bad = [
        ({**good, "answer": True}, "answer"),
        ({**good, "answer": ""}, "answer"),
        ({**good, "answer_kind": "nmber"}, "answer_kind"),
        ({**good, "answer": "many", "answer_kind": "number"}, "answer"),
        ({**good, "answer": [5, 2], "answer_kind": "span"}, "answer"),
        ({**good, "box_unit": "inch", "answer": [1, 2, 3, 4]}, "box_unit"),
        ({**good, "image": 7}, "image"),
        ({**good, "question": " "}, "question"),
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(r) for r, _ in bad))
    questions, rejected = list_questions([tmp_path / "q.jsonl"])
    assert questions == []
    assert [(r.file, r.row) for r in rejected] == [("q.jsonl", n + 1) for n in range(len(bad))]
    for reject, (_, field) in zip(rejected, bad, strict=True):
        assert field in reject.message


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_move_with_the_picture(orientation: int, tmp_path: Path) -> None:
    """A red rectangle is drawn on the stored pixels; the moved box must lie exactly on it in the upright picture."""
    stored = scene(3, 120, 80)
    box = (20, 10, 60, 30)
    stored.paste((255, 0, 0), box)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    rows = [
        {"question": "Where?", "answer": list(box), "image": "a.png"},
        {"question": "And?", "answer": [20, 10, 40, 20], "box_format": "xywh", "image": "a.png"},
        {"question": "Part?", "answer": [20 / 120, 10 / 80, 0.5, 30 / 80], "box_unit": "norm_1", "image": "a.png"},
        {"question": "Mid?", "answer": [40, 20], "image": "a.png"},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(tmp_path / "q.jsonl", "qa", tmp_path / "out", heldout=0)
    *boxes, point = ShardSet.open(tmp_path / "out" / "train")
    for sample in boxes:
        picture = np.asarray(Image.open(io.BytesIO(read_bytes(sample.media[0]))).convert("RGB"), int)
        red = np.argwhere((picture[..., 0] == 255) & (picture[..., 1:].sum(-1) == 0))
        (top, left), (bottom, right) = red.min(0), red.max(0) + 1
        assert sample.answer.value == pytest.approx([left, top, right, bottom], abs=1e-3)
    x, y = point.answer.value
    left, top, right, bottom = boxes[0].answer.value
    assert (x, y) == pytest.approx(((left + right) / 2, (top + bottom) / 2))


def test_frames_of_boxes() -> None:
    # the row's size is that of the upright picture: the box is upright already
    assert move([1, 2, 3, 4], Frame(size=(80, 120)), (120, 80), 6) == [1, 2, 3, 4]
    assert move([1, 2, 3, 4], Frame(frame="upright"), (120, 80), 6) == [1, 2, 3, 4]
    assert move([0, 0, 10, 20], Frame(), (120, 80), 6) == [60, 0, 80, 10]
    assert move([500, 250, 1000, 1000], Frame(unit="norm_1000"), (120, 80), 1) == [60, 20, 120, 80]
    # annotated on a picture of half the size
    assert move([1, 2, 3, 4], Frame(size=(60, 40)), (120, 80), 1) == [2, 4, 6, 8]
    for wrong in ([0, 0, 130, 10], [5, 5, 5, 9], [9, 9, 1, 1], [1, 2, 3]):
        with pytest.raises(RowError):
            move(wrong, Frame(), (120, 80), 1)


def test_strict_and_error_budget(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(png(0))
    good = {"question": "Q", "answer": 1, "image": "0.png"}
    lines = [good, {**good, "answer": None}, {**good, "question": "R"}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(PrepError, match=r"q\.jsonl, row 2: answer"):
        build(tmp_path / "q.jsonl", "qa", tmp_path / "a", strict=True)
    with pytest.raises(PrepError, match="1 of 3 inputs"):
        build(tmp_path / "q.jsonl", "qa", tmp_path / "b", error_budget=0.3)
    assert build(tmp_path / "q.jsonl", "qa", tmp_path / "c", error_budget=0.4, heldout=0).samples == {"train": 2}


def test_shards_and_media_tables_as_sources_of_media(tmp_path: Path) -> None:
    path = write("tar", tmp_path / "in")
    assert [m.kind for m in list_media([path])[0]] == ["image"] * 3
    build(path, "qa", tmp_path / "qa", heldout=0)
    direct = build(tmp_path / "in", "rotation", tmp_path / "a", size=32, per_image=1, heldout=0)
    again = build(tmp_path / "qa", "rotation", tmp_path / "b", size=32, per_image=1, heldout=0)
    assert direct.samples == again.samples == {"train": 3}
    keys = [{s.key for s in ShardSet.open(tmp_path / x / "train")} for x in "ab"]
    assert keys[0] == keys[1]


def test_a_cut_tar_is_named_and_the_rest_used(tmp_path: Path) -> None:
    path = write("tar", tmp_path / "in")
    path.write_bytes(path.read_bytes()[:-15_000])
    result = build(path, "qa", tmp_path / "out", heldout=0)
    assert result.samples["train"] in (1, 2)
    listed = (tmp_path / "out" / "quarantine.jsonl").read_text()
    assert "rows.tar" in listed
