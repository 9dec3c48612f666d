"""Puzzles made from pictures by mmrl-prep: the right answer is known because the puzzle was made from it."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

LETTER = "The answer is one letter."

rotation = register("task", "rotation")(Task("rotation", LETTER))
jigsaw = register("task", "jigsaw")(Task("jigsaw", LETTER))
patchfit = register("task", "patchfit")(Task("patchfit", LETTER))
