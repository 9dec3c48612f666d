"""image_search: real photographs found from parts and altered copies of them, captions, damaged galleries, a model."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import sklearn.datasets
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.media import image_ref, load_image
from mmrl.rollout import ToolContext, tools_prompt
from mmrl.rollout.calls import Tools
from mmrl.types import FaultKind, ToolCall, ToolResult
from mmrl_tools import built
from mmrl_tools import gallery as module
from mmrl_tools.corpus import CorpusError
from mmrl_tools.descriptor import LENGTH, WINDOWS, describe
from mmrl_tools.gallery import open_gallery

PHOTOS = (
    *("astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png"),
    *("hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg"),
)
SCENES = ("china.jpg", "flower.jpg")


@pytest.fixture(scope="module")
def photos() -> dict[str, Image.Image]:
    folders = (Path(skimage.data.__file__).parent, Path(sklearn.datasets.__file__).parent / "images")
    files = [folder / name for folder, names in zip(folders, (PHOTOS, SCENES), strict=True) for name in names]
    found = {}
    for file in files:
        with Image.open(file) as image:
            image.thumbnail((600, 600))
            found[file.stem] = image.convert("RGB")
    return found


@pytest.fixture(scope="module")
def folder(photos: dict[str, Image.Image], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs as files, every other one in a folder below."""
    root = tmp_path_factory.mktemp("gallery")
    (root / "more").mkdir()
    for number, (name, image) in enumerate(photos.items()):
        image.save(root / ("more" if number % 2 else ".") / f"{name}.png", compress_level=1)
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def context(image: Image.Image | None = None, **options: Any) -> ToolContext:
    media = {} if image is None else {"img_1": image_ref("img_1", image)}
    return ToolContext(media, settings={"image_search": {k: v if k == "show" else str(v) for k, v in options.items()}})


def run(where: ToolContext, **arguments: Any) -> ToolResult:
    with Tools() as tools:
        return tools.submit([ToolCall("image_search", arguments)], where).result(timeout=60)[0]


def names(result: ToolResult) -> list[str]:
    assert result.fault is None, result.fault
    return [Path(r["id"]).stem for r in result.data["results"]]


def code(result: ToolResult) -> tuple[FaultKind, str]:
    assert result.fault is not None
    return result.fault.kind, result.fault.code


def part(image: Image.Image, left: float, top: float, width: float, height: float) -> Image.Image:
    w, h = image.size
    return image.crop((int(left * w), int(top * h), int((left + width) * w), int((top + height) * h)))


def jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=20)
    return Image.open(buffer).convert("RGB")


