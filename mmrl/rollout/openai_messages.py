"""A context read back as chat messages: what a server that takes no token ids is sent.

Token ids and patches hold all that the policy is shown, so both are undone: the text between the control tokens, and
the pictures as the vision tower sees them (after resizing, in 8 bits). Rendered and processed again they give the same
tokens and the same patches, so coordinates mean the same to the server as to the policy itself.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmrl.chat import Chat
from mmrl.families import VisionInput

Message = dict[str, Any]
Frames = list[Image.Image]
START = "<|im_start|>"  # opens a message in the chat format of the Qwen families


def messages_of(chat: Chat, tokens: Sequence[int], vision: Sequence[VisionInput]) -> list[Message]:
    """Messages in the form of the OpenAI chat interface: pictures are PNG data URLs, clips are their frames in order.

    Time stamps that the chat writes between frames stay text. Where it writes none (Qwen2.5-VL), the frames of each
    temporal patch are led by their seconds within the clip, `<2.0 seconds>`.

    Args:
        tokens: a context that ends with the header of the policy's next turn.
        vision: the media of its placeholders, in order.

    Raises ValueError as `check_messages` does.
    """
    check_messages(chat, tokens)
    start, end = chat.tokenizer.convert_tokens_to_ids(START), chat.end_of_turn
    shown = _shown(chat, vision)
    out = []
    for piece in _split(tokens, start)[1:-1]:
        body = piece[: piece.index(end)] if end in piece else piece  # a turn that was cut has no end
        parts = list(_parts(chat, body, shown))
        role, _, text = parts[0]["text"].partition("\n")
        parts[0]["text"] = text
        out.append({"role": role, "content": _plain([p for p in parts if p.get("text") != ""])})
    return out


def check_messages(chat: Chat, tokens: Sequence[int]) -> None:
    """Raise ValueError for a context that is no sequence of whole messages, such as a branch within a turn."""
    pieces = _split(tokens, chat.tokenizer.convert_tokens_to_ids(START))
    if pieces[0] or len(pieces) < 2:
        raise ValueError(f"the context does not begin with {START}: it cannot be sent as messages")
    if chat.decode(pieces[-1]) != header(chat):
        raise ValueError(
            "the context does not end where a turn of the policy begins: a server that takes messages cannot go on "
            "within a turn; use `mode: tokens`"
        )


def header(chat: Chat) -> str:
    """What opens a turn of the policy, behind START; the templates of some thinking models end it with `<think>`."""
    asked = chat.encode_prompt([{"role": "user", "content": "?"}], {}).tokens
    return chat.decode(_split(asked, chat.tokenizer.convert_tokens_to_ids(START))[-1])


def text_of(message: Any, *, thinks: bool, whole: bool) -> str:
    """A message of a server as the text that the model wrote: thinking and calls that were taken apart are put back.

    Args:
        message: its content, and `reasoning_content` or `reasoning`, `tool_calls`, `refusal` where there are any.
        thinks: the turn was opened with `<think>`, which is no part of the message then.
        whole: the model ended it. Thinking that was cut stays open.

    Raises ValueError, TypeError or KeyError for what is no message.
    """
    text = message.get("content") or message.get("refusal") or ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(thought, str):
        raise ValueError("the message is no text")
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or []]
    if thought:
        closed = bool(text or calls or whole)
        text = f"{'' if thinks else '<think>'}{thought}{'</think>' if closed else ''}{text}"
    return "\n".join([text, *calls] if text else calls)


def _call_text(function: Any) -> str:
    """A call that a server parsed, as Qwen's templates write it. Arguments that are no JSON stay what they are."""
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def data_url(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def raw_pixels(chat: Chat, medium: VisionInput) -> np.ndarray:
    """The patches of a medium before normalisation: [patches, channels * frames * rows * columns] uint8, 0 to 255."""
    part = _processor(chat, medium)
    rows = medium.patches.detach().cpu().double().numpy()
    std, mean = np.array(part.image_std)[:, None], np.array(part.image_mean)[:, None]
    pixels = (rows.reshape(len(rows), len(std), -1) * std + mean) / part.rescale_factor
    return np.rint(pixels).clip(0, 255).astype(np.uint8).reshape(rows.shape)


def frames_of(chat: Chat, medium: VisionInput) -> list[Frames]:
    """The pictures of a medium as the vision tower sees them, those of each temporal patch together.

    A still picture gives one. A frame that only fills its temporal patch, equal to the one before it, is left out.
    """
    part = _processor(chat, medium)
    t, h, w = medium.grid
    merge, patch, depth = medium.merge, part.patch_size, part.temporal_patch_size
    # rows are patches, window by window of merge x merge; a row is channel, frame, row, column
    pixels = raw_pixels(chat, medium)
    pixels = pixels.reshape(t, h // merge, w // merge, merge, merge, -1, depth, patch, patch)
    values = pixels.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5).reshape(t, depth, h * patch, w * patch, -1)
    out = []
    for stack in values:
        kept = [f for i, f in enumerate(stack) if i == 0 or not np.array_equal(f, stack[i - 1])]
        out.append([Image.fromarray(f) for f in kept])
    return out


def _processor(chat: Chat, medium: VisionInput) -> Any:
    return chat.processor.image_processor if medium.kind == "image" else chat.processor.video_processor


def _split(tokens: Sequence[int], at: int) -> list[list[int]]:
    out: list[list[int]] = [[]]
    for token in tokens:
        if token == at:
            out.append([])
        else:
            out[-1].append(token)
    return out


def _shown(chat: Chat, vision: Sequence[VisionInput]) -> Iterator[tuple[int, str, Frames]]:
    """For each temporal patch in order: its placeholder tokens, its time where the chat writes none, its pictures."""
    for medium in vision:
        area = medium.n_tokens // medium.grid[0]
        for number, frames in enumerate(frames_of(chat, medium)):
            seconds = medium.seconds_per_grid
            yield area, "" if seconds is None else f"<{number * seconds:.1f} seconds>", frames


def _parts(chat: Chat, tokens: Sequence[int], shown: Iterator[tuple[int, str, Frames]]) -> Iterator[Message]:
    """Text and pictures of one message; the first part is text."""
    config = chat.config
    pads = (config.image_token_id, config.video_token_id)
    marks = {config.vision_start_token_id, config.vision_end_token_id}
    text: list[int] = []
    due = 0  # placeholders left of the pictures that were given last
    words = ""
    for token in tokens:
        if token in marks:
            continue
        if token not in pads:
            text.append(token)
            continue
        if not due:
            due, stamp, frames = next(shown)
            words, text = words + _decode(chat, text) + stamp, []
            yield {"type": "text", "text": words}
            words = ""
            yield from ({"type": "image_url", "image_url": {"url": data_url(f)}} for f in frames)
        due -= 1
    yield {"type": "text", "text": words + _decode(chat, text)}


def _decode(chat: Chat, tokens: list[int]) -> str:
    return str(chat.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _plain(parts: list[Message]) -> str | list[Message]:
    """Text alone as a string, which every server takes."""
    if all(p["type"] == "text" for p in parts):
        return "".join(p["text"] for p in parts)
    return parts
