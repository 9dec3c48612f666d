"""Aggregations: the weight of each token's loss."""

from mmrl.algorithms.aggregation.means import (
    group_token_mean,
    seq_mean_token_mean,
    seq_mean_token_sum,
    seq_mean_token_sum_const,
    token_mean,
)

__all__ = [
    "group_token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_const",
    "token_mean",
]
