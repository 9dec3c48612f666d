"""looked: a picture that a tool made shows the whole target, and little beside it."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from mmrl.media import image_ref
from mmrl.rewards.looked import looked
from mmrl.rollout.tools import ToolContext
from mmrl.types import Answer, Prompt, Sample, Trajectory
from mmrl_tools.views import crop

PICTURE = image_ref("img_1", Image.new("RGB", (400, 200)))


def seen(meta: dict[str, Any], *boxes: list[float], image: str = "img_1") -> Trajectory:
    """A dialogue that cropped these boxes (0..1000)."""
    where = ToolContext({"img_1": PICTURE})
    for box in boxes:
        crop({"image": image, "box": box}, where)
    prompt = Prompt(Sample("k", (PICTURE,), (), Answer("number", 1), "visual_search", meta), ())
    return Trajectory(
        prompt=prompt,
        group=0,
        index=0,
        tokens=[],
        logp=[],
        origin=[],
        span=[],
        turn=[],
        vision=[],
        media=where.media,
    )


META = {"target": [100, 50, 140, 90]}  # 250..350 and 250..450 of a thousand


@pytest.mark.parametrize(
    ("boxes", "value"),
    [
        ([], 0.0),
        ([[250, 250, 350, 450]], 1.0),
        ([[0, 0, 500, 500]], 1.0),  # a quarter exactly
        ([[0, 0, 510, 500]], 0.0),  # more than a quarter
        ([[260, 250, 350, 450]], 0.0),  # an edge is missing
        ([[600, 600, 900, 900], [240, 240, 400, 500]], 1.0),
        ([[0, 0, 1000, 1000]], 0.0),
    ],
)
def test_looked(boxes: list[list[float]], value: float) -> None:
    assert looked(seen(META, *boxes)) == value


def test_a_crop_of_a_crop_counts_by_its_place_in_the_original() -> None:
    trajectory = seen(META, [0, 0, 1000, 1000])
    where = ToolContext(trajectory.media)
    crop({"image": "img_2", "box": [200, 200, 400, 500]}, where)
    assert looked(trajectory) == 1.0
    assert looked(seen(META, [0, 0, 510, 500])) == 0.0


def test_the_share_is_a_setting_and_other_samples_are_left_out() -> None:
    assert looked(seen(META, [0, 0, 510, 500]), area=0.5) == 1.0
    assert looked(seen({}, [0, 0, 10, 10])) is None
