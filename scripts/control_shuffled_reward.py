"""The honest control of the demo: the same recipe, with the rewards of each group dealt out to its rollouts at random.

    python scripts/control_shuffled_reward.py --out runs/control --seed 0

Advantages keep their distribution and say nothing of what a rollout did; held-out accuracy must not rise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from mmrl.config import load_config
from mmrl.demo import demo
from mmrl.registry import register
from mmrl.types import RolloutBatch


@register("shaping", "shuffled-reward")
def shuffled_reward(batch: RolloutBatch, *, seed: int = 0) -> Tensor:
    """The rewards [N], permuted within each group; drawn from the seed and the batch's tokens: each step differs."""
    content = b"" if batch.tokens is None else batch.tokens.numpy().tobytes()
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(content, seed=seed) >> 1)
    reward = batch.reward.clone()
    for number in batch.group.unique():
        rows = (batch.group == number).nonzero()[:, 0]
        reward[rows] = batch.reward[rows[torch.randperm(len(rows), generator=generator)]]
    return reward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/control"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=None)
    args = parser.parse_args()
    shaping = [c.name for c in load_config("demo").algorithm.shaping]
    demo(args.out, args.seed, args.steps, [f"algorithm.shaping=[{', '.join([*shaping, 'shuffled-reward'])}]"])


if __name__ == "__main__":
    main()
