"""The records that every room shares, in the order in which a sample flows to a gradient.

Sample --Task--> Prompt --Engine + agent loop--> Trajectory x G --rewards, shaping--> RolloutBatch --> loss.

Axes: N trajectories (prompts x group), T tokens of a padded trajectory (prompt included).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor  # shard builders and loaders start without torch

MediaKind = Literal["image", "video"]
AnswerKind = Literal[
    "choice", "choices", "number", "text", "box", "boxes", "point", "span", "order", "rotation", "tests", "expression"
]
Box = tuple[float, float, float, float]  # xyxy, pixels of the upright stored picture


@dataclass(frozen=True, slots=True)
class MediaRef:
    """A picture or clip by reference: bytes stay where they are until `mmrl.media` decodes them.

    The bytes are `data` when given, else `size` bytes at `offset` of the file `path` (whole file when size is None).
    """

    id: str  # stable in its dialogue: "img_1", "img_2", "vid_1"
    kind: MediaKind
    hash: str  # xxh3-128 of the stored bytes, hex
    width: int  # upright pixels
    height: int
    path: str = ""
    offset: int = 0
    size: int | None = None
    data: bytes | None = field(default=None, repr=False)
    name: str = ""  # member name in its shard, e.g. "000.jpg"
    parent: str = ""  # id of the original that this is a crop of
    region: Box | None = None  # where in that original
    info: Mapping[str, Any] = field(default_factory=dict)  # video: fps, frames, duration ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The right answer, typed. `value`: choice "B"; choices ["A", "C"], all that are right; number 3.0; text "cat" or
    a list of accepted texts; box xyxy pixels; order [2, 0, 1, 3]; rotation in degrees clockwise (0, 90, 180, 270);
    span seconds [a, b]; tests, a list of unit tests of a transcription; expression {"numbers": [3, 3, 8, 8], "target":
    24}, right being any arithmetic that makes the target of the numbers, each used once."""

    kind: AnswerKind
    value: Any
    options: tuple[str, ...] = ()  # choice, choices: the option texts in the order shown


