"""Questions that may lack a premise: ask the user for it, and for nothing else (GRIL)."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

clarify = register("task", "clarify", paper="GRIL")(
    Task(
        "clarify",
        "The question may lack something that you need: then ask for it first. The answer is a number or a short text.",
        tools=("ask_user",),
        rewards={"clarify": 1.0, "format": 0.2},
    )
)
