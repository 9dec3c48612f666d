"""Rollouts: engines that sample, the agent loop that lets the policy call tools, and the parsing of its calls."""

from mmrl.rollout.agent import rollout
from mmrl.rollout.engine import Engine, Request, Sampled, make_engine
from mmrl.rollout.tools import ToolContext, ToolError, call_tool, observation, tool_schemas, tools_prompt
from mmrl.rollout.transformers_engine import TransformersEngine

__all__ = [
    "Engine",
    "Request",
    "Sampled",
    "ToolContext",
    "ToolError",
    "TransformersEngine",
    "call_tool",
    "make_engine",
    "observation",
    "rollout",
    "tool_schemas",
    "tools_prompt",
]
