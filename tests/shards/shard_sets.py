"""Small shard sets for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.media import image_ref
from mmrl.shards import ShardWriter


def picture(shade: int) -> bytes:
    data = image_ref("x", Image.new("RGB", (40, 30), (shade % 256, 0, 0))).data
    assert data is not None
    return data


def record(number: int, task: str = "mcq") -> dict[str, Any]:
    return {
        "key": f"{task}-{number:04d}",
        "task": task,
        "media": [{"id": "img_1", "kind": "image", "name": "000.png", "width": 40, "height": 30}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "id": "img_1"}, {"type": "text", "text": f"what? {number}"}]}
        ],
        "answer": {"kind": "choice", "value": "B", "options": ["1", "2", "3", "4"]},
        "meta": {"number": number, "umlaut": "ä"},
    }


def fill(out: Path, count: int = 10, task: str = "mcq", **limits: int) -> Path:
    with ShardWriter(out, **limits) as writer:
        for n in range(count):
            writer.write(record(n, task), {"000.png": picture(n)})
    return out
