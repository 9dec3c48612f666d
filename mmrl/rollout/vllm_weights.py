"""The trainer's weights as vLLM loads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

ADAPTER = "default"  # PEFT's name for the adapter that is trained


def plain_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights one by one, whole and with adapters merged, under the names of the plain model.

    All ranks of a sharded model go through them together. Raises ValueError for adapters other than LoRA's on linear
    layers.
    """
    weights = dict(model.named_parameters())

    def whole(name: str) -> Tensor:
        weight = weights[name].detach()
        gathered: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        return gathered

    for name in weights:
        if any(part in name for part in ("lora_embedding_", "lora_magnitude_", "modules_to_save")):
            raise ValueError(
                f"the engine vllm cannot merge {name}: use LoRA on linear layers, or the engine transformers"
            )
        if ".lora_" in name:
            continue
        weight = whole(name)
        if name.endswith(".base_layer.weight"):
            a, b = (whole(name.replace("base_layer", f"lora_{x}.{ADAPTER}")).float() for x in "AB")
            scale = model.get_submodule(name.removesuffix(".base_layer.weight")).scaling[ADAPTER]
            weight = (weight.float() + scale * (b @ a)).to(weight.dtype)
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), weight


def repack_embeddings(model: Any) -> None:
    """On a CPU vLLM multiplies by a packed copy of each matrix. Of an output layer that shares the input embedding it
    is not made anew with the others."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)
