"""Questions about pictures and clips that come with their answers."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

mcq = register("task", "mcq")(Task("mcq", "The answer is one letter."))
number = register("task", "number")(Task("number", "The answer is one number."))
grounding = register("task", "grounding")(
    Task("grounding", "The answer is one box [x1, y1, x2, y2] in pixels of the picture.")
)
