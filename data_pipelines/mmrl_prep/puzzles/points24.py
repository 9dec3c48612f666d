"""24 points (card gtr): four playing cards on a photograph; make 24 of their numbers, an ace as 1, J, Q and K as 10."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl.rewards.expression import makes
from mmrl.types import Answer
from mmrl_prep.puzzles.maker import PuzzleOptions
from mmrl_prep.puzzles.puzzle import Puzzle, Unpuzzling, difference

TARGET = 24
RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = ("spades", "hearts", "diamonds", "clubs")
MIN_SIZE = 96  # pixels of width: smaller cards cannot be read
TRIES = 200  # three of four hands can be solved
RED, BLACK = (200, 30, 40), (20, 20, 24)

Box = tuple[float, float, float, float]


def make(picture: Image.Image, rng: np.random.Generator, options: PuzzleOptions) -> Puzzle:
    """Four cards of one pack on a part of the picture, which can be solved: `meta["solution"]` is one way, every
    other is as right. Raises Unpuzzling "too_small"."""
    if options.size < MIN_SIZE:
        raise Unpuzzling("too_small", f"size {options.size}: cards need {MIN_SIZE} pixels")
    for _ in range(TRIES):
        pack = [int(n) for n in rng.permutation(len(RANKS) * len(SUITS))[:4]]
        cards = [(RANKS[n % len(RANKS)], SUITS[n // len(RANKS)]) for n in pack]
        numbers = [worth(rank) for rank, _ in cards]
        solution = solve(numbers)
        if solution is not None:
            break
    else:
        raise Unpuzzling("unsolvable", f"{TRIES} hands without a solution")
    x, y = (rng.uniform(0, 0.3) for _ in range(2))
    corners = (x * picture.width, y * picture.height, picture.width * (x + 0.7), picture.height * (y + 0.7))
    place = [round(v, 3) for v in corners]
    question = (
        "Each of the four cards counts as its number, an ace as 1, and J, Q and K as 10. Use every card exactly once "
        f"with + - * / and brackets to make {TARGET}. Answer with the expression."
    )
    meta = {
        "cards": [list(card) for card in cards],
        "numbers": numbers,
        "target": TARGET,
        "solution": solution,
        "crop": place,
    }
    image = draw_cards(picture, place, cards, options.size)
    return Puzzle((image,), question, Answer("expression", {"numbers": numbers, "target": TARGET}), meta)


def check(puzzle: Puzzle, picture: Image.Image, tolerance: float = 0.0) -> bool:
    """Whether the stored solution makes the target of the cards, and the cards are those of the picture."""
    meta, image = puzzle.meta, puzzle.images[0]
    cards = [(rank, suit) for rank, suit in meta["cards"]]
    asked = puzzle.answer.value == {"numbers": [worth(rank) for rank, _ in cards], "target": meta["target"]}
    solved = asked and makes(meta["solution"], puzzle.answer.value["numbers"], meta["target"])
    drawn = draw_cards(picture, meta["crop"], cards, image.width)
    shown = drawn.size == image.size and difference(drawn, image) <= tolerance
    return solved and shown and meta["numbers"] == puzzle.answer.value["numbers"]


def worth(rank: str) -> int:
    return 10 if rank in "JQK" else 1 if rank == "A" else int(rank)


def solve(numbers: Sequence[int], target: int = TARGET) -> str | None:
    """An expression that makes the target of all the numbers, None where there is none. All ways are tried."""
    return next((text for value, text in _ways([(Fraction(n), str(n)) for n in numbers]) if value == target), None)


def _ways(parts: list[tuple[Fraction, str]]) -> Iterator[tuple[Fraction, str]]:
    """Every value that the parts make, by joining two of them until one is left."""
    if len(parts) == 1:
        yield parts[0]
        return
    for i, (a, left) in enumerate(parts):
        for j, (b, right) in enumerate(parts):
            if i == j:
                continue
            rest = [p for n, p in enumerate(parts) if n not in (i, j)]
            joined = [(a - b, f"({left}-{right})")]
            joined += [(a + b, f"({left}+{right})"), (a * b, f"({left}*{right})")] if i < j else []
            joined += [(a / b, f"({left}/{right})")] if b else []
            for new in joined:
                yield from _ways([*rest, new])


def draw_cards(
    picture: Image.Image, place: Sequence[float], cards: Sequence[tuple[str, str]], width: int
) -> Image.Image:
    """Cards side by side on the part `place` (xyxy) of a picture, `width` pixels wide and two fifths of that high."""
    x1, y1, x2, y2 = place
    height = round(width * 0.4)
    image = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC, box=(x1, y1, x2, y2))
    wide, high = round(width * 0.2), round(height * 0.8)
    font = ImageFont.load_default(round(wide * 0.5))
    draw = ImageDraw.Draw(image)
    for number, (rank, suit) in enumerate(cards):
        x, y = round(width * (0.04 + 0.24 * number)), round(height * 0.1)
        ink = RED if suit in ("hearts", "diamonds") else BLACK
        draw.rounded_rectangle((x, y, x + wide, y + high), radius=wide // 8, fill="white", outline=BLACK)
        draw.text((x + wide / 2, y + high * 0.3), rank, fill=ink, font=font, anchor="mm")
        side = wide * 0.4
        _suit(draw, suit, (x + (wide - side) / 2, y + high * 0.58, x + (wide + side) / 2, y + high * 0.58 + side), ink)
    return image


def _suit(draw: ImageDraw.ImageDraw, suit: str, box: Box, ink: tuple[int, int, int]) -> None:
    x1, y1, x2, y2 = box
    middle, half, side = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1
    if suit == "diamonds":
        draw.polygon([(middle, y1), (x2, half), (middle, y2), (x1, half)], fill=ink)
    elif suit == "hearts":
        draw.ellipse((x1, y1, middle, half), fill=ink)
        draw.ellipse((middle, y1, x2, half), fill=ink)
        draw.polygon([(x1, y1 + side * 0.32), (x2, y1 + side * 0.32), (middle, y2)], fill=ink)
    else:
        draw.polygon([(middle, half), (middle - side / 5, y2), (middle + side / 5, y2)], fill=ink)
        if suit == "spades":
            draw.ellipse((x1, y1 + side * 0.4, middle, y1 + side * 0.85), fill=ink)
            draw.ellipse((middle, y1 + side * 0.4, x2, y1 + side * 0.85), fill=ink)
            draw.polygon([(x1, y1 + side * 0.58), (x2, y1 + side * 0.58), (middle, y1)], fill=ink)
        else:
            for left, top in ((0.27, 0.0), (0.0, 0.36), (0.54, 0.36)):
                a, b = x1 + side * left, y1 + side * top
                draw.ellipse((a, b, a + side * 0.46, b + side * 0.46), fill=ink)