@dataclass(frozen=True, slots=True)
class Sample:
    """One record of a shard. `messages` are chat messages whose media parts name a media id:
    {"role": "user", "content": [{"type": "image", "id": "img_1"}, {"type": "text", "text": "..."}]}."""

    key: str
    media: tuple[MediaRef, ...]
    messages: tuple[dict[str, Any], ...]
    answer: Answer
    task: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a task makes of a sample: the messages as the policy sees them and the tools it may call."""

    sample: Sample
    messages: tuple[dict[str, Any], ...]
    tools: tuple[str, ...] = ()


class Origin(IntEnum):
    """Who made a token."""

    PROMPT = 0
    POLICY = 1
    OBSERVATION = 2


class Span(IntEnum):
    """What part of a turn a token belongs to. Tags count to the span that they open or close."""

    OTHER = 0
    THINK = 1
    TOOL_CALL = 2
    ANSWER = 3


class StopReason(StrEnum):
    FINISHED = "finished"  # the policy ended its turn without a tool call
    MAX_TOKENS = "max_tokens"  # a turn was cut at the token limit
    MAX_TURNS = "max_turns"  # it called a tool in its last permitted turn
    MAX_IMAGES = "max_images"
    MAX_CONTEXT = "max_context"  # the next observation would not fit
    FAULT = "fault"  # infrastructure failed


class FaultKind(StrEnum):
    TASK = "task"
    POLICY = "policy"
    TOOL = "tool"
    JUDGE = "judge"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Fault:
    """A thing that went wrong and was dealt with: counted in the metrics by `kind` and `code`."""

    kind: FaultKind
    code: str  # short and stable: "bad_json", "unknown_tool", "outside_picture", "call_after_answer" ...
    message: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as parsed from a policy turn. `error` is set when it could not be parsed."""

    name: str
    arguments: Mapping[str, Any]
    error: Fault | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: the text and the media that the policy gets, and what is recorded of it."""

    text: str
    media: tuple[MediaRef, ...] = ()
    fault: Fault | None = None
    data: Mapping[str, Any] = field(default_factory=dict)  # the same as JSON, for rewards and the shell
    seconds: float = 0.0  # wall time that the call took
    tokens: int = 0  # that it added to the dialogue
    cached: bool = False  # taken from an equal call before


@dataclass(slots=True)
class Turn:
    """One stretch that the policy wrote, or one observation: token ids [start, stop) of the trajectory.

    A turn of the policy may hold tokens that were put into its mouth (a hint, the opening of an answer): their origin
    is PROMPT.
    """

    origin: Origin
    text: str
    start: int
    stop: int
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(slots=True)
class Trajectory:
    """One rollout. All per-token lists have the length of `tokens`, prompt included.

    `tokens` are the ids that the engine sampled (never re-tokenised text); `logp` is the engine's log-prob of each
    policy token under the distribution it sampled from, nan elsewhere.
    """

    prompt: Prompt
    group: int  # number of the prompt within the batch
    index: int  # number of the rollout within its group
    tokens: list[int]
    logp: list[float]
    origin: list[Origin]
    span: list[Span]
    turn: list[int]  # policy turn number, 0-based; observations carry the number of the turn that they follow
    vision: list[Any]  # mmrl.families.VisionInput, in the order of their placeholders
    turns: list[Turn] = field(default_factory=list)
    media: dict[str, MediaRef] = field(default_factory=dict)  # by id, tool pictures included
    stop: StopReason = StopReason.FINISHED
    faults: list[Fault] = field(default_factory=list)
    reward_terms: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    correct: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Everything that the policy wrote, turns joined by newlines."""
        return "\n".join(t.text for t in self.turns if t.origin is Origin.POLICY)

    @property
    def answer_text(self) -> str:
        """The last policy turn: the text that is scored."""
        return next((t.text for t in reversed(self.turns) if t.origin is Origin.POLICY), "")

    @property
    def length(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(o is Origin.POLICY for o in self.origin)

    def check(self) -> None:
        """Raise ValueError where the per-token records do not fit each other."""
        n = len(self.tokens)
        for name in ("logp", "origin", "span", "turn"):
            if len(getattr(self, name)) != n:
                raise ValueError(
                    f"trajectory {self.prompt.sample.key}/{self.index}: {name} has {len(getattr(self, name))} entries "
                    f"for {n} tokens"
                )
        for turn in self.turns:
            own = {turn.origin, Origin.PROMPT} if turn.origin is Origin.POLICY else {turn.origin}
            if not own.issuperset(self.origin[turn.start : turn.stop]):
                raise ValueError(
                    f"trajectory {self.prompt.sample.key}/{self.index}: tokens {turn.start}..{turn.stop} are not all "
                    f"{turn.origin.name}"
                )


@dataclass(slots=True)
class RolloutBatch:
    """Padded tensors of N trajectories, and everything that stage components read.

    `mask[n, t]` is 1 exactly where token t of row n was sampled by the policy and may be learnt from. Position t of
    every [N, T] tensor speaks of token t itself (log-prob of token t given the tokens before it).
    """

    group: Tensor  # [N] long, same number = same prompt
    reward: Tensor  # [N]
    mask: Tensor  # [N, T] in {0, 1}
    tokens: Tensor | None = None  # [N, T] long
    reward_terms: dict[str, Tensor] = field(default_factory=dict)  # name -> [N]
    correct: Tensor | None = None  # [N] in {0, 1}
    logp_old: Tensor | None = None  # [N, T] of the sampling policy, as recomputed by the trainer
    span: Tensor | None = None  # [N, T] long, values of Span
    turn: Tensor | None = None  # [N, T] long, -1 in the prompt
    signals: dict[str, Tensor] = field(default_factory=dict)  # name -> [N] or [N, T] or [N, T, D]
    advantage: Tensor | None = None  # [N] after the advantage stage, [N, T] after credit
    weight: Tensor | None = None  # [N, T] of each token's loss, taken on whole groups before rows are cut apart
    meta: list[Mapping[str, Any]] = field(default_factory=list)  # one a row

    @property
    def length(self) -> Tensor:
        """Number of learnable tokens of each trajectory [N]."""
        return self.mask.sum(-1)

    def select(self, rows: Tensor | Sequence[int]) -> RolloutBatch:
        """The same batch with only the given rows (indices), every tensor and dictionary included."""
        import torch

        index = torch.as_tensor(rows, dtype=torch.long)

        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[index]

        return RolloutBatch(
            group=self.group[index],
            reward=self.reward[index],
            mask=self.mask[index],
            tokens=pick(self.tokens),
            reward_terms={k: v[index] for k, v in self.reward_terms.items()},
            correct=pick(self.correct),
            logp_old=pick(self.logp_old),
            span=pick(self.span),
            turn=pick(self.turn),
            signals={k: v[index] for k, v in self.signals.items()},
            advantage=pick(self.advantage),
            weight=pick(self.weight),
            meta=[self.meta[int(i)] for i in index] if self.meta else [],
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Denominators of the whole update, over all micro-batches and ranks, so that their sums equal one large batch."""

    tokens: float  # learnable tokens
    trajectories: float  # rows, those with an empty mask included
    groups: float
