"""Advantages: rewards [N] compared within groups."""

from mmrl.algorithms.advantages.group import dr_grpo, grpo, rloo

__all__ = ["dr_grpo", "grpo", "rloo"]
