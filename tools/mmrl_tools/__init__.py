"""Tools that a policy may call. Importing this package registers them."""

from mmrl_tools import views

__all__ = ["views"]
