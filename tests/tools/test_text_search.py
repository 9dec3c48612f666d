"""text_search and page_fetch: ranks against BM25 by hand, snippets, parts, damaged corpora, threads, dead servers."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import math
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.registry import get
from mmrl.rollout import ToolContext, call_tool, tools_prompt
from mmrl.rollout.calls import Tools
from mmrl.types import FaultKind, ToolCall, ToolResult
from mmrl_tools import corpus as corpora
from mmrl_tools import text_search as module
from mmrl_tools.corpus import CorpusError, open_corpus
from mmrl_tools.lexical import passage, words
from mmrl_tools.text_search import parts_of

ROWS = [
    {"id": "snake", "title": "Python (genus)", "text": "Pythons are large snakes of Asia. A python has no venom."},
    {
        "id": "code",
        "title": "Python",
        "text": "Python is a language for programs: print('hello')",
        "url": "https://a.b/py",
    },
    {"id": 7, "title": "Café", "text": "Le café est une boisson. 東京の喫茶店でコーヒーを飲む。"},
    {
        "id": "tower",
        "title": "Eiffel Tower",
        "text": "The tower in Paris is 330 metres high.",
        "url": "http://www.x.org/T/",
    },
    {"id": "empty", "text": ""},
]


def write(path: Path, rows: Any = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def context(**options: Any) -> ToolContext:
    return ToolContext({}, settings={"text_search": options, "page_fetch": options})


@pytest.fixture
def where(tmp_path: Path) -> ToolContext:
    return context(corpus=str(write(tmp_path / "rows.jsonl")), cache=str(tmp_path / "cache"))


def run(name: str, where: ToolContext, **arguments: Any) -> ToolResult:
    with Tools() as tools:
        return tools.submit([ToolCall(name, arguments)], where).result(timeout=60)[0]


def ids(result: ToolResult) -> list[str]:
    assert result.fault is None, result.fault
    return [r["id"] for r in result.data["results"]]


# --- ranks ------------------------------------------------------------------------------------------------------------


def by_hand(texts: dict[str, str], query: str) -> list[tuple[str, float]]:
    """BM25 (Lucene's idf, k1 1.5, b 0.75) by the formula: best first, equal ones by id."""
    split = {id: words(text) for id, text in texts.items()}
    mean = sum(map(len, split.values())) / len(split)
    scores = dict.fromkeys(split, 0.0)
    for word in set(words(query)):
        n = sum(word in s for s in split.values())
        idf = math.log(1 + (len(split) - n + 0.5) / (n + 0.5))
        for id, text in split.items():
            tf = text.count(word)
            scores[id] += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(text) / mean))
    return sorted(((i, s) for i, s in scores.items() if s > 0), key=lambda it: (-round(it[1], 9), it[0]))


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_those_of_bm25_by_hand(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(25)]
    rows = []
    for id in draw.sample(range(1000), 60):
        title, text = (" ".join(draw.choices(vocabulary, range(1, 26), k=draw.randint(a, 30))) for a in (0, 1))
        rows.append({"id": f"d{id}", "title": title, "text": text})
    rows += [{**row, "id": row["id"] + "-copy"} for row in rows[:10]]
    draw.shuffle(rows)
    found = open_corpus(write(tmp_path / "c.jsonl", rows), tmp_path / "cache")
    texts = {r["id"]: f"{r['title']} {r['text']}" for r in rows}
    for _ in range(25):
        query = " ".join(draw.choices([*vocabulary, "unknown"], k=draw.randint(1, 5)))
        right = by_hand(texts, query)
        for top_k in (1, 4, 200):
            got = found.search(query, top_k)
            assert [s for _, s in got] == pytest.approx([s for _, s in right[:top_k]], rel=1e-5)
            assert [d.id for d, _ in got] == [i for i, _ in right[:top_k]]