ALTERED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "itself": lambda image: image,
    "crop of the middle": lambda image: part(image, 0.12, 0.1, 0.75, 0.8),
    "crop of a corner": lambda image: part(image, 0.3, 0.28, 0.7, 0.72),
    "small": lambda image: image.resize((image.width // 4, image.height // 4), Image.Resampling.BICUBIC),
    "enlarged": lambda image: image.resize((image.width * 2, image.height * 2), Image.Resampling.BICUBIC),
    "JPEG of quality 20": jpeg,
    "darker": lambda image: image.point(lambda v: int(v * 0.75)),
    "flatter": lambda image: image.point(lambda v: int(128 + (v - 128) * 0.7)),
    "small, dark JPEG of a crop": lambda image: jpeg(
        part(image, 0.1, 0.1, 0.85, 0.85).point(lambda v: int(v * 0.85)).resize((160, 120))
    ),
}


@pytest.mark.parametrize("how", ALTERED)
def test_altered_copies_find_their_original(
    photos: dict[str, Image.Image], folder: Path, cache: Path, how: str
) -> None:
    gallery = open_gallery(folder, cache=cache)
    found = {name: gallery.like(ALTERED[how](image), 2) for name, image in photos.items()}
    assert {name: Path(best[0][0].id).stem for name, best in found.items()} == {name: name for name in photos}
    if how == "itself":
        assert all(best[0][1] == pytest.approx(1, abs=1e-5) and best[1][1] < 0.95 for best in found.values())


def test_results_have_captions_scores_and_pictures(photos: dict[str, Image.Image], folder: Path, cache: Path) -> None:
    where = context(photos["chelsea"], gallery=folder, cache=cache)
    result = run(where, image="img_1", top_k=4)
    assert names(result)[0] == "chelsea"
    first = result.text.splitlines()[0]
    assert first == "1. [more/chelsea.png] chelsea (1.00): img_2"
    assert [m.id for m in result.media] == ["img_2", "img_3", "img_4"]
    assert [r.get("image") for r in result.data["results"]] == ["img_2", "img_3", "img_4", None]
    assert len(result.text.splitlines()) == 4
    assert np.array_equal(np.asarray(load_image(result.media[0])), np.asarray(photos["chelsea"]))
    scores = [r["score"] for r in result.data["results"]]
    assert scores == sorted(scores, reverse=True)
    again = run(where, image="img_1", top_k=1)
    assert again.text.endswith(": img_5")
    silent = run(context(photos["chelsea"], gallery=folder, cache=cache, show=0), image="img_1")
    assert (silent.media, len(names(silent))) == ((), 5)


def test_a_box_asks_for_a_part_of_the_picture(photos: dict[str, Image.Image], folder: Path, cache: Path) -> None:
    canvas = Image.new("RGB", (1000, 800), "white")
    canvas.paste(photos["coffee"].resize((400, 300)), (50, 400))
    canvas.paste(photos["rocket"].resize((450, 300)), (520, 60))
    where = context(canvas, gallery=folder, cache=cache)
    for box, name in (([50, 500, 450, 875], "coffee"), ([970, 75, 520, 435], "rocket")):
        assert names(run(where, image="img_1", box=box))[0] == name
    cut = context(canvas.crop((50, 400, 450, 700)), gallery=folder, cache=cache)
    same = [run(where, image="img_1", box=[50, 500, 450, 875]).data, run(cut, image="img_1").data]
    assert [r["score"] for r in same[0]["results"]] == [r["score"] for r in same[1]["results"]]
    assert names(run(where, image="img_1", box=[500, 500, 500, 500]))  # grown to the least size
    assert code(run(where, image="img_1", box=[1000, 0, 1200, 500])) == (FaultKind.POLICY, "outside_picture")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"image": "img_1", "query": "cat"}, {"query": "cat", "box": [0, 0, 9, 9]}, {"image": "img_1", "top_k": 11}],
)
def test_wrong_arguments_are_the_policys_fault(
    photos: dict[str, Image.Image], folder: Path, cache: Path, arguments: dict[str, Any]
) -> None:
    result = run(context(photos["coffee"], gallery=folder, cache=cache), **arguments)
    assert code(result) == (FaultKind.POLICY, "bad_arguments")


def test_unknown_pictures_are_the_policys_fault(folder: Path, cache: Path) -> None:
    assert code(run(context(gallery=folder, cache=cache), image="img_9")) == (FaultKind.POLICY, "unknown_image")


def test_the_schema_is_short() -> None:
    assert len(tools_prompt(["image_search"])) < 750


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "rollout.tool_options.image_search.gallery is not set"),
        ({"galery": "x"}, "did you mean 'gallery'?"),
        ({"gallery": "/no/such"}, "no gallery at /no/such"),
        ({"gallery": "/no/such", "show": 9}, "image_search.show is 9"),
        ({"gallery": "/no/such", "model": "/no/model"}, "/no/model is no model"),
    ],
)
def test_wrong_settings_are_named(photos: dict[str, Image.Image], options: dict[str, Any], said: str) -> None:
    result = run(context(photos["coffee"], **options), image="img_1")
    assert code(result) == (FaultKind.TOOL, "tool_failed")
    assert result.fault is not None
    assert said in result.fault.message


# --- galleries with rows ----------------------------------------------------------------------------------------------


def listed(root: Path, rows: list[Any], pictures: dict[str, Image.Image]) -> Path:
    for name, image in pictures.items():
        image.save(root / name)
    file = root / "gallery.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


