"""Randomness from (seed, key) alone: the same sample gets the same draws on any number of workers, in any order."""

from __future__ import annotations

import numpy as np
import xxhash


def generator(seed: int, key: str) -> np.random.Generator:
    """A counter-based generator (Philox) of its own for a sample."""
    return np.random.Generator(np.random.Philox(key=xxhash.xxh3_128_intdigest(f"{seed}/{key}".encode())))


def rank(seed: int, key: str) -> str:
    """A place in a random order of keys: sort by it."""
    return xxhash.xxh3_128_hexdigest(f"{seed}/rank/{key}".encode())
