"""Tasks: what a sample becomes for the policy, which tools it may call, and which rewards score it."""

from mmrl_tasks import asking, looking, playing, puzzles, questions, safety, searching
from mmrl_tasks.task import Task

__all__ = ["Task", "asking", "looking", "playing", "puzzles", "questions", "safety", "searching"]