def test_words_find_captions(photos: dict[str, Image.Image], tmp_path: Path) -> None:
    rows = [
        {"id": 1, "image": "a.png", "title": "A tabby cat", "text": "looks python-eyed"},
        {"id": "two", "image": "b.png", "caption": "A cup of coffee"},
        {"image": "c.png"},
    ]
    pictures = {"a.png": photos["chelsea"], "b.png": photos["coffee"], "c.png": photos["moon"]}
    where = context(gallery=listed(tmp_path, rows, pictures), cache=tmp_path / "cache")
    result = run(where, query="COFFEE cup")
    assert result.text == f"1. [two] A cup of coffee ({result.data['results'][0]['score']:.2f}): img_1"
    assert np.array_equal(np.asarray(load_image(where.media["img_1"])), np.asarray(photos["coffee"]))
    assert names(run(where, query="python")) == ["1"]
    nothing = run(where, query="zeppelin")
    assert (nothing.fault, nothing.media, nothing.text) == (None, (), "nothing found: no captions with 'zeppelin'")
    like = run(context(photos["moon"], gallery=tmp_path / "gallery.jsonl", cache=tmp_path / "cache"), image="img_1")
    assert like.text.startswith("1. [c.png] (no caption) (1.00): img_2\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        ('{"id": "x"}', "line 2: image is None"),
        ('{"id": "x", "image": "absent.png"}', "line 2: there is no picture"),
        ('{"id": "a", "image": "a.png"}', "line 2: id 'a' is also that of a row before it"),
        ('{"id": [1], "image": "a.png"}', "line 2: id is [1]"),
        ('{"id": "x", "image": "a.png", "title": 3}', "line 2: title, caption and text must be texts"),
        ('{"id": "x", "image": "cut.png"}', "cut.png (truncated)"),
        ('{"id": "x", "image": "words.png"}', "words.png (not_media)"),
    ],
)
def test_damaged_rows_and_pictures_are_named(
    photos: dict[str, Image.Image], tmp_path: Path, line: str, said: str
) -> None:
    photos["coffee"].save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:5000])
    (tmp_path / "words.png").write_text("no picture")
    file = tmp_path / "gallery.jsonl"
    file.write_text('{"id": "a", "image": "a.png"}\n' + line + "\n")
    with pytest.raises(CorpusError) as error:
        open_gallery(file, cache=tmp_path / "cache")
    assert said in str(error.value)
    file.write_text('{"id": "a", "image": "a.png"}\n')
    assert len(open_gallery(file, cache=tmp_path / "cache").pictures) == 1


def test_empty_galleries_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no pictures in"):
        open_gallery(tmp_path, cache=tmp_path / "cache")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(CorpusError, match="is no gallery"):
        open_gallery(tmp_path / "a.txt", cache=tmp_path / "cache")


def test_equal_pictures_come_in_the_order_of_ids(photos: dict[str, Image.Image], tmp_path: Path) -> None:
    for name in ("c", "a", "b", "other"):
        photos["moon" if name == "other" else "coffee"].save(tmp_path / f"{name}.png")
    found = open_gallery(tmp_path, cache=tmp_path / "cache").like(photos["coffee"], 4)
    assert [p.id for p, _ in found] == ["a.png", "b.png", "c.png", "other.png"]


def test_odd_pictures_come_in_sizes_that_processors_take(photos: dict[str, Image.Image], tmp_path: Path) -> None:
    Image.new("RGB", (5, 3), "red").save(tmp_path / "tiny.png")
    photos["moon"].resize((3000, 20)).save(tmp_path / "long.png")
    photos["moon"].convert("RGBA").resize((2500, 2000)).save(tmp_path / "large.png")
    Image.new("L", (1, 1)).save(tmp_path / "dot.png")
    where = context(photos["moon"], gallery=tmp_path, cache=tmp_path / "cache", show=8)
    result = run(where, image="img_1")
    sizes = {n: (m.width, m.height) for n, m in zip(names(result), result.media, strict=True)}
    assert sizes == {"tiny": (46, 28), "long": (2800, 28), "large": (1144, 915), "dot": (28, 28)}
    assert [", its middle part" in line for line in result.text.splitlines()] == [n == "long" for n in names(result)]


# --- the index --------------------------------------------------------------------------------------------------------


