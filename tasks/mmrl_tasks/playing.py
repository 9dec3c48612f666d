"""Tasks of acting: a card game with an executable check, a grid world, an app on a screen.

The last two end with a code that only the goal shows, so that a right answer proves success.
"""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

CODE = "The answer is the code."
ACTING = {"accuracy": 1.0, "steps": 0.5, "format": 0.2}

points24 = register("task", "points24", paper="GTR")(
    Task(
        "points24",
        "The answer is the expression alone, such as (1+2+3)*4.",
        tools=("calculate",),
    )
)
gridworld = register("task", "gridworld", paper="GTR")(
    Task("gridworld", CODE, tools=("move",), rewards={**ACTING, "success": 0.5})
)
screen = register("task", "screen", paper="Mobile-R1")(
    Task("screen", CODE, tools=("tap", "type", "back"), rewards={**ACTING, "success": 0.5})
)