def test_equal_scores_come_in_the_order_of_ids(tmp_path: Path) -> None:
    rows = [{"id": id, "text": "the same words"} for id in ("c", "a", "d", "b", "10", "9")]
    found = open_corpus(write(tmp_path / "c.jsonl", rows), tmp_path / "cache")
    assert [[d.id for d, _ in found.search("same", k)] for k in (1, 3, 6)] == [
        ["10"],
        ["10", "9", "a"],
        ["10", "9", "a", "b", "c", "d"],
    ]


def test_words_have_no_case_accents_or_width() -> None:
    assert words("Café CAFE\u0301 ｃａｆｅ snake_case don't 3.5 Straße") == [
        *("cafe", "cafe", "cafe", "snake", "case", "don", "t", "3", "5", "strasse")
    ]
    assert words("東京タワー2") == ["東", "京", "タ", "ワ", "ー", "2"]
    assert words("हिन्दी भाषा।") == ["हिन्दी", "भाषा"]
    assert words("… !? \ud800") == []


# --- text_search ------------------------------------------------------------------------------------------------------


def test_results_are_numbered_with_ids_titles_and_snippets(where: ToolContext) -> None:
    result = run("text_search", where, query="tower in paris")
    assert result.text == "1. [tower] Eiffel Tower: The tower in Paris is 330 metres high."
    (only,) = result.data["results"]
    assert (only["url"], only["snippet"]) == ("http://www.x.org/T/", "The tower in Paris is 330 metres high.")
    both = run("text_search", where, query="python")
    assert ids(both) == [i for i, _ in by_hand({str(r["id"]): f"{r.get('title')} {r['text']}" for r in ROWS}, "python")]
    assert [line[:4] for line in both.text.splitlines()] == [f"{n}. [" for n in (1, 2)]
    assert ids(run("text_search", where, query="python", top_k=1)) == ids(both)[:1]


@pytest.mark.parametrize("query", ["python snake", "import python; print(1)", '<code>python</code> {"name": "python"}'])
def test_a_search_for_python_is_a_search(where: ToolContext, query: str) -> None:
    assert {"snake", "code"} <= set(ids(run("text_search", where, query=query)))


def test_other_scripts_are_found(where: ToolContext) -> None:
    assert ids(run("text_search", where, query="CAFE")) == ["7"]
    assert ids(run("text_search", where, query="喫茶")) == ["7"]


@pytest.mark.parametrize("query", ["zeppelin", "?!", " "])
def test_nothing_found_is_no_error(where: ToolContext, query: str) -> None:
    result = run("text_search", where, query=query)
    assert (result.fault, result.text, ids(result)) == (None, f"nothing found for {query!r}", [])


@pytest.mark.parametrize(
    "arguments", [{}, {"query": ""}, {"query": 3}, {"query": "x", "top_k": 0}, {"query": "x" * 1001}]
)
def test_wrong_arguments_are_the_policys_fault(where: ToolContext, arguments: dict[str, Any]) -> None:
    fault = run("text_search", where, **arguments).fault
    assert fault is not None
    assert (fault.kind, fault.code) == (FaultKind.POLICY, "bad_arguments")


def test_long_titles_and_ids_stay_within_the_limit(tmp_path: Path) -> None:
    rows = [{"id": f"{n}", "title": "title " * 200, "text": "word " * 5000} for n in range(20)]
    where = context(corpus=str(write(tmp_path / "c.jsonl", rows)), cache=str(tmp_path / "cache"), snippet=1200)
    result = run("text_search", where, query="word", top_k=10)
    assert len(ids(result)) == 10
    assert "[cut" not in result.text
    assert len(result.text) < get("tool", "text_search").info["limits"].text
    assert all(line.endswith("word…") and "title…" in line for line in result.text.splitlines())


def test_schemas_are_short() -> None:
    assert len(tools_prompt(["text_search", "page_fetch"])) < 900


# --- snippets ---------------------------------------------------------------------------------------------------------


def test_the_passage_lies_around_the_words_of_the_query() -> None:
    text = "filler words here. " * 200 + "The harbour of Rotterdam was built then. " + "more of the same. " * 200
    found = passage(text, "when was Rotterdam harbour built", 60)
    assert "harbour of Rotterdam was built" in found
    assert (found[0], found[-1]) == ("…", "…")
    assert len(found) <= 62


