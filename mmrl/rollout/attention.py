"""Attention of a decoding step without a copy of the cache.

With grouped queries, transformers repeats keys and values for each query head before it calls torch's attention
whenever there is a mask. A single new token needs no such copy: the heads of a group stand as rows of one query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mmrl import families

NAME = "mmrl_grouped"


@contextmanager
def grouped_attention(model: Any) -> Iterator[bool]:
    """While this lasts, a language model set to `sdpa` uses `attend`. Whether it does: another setting is left alone.

    Under it a decoding step takes its mask as [N, 1, 1, columns] bool.
    """
    config = families.base_model(model).config.get_text_config()
    if config._attn_implementation != "sdpa":
        yield False
        return
    _register()
    config._attn_implementation = NAME
    try:
        yield True
    finally:
        config._attn_implementation = "sdpa"


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """query: [N, heads, T, D]; key, value: [N, groups, L, D]; the result is [N, T, heads, D]."""
    rows, heads, count, size = query.shape
    if count > 1:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out
    groups = key.shape[1]
    grouped = query.reshape(rows, groups, heads // groups, size)
    found = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return found.reshape(rows, 1, heads, size), None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
