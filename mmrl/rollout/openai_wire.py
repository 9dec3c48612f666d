"""What is sent for a request and how its answer is read, for each of three interfaces of servers.

GENERATE     vLLM's token interface, `/inference/v1/generate`: token ids and patches in, token ids out
COMPLETIONS  `/v1/completions` with token ids, as vLLM offers it: token ids in and out, text only
CHAT         `/v1/chat/completions`: messages and pictures in, text out
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from mmrl.chat import Chat
from mmrl.families import VisionInput
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.openai_messages import check_messages, data_url, header, messages_of, raw_pixels, text_of
from mmrl.rollout.openai_server import Garbled, ServerError
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.vllm_inputs import content_name

Body = dict[str, Any]
MISSING = math.nan  # log-prob of a token that was not sampled by us
NEVER = -100.0  # bias of banned ids, the lowest that servers take: probability below 1e-30
ENDED = ("stop", "tool_calls", "function_call")  # reasons of a message that the model itself ended
RAW_VIEW = 3  # msgpack extension by which vLLM marks the bytes of a tensor


class Wire(Protocol):
    """An interface of a server. `exact`: its answers are the very ids that were sampled, with their log-probs."""

    path: str
    exact: bool

    def check(self, request: Request) -> None:
        """Raise ValueError for what cannot be sent."""
        ...

    def context(self, request: Request) -> Body:
        """The part of the question that all continuations of a request share."""
        ...

    def sampling(self, request: Request, number: int) -> Body:
        """The rest of it for one continuation."""
        ...

    def read(self, answer: Any, limit: int) -> Sampled:
        """The continuation, of `limit` tokens at most. Raises Garbled, or ServerError where asking again is no use."""
        ...


@dataclass(frozen=True)
class Generate:
    """Pictures travel as the patches that the chat's own processor made: the server's processor is not used.

    raw: the server normalises pixels itself (`--mm-device-do-normalize`, vLLM's default) and is sent 8-bit ones. Clips
    are refused: the server computes their positions from what the interface does not carry.
    """

    chat: Chat
    raw: bool
    path = "/inference/v1/generate"
    exact = True

    def check(self, request: Request) -> None:
        if any(v.kind == "video" for v in request.vision):
            raise ValueError(
                "clips cannot be sent as patches: use `mode: text`, which sends their frames, or the engine vllm"
            )

    def context(self, request: Request) -> Body:
        body: Body = {"token_ids": request.tokens}
        if request.vision:
            body["features"] = features(self.chat, request.tokens, request.vision, self.raw)
        return body

    def sampling(self, request: Request, number: int) -> Body:
        return {
            "sampling_params": {
                **_sampling(self.chat, request, number),
                "ignore_eos": True,  # the chat's stop ids and no others
                "logprobs": 0,  # of the chosen token
                "detokenize": False,
            }
        }

    def read(self, answer: Any, limit: int) -> Sampled:
        choice = _choice(answer)
        content = choice["logprobs"]["content"]
        return _sampled(self.chat, choice, [position["logprob"] for position in content], limit)


@dataclass(frozen=True)
class Completions:
    """Text alone."""

    chat: Chat
    path = "/v1/completions"
    exact = True

    def check(self, request: Request) -> None:
        if request.vision:
            raise ValueError(
                "this server takes token ids without pictures: start vLLM with --enable-scale-out, or use `mode: text`"
            )

    def context(self, request: Request) -> Body:
        return {"prompt": request.tokens}

    def sampling(self, request: Request, number: int) -> Body:
        return {
            **_sampling(self.chat, request, number),
            "ignore_eos": True,
            "logprobs": 1,
            "return_token_ids": True,
            # else those of the checkpoint's generation_config.json
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }

    def read(self, answer: Any, limit: int) -> Sampled:
        choice = _choice(answer)
        return _sampled(self.chat, choice, choice["logprobs"]["token_logprobs"], limit)


@dataclass(frozen=True)
class ChatMessages:
    """Text is tokenised once, when it comes, and stands in the record like that: not the ids that were sampled.

    Log-probs are recorded as MISSING: the server's, where it gives any, are of its own tokens. length: the field that
    bounds the answer, `max_completion_tokens` for some servers.
    """

    chat: Chat
    length: str = "max_tokens"
    path = "/v1/chat/completions"
    exact = False

    def check(self, request: Request) -> None:
        check_messages(self.chat, request.tokens)

    def context(self, request: Request) -> Body:
        return {"messages": messages_of(self.chat, request.tokens, request.vision)}

    def sampling(self, request: Request, number: int) -> Body:
        return {
            self.length: request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": derive_seed(request.seed, number) >> 33,  # 31 bits: some servers take no more
        }

    def read(self, answer: Any, limit: int) -> Sampled:
        choice = _choice(answer)
        reason = choice["finish_reason"]
        if reason == "content_filter":
            raise ServerError("the server's filter withheld the answer (finish_reason content_filter)")
        if reason not in ENDED and reason != "length":
            raise Garbled(f"a message that ended for the reason {reason!r}")
        whole = reason in ENDED
        text = text_of(choice["message"], thinks=header(self.chat).rstrip().endswith("<think>"), whole=whole)
        # as a prompt: the spelling of a control token stays text
        tokens = self.chat.encode_text(self.chat.escape(text))
        if whole:
            tokens.append(self.chat.end_of_turn)
        tokens = tokens[:limit]  # the server's own tokens may be longer; the turn counts as cut then
        stopped = bool(tokens) and tokens[-1] in self.chat.stop_ids
        return Sampled(tokens, [MISSING] * len(tokens), stopped)


def probe(wire: Generate | Completions) -> Body:
    """A question of one token whose answer shows that the interface is there and which log-probs it gives.

    One id gets so large a bias that it is sampled for certain: its log-prob is 0 where the server scores what it
    samples from, and another number where it scores what the model said.
    """
    ids = [wire.chat.end_of_turn]
    body = wire.context(Request(ids, [], 1, 0, 1)) | wire.sampling(Request(ids, [], 1, 0, 1, temperature=0.0), 0)
    settings = body.get("sampling_params", body)
    settings["logit_bias"] = {str(ids[0]): -NEVER}
    return body


def ask_for_raw() -> Body:
    """A question to `/v1/chat/completions/render`, whose answer shows in which form the server takes pictures."""
    content = [{"type": "image_url", "image_url": {"url": data_url(Image.new("RGB", (56, 56), "gray"))}}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def read_raw(answer: Any) -> bool:
    """Whether the server takes 8-bit pixels, not normalised ones."""
    import msgpack

    data = base64.b64decode(answer["features"]["kwargs_data"]["image"][0])
    return bool(msgpack.unpackb(data, strict_map_key=False)["pixel_values"]["data"][0] == "uint8")


def features(chat: Chat, tokens: Sequence[int], vision: Sequence[VisionInput], raw: bool) -> Body:
    """Pictures with their places among `tokens`, in the form of vLLM 0.32 (`MultiModalFeatures`)."""
    places = iter([i for i, token in enumerate(tokens) if token == chat.config.image_token_id])
    ranges = []
    for medium in vision:
        own = [next(places) for _ in range(medium.n_tokens)]
        ranges.append({"offset": own[0], "length": len(own)})
    return {
        "mm_hashes": {"image": [f"{content_name(v)}-{'raw' if raw else 'float'}" for v in vision]},  # caches go by it
        "mm_placeholders": {"image": ranges},
        "kwargs_data": {"image": [_packed(v, raw_pixels(chat, v) if raw else v.patches.cpu().numpy()) for v in vision]},
    }


def _packed(medium: VisionInput, pixels: np.ndarray) -> str:
    """One picture as vLLM's `MultiModalKwargsItem` in msgpack, base64."""
    import msgpack

    def tensor(value: np.ndarray) -> list[Any]:
        return [value.dtype.name, list(value.shape), msgpack.ExtType(RAW_VIEW, value.tobytes())]

    item = {
        "pixel_values": {"data": tensor(pixels), "field": ["flat", {"slices": [], "dim": 0, "keep_on_cpu": False}]},
        "image_grid_thw": {
            "data": tensor(np.array(medium.grid, dtype=np.int64)),
            "field": ["batched", {"keep_on_cpu": True}],
        },
    }
    return base64.b64encode(msgpack.packb(item)).decode()


def _sampling(chat: Chat, request: Request, number: int) -> Body:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": derive_seed(request.seed, number) >> 1,  # 63 bits, as in the engine vllm
        "max_tokens": request.max_new_tokens,
        "stop_token_ids": list(chat.stop_ids),
        "logit_bias": {str(i): NEVER for i in chat.banned_ids},
    }