def test_the_passage_prefers_rare_words_and_then_the_first() -> None:
    text = "alpha one " + "x " * 100 + "alpha beta two " + "x " * 100 + "gamma three " + "x " * 100 + "gamma four"
    assert "two" in passage(text, "alpha beta gamma", 30)
    assert "three" in passage(text, "alpha beta gamma", 30, {"alpha": 0.1, "beta": 0.2, "gamma": 5.0}.__getitem__)
    assert passage(text, "absent", 30).startswith("alpha one")


@given(
    st.text(st.sampled_from("ab é京\n"), max_size=80),
    st.text(st.sampled_from("ab é京"), max_size=8),
    st.integers(5, 40),
)
def test_passages_are_bounded_and_part_of_the_text(text: str, query: str, length: int) -> None:
    found = passage(text, query, length)
    bare = found.strip("…")
    assert len(bare) <= length
    assert bare in " ".join(text.split())
    if not found.startswith("…") and not found.endswith("…"):
        assert found == " ".join(text.split())
    if any(len(w) <= length and w in set(words(query)) for w in words(text)):
        assert set(words(bare)) & set(words(query))


# --- page_fetch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tower", "http://www.x.org/T/", "https://x.org/T", "x.org/T#top"])
def test_pages_are_found_by_id_and_address(where: ToolContext, name: str) -> None:
    result = run("page_fetch", where, id=name)
    assert result.text == "[tower] Eiffel Tower\nThe tower in Paris is 330 metres high."
    assert (result.data["id"], result.data["part"], result.data["parts"]) == ("tower", 1, 1)


def test_numbers_are_ids_and_empty_pages_say_so(where: ToolContext) -> None:
    assert run("page_fetch", where, id="7").text.startswith("[7] Café\nLe café")
    assert run("page_fetch", where, id="empty").text == "[empty]\n(no text)"


def test_long_pages_come_in_parts(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {n}. " + "Some words of it. " * 12 for n in range(30))
    where = context(
        corpus=str(write(tmp_path / "c.jsonl", [{"id": "long", "text": text}])), cache=str(tmp_path / "cache")
    )
    first = run("page_fetch", where, id="long")
    parts = first.data["parts"]
    assert first.text.startswith(f"[long], part 1 of {parts}\nParagraph 0.")
    found = [run("page_fetch", where, id="long", part=n + 1).data["text"] for n in range(parts)]
    assert "".join(found) == text
    assert all(part.startswith("Paragraph") and len(part) <= 3000 for part in found)
    fault = run("page_fetch", where, id="long", part=parts + 1).fault
    assert fault is not None
    assert (fault.kind, fault.code, f"{parts} parts" in fault.message) == (FaultKind.POLICY, "no_such_part", True)


@given(st.text(st.sampled_from("ab .\n。"), max_size=200), st.integers(2, 50))
def test_parts_are_all_of_the_text(text: str, size: int) -> None:
    parts = parts_of(text, size)
    assert "".join(parts) == text
    assert all(size / 2 < len(p) <= size for p in parts[:-1])
    assert len(parts[-1]) <= size


def test_unknown_pages_are_the_policys_fault(where: ToolContext) -> None:
    result = run("page_fetch", where, id="no such")
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, "unknown_page")
    assert "'no such'" in result.text


def test_documents_of_one_address_are_told(tmp_path: Path) -> None:
    rows = [{"id": f"p{n}", "text": f"passage {n}", "url": "http://a.b/c"} for n in (2, 0, 1)]
    where = context(corpus=str(write(tmp_path / "c.jsonl", rows)), cache=str(tmp_path / "cache"))
    assert run("page_fetch", where, id="http://a.b/c").text == (
        "[p0], 3 documents have this URL, also [p1], [p2]\npassage 0"
    )


# --- files ------------------------------------------------------------------------------------------------------------


