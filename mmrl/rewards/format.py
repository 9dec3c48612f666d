"""Is the answer in the form that was asked for?"""

from __future__ import annotations

import re

from mmrl.registry import register
from mmrl.types import Origin, StopReason, Trajectory

_FINAL = re.compile(r"\s*<think>(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL)
_CALLING = re.compile(r"\s*(?:<think>.*?</think>)?\s*(?:<tool_call>.*?</tool_call>\s*)+", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer|tool_call|tool_response)>")


@register("reward", "format")
def format_reward(trajectory: Trajectory) -> float:
    """1 when every turn has its form, else 0.

    The last turn is one <think> block and one <answer>, nothing else; turns before it are at most one <think> block and
    then tool calls. A trajectory that ended at a limit has no last turn in this sense and gets 0.
    """
    turns = [t.text for t in trajectory.turns if t.origin is Origin.POLICY]
    if trajectory.stop is not StopReason.FINISHED or not turns:
        return 0.0
    return float(is_final(turns[-1]) and all(is_calling(t) for t in turns[:-1]))


def is_final(text: str) -> bool:
    """Whether a turn is exactly <think>...</think><answer>...</answer>, both with something inside."""
    match = _FINAL.fullmatch(text)
    if not match or not match["answer"].strip() or not match["think"].strip():
        return False
    return not _TAG.search(match["think"]) and not _TAG.search(match["answer"])


def is_calling(text: str) -> bool:
    """Whether a turn is an optional <think> block and then tool calls alone."""
    return bool(_CALLING.fullmatch(text)) and "<answer>" not in text
