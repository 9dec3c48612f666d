"""Filters: which rows of a batch are learnt from at all."""

from mmrl.algorithms.filters.solved import mixed_groups

__all__ = ["mixed_groups"]