def _choice(answer: Any) -> Any:
    if not isinstance(answer, dict) or not answer.get("choices"):
        said = answer.get("error") if isinstance(answer, dict) else None
        raise Garbled(f"an answer without choices{f': {said}' if said else ''}")
    return answer["choices"][0]


def _sampled(chat: Chat, choice: Any, logp: list[float], limit: int) -> Sampled:
    tokens, reason = choice["token_ids"], choice["finish_reason"]
    vocabulary = chat.config.get_text_config().vocab_size
    if not all(type(t) is int and 0 <= t < vocabulary for t in tokens or []):
        raise Garbled("a token id that the vocabulary does not have")
    if not tokens or len(tokens) != len(logp) or len(tokens) > limit:
        raise Garbled(f"{len(tokens or [])} token ids with {len(logp)} log-probs, {limit} were asked for at most")
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in logp):
        raise Garbled("a log-prob that is no number")
    stopped = tokens[-1] in chat.stop_ids
    if reason not in ("stop", "length") or (reason == "stop") != stopped:
        raise Garbled(f"a continuation that ended for the reason {reason!r} with the id {tokens[-1]}")
    if not stopped and len(tokens) < limit:
        raise ServerError(
            f"the server cut a continuation at {len(tokens)} tokens, {limit} were asked for: its context is shorter "
            "than rollout.max_context (vLLM: --max-model-len)"
        )
    if found := set(tokens) & set(chat.banned_ids):
        raise ServerError(f"the server sampled the banned ids {sorted(found)}: it does not heed logit_bias")
    return Sampled(tokens, [float(v) for v in logp], stopped)
