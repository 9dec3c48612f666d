"""document_retrieve, document_rerank, document_crop: from a folder of pages, of a PDF, and of the sample's pictures."""

from __future__ import annotations

import functools
import io
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from mmrl.media import image_ref, load_image
from mmrl.rollout import ToolContext
from mmrl.rollout.calls import Tools
from mmrl.types import Answer, FaultKind, Sample, ToolCall, ToolResult
from mmrl_tools import collection
from mmrl_tools.collection import Collection, Page, open_folder
from mmrl_tools.lexical import words

pytest.importorskip("bm25s")

TEXTS = {
    "manual/page-1": "The pump feeds the canal. Clean the pump filter in spring.",
    "manual/page-2": "The crane lifts 12 tons. Grease the crane before winter.",
    "manual/page-10": "Index of parts: pump 3, crane 5, valve 8, filter 9.",
    "survey": "Visitors of the harbour in spring and in winter, and the price of a ticket.",
}


def coordinates(width: int, height: int) -> Image.Image:
    """A picture in which every pixel says where it is: red and green the last 8 bits of x and y, blue the others."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x % 256, y % 256, 16 * (x // 256) + y // 256], -1).astype(np.uint8))


@functools.cache
def page_png() -> bytes:
    buffer = io.BytesIO()
    coordinates(1200, 1600).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def corner(image: Image.Image) -> tuple[int, int]:
    red, green, blue = image.getpixel((0, 0))
    return red + 256 * (blue // 16), green + 256 * (blue % 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "docs"
    for id, text in TEXTS.items():
        (root / id).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{id}.png").write_bytes(page_png())
        (root / f"{id}.txt").write_text(text)
    (root / ".hidden").mkdir()
    coordinates(30, 30).save(root / ".hidden" / "page.png")
    return root


@pytest.fixture
def where(folder: Path, tmp_path: Path) -> ToolContext:
    return dialogue(folder, tmp_path)


def dialogue(folder: Path | None, tmp_path: Path, media: tuple[Any, ...] = (), **options: Any) -> ToolContext:
    settings = {"cache": str(tmp_path / "cache"), **({} if folder is None else {"documents": str(folder)}), **options}
    sample = Sample(str(tmp_path), media, (), Answer("text", ""), "t")
    return ToolContext({m.id: m for m in media}, sample=sample, settings={"document_retrieve": settings})


def call(where: ToolContext, name: str, **arguments: Any) -> ToolResult:
    with Tools() as tools:  # its own: failures in a row make a tool rest
        return tools.submit([ToolCall(f"document_{name}", arguments)], where).result()[0]


# --- retrieve ---------------------------------------------------------------------------------------------------------


def test_pages_are_ranked_by_bm25(where: ToolContext) -> None:
    result = call(where, "retrieve", query="Where is the filter of the pump?")
    assert result.fault is None
    # Lucene's BM25 with k1 1.5 and b 0.75, written out
    pages = [words(text) for text in TEXTS.values()]
    mean = sum(map(len, pages)) / len(pages)
    right = {}
    for id, held in zip(TEXTS, pages, strict=True):
        score = 0.0
        for word in ("filter", "of", "pump", "the"):
            n, tf = sum(word in p for p in pages), held.count(word)
            score += math.log(1 + (4 - n + 0.5) / (n + 0.5)) * tf / (tf + 1.5 * (0.25 + 0.75 * len(held) / mean))
        right[id] = score
    order = sorted(right, key=lambda id: -right[id])
    assert result.data["pages"] == order
    assert result.data["scores"] == pytest.approx([right[id] for id in order], abs=2e-4)
    assert result.data["query"] == "Where is the filter of the pump?"


def test_the_first_pages_are_shown(where: ToolContext) -> None:
    result = call(where, "retrieve", query="pump crane spring")
    shown = result.data["shown"]
    assert [s["page"] for s in shown] == result.data["pages"][:3]
    assert [s["id"] for s in shown] == [m.id for m in result.media] == ["img_1", "img_2", "img_3"]
    assert result.text.splitlines()[0] == f"1. {result.data['pages'][0]} (img_1)"
    assert result.text.splitlines()[3] == f"4. {result.data['pages'][3]}"
    for ref in result.media:
        assert ref.width * ref.height <= 512 * 28 * 28
        assert ref.width / ref.height == pytest.approx(0.75, abs=0.01)


def test_what_a_recipe_sets(folder: Path, tmp_path: Path) -> None:
    result = call(dialogue(folder, tmp_path, results=2, show=1, max_pixels=10_000), "retrieve", query="pump crane")
    assert (len(result.data["pages"]), len(result.media)) == (2, 1)
    assert result.media[0].width * result.media[0].height <= 10_000


def test_a_query_without_hits(where: ToolContext) -> None:
    result = call(where, "retrieve", query="submarine")
    assert (result.text, result.data["pages"], result.media) == ("no page has any of these words", [], ())
    assert call(where, "retrieve", query="?!").data["pages"] == []


def test_repeated_words_count_once(folder: Path, tmp_path: Path) -> None:
    documents = open_folder(folder, cache=tmp_path)
    assert documents.search("pump pump crane", 9) == documents.search("crane PUMP", 9)


def test_pages_stand_in_the_order_of_their_numbers(folder: Path, tmp_path: Path) -> None:
    documents = open_folder(folder, cache=tmp_path)
    assert [p.id for p in documents.pages] == list(TEXTS)
    assert open_folder(folder, cache=tmp_path) is documents  # read once, for all tools


def collection_of(**texts: str) -> Collection:
    return Collection([Page(id) for id in texts], lambda page: texts[page.id])


def test_pages_without_words_are_never_found() -> None:
    assert collection_of(a="", b="...").search("pump", 9) == []
    assert collection_of(a="", b="pump").search("pump", 9)[0][0] == "b"
    assert collection_of(a="Äpfel", b="東京").search("apfel 京", 9) != []
    assert collection_of(a="").passage("a", "pump") == (0.0, "")


def test_a_folder_whose_files_changed_is_read_again(folder: Path, tmp_path: Path) -> None:
    assert call(dialogue(folder, tmp_path), "retrieve", query="turbine").data["pages"] == []
    (folder / "survey.txt").write_text("A turbine")
    assert call(dialogue(folder, tmp_path, show=1), "retrieve", query="turbine").data["pages"] == ["survey"]


# --- rerank -----------------------------------------------------------------------------------------------------------


def test_words_side_by_side_go_before_words_far_apart(tmp_path: Path) -> None:
    far = "red " + "and so on " * 10 + "bridge"
    near = "and so on " * 30 + "the Red Bridge, built in 1902 " + "and so on " * 30
    one = "red " + "and so on " * 20
    documents = collection_of(far=far, near=near, one=one, none="nothing")
    scores = {id: documents.passage(id, "red bridge")[0] for id in documents.number}
    idf = {"red": math.log(1 + 1.5 / 3.5), "bridge": math.log(1 + 2.5 / 2.5)}
    assert scores["near"] == pytest.approx(sum(idf.values()) * 1.5)
    assert scores["far"] == pytest.approx(sum(idf.values()) * (1 + 1 / 32))
    assert scores["one"] == pytest.approx(idf["red"])
    assert scores["none"] == 0
    passage = documents.passage("near", "red bridge")[1]
    assert "the Red Bridge, built in 1902" in passage
    assert len(words(passage)) == 40


def test_rerank_orders_the_given_pages_and_tells_the_passages(where: ToolContext) -> None:
    given = ["manual/page-10", "survey", "manual/page-1", "manual/page-10"]
    result = call(where, "rerank", query="pump filter", pages=given)
    assert result.fault is None
    assert result.data["pages"] == ["manual/page-1", "manual/page-10", "survey"]
    assert result.data["passages"] == [TEXTS["manual/page-1"][:-1], TEXTS["manual/page-10"][:-1], ""]
    assert result.text.splitlines()[2] == "3. survey: (no word of the query)"
    assert result.media == ()


# --- crop -------------------------------------------------------------------------------------------------------------


def test_a_part_of_a_page_at_its_full_resolution(where: ToolContext) -> None:
    result = call(where, "crop", page="manual/page-2", box=[500, 250, 750, 500])
    (ref,) = result.media
    image = load_image(ref)
    assert (image.size, corner(image)) == ((300, 400), (600, 400))
    assert result.text == "img_1: 500,250,750,500 of page manual/page-2"
    assert result.data == {"page": "manual/page-2", "box": [500, 250, 750, 500], "id": "img_1", "scale": 1}
    assert (ref.parent, ref.region) == ("", None)  # the page itself is no picture of the dialogue


def test_a_whole_page_is_reduced_and_says_so(where: ToolContext) -> None:
    result = call(where, "crop", page="survey")
    (ref,) = result.media
    assert 0.99 * 1_048_576 < ref.width * ref.height <= 1_048_576
    assert result.text == "img_1: all of page survey, at 74% of its resolution"  # sqrt(2^20 / (1200 x 1600)) is 0.739
    assert (result.data["box"], result.data["page"]) == (None, "survey")


@pytest.mark.parametrize(
    ("box", "size", "at"),
    [
        ([500, 500, 500, 500], (28, 28), (586, 786)),
        ([1000, 1000, 999, 999], (28, 28), (1172, 1572)),
        ([-100, -100, 100, 2000], (120, 1600), (0, 0)),
        ([100, 0, 0, 100], (120, 160), (0, 0)),
    ],
)
def test_boxes_at_the_edges(where: ToolContext, box: list[float], size: tuple[int, int], at: tuple[int, int]) -> None:
    image = load_image(call(where, "crop", page="survey", box=box).media[0])
    assert (image.size, corner(image)) == (size, at)


@pytest.mark.parametrize(
    ("name", "arguments", "code", "message"),
    [
        ("crop", {"page": "manual/page-3"}, "unknown_page", "did you mean manual/page-"),
        ("crop", {"page": "xyz"}, "unknown_page", "take ids that document_retrieve gives"),
        ("rerank", {"query": "a", "pages": ["surveys"]}, "unknown_page", "did you mean survey?"),
        ("crop", {"page": "survey", "box": [1000, 0, 1100, 9]}, "outside_picture", "outside the image"),
        ("rerank", {"query": "a", "pages": []}, "bad_arguments", "pages must have"),
        ("retrieve", {"query": ""}, "bad_arguments", "query must have"),
    ],
)
def test_errors(where: ToolContext, name: str, arguments: dict[str, Any], code: str, message: str) -> None:
    result = call(where, name, **arguments)
    assert result.fault is not None
    assert (result.fault.kind, result.fault.code) == (FaultKind.POLICY, code)
    assert message in result.text


# --- where pages and texts come from ----------------------------------------------------------------------------------


def written(text: str) -> Image.Image:
    image = Image.new("RGB", (420, 90), "white")
    ImageDraw.Draw(image).text((20, 25), text, fill="black", font=ImageFont.load_default(30))
    return image


def test_pictures_of_the_sample_are_pages_read_by_ocr_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rapidocr")
    media = tuple(image_ref(f"img_{n}", written(text)) for n, text in enumerate(("Old harbour 1902", "New quay"), 1))
    where = dialogue(None, tmp_path, media)
    result = call(where, "retrieve", query="a harbour")
    assert (result.fault, result.data["pages"], result.text) == (None, ["img_1"], "1. img_1")
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(f"{m.hash}.txt" for m in media)
    monkeypatch.setattr(collection, "read_lines", None)  # nothing is read twice
    assert call(dialogue(None, tmp_path, media), "retrieve", query="quay").data["pages"] == ["img_2"]
    (ref,) = call(where, "crop", page="img_1", box=[0, 0, 500, 1000]).media
    assert (ref.id, ref.parent, ref.region) == ("img_3", "img_1", (0, 0, 210, 90))


def test_a_pdf_without_its_reader_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    (tmp_path / "a.pdf").write_bytes(pdf("x"))
    result = call(dialogue(tmp_path, tmp_path), "retrieve", query="a")
    assert result.fault is not None
    assert (result.fault.kind, "needs pypdfium2" in result.fault.message) == (FaultKind.TOOL, True)


def pdf(*texts: str) -> bytes:
    """A PDF of pages of 300x400 points, each with a line of text 100 points under its top."""
    count = len(texts)
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(texts):
        drawn = f"BT /F1 24 Tf 30 300 Td ({text}) Tj ET"
        page = f"/MediaBox [0 0 300 400] /Contents {5 + 2 * n} 0 R /Resources << /Font << /F1 3 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R {page} >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}"
    return out + f"{end}trailer\n<< /Size {len(places) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n".encode()


def test_pages_of_a_pdf(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "report.pdf").write_bytes(pdf("Old harbour", "New quay"))
    where = dialogue(docs, tmp_path, dpi=144)
    assert call(where, "retrieve", query="quay").data["pages"] == ["report/2"]
    (ref,) = call(where, "crop", page="report/2").media
    assert (ref.width, ref.height) == (600, 800)
    dark = np.argwhere(np.asarray(load_image(ref).convert("L")) < 128)
    assert 150 < dark[:, 0].min() < dark[:, 0].max() < 215  # the base line is 100 points, 200 pixels, down


def test_damaged_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "survey.png").write_bytes(page_png()[:5000])
    result = call(dialogue(folder, tmp_path), "crop", page="survey")
    assert result.fault is not None
    assert (result.fault.code, result.text) == ("tool_failed", "Error: document_crop failed")
    assert "page survey in" in result.fault.message
    assert "survey.png" in result.fault.message
    (folder / "survey.txt").write_bytes(b"\xff\xfe")
    result = call(dialogue(folder, tmp_path), "retrieve", query="pump")
    assert result.fault is not None
    assert "survey.txt is not UTF-8" in result.fault.message


def test_looking_at_pages_reads_no_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "read_lines", None)
    media = (image_ref("img_1", written("Old harbour")),)
    assert call(dialogue(None, tmp_path, media), "crop", page="img_1").fault is None


@pytest.mark.parametrize(
    ("files", "message"),
    [([], "no pages in"), (["a.png", "a.jpg"], "two pages have the id 'a'"), (["a/b.png", "a/b.webp"], "the id 'a/b'")],
)
def test_folders_that_are_no_collection(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        written(name).save(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"result": 3}, "did you mean 'results'"),
        ({"results": 0}, "document_retrieve.results is 0"),
        ({"show": "all"}, "document_retrieve.show is 'all'"),
        ({"dpi": True}, "document_retrieve.dpi is True"),
        ({"dpi": 99.5}, "set it to a whole number"),
        ({"documents": 3}, "set it to a folder of PDFs or pictures"),
    ],
)
def test_wrong_settings(folder: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    result = call(dialogue(folder, tmp_path, **options), "retrieve", query="pump")
    assert result.fault is not None
    assert (result.fault.kind, message in result.fault.message) == (FaultKind.TOOL, True)


def test_without_any_documents(tmp_path: Path) -> None:
    result = call(dialogue(None, tmp_path), "retrieve", query="pump")
    assert result.fault is not None
    assert "set rollout.tool_options.document_retrieve.documents" in result.fault.message


def test_all_three_share_the_settings_of_the_first(folder: Path, tmp_path: Path) -> None:
    shared = {"documents": str(folder), "cache": str(tmp_path), "results": 1}
    where = ToolContext({}, settings={"document_retrieve": shared, "document_crop": {"max_pixels": 10_000}})
    (ref,) = call(where, "crop", page="survey").media
    assert ref.width * ref.height <= 10_000
    where = ToolContext({}, settings={"document_retrieve": shared, "document_rerank": {"results": 3}})
    result = call(where, "rerank", query="pump", pages=["survey"])
    assert result.fault is not None
    assert "rollout.tool_options.document_rerank.results: unknown setting" in result.fault.message


# --- whatever a policy may write --------------------------------------------------------------------------------------

PAGES = st.sampled_from([*TEXTS, "manual", "manual/page-3", "img_1", ""]) | st.text(max_size=12)
WORDS = st.lists(st.sampled_from(["pump", "CRANE", "the", "12", "?", "東京"]) | st.text(max_size=6), min_size=1)
QUERIES = WORDS.map(" ".join) | st.text(max_size=600)
BOXES = st.lists(st.floats(-100, 1200) | st.integers(-(10**9), 10**9), min_size=4, max_size=4)
ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
ARGUMENTS = {
    "retrieve": {"query": QUERIES | ANYTHING},
    "rerank": {"query": QUERIES, "pages": st.lists(PAGES, max_size=22) | ANYTHING},
    "crop": {"page": PAGES, "box": BOXES | ANYTHING},
}
CALLS = st.sampled_from(sorted(ARGUMENTS)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries({}, optional=ARGUMENTS[name]))
)


@given(CALLS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_call_makes_a_tool_fail(tmp_path: Path, made: tuple[str, dict[str, Any]]) -> None:
    name, arguments = made
    if not (tmp_path / "docs").exists():
        for id, text in TEXTS.items():
            (tmp_path / "docs" / id).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "docs" / f"{id}.txt").write_text(text)
            coordinates(300, 400).save(tmp_path / "docs" / f"{id}.png")
    result = call(dialogue(tmp_path / "docs", tmp_path), name, **arguments)
    assert result.fault is None or result.fault.kind is FaultKind.POLICY
    for ref in result.media:
        assert min(ref.width, ref.height) >= 28
        assert max(ref.width, ref.height) <= 100 * min(ref.width, ref.height)
