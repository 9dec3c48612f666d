"""Shapings: rewards [N] made from rewards and signals before they are compared."""

from mmrl.algorithms.shaping.care import grpo_care
from mmrl.algorithms.shaping.overlong import soft_overlong

__all__ = ["grpo_care", "soft_overlong"]
