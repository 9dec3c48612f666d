"""Tasks of looking closely: searching a large picture, counting, measuring, putting a picture together."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

NUMBER = "The answer is one number."

visual_search = register("task", "visual_search")(
    Task("visual_search", NUMBER, rewards={"accuracy": 1.0, "format": 0.5, "looked": 0.5})
)
# the nearer the count, the more: without it, a group that is one off learns nothing
counting = register("task", "counting")(
    Task(
        "counting",
        NUMBER,
        tools=("crop", "zoom", "draw"),
        rewards={"accuracy": 1.0, "closeness": 0.5, "format": 0.5},
    )
)
measuring = register("task", "measuring")(Task("measuring", "The answer is one letter.", tools=("measure", "draw")))
jigsaw_board = register("task", "jigsaw_board")(
    Task(
        "jigsaw_board",
        "The answer is the list of numbers that the question asks for.",
        tools=("board",),
        rewards={"accuracy": 1.0, "order_partial": 1.0, "format": 0.2},
    )
)
