"""Surrogates: ratio and advantage become the loss of each token."""

from mmrl.algorithms.surrogates.clip import cispo, clip, dapo

__all__ = ["cispo", "clip", "dapo"]
