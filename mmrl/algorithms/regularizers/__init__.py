"""Regularizers: terms added to the loss of each token."""

from mmrl.algorithms.regularizers.kl import kl

__all__ = ["kl"]