def test_threads_that_ask_first_build_once(
    photos: dict[str, Image.Image], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("coffee", "moon", "rocket"):
        photos[name].save(tmp_path / f"{name}.png")
    described: list[int] = []
    real = module.describe
    monkeypatch.setattr(module, "describe", lambda image, *more: (described.append(len(more)), real(image, *more))[1])
    start = threading.Barrier(6)
    found: list[tuple[int, str]] = []

    def ask() -> None:
        start.wait(30)
        gallery = open_gallery(tmp_path, cache=tmp_path / "cache")
        found.append((id(gallery), gallery.like(photos["rocket"], 1)[0][0].id))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [name for _, name in found] == ["rocket.png"] * 6
    assert len({number for number, _ in found}) == 1
    assert sorted(described) == [0] * 3 + [1] * 6  # each picture of the gallery once, then the six questions


def test_a_changed_gallery_is_indexed_again(photos: dict[str, Image.Image], tmp_path: Path) -> None:
    root, cache = tmp_path / "gallery", tmp_path / "cache"
    root.mkdir()
    photos["coffee"].save(root / "a.png")
    photos["moon"].save(root / "b.png")
    before = open_gallery(root, cache=cache)
    assert open_gallery(root, cache=cache) is before
    photos["rocket"].save(root / "a.png")
    photos["coffee"].save(root / "c.png")
    after = open_gallery(root, cache=cache)
    assert [after.like(photos[n], 1)[0][0].id for n in ("rocket", "moon", "coffee")] == ["a.png", "b.png", "c.png"]
    assert len(list(cache.iterdir())) == 2


def test_later_processes_load_the_index_and_mend_a_damaged_one(
    photos: dict[str, Image.Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "gallery"
    root.mkdir()
    photos["coffee"].save(root / "a.png")
    photos["moon"].save(root / "b.png")
    cache = tmp_path / "cache"
    first = open_gallery(root, cache=cache).like(photos["moon"], 2)
    (index,) = cache.iterdir()
    vectors = (index / "vectors.npy").read_bytes()
    monkeypatch.setattr(built, "_built", {})  # as in a new process
    (index / "vectors.npy").write_bytes(vectors[:1000])
    assert open_gallery(root, cache=cache).like(photos["moon"], 2) == first
    assert "is damaged" in caplog.text
    assert (index / "vectors.npy").read_bytes() == vectors
    monkeypatch.setattr(built, "_built", {})
    monkeypatch.setattr(module, "_write", lambda *_: pytest.fail("built again"))
    assert open_gallery(root, cache=cache).like(photos["moon"], 2) == first


# --- vectors ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**32 - 1), st.sampled_from(["noise", "flat", "gray"]))
def test_vectors_are_finite_and_of_length_one(width: int, height: int, seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == "flat":
        pixels[:] = pixels[0, 0]
    if kind == "gray":
        pixels[..., 1] = pixels[..., 2] = pixels[..., 0]
    found = describe(Image.fromarray(pixels))
    assert (found.shape, found.dtype) == ((len(WINDOWS), LENGTH), np.float32)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-4)
    assert np.array_equal(found, describe(Image.fromarray(pixels)))


def test_windows_of_a_picture_are_vectors_of_its_parts(photos: dict[str, Image.Image]) -> None:
    image = photos["flower"].resize((250, 200))  # small enough not to be reduced
    whole = describe(image)
    for number, (left, top, side) in enumerate(WINDOWS):
        alone = describe(part(image, left, top, side, side), [(0.0, 0.0, 1.0)])[0]
        assert alone @ whole[number] > 0.99


# --- a model ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of random weights with its processor of pictures."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**tiny, "vocab_size": 50},
        vision_config={**tiny, "image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    root = tmp_path_factory.mktemp("clip")
    CLIPModel(config).save_pretrained(root)
    size = {"height": 32, "width": 32}
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size).save_pretrained(root)
    return root


def test_a_model_gives_the_vectors(photos: dict[str, Image.Image], folder: Path, tmp_path: Path, clip: Path) -> None:
    import torch
    from transformers import CLIPImageProcessor, CLIPModel

    where = context(photos["china"], gallery=folder, cache=tmp_path, model=clip)
    result = run(where, image="img_1", top_k=10)
    assert names(result)[0] == "china"
    model, processor = CLIPModel.from_pretrained(clip).eval(), CLIPImageProcessor.from_pretrained(clip)
    with torch.no_grad():
        pixels = processor(images=list(photos.values()), return_tensors="pt")["pixel_values"]
        features = model.visual_projection(model.vision_model(pixels).pooler_output)
    cosines = torch.cosine_similarity(features, features[list(photos).index("china")][None]).tolist()
    right = dict(zip(photos, cosines, strict=True))
    assert {n: r["score"] for n, r in zip(names(result), result.data["results"], strict=True)} == pytest.approx(
        {n: right[n] for n in names(result)}, abs=2e-4
    )
    assert min(right[n] for n in names(result)) >= sorted(cosines, reverse=True)[9] - 1e-4
    assert open_gallery(folder, cache=tmp_path, model=clip).vectors.shape == (len(photos), 1, 12)
