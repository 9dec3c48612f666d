"""Tasks: what a sample becomes for the policy, which tools it may call, and which rewards score it."""

from mmrl_tasks import puzzles, questions
from mmrl_tasks.task import Task

__all__ = ["Task", "puzzles", "questions"]
