"""The choice of tokens as pure functions, with one uniform number for each token and row.

Inverse-CDF sampling needs one number a token where Gumbel noise needs one for each word of the vocabulary; the
numbers come from a counter-based generator of the row, so a row samples alike in any batch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def derive_seed(*parts: int | str) -> int:
    """A 64-bit seed that any change of a part changes; equal on every machine and in every process."""
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def uniforms(seed: int, count: int) -> Tensor:
    """`count` float64 numbers in [0, 1) of the stream `seed`."""
    return torch.from_numpy(np.random.Generator(np.random.Philox(key=seed)).random(count))


def truncate(probs: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the fewest likeliest tokens whose mass reaches top_p. probs: [N, V]; top_p: [N]; not normalised."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered  # mass of the tokens more likely than this one
    return torch.zeros_like(probs).scatter(-1, order, ordered.where(before < top_p[:, None], 0.0))


def choose(logp: Tensor, uniform: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """A token for each row [N] by inverting the cumulative distribution; rows of temperature 0 take the likeliest.

    logp: [N, V] float32 log-probs; uniform [N] float64 in [0, 1); temperature [N]; top_p [N]. A token of probability 0
    is never chosen.
    """
    greedy = logp.argmax(-1)
    if bool((temperature == 0).all()):
        return greedy
    warm = torch.where(temperature == 0, 1.0, temperature)[:, None]
    probs = (logp / warm).softmax(-1)
    if bool((top_p < 1).any()):
        probs = truncate(probs, top_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # strictly below the total, else rounding could pick a token past the last possible one
    point = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return torch.where(temperature == 0, greedy, drawn)
