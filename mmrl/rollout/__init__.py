"""Rollouts: engines that sample, the agent loop that lets the policy call tools, and the parsing of its calls."""

from mmrl.rollout.agent import rollout
from mmrl.rollout.branch import Branch, branch
from mmrl.rollout.calls import Tools, call_tool
from mmrl.rollout.engine import Engine, Request, Sampled, make_engine
from mmrl.rollout.openai_engine import OpenAIEngine
from mmrl.rollout.tools import (
    Limits,
    ToolContext,
    ToolError,
    observation,
    schema,
    tool_schemas,
    tools_prompt,
)
from mmrl.rollout.transformers_engine import TransformersEngine
from mmrl.rollout.vllm_engine import VllmEngine

__all__ = [
    "Branch",
    "Engine",
    "Limits",
    "OpenAIEngine",
    "Request",
    "Sampled",
    "ToolContext",
    "ToolError",
    "Tools",
    "TransformersEngine",
    "VllmEngine",
    "branch",
    "call_tool",
    "make_engine",
    "observation",
    "rollout",
    "schema",
    "tool_schemas",
    "tools_prompt",
]
