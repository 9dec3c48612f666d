"""Puzzles made from pictures by mmrl-prep: the right answer is known because the puzzle was made from it."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

LETTER = "The answer is one letter."

rotation = register("task", "rotation")(Task("rotation", LETTER))
jigsaw = register("task", "jigsaw")(Task("jigsaw", LETTER))
patchfit = register("task", "patchfit")(Task("patchfit", LETTER))
patchfit_hard = register("task", "patchfit_hard")(Task("patchfit_hard", LETTER))
scene = register("task", "scene")(Task("scene", LETTER))

# these ask for the order as a list, or with `--style choice` for the letter of one; the question says which
ORDER = "The answer is the list of numbers that the question asks for, or the letter of one of its options."
jigsaw_grid = register("task", "jigsaw_grid")(Task("jigsaw_grid", ORDER))
video_jigsaw = register("task", "video_jigsaw")(Task("video_jigsaw", ORDER, tools=()))
temporal_order = register("task", "temporal_order")(Task("temporal_order", ORDER))
depth_order = register("task", "depth_order")(Task("depth_order", ORDER))
