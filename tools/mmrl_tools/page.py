"""Pages in photographs: finding their four corners and making them flat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from mmrl.rollout.tools import ToolError
from mmrl_tools.geometry import (
    MAX_RATIO,
    MIN_SIDE,
    Point,
    Size,
    clockwise_convex,
    corner_angles,
    fitted_size,
    sides_cross,
    signed_area,
)

SEARCH_SIDE = 800  # pixels of the longer side of the picture that is searched
LEAST_AREA, MOST_AREA = 0.15, 0.97  # of the picture; more is its own frame
PAGE_ANGLES = (50.0, 130.0)  # degrees at the corners of a page
ANY_ANGLES = (10.0, 170.0)  # at corners that are given: beyond, hardly any pixels are there to be stretched
BORDER = 2  # pixels of the searched picture: an outline that comes closer to its frame is cut off by it
LEAST_FILLED = 0.9  # share of the four-cornered shape that the outline found must cover


def find_page(image: Image.Image) -> list[Point] | None:
    """Corners of the largest page, clockwise from its top left, in pixels of an RGB picture; None where there is none.

    A page is an outline with four convex corners of 50 to 130 degrees that covers 15 to 97 % of the picture and does
    not touch its frame.
    """
    scale = min(1.0, SEARCH_SIDE / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    gray = cv2.cvtColor(np.asarray(image.resize(size, Image.Resampling.BOX)), cv2.COLOR_RGB2GRAY)
    found: list[tuple[float, list[Point]]] = []
    for shapes in _masks(gray):
        outlines, _ = cv2.findContours(shapes, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        for outline in outlines:
            corners = _corners(outline, size)
            if corners:
                found.append((signed_area(corners), corners))
    if not found:
        return None
    _, best = max(found, key=lambda it: it[0])
    across, down = image.width / size[0], image.height / size[1]
    return [(x * across, y * down) for x, y in best]


def refuse_corners(corners: Sequence[Point]) -> None:
    """Raise ToolError bad_corners where four points (pixels) are no convex shape, named clockwise from the top left,
    with sides of at least 28 pixels."""
    if min(_sides(corners)) < MIN_SIDE:
        raise ToolError("bad_corners", f"the sides between corners must be at least {MIN_SIDE} pixels long")
    if sides_cross(corners):
        raise ToolError("bad_corners", "corners must go round: top-left, top-right, bottom-right, bottom-left")
    if signed_area(corners) < 0:
        raise ToolError("bad_corners", "corners go counter-clockwise: top-left, top-right, bottom-right, bottom-left")
    angles = corner_angles(corners)
    if not clockwise_convex(corners) or not all(ANY_ANGLES[0] <= a <= ANY_ANGLES[1] for a in angles):
        told = ", ".join(f"{a:.0f}" for a in angles)
        raise ToolError("bad_corners", f"the shape is not convex or too thin; angles at its corners: {told} degrees")
    width, height = flat_size(corners)
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ToolError("bad_corners", f"the shape is too long: {width}x{height} pixels, at most {MAX_RATIO} to 1")


def flat_size(corners: Sequence[Point]) -> Size:
    """Width and height in whole pixels of the rectangle: the longer one of each two opposite sides."""
    top, right, bottom, left = _sides(corners)
    return max(1, round(max(top, bottom))), max(1, round(max(left, right)))


def flatten(image: Image.Image, corners: Sequence[Point], most: int) -> Image.Image:
    """The shape of four corners (pixels, clockwise from the top left) as a rectangle of at most `most` pixels."""
    width, height = fitted_size(flat_size(corners), most)
    # OpenCV puts 0 at the middle of the first pixel, we at its outer edge
    source = np.array(corners, np.float32) - 0.5
    target = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32) - 0.5
    matrix = cv2.getPerspectiveTransform(source, target)
    flat = cv2.warpPerspective(
        np.asarray(image), matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return Image.fromarray(flat)


def _masks(gray: np.ndarray) -> list[np.ndarray]:
    """What may be pages: the bright and the dark parts, and what edges enclose. [H, W] uint8, 0 or 255."""
    calm = cv2.GaussianBlur(gray, (5, 5), 0)
    _, bright = cv2.threshold(calm, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    edges = cv2.dilate(cv2.Canny(calm, 40, 120), np.ones((3, 3), np.uint8))
    return [bright, cv2.bitwise_not(bright), edges]


def _corners(outline: np.ndarray, size: Size) -> list[Point] | None:
    """The four corners of an outline that may be a page, clockwise from the top left; None where it is none."""
    pixels = size[0] * size[1]
    left, top, width, height = cv2.boundingRect(outline)
    if min(left, top, size[0] - left - width, size[1] - top - height) < BORDER:
        return None
    hull = cv2.convexHull(outline)
    if cv2.contourArea(hull) < LEAST_AREA * pixels:
        return None
    corners = cv2.approxPolyDP(hull, 0.02 * cv2.arcLength(hull, True), True)
    if len(corners) != 4:
        return None
    # an outline runs through the middles of its outermost pixels
    points = [(float(x) + 0.5, float(y) + 0.5) for x, y in corners[:, 0]]
    if signed_area(points) < 0:
        points.reverse()
    first = min(range(4), key=lambda n: (points[n][0] + points[n][1], points[n][0]))
    points = points[first:] + points[:first]
    area = signed_area(points)
    page = (
        LEAST_AREA * pixels <= area <= MOST_AREA * pixels
        and clockwise_convex(points)
        and all(PAGE_ANGLES[0] <= a <= PAGE_ANGLES[1] for a in corner_angles(points))
        and cv2.contourArea(outline) >= LEAST_FILLED * area
    )
    return points if page else None


def _sides(corners: Sequence[Point]) -> list[float]:
    """Lengths of the sides: top, right, bottom, left."""
    return [math.dist(corners[n], corners[(n + 1) % 4]) for n in range(4)]
