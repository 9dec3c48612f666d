"""Tools that a policy may call. Importing this package registers them."""

from mmrl_tools import (
    annotations,
    ask_user,
    board,
    clips,
    documents,
    edits,
    gallery,
    games,
    marks,
    mcp,
    ocr,
    python,
    screen,
    text_search,
    views,
)

__all__ = [
    "annotations",
    "ask_user",
    "board",
    "clips",
    "documents",
    "edits",
    "gallery",
    "games",
    "marks",
    "mcp",
    "ocr",
    "python",
    "screen",
    "text_search",
    "views",
]
