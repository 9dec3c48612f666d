"""Forward passes of several ranks in step.

A model sharded by FSDP gathers its weights inside `forward`, so all ranks must make the same calls in the same order,
and those that run the vision tower count as another call than those that do not. `run` drives a generator of forward
inputs: before each pass the ranks agree on its kind (how often it calls the vision tower); a rank that has no such
pass at the moment, or has nothing left to do, makes one with dummy inputs. Without sharding it just calls the model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from mmrl import families
from mmrl.policy.shard import is_sharded

T = TypeVar("T")


def run(model: Any, work: Generator[dict[str, Any], Any, T]) -> T:
    """Drive `work`, which yields keyword arguments of `model.forward` and is sent the outputs, to its return value."""
    together = is_sharded(model)
    device = next(model.parameters()).device
    inputs, result = _advance(work, None)
    while inputs is not None or together:
        mine = 0 if inputs is None else 1 + sum(k in inputs for k in families.PIXELS)
        kind = mine
        if together:
            largest = torch.tensor(mine, device=device)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            kind = int(largest)
        if kind == 0:  # nobody has work left
            break
        if inputs is not None and mine == kind:
            inputs, result = _advance(work, model(**inputs))
        else:
            model(**families.dummy_inputs(model, vision_calls=kind - 1))
    return result  # type: ignore[return-value]  # `work` has ended


def _advance(work: Generator[dict[str, Any], Any, T], sent: Any) -> tuple[dict[str, Any] | None, T | None]:
    try:
        return (next(work) if sent is None else work.send(sent)), None
    except StopIteration as end:
        return None, end.value
