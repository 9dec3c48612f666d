"""Where a build runs and where its shards stand do not change their bytes: Ray workers, URLs behind fsspec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mmrl.shards import verify
from mmrl.shards.record import MANIFEST
from mmrl_prep import workers
from mmrl_prep.build import build

from .conftest import scene
from .test_build import tree

SETTINGS: dict[str, Any] = {"size": 32, "per_image": 2, "heldout": 0.3, "max_samples_per_shard": 5}
SHARDS = {
    f"{n}/{name}" for n in ("train", "heldout") for name in ("shard-000000.tar", "shard-000000.idx.json", MANIFEST)
}


@pytest.fixture
def local(photos: Path, tmp_path: Path) -> dict[str, bytes]:
    build(photos, "jigsaw", tmp_path / "local", **SETTINGS)
    return {name: data for name, data in tree(tmp_path / "local").items() if name != ".lock"}


def test_ray_gives_the_same_bytes(
    photos: Path, tmp_path: Path, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        build(photos, "jigsaw", tmp_path / "ray", engine="ray", workers=2, **SETTINGS)
    finally:
        ray.shutdown()
    assert {k: v for k, v in tree(tmp_path / "ray").items() if k != ".lock"} == local


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_urls_give_the_same_bytes_and_are_continued(
    photos: Path, tmp_path: Path, local: dict[str, bytes], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMRL_WORK", str(tmp_path / "work"))
    url = f"{scheme}://{tmp_path}/shelf" if scheme == "file" else f"memory://{tmp_path.name}/shelf"
    first = build(photos, "jigsaw", url, **SETTINGS)
    assert first.written == sum(first.shards.values())
    system, root = fsspec.core.url_to_fs(url)

    def shelf() -> dict[str, bytes]:
        names = list(system.find(root))
        found = {n.removeprefix(root.rstrip("/")).lstrip("/"): system.cat_file(n) for n in names}
        return {n: data for n, data in found.items() if not n.startswith(".")}

    assert set(shelf()) >= SHARDS
    assert shelf() == {n: data for n, data in local.items() if not n.startswith(".")}
    assert build(photos, "jigsaw", url, **SETTINGS).written == 0
    # a shard and its set's manifest are lost: only that shard is made again
    system.rm_file(f"{root}/train/shard-000001.tar")
    assert build(photos, "jigsaw", url, **SETTINGS).written == 1
    assert shelf() == {n: data for n, data in local.items() if not n.startswith(".")}
    assert not list((tmp_path / "work").rglob("*.tar"))


def test_sources_behind_a_url(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    for path in photos.iterdir():
        system.pipe_file(f"/{tmp_path.name}/in/{path.name}", path.read_bytes())
    build(f"memory://{tmp_path.name}/in", "rotation", tmp_path / "a", **SETTINGS)
    build(photos, "rotation", tmp_path / "b", **SETTINGS)
    for name in ("train", "heldout"):
        assert verify(tmp_path / "a" / name) == []
        files = [(tmp_path / x / name / "shard-000000.tar").read_bytes() for x in "ab"]
        assert files[0] == files[1]


def test_any_number_of_workers_gives_the_same_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTH", 1)
    rows = []
    for number in range(12):
        scene(number).save(tmp_path / f"{number}.png")
        rows.append({"question": f"Q{number}", "answer": number, "image": f"{number}.png"})
    rows.append({"question": "bad", "answer": 1, "image": "none.png"})
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for count in (1, 2, 3):
        build(tmp_path / "q.jsonl", "qa", tmp_path / f"out{count}", workers=count, max_samples_per_shard=3)
    assert tree(tmp_path / "out1") == tree(tmp_path / "out2") == tree(tmp_path / "out3")
