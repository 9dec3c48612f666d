"""Wall time of 256 trajectories whose tools take 0 to 2 s, against the least that any loop could take.

    python scripts/bench_tools.py --concurrency 32 256

Each trajectory calls a tool in each of some turns, then answers; how long each call takes is drawn beforehand. What is
written is given, so that nothing but the agent loop, the tools and the encoding of turns is timed. No loop can end
before the longest trajectory's own calls, nor before all calls' seconds divided by how many may run at once: the larger
of the two is the bound. Beside ours stands a loop of synchronous turns, as most trainers have it: each turn's calls run
with the same concurrency, and the next turn begins when the last of them has ended.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mmrl.chat import Chat
from mmrl.config import ModelConfig, RolloutConfig
from mmrl.policy.load import load_chat
from mmrl.registry import register
from mmrl.rollout import Limits, Request, Sampled, ToolContext, call_tool, rollout, schema
from mmrl.types import Answer, Prompt, Sample, ToolCall, ToolResult


@register(
    "tool",
    "bench_wait",
    schema=schema("Wait", {"seconds": {"type": "number"}, "call": {"type": "string"}}, ["seconds", "call"]),
    limits=Limits(seconds=60),
)
def bench_wait(arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    time.sleep(arguments["seconds"])
    return ToolResult("done")


class Scripted:
    """Writes the calls of each trajectory; the row of a context stands in its prompt, the turn is its length."""

    exact = True

    def __init__(self, chat: Chat, delays: np.ndarray) -> None:
        self.chat = chat
        self.delays = delays
        self.turn: dict[int, int] = {}

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        out = []
        for request in requests:
            row = int(self.chat.decode(request.tokens).split("question ")[1].split(".")[0])
            turn = self.turn[row] = self.turn.get(row, -1) + 1
            text = "<answer>A</answer>" if turn == self.delays.shape[1] else call_text(self.delays, row, turn)
            tokens = [*self.chat.encode_text(text), self.chat.end_of_turn]
            out.append([Sampled(tokens, [0.0] * len(tokens), True)])
        return out


def call_text(delays: np.ndarray, row: int, turn: int) -> str:
    arguments = {"seconds": float(delays[row, turn]), "call": f"{row}-{turn}"}
    return f"<tool_call>{json.dumps({'name': 'bench_wait', 'arguments': arguments})}</tool_call>"


def prompts(count: int) -> list[Prompt]:
    out = []
    for row in range(count):
        message = {"role": "user", "content": f"question {row}."}
        sample = Sample(f"{row:04}", (), (message,), Answer("choice", "A"), "mcq")
        out.append(Prompt(sample, (message,), ("bench_wait",)))
    return out


def ours(chat: Chat, delays: np.ndarray, concurrency: int) -> float:
    config = RolloutConfig(group=1, max_turns=delays.shape[1] + 1, max_context=4000, tool_concurrency=concurrency)
    start = time.perf_counter()
    done = rollout(Scripted(chat, delays), chat, prompts(len(delays)), config, seed=0)
    seconds = time.perf_counter() - start
    called = sum(r.fault is None for t in done for turn in t.turns for r in turn.results)
    if called != delays.size or any(t.answer_text != "<answer>A</answer>" for t in done):
        raise SystemExit(f"{called} of {delays.size} calls were answered")
    return seconds


def synchronous(delays: np.ndarray, concurrency: int) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        for turn in range(delays.shape[1]):
            list(pool.map(time.sleep, delays[:, turn].tolist()))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3, help="that call a tool")
    parser.add_argument("--slowest", type=float, default=2.0, help="seconds of the slowest call")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[32, 256])
    args = parser.parse_args()
    chat = load_chat(ModelConfig(path="tiny-vlm"))
    call_tool(ToolCall("bench_wait", {"seconds": 0, "call": "first"}), ToolContext({}))
    delays = np.random.default_rng(0).uniform(0, args.slowest, (args.trajectories, args.turns))
    print(f"{args.trajectories} trajectories x {args.turns} calls of 0 to {args.slowest:g} s")
    print("| calls at a time | bound, s | mmrl, s | by the bound | synchronous turns, s | by the bound |")
    print("|---|---|---|---|---|---|")
    for concurrency in args.concurrency:
        bound = max(delays.sum() / concurrency, delays.sum(1).max())
        mine, theirs = ours(chat, delays, concurrency), synchronous(delays, concurrency)
        print(
            f"| {concurrency} | {bound:.1f} | {mine:.1f} | {mine / bound:.2f} | {theirs:.1f} | {theirs / bound:.2f} |"
        )


if __name__ == "__main__":
    main()
