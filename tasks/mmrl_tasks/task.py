"""The one shape of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mmrl.rollout.tools import tools_prompt
from mmrl.types import Prompt, Sample

FORMAT = "Think inside <think></think>, then answer inside <answer></answer>."


@dataclass(frozen=True)
class Task:
    """Prompt, tools and reward mix of one kind of sample.

    Args:
        name: the name that samples carry in `task`.
        answer: what the answer tag must hold, one sentence for the policy.
        tools: names of the tools that it may call.
        rewards: weight of each reward in the sum.
    """

    name: str
    answer: str
    tools: tuple[str, ...] = ("crop", "zoom")
    rewards: Mapping[str, float] = field(default_factory=lambda: {"accuracy": 1.0, "format": 0.5})

    def prompt(self, sample: Sample, tools: Sequence[str] | None = None) -> Prompt:
        """The sample's messages under this task's system message. `tools` replaces the task's own list."""
        names = self.tools if tools is None else tuple(tools)
        parts = [FORMAT, self.answer, *([tools_prompt(names)] if names else [])]
        return Prompt(sample, ({"role": "system", "content": "\n".join(parts)}, *sample.messages), names)
