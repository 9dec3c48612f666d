"""The demo over several seeds, and its control: held-out accuracy before and after, mean and spread of the gains.

    python scripts/measure_demo.py --out runs/measure --seeds 0 1 2
    python scripts/measure_demo.py --out runs/measure --seeds 0 --control

Each seed has its own folder; one that is finished is read and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from mmrl.demo import TASKS


def accuracies(folder: Path, mode: str) -> dict[str, float]:
    """Accuracy of each task in percent, from the result of one evaluation."""
    result = json.loads((folder / mode / "result.json").read_text())
    return {task: 100 * result["tasks"][task]["accuracy"] for task in TASKS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/measure"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--control", action="store_true", help="with rewards shuffled among the rollouts of a group")
    args = parser.parse_args()
    name = "control" if args.control else "seed"
    folders = [args.out / f"{name}-{seed}" for seed in args.seeds]
    for seed, folder in zip(args.seeds, folders, strict=True):
        if not (folder / "report.md").exists():
            control = [str(Path(__file__).with_name("control_shuffled_reward.py"))]
            command = control if args.control else ["-m", "mmrl.cli", "demo"]
            subprocess.run([sys.executable, *command, "--out", str(folder), "--seed", str(seed)], check=True)
    for mode in ("sampled", "greedy"):
        before = [accuracies(folder / "before", mode) for folder in folders]
        after = [accuracies(folder / "after", mode) for folder in folders]
        for task in TASKS:
            gains = [a[task] - b[task] for a, b in zip(after, before, strict=True)]
            spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
            print(
                f"{name} {mode} {task}: before {statistics.fmean(b[task] for b in before):.1f}, "
                f"after {statistics.fmean(a[task] for a in after):.1f}, "
                f"gain {statistics.fmean(gains):+.1f} (sd {spread:.1f}: {', '.join(f'{g:+.1f}' for g in gains)})"
            )


if __name__ == "__main__":
    main()
