"""Ratios of the new policy against the one that sampled."""

from mmrl.algorithms.ratios.ratio import gspo, token

__all__ = ["gspo", "token"]
