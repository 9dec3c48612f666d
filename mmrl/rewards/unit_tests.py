"""Binary tests of a page's transcription (olmOCR 2, card olmocr2-unit-test-reward): what must be there, what must not,
in which order, and how the cells of a table stand to one another.

A test is {"type": "present", "text"}, {"type": "absent", "text"}, {"type": "order", "before", "after"}, or {"type":
"table", "cell", and of "left", "right", "up", "down", "head" (of the column), "first" (of the row) what must be so}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SIDES = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}  # (row, column) steps in a table


def run_test(test: Mapping[str, Any], transcription: str) -> bool:
    """Whether a transcription passes; a test that cannot be run is failed. Spaces, line breaks and Markdown signs do
    not count, letters and digits do."""
    try:
        return _RUNNERS[test["type"]](test, transcription)
    except (KeyError, TypeError, AttributeError, IndexError):
        return False


def passed(tests: Iterable[Mapping[str, Any]], transcription: str) -> dict[str, list[int]]:
    """Type of test -> [passed, total], as the reward of the card reads it."""
    counts: dict[str, list[int]] = {}
    for test in tests:
        count = counts.setdefault(str(test.get("type")), [0, 0])
        count[0] += run_test(test, transcription)
        count[1] += 1
    return counts


def share_passed(tests: Sequence[Mapping[str, Any]], transcription: str) -> float:
    """Passed tests by all tests, the micro average; 0 without tests."""
    return sum(run_test(test, transcription) for test in tests) / len(tests) if tests else 0.0


def read_tables(transcription: str) -> list[list[list[str]]]:
    """Rows of cells of every table in Markdown or HTML, plain."""
    tables: list[list[list[str]]] = []
    open_table = False
    for line in map(str.strip, transcription.splitlines()):
        if line.count("|") < 2:
            open_table = False
        elif set(line) <= set("|-: "):
            continue
        else:
            if not open_table:
                tables.append([])
            open_table = True
            tables[-1].append([plain(cell) for cell in line.strip("|").split("|")])
    for table in re.findall(r"<table.*?</table>", transcription, re.DOTALL | re.IGNORECASE):
        rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL | re.IGNORECASE)
        cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL | re.IGNORECASE) for row in rows]
        tables.append([[plain(re.sub(r"<[^>]*>", " ", cell)) for cell in row] for row in cells])
    return tables


def plain(text: str) -> str:
    """Text without Markdown signs, spaces single."""
    return " ".join(re.sub(r"[#*_|`]", " ", text).split())


def _present(test: Mapping[str, Any], transcription: str) -> bool:
    wanted = plain(test["text"])
    return bool(wanted) and wanted in plain(transcription)


def _absent(test: Mapping[str, Any], transcription: str) -> bool:
    return plain(test["text"]) not in plain(transcription)


def _order(test: Mapping[str, Any], transcription: str) -> bool:
    text = plain(transcription)
    before = text.find(plain(test["before"]))
    return before >= 0 and text.find(plain(test["after"]), before + len(plain(test["before"]))) >= 0


def _table(test: Mapping[str, Any], transcription: str) -> bool:
    """Whether in some table some cell with the text has the neighbours, the head and the first cell asked for."""
    return any(
        cell == plain(test["cell"]) and _related(test, rows, row, column)
        for rows in read_tables(transcription)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    )


def _related(test: Mapping[str, Any], rows: list[list[str]], row: int, column: int) -> bool:
    places = {side: (row + down, column + right) for side, (down, right) in SIDES.items()}
    places |= {"head": (0, column), "first": (row, 0)}
    for name, (r, c) in places.items():
        if name in test and (r < 0 or c < 0 or r >= len(rows) or c >= len(rows[r]) or rows[r][c] != plain(test[name])):
            return False
    return True


_RUNNERS = {"present": _present, "absent": _absent, "order": _order, "table": _table}
