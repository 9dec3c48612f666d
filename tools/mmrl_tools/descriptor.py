"""What a picture looks like as vectors, without a model: colours, directions of edges, and rough layout.

A picture is described as a whole and in overlapping windows of 0.7 and 0.5 of its sides, so that a part of it finds it
as well. Three parts of a vector, each of length 1 before its weight:

    colours  a histogram of the a and b of CIE Lab, 8 x 8 bins over [-64, 64], shared among neighbours, square roots
    edges    directions of the gradient of L in 8 bins, on 4 x 4 fields (HOG, Dalal and Triggs 2005), less their mean
    layout   the lowest 6 x 6 cosine terms of L without the mean, scaled to length 1, and 3 x 3 of a and b

Brightness and contrast of the whole change none of them much.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

SIDE = 256  # pixels of the longer side that a picture is reduced to
WINDOW = 48  # pixels of the sides that a window is brought to
FIELDS, DIRECTIONS, BINS, TERMS, COLOUR_TERMS = 4, 8, 8, 6, 3
WEIGHTS = (0.45, 0.6, 0.66)  # of colours, edges, layout
LENGTH = BINS**2 + FIELDS**2 * DIRECTIONS + TERMS**2 - 1 + 2 * COLOUR_TERMS**2

# left, top, side as parts of the picture's sides
WINDOWS = [(0.0, 0.0, 1.0)]
WINDOWS += [(x, y, 0.7) for y in (0, 0.3) for x in (0, 0.3)]
WINDOWS += [(x, y, 0.5) for y in (0, 0.25, 0.5) for x in (0, 0.25, 0.5)]

# of each pixel along a side in each field: falls off evenly to the middles of the fields beside it
_PIXELS = (np.arange(WINDOW) + 0.5) * FIELDS / WINDOW - 0.5
_SHARES = np.maximum(0, 1 - abs(np.arange(FIELDS)[:, None] - np.clip(_PIXELS, 0, FIELDS - 1))) * FIELDS / WINDOW


def describe(image: Image.Image, windows: Sequence[tuple[float, float, float]] = WINDOWS) -> np.ndarray:
    """A vector of length 1 for each window of an RGB picture, [len(windows), LENGTH] float32."""
    pixels = np.asarray(image)
    scale = SIDE / max(image.size)
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    lab = cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2Lab)
    height, width = lab.shape[:2]
    found = []
    for left, top, side in windows:
        x, y = (min(round(v * n), n - 1) for v, n in ((left, width), (top, height)))
        part = lab[y : y + max(1, round(side * height)), x : x + max(1, round(side * width))]
        shrunk = part.shape[0] >= WINDOW and part.shape[1] >= WINDOW
        part = cv2.resize(part, (WINDOW, WINDOW), interpolation=cv2.INTER_AREA if shrunk else cv2.INTER_LINEAR)
        parts = (_colours(part), _edges(part[..., 0]), _layout(part))
        found.append(_unit(np.concatenate([w * p for w, p in zip(WEIGHTS, parts, strict=True)]), 1e-9))
    return np.stack(found).astype(np.float32)


def _colours(lab: np.ndarray) -> np.ndarray:
    at = np.clip((lab[..., 1:].reshape(-1, 2) + 64) * (BINS / 128) - 0.5, 0, BINS - 1)
    low = np.minimum(at.astype(int), BINS - 2)
    high = at - low
    counts = np.zeros(BINS**2)
    for i in (0, 1):
        for j in (0, 1):
            share = (high[:, 0] if i else 1 - high[:, 0]) * (high[:, 1] if j else 1 - high[:, 1])
            counts += np.bincount((low[:, 0] + i) * BINS + low[:, 1] + j, share, BINS**2)
    return np.sqrt(counts / counts.sum())


def _edges(light: np.ndarray) -> np.ndarray:
    dy, dx = np.gradient(light.astype(np.float64))
    strength = np.hypot(dx, dy)
    at = (np.arctan2(dy, dx) % np.pi) * (DIRECTIONS / np.pi)  # without sign
    low = np.minimum(at.astype(int), DIRECTIONS - 1)
    maps = np.zeros((DIRECTIONS, WINDOW, WINDOW))
    rows, columns = np.indices(light.shape, sparse=True)
    maps[low, rows, columns] = strength * (1 - at + low)
    maps[(low + 1) % DIRECTIONS, rows, columns] = strength * (at - low)
    maps = _SHARES @ maps @ _SHARES.T
    root = np.sqrt(maps).ravel()
    return _unit(root - root.mean(), 0.5)


def _layout(lab: np.ndarray) -> np.ndarray:
    small = cv2.resize(lab, (16, 16), interpolation=cv2.INTER_AREA).astype(np.float64)
    light = cv2.dct(small[..., 0])[:TERMS, :TERMS].ravel()[1:]
    colour = [cv2.dct(small[..., n])[:COLOUR_TERMS, :COLOUR_TERMS].ravel() for n in (1, 2)]
    # terms of a, b are scaled like those of a picture of middling colour: a gray one has none
    return _unit(np.concatenate([_unit(light, 5.0), 0.7 * _unit(np.concatenate(colour), 100.0)]), 0.1)


def _unit(values: np.ndarray, least: float) -> np.ndarray:
    """A vector scaled to length 1; one much shorter than `least` is nothing but noise and stays short."""
    return values / np.hypot(np.linalg.norm(values), least)
