"""Several processes as one trainer: FSDP2 over the policy, and the few exchanges that the loops need.

Host-side numbers travel over gloo, gradients and weights over nccl on GPUs and gloo on CPUs. In a single process every
function here is the identity.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mmrl import families
from mmrl.config import ConfigError
from mmrl.policy.load import pick_device


@dataclass(frozen=True, slots=True)
class World:
    """This process among those of the run."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this process logs and writes."""
        return self.rank == 0


def start(device: str) -> World:
    """Join the processes that torchrun started; alone without it. `device` as in the configuration."""
    chosen = pick_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(0, 1, chosen)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    return World(dist.get_rank(), size, chosen)


def several() -> bool:
    """Whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_sharded(model: Any) -> bool:
    """Whether forward passes of this model need the other ranks."""
    return several() and any(isinstance(p, DTensor) for p in model.parameters())


def prepare(model: Any, world: World) -> Any:
    """The model ready to train: trainable weights in float32, sharded over the ranks, computing in its own precision.

    A bfloat16 model computes in bfloat16 on float32 weights that the optimiser moves. Raises ConfigError on a CPU.
    """
    dtype = next(model.parameters()).dtype
    if dtype != torch.float32 and world.device.type == "cpu":
        raise ConfigError("model.dtype: bfloat16 is trained on a GPU only; set model.dtype=float32")
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.float()
    if world.size > 1:
        return _fully_shard(model, world, dtype)
    if dtype != torch.float32:
        model.forward = torch.autocast(world.device.type, dtype)(model.forward)
    return model


def _fully_shard(model: Any, world: World, dtype: torch.dtype) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy() if dtype == torch.float32 else MixedPrecisionPolicy(dtype, torch.float32)
    for layer in families.decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # The root too gives its gathered weights back after each pass: they would be stale where weights are exchanged
    # between passes (reference copies).
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, as a view; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """The elementwise sum over all ranks, in float64."""
    if not several():
        return list(values)
    total = torch.tensor(list(values), dtype=torch.float64)
    dist.all_reduce(total)
    return [float(v) for v in total]


def gather(value: Any) -> list[Any]:
    """The value of every rank, in rank order, on every rank."""
    if not several():
        return [value]
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, value)
    return out


def barrier() -> None:
    """Wait for all ranks."""
    gather(None)


def agree(model: Any, calls: Sequence[int]) -> list[int]:
    """For each forward pass the largest number of vision-tower calls on any rank; as many passes as on the busiest.

    Ranks of a sharded model must make the same calls in the same order. Any other model goes its own way.
    """
    if not is_sharded(model):
        return list(calls)
    return [max(kinds) for kinds in itertools.zip_longest(*gather(list(calls)), fillvalue=0)]


def clip_grads(parameters: Iterable[Tensor], largest: float) -> float:
    """Scale all gradients so that their common 2-norm is at most `largest`; the norm before that.

    Right for sharded and whole parameters and a mix: a shard is counted on its own rank, a whole parameter once.
    """
    grads = [(p.grad, isinstance(p.grad, DTensor)) for p in parameters if p.grad is not None]
    squares = [0.0, 0.0]  # of whole gradients, of shards
    for grad, sharded in grads:
        squares[sharded] += float(local(grad).double().pow(2).sum())
    norm = float((squares[0] + sum_over_ranks([squares[1]])[0]) ** 0.5)
    if norm > largest:
        for grad, _ in grads:
            local(grad).mul_(largest / norm)
    return norm
