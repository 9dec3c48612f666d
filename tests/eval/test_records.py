"""Records: what they hold, and what is left of them after a kill."""

import json

import pytest

from mmrl.types import Fault, FaultKind, Origin, ToolCall, ToolResult, Turn
from mmrl_eval import RunError
from mmrl_eval.records import append, read_records, record, repair


def made(trajectory, **changes):
    base = {"status": "ok", "answer": "A", "score": 1.0, "answer_logp": -0.5, "options": None, "consistent": None}
    return record(trajectory, **(base | changes))


def test_record_holds_the_whole_trajectory(tiny, make_sample, make_trajectory):
    chat, _ = tiny
    of = make_sample("k", "B", source="photo-7")
    row = made(make_trajectory(chat, of, "<think>it is</think><answer>A</answer>", index=2), score=0.0)
    assert (row["key"], row["sample"], row["task"], row["source"]) == ("k", 2, "mcq", "photo-7")
    assert row["prompt"] == "user: [img_1]Which colour? A red B green C blue D grey"
    assert row["media"] == [["img_1", of.media[0].hash]]
    assert row["turns"] == [{"by": "policy", "text": "<think>it is</think><answer>A</answer>"}]
    assert row["truth"] == {"kind": "choice", "value": "B", "options": ["red", "green", "blue", "grey"]}
    think, answer = (len(chat.encode_text(t)) for t in ("<think>it is</think>", "<answer>A</answer>"))
    lengths = row["lengths"]
    assert (lengths["think"], lengths["answer"]) == (think, answer)
    assert lengths["policy"] == think + answer + 1  # and the end of the turn
    assert lengths["observation"] == 0
    assert json.loads(json.dumps(row)) == row


def test_source_is_the_key_when_nothing_says_otherwise(tiny, make_sample, make_trajectory):
    assert made(make_trajectory(tiny[0], make_sample("k"), "A"))["source"] == "k"


def test_record_tells_calls_and_their_faults(tiny, make_sample, make_trajectory):
    t = make_trajectory(tiny[0], make_sample("k"), "look")
    bad = Fault(FaultKind.POLICY, "bad_json", "no closing brace")
    outside = Fault(FaultKind.POLICY, "outside_picture", "the box is outside")
    t.turns[0].calls = (ToolCall("crop", {"box": [0, 0, 9, 9]}), ToolCall("crop", {}), ToolCall("", {}, error=bad))
    results = (ToolResult("img_2"), ToolResult("failed", fault=outside), ToolResult("unreadable", fault=bad))
    t.turns[0].results = results
    t.turns.append(Turn(Origin.OBSERVATION, "...", len(t.tokens), len(t.tokens)))
    t.faults = [outside, bad]
    row = made(t)
    assert [(c["name"], c["turn"], c["error"]) for c in row["tool_calls"]] == [
        ("crop", 0, None),
        ("crop", 0, "outside_picture"),
        ("", 0, "bad_json"),
    ]
    assert [f["code"] for f in row["faults"]] == ["outside_picture", "bad_json"]


def test_later_lines_replace_earlier_ones_and_a_torn_end_is_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, [{"key": "a", "sample": 0, "score": 0.0}, {"key": "b", "sample": 0, "text": "x\u2028y\r\nz"}])
    append(path, [{"key": "a", "sample": 0, "score": 1.0}])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "sam')
    assert [r["key"] for r in read_records(path)] == ["a", "b"]
    assert read_records(path)[0]["score"] == 1.0
    assert read_records(path)[1]["text"] == "x\u2028y\r\nz"


def test_repair_cuts_exactly_the_torn_end(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, [{"key": "a", "sample": 0}])
    whole = path.read_bytes()
    for torn in (b"", b"{", b'{"key": "b", "sample": 0}', "{'ä".encode()[:-1]):
        path.write_bytes(whole + torn)
        assert repair(path) == len(torn)
        assert path.read_bytes() == whole
    assert repair(tmp_path / "none.jsonl") == 0


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"key": "a", "sample": 0}\n{"key": \n{"key": "b", "sample": 0}\n')
    with pytest.raises(RunError, match=r"records\.jsonl, line 2"):
        read_records(path)