def test_all_kinds_of_files_give_the_same_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode() + b"\n\n")
    with gzip.open(folder / "b.jsonl.gz", "wt") as out:
        out.write("\n".join(json.dumps(r) for r in ROWS[1:3]))
    rows = [{"title": None, "url": None, **r} for r in ROWS[3:]]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet")
    (folder / "readme.txt").write_text("not a row")
    (folder / ".hidden.jsonl").write_text("not a row")
    found = open_corpus(folder, tmp_path / "cache")
    alone = open_corpus(write(tmp_path / "rows.jsonl"), tmp_path / "cache")
    assert len(found) == len(alone) == 5
    assert [found.document(n) for n in range(5)] == [alone.document(n) for n in range(5)]
    assert [d.id for d in map(found.document, range(5))] == ["7", "code", "empty", "snake", "tower"]
    assert found.search("python tower", 5) == alone.search("python tower", 5)


def test_contents_hold_title_and_text(tmp_path: Path) -> None:
    rows = [{"id": "0", "contents": '"Ada Lovelace"\nShe wrote notes.'}, {"id": "1", "contents": "one line"}]
    found = open_corpus(write(tmp_path / "c.jsonl", rows), tmp_path / "cache")
    assert [(found.document(n).title, found.document(n).text) for n in (0, 1)] == [
        ("Ada Lovelace", "She wrote notes."),
        ("", "one line"),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "b", "text": ', "line 3: not JSON"),
        (b'{"id": "b", "text": "\xff"}', "line 3: not UTF-8"),
        (b"[1, 2]", "line 3: not an object but a list"),
        (b"[" * 100_000, "line 3: not JSON"),
        (b'{"id": 1' + b"0" * 5000 + b"}", "line 3: not JSON"),
        (b'{"text": "x"}', "line 3: id is None"),
        (b'{"id": true, "text": "x"}', "line 3: id is True"),
        (b'{"id": "b"}', "line 3: text is missing"),
        (b'{"id": "b", "text": 3}', "line 3: text is no text"),
        (b'{"id": "b", "text": "x", "title": 3}', "line 3: title is 3"),
        (b'{"id": "a", "text": "x"}', "line 3: id 'a' is also that of"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x"}\n\n' + line + b'\n{"id": "c", "text": "x"}\n')
    with pytest.raises(CorpusError) as error:
        open_corpus(path, tmp_path / "cache")
    assert f"{path} {said}" in str(error.value)
    assert not list((tmp_path / "cache").iterdir())
    result = run("text_search", context(corpus=str(path), cache=str(tmp_path / "cache")), query="x")
    assert result.fault is not None
    assert (result.fault.kind, said in result.fault.message) == (FaultKind.TOOL, True)
    write(path)  # once mended it works
    assert len(open_corpus(path, tmp_path / "cache")) == 5


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(random.Random(0).randbytes(9000).hex().encode())[:-400])
    (tmp_path / "no.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "none.jsonl").write_text("\n\n")
    (tmp_path / "x.csv").write_text("id,text")
    (tmp_path / "folder").mkdir()
    for name, said in {
        "cut.jsonl.gz": "cannot be read on",
        "no.parquet": "cannot be read after row 0",
        "none.jsonl": "has no rows",
        "x.csv": "is none of .jsonl",
        "folder": "it holds no file of",
        "absent": "no corpus at",
    }.items():
        with pytest.raises(CorpusError, match=said):
            open_corpus(tmp_path / name, tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "rollout.tool_options.text_search.corpus is not set"),
        ({"corpus": 3}, "text_search.corpus is 3"),
        ({"corpsu": "x"}, "did you mean 'corpus'?"),
        ({"corpus": "x", "snippet": 4.5}, "text_search.snippet is 4.5"),
        ({"corpus": "x", "url": "http://127.0.0.1"}, "both set"),
        ({"url": "ftp://x"}, "text_search.url is 'ftp://x'"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], said: str) -> None:
    fault = run("text_search", context(**options), query="x").fault
    assert fault is not None
    assert (fault.kind, said in fault.message) == (FaultKind.TOOL, True)


# --- the index on disk ------------------------------------------------------------------------------------------------


def test_threads_that_ask_first_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    start = threading.Barrier(8)
    real = corpora.write_corpus
    monkeypatch.setattr(corpora, "write_corpus", lambda rows, folder: (built.append(folder), real(rows, folder)))
    path = write(tmp_path / "c.jsonl", [{"id": n, "text": f"word{n % 7} and {n}"} for n in range(2000)])
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        start.wait(30)
        corpus = open_corpus(path, tmp_path / "cache")
        found[number] = (corpus, [d.id for d, _ in corpus.search("word3", 5)])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 1
    assert len({id(corpus) for corpus, _ in found.values()}) == 1
    # those whose number leaves 3 and that are shortest score alike: the first ids in the order of texts
    assert [r for _, r in found.values()] == [sorted(str(n) for n in range(3, 2000, 7))[:5]] * 8
    assert [p.name[:7] for p in (tmp_path / "cache").iterdir()] == ["corpus-"]


def test_calls_side_by_side_give_what_they_give_alone(where: ToolContext) -> None:
    queries = ["python", "tower", "café", "language snakes", "no such word", "the high metres"] * 20
    with Tools() as tools:
        together = tools.submit([ToolCall("text_search", {"query": q}) for q in queries], where).result(timeout=60)
    alone = {q: run("text_search", where, query=q).text for q in set(queries)}
    assert [r.text for r in together] == [alone[q] for q in queries]


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "c.jsonl"), tmp_path / "cache"
    before = open_corpus(path, cache)
    assert open_corpus(path, cache) is before
    write(path, [*ROWS, {"id": "new", "text": "A zeppelin flies"}])
    after = open_corpus(path, cache)
    assert ([d.id for d, _ in after.search("zeppelin", 5)], len(after), len(before)) == (["new"], 6, 5)
    assert before.search("zeppelin", 5) == []  # who holds the old one reads the old one
    assert len(list(cache.iterdir())) == 2
    write(path)
    assert len(open_corpus(path, cache)) == 5
    assert len(list(cache.iterdir())) == 2  # the same bytes have their index already


