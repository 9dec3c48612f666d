"""Documents: the true transcription passes every test, a worse one fails those that it should."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmrl.rewards.unit_tests import passed, read_tables, run_test
from mmrl_prep.documents import make_document
from mmrl_prep.puzzles.puzzle import Unpuzzling, spread
from mmrl_prep.rng import generator

SIZES = [(640, 896), (400, 560), (1200, 560), (400, 1600)]


@pytest.mark.parametrize("size", SIZES)
def test_the_truth_passes_and_less_does_not(size: tuple[int, int]) -> None:
    for number in range(10):
        one, two = (make_document(generator(0, str(number)), size) for _ in range(2))
        assert one.image.tobytes() == two.image.tobytes()
        assert (one.text, one.tests) == (two.text, two.tests)
        assert one.image.size == size
        assert json.loads(json.dumps(one.tests)) == list(one.tests)
        counts = passed(one.tests, one.text)
        assert all(good == total for good, total in counts.values())
        assert set(counts) == {"present", "absent", "order", "table"}
        assert counts["absent"][1] * 2 <= sum(total for _, total in counts.values())
        empty = passed(one.tests, "")
        assert {kind: good for kind, (good, _) in empty.items()} == {"present": 0, "absent": 2, "order": 0, "table": 0}
        with_edges = passed(one.tests, f"{one.header}\n{one.text}\n{one.footer}")
        assert with_edges["absent"][0] == 0
        assert with_edges["present"] == counts["present"]
        backwards = "\n\n".join(one.text.split("\n\n")[::-1])
        assert passed(one.tests, backwards)["order"][0] < counts["order"][1]
        assert one.answer.kind == "tests"
        assert one.answer.value == list(one.tests)


def test_pages_differ_and_have_ink_where_text_is() -> None:
    pages = [make_document(generator(0, str(n))) for n in range(8)]
    assert len({p.text for p in pages}) == 8
    assert all(spread(p.image) > 15 for p in pages)
    ink = np.asarray(pages[0].image.convert("L")) < 128
    assert ink[:40].any() == ink[-40:].any()
    with pytest.raises(Unpuzzling, match="too_small"):
        make_document(generator(0, "x"), (200, 300))


def test_tests_of_tables() -> None:
    text = "| Place | Cost |\n|---|---:|\n| **Mill** | 12 |\n| Quay | 15 |\n\nafter"
    rows = ("<th>Place</th><th>Cost</th>", "<td>Mill</td><td>12</td>", "<td><b>Quay</b></td><td> 15</td>")
    html = f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    assert read_tables(text) == read_tables(html) == [[["Place", "Cost"], ["Mill", "12"], ["Quay", "15"]]]
    for page in (text, html):
        assert run_test({"type": "table", "cell": "15", "left": "Quay", "up": "12", "head": "Cost"}, page)
        assert run_test({"type": "table", "cell": "Mill", "right": "12", "down": "Quay", "first": "Mill"}, page)
        assert not run_test({"type": "table", "cell": "15", "up": "Cost"}, page)
        assert not run_test({"type": "table", "cell": "15", "down": "12"}, page)
        assert not run_test({"type": "table", "cell": "16"}, page)
    assert not run_test({"type": "table", "cell": "15"}, "15 is here, in no table")


def test_other_tests() -> None:
    assert run_test({"type": "present", "text": "a line that goes on"}, "# A line\na  line *that*\ngoes on")
    assert not run_test({"type": "present", "text": ""}, "anything")
    assert run_test({"type": "order", "before": "x", "after": "y"}, "x y")
    assert not run_test({"type": "order", "before": "y", "after": "x"}, "x y")
    assert not run_test({"type": "order", "before": "x", "after": "x"}, "x")
    for broken in ({"type": "formula"}, {}, {"type": "present"}, {"type": "present", "text": None}):
        assert not run_test(broken, "text")
    assert passed([{"type": "formula"}, {}], "text") == {"formula": [0, 1], "None": [0, 1]}
