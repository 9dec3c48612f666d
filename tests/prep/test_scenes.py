"""Scenes: the picture shows what the answer says."""

from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image

from mmrl_prep.scenes import COLOURS, QUARTERS, QUESTIONS, Scene, draw_scene


def scene(number: int, kind: str) -> Scene:
    grey = Image.new("RGB", (200, 150), (128, 128, 128))
    return draw_scene(grey, np.random.Generator(np.random.Philox(key=[5, number])), 64, kind)


def test_the_picture_shows_what_the_answer_says() -> None:
    for number in range(150):
        for kind in QUESTIONS:
            made = scene(number, kind)
            pixels = np.asarray(made.image).astype(int)
            shown = {n: (np.abs(pixels - rgb).sum(-1) < 10) for n, rgb in COLOURS.items()}
            halves = (slice(0, 32), slice(32, 64))
            taken = {q: any(s[halves[i // 2], halves[i % 2]].any() for s in shown.values())
                     for i, q in enumerate(QUARTERS)}  # fmt: skip
            if kind == "count":
                assert made.answer == str(sum(taken.values()))
            elif kind == "position":
                assert taken[made.answer]
            else:
                assert shown[made.answer].any()


def test_answers_are_equally_likely_and_a_seed_gives_the_same_scene() -> None:
    for kind in QUESTIONS:
        made = [scene(n, kind) for n in range(400)]
        counts = Counter(s.answer for s in made)
        assert set(counts) == set(made[0].options)
        assert min(counts.values()) > 60
        assert {s.options for s in made} == {made[0].options}
    again = scene(7, "colour")
    assert again.image.tobytes() == scene(7, "colour").image.tobytes()
    assert again.question == scene(7, "colour").question