def test_equal_bytes_share_an_index_and_later_processes_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = open_corpus(write(tmp_path / "a.jsonl"), cache)
    monkeypatch.setattr(corpora, "write_corpus", lambda *_: pytest.fail("built twice"))
    again = open_corpus(write(tmp_path / "b.jsonl"), cache)  # opened anew, as another process would
    assert again.search("python", 5) == first.search("python", 5)


@pytest.mark.parametrize(
    "damage", ["documents.jsonl", "places.npy", "bm25/vocab.index.json", "bm25/data.csc.index.npy"]
)
def test_a_damaged_index_is_built_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    open_corpus(write(tmp_path / "a.jsonl"), cache)
    (folder,) = cache.iterdir()
    whole = (folder / damage).read_bytes()
    (folder / damage).write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        found = open_corpus(write(tmp_path / "b.jsonl"), cache)
    assert {d.id for d, _ in found.search("python", 5)} == {"snake", "code"}
    assert "is damaged" in caplog.text
    assert (folder / damage).read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="set the option `cache`"):
        open_corpus(write(tmp_path / "a.jsonl"), tmp_path / "file" / "cache")


# --- a retrieval server -----------------------------------------------------------------------------------------------


class Server:
    """A real server on a free port that answers what `answer` gives for a request: a status and a body."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer: Any = lambda asked: (200, json.dumps({"result": [documents(asked)]}))
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(asked)
                status, body = server.answer(asked)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # who asked has given up
                    self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/retrieve"

    def kill(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def documents(asked: Any) -> list[Any]:
    (query,) = asked["queries"]
    contents = [f'"Title {n}"\nText {n} about {query}.' for n in range(20)]
    return [{"document": {"id": str(n), "contents": c}, "score": 9.5 - n} for n, c in enumerate(contents)][
        : asked["topk"]
    ]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    if found.thread.is_alive():
        found.kill()


def test_a_server_is_asked_in_the_form_of_search_r1(server: Server) -> None:
    result = run("text_search", context(url=server.url), query="python snakes", top_k=2)
    assert server.requests == [{"queries": ["python snakes"], "topk": 2, "return_scores": True}]
    assert result.text == ("1. [0] Title 0: Text 0 about python snakes.\n2. [1] Title 1: Text 1 about python snakes.")
    assert [r["score"] for r in result.data["results"]] == [9.5, 8.5]


def test_servers_may_leave_out_ids_and_scores(server: Server) -> None:
    server.answer = lambda asked: (
        200,
        json.dumps({"result": [[{"contents": '"A"\nb c'}, {"title": "T", "text": "u"}]]}),
    )
    assert run("text_search", context(url=server.url), query="b").text == "1. A: b c\n2. T: u"
    server.answer = lambda asked: (200, '{"result": [[]]}')
    assert run("text_search", context(url=server.url), query="c").text == "nothing found for 'c'"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, "down"),
        (200, "<html>"),
        (200, "{}"),
        (200, '{"result": []}'),
        (200, '{"result": [[{"x": 1}]]}'),
        (200, "[]"),
    ],
)
def test_a_server_that_answers_something_else_is_a_fault_of_the_tool(server: Server, status: int, body: str) -> None:
    server.answer = lambda asked: (status, body)
    fault = run("text_search", context(url=server.url), query="x").fault
    assert fault is not None
    assert (fault.kind, fault.code) == (FaultKind.TOOL, "tool_failed")
    assert server.url in fault.message


def test_a_slow_server_is_given_up_before_the_tool_is(server: Server) -> None:
    free = threading.Event()
    server.answer = lambda asked: (free.wait(30), (200, "{}"))[1]
    fault = run("text_search", context(url=server.url, timeout=0.1), query="x").fault
    free.set()
    assert fault is not None
    assert (fault.kind, fault.code, "ReadTimeout" in fault.message) == (FaultKind.TOOL, "tool_failed", True)
    assert get("tool", "text_search").info["limits"].seconds == module.SECONDS


def test_a_server_that_dies_costs_no_dialogue(server: Server, where: ToolContext) -> None:
    """Ten dialogues of six turns ask a server that is killed after the second; another takes its place for the last."""
    with Tools(failures=5, rest=0.0) as tools:
        dialogues = [context(url=server.url) for _ in range(10)]
        seen: list[list[ToolResult]] = [[] for _ in dialogues]
        for turn in range(6):
            if turn == 2:
                server.kill()
            if turn == 5:
                other = Server()
                dialogues = [context(url=other.url) for _ in dialogues]
            waiting = [
                tools.submit([ToolCall("text_search", {"query": f"turn {turn} of dialogue {n}"})], d)
                for n, d in enumerate(dialogues)
            ]
            for results, future in zip(seen, waiting, strict=True):
                results += future.result(timeout=30)
        other.kill()
        local = tools.submit([ToolCall("page_fetch", {"id": "tower"})], where).result(timeout=30)
    assert local[0].fault is None  # other tools go on
    for number, results in enumerate(seen):
        assert [r.fault is None for r in results] == [True, True, False, False, False, True]
        assert f"turn 1 of dialogue {number}" in results[1].text
        for result in results[2:5]:
            assert result.fault is not None
            assert result.fault.kind is FaultKind.TOOL
            assert result.fault.code in ("tool_failed", "tool_unavailable")
            assert result.text.startswith("Error: text_search")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> ToolContext:
    root = tmp_path_factory.mktemp("odd")
    return context(corpus=str(write(root / "rows.jsonl")), cache=str(root / "cache"))


@settings(max_examples=150)
@given(
    st.sampled_from(["text_search", "page_fetch"]),
    st.dictionaries(
        st.sampled_from(["query", "top_k", "id", "part", "x"]),
        st.one_of(st.text(max_size=20), st.integers(-2, 12), st.none(), st.floats(), st.sampled_from(["tower", "7"])),
    ),
)
def test_odd_calls_are_answered(odd: ToolContext, name: str, arguments: dict[str, Any]) -> None:
    result = call_tool(ToolCall(name, arguments), odd)
    assert result.fault is None or result.fault.kind is FaultKind.POLICY
    assert len(result.text) < 10_100
