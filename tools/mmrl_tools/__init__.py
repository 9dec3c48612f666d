"""Tools that a policy may call. Importing this package registers them."""

from mmrl_tools import clips, python, views

__all__ = ["clips", "python", "views"]
