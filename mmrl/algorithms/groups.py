"""Sums and means over the groups of a batch: rows with the same number in `group`, in any order."""

from __future__ import annotations

import torch
from torch import Tensor


def group_sum(values: Tensor, group: Tensor) -> Tensor:
    """Sum of `values` [N] over each row's group, given back to every row [N]."""
    _, place = group.unique(return_inverse=True)
    total = values.new_zeros(int(place.max()) + 1 if len(place) else 0)
    return total.index_add(0, place, values)[place]


def group_size(group: Tensor, like: Tensor) -> Tensor:
    """Number of rows in each row's group [N], in the dtype of `like`."""
    return group_sum(torch.ones_like(like), group)


def group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Mean of `values` [N] over each row's group [N]."""
    return group_sum(values, group) / group_size(group, values)


def group_spread(values: Tensor, group: Tensor) -> Tensor:
    """Largest minus smallest value of each row's group [N]: exactly 0 where all are equal, free of rounding."""
    _, place = group.unique(return_inverse=True)
    size = int(place.max()) + 1 if len(place) else 0
    high = values.new_full((size,), -torch.inf).scatter_reduce(0, place, values, "amax")
    low = values.new_full((size,), torch.inf).scatter_reduce(0, place, values, "amin")
    return (high - low)[place]


def group_std(values: Tensor, group: Tensor, *, ddof: int) -> Tensor:
    """Standard deviation of each row's group [N]; 0 where the group has not more than `ddof` rows."""
    centred = values - group_mean(values, group)
    free = group_size(group, values) - ddof
    return (group_sum(centred**2, group) / free.clamp_min(1)).sqrt() * (free > 0)
