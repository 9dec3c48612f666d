"""Messages to tokens and back, by the model's own processor and chat template.

A dialogue is only ever extended: the prompt is encoded once, what the policy samples is kept as ids, and an
observation contributes the tokens between the end of a policy turn and the start of the next one.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mmrl import families
from mmrl.families import VisionInput
from mmrl.media import load_image, load_video
from mmrl.types import MediaRef, Sample, Span
from mmrl.view import View, shown_media, shrink, view_of

CALL_TAGS = {  # of the forms of tool calls that `rollout.syntax` names
    "hermes": ("<tool_call>", "</tool_call>"),
    "tool_code": ("<tool_code>", "</tool_code>"),
    "json": ("```json", "```"),
}
_HOLE = "\x00hole\x00"
VISION_CACHE = 1 << 30  # bytes of processed pictures that a chat keeps


@dataclass(frozen=True)
class Encoded:
    """Token ids with the media that their placeholders stand for, in order."""

    tokens: list[int]
    vision: list[VisionInput]


class Chat:
    """The chat format of one checkpoint.

    Args:
        processor: what `AutoProcessor.from_pretrained` gives.
        config: the model's configuration (token ids of vision placeholders).
        min_pixels, max_pixels: picture area after resizing, where they differ from the checkpoint's own.
        video_fps, video_frames: how clips are sampled.
    """

    def __init__(
        self,
        processor: Any,
        config: Any,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        video_fps: float = 2.0,
        video_frames: int = 16,
    ) -> None:
        families.check_family(config.model_type)
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.config = config
        self.video_fps = video_fps
        self.video_frames = video_frames
        families.set_pixels(processor, min_pixels, max_pixels)
        self._vision: OrderedDict[tuple[str, str, View | None], VisionInput] = OrderedDict()  # last used last
        self._vision_bytes = 0

    @classmethod
    def from_pretrained(cls, path: str | Path, **kwargs: Any) -> Chat:
        from transformers import AutoConfig, AutoProcessor

        return cls(AutoProcessor.from_pretrained(path), AutoConfig.from_pretrained(path), **kwargs)

    # --- token sets -------------------------------------------------------------------------------------------------

    @cached_property
    def end_of_turn(self) -> int:
        """The id that ends a policy turn in a dialogue that goes on."""
        return self.stop_ids[0]

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which sampling of a turn ends."""
        return families.turn_ends(self.config, self.tokenizer)

    @cached_property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end_of_turn)

    @cached_property
    def _added(self) -> dict[int, Any]:
        """Added tokens by id; the tokenizer's own property copies them at each call."""
        return dict(self.tokenizer.added_tokens_decoder)

    @cached_property
    def banned_ids(self) -> tuple[int, ...]:
        """Ids that a policy may never sample: vision placeholders, control tokens, embedding rows without a token.

        A sampled picture placeholder has no features and breaks the next forward pass.
        """
        banned = {i for i, token in self._added.items() if token.special} | families.vision_token_ids(self.config)
        text_config = getattr(self.config, "text_config", self.config)
        banned |= set(range(len(self.tokenizer), text_config.vocab_size))
        return tuple(sorted(banned - set(self.stop_ids)))

    # --- media ------------------------------------------------------------------------------------------------------

    def shown(self, sample: Sample, frame_budget: int | None = None) -> dict[str, MediaRef]:
        """The media of a sample by id, each clip with how this chat shows it (see `mmrl.view.shown_media`)."""
        return shown_media(sample, self.video_fps, self.video_frames, frame_budget)

    def vision(self, ref: MediaRef) -> VisionInput:
        """A medium as the vision tower takes it; decoded and processed once for all rollouts that use it.

        Cached by what its pixels are (the stored bytes, and of a clip which frames of it), not by where it stands in a
        dialogue. Time stamps of a window are those of the whole clip. Raises MediaError.
        """
        view = view_of(ref, self.video_fps, self.video_frames) if ref.kind == "video" else None
        key = (ref.kind, ref.hash, view)
        if key in self._vision:
            self._vision.move_to_end(key)
            return self._vision[key]
        if view is None:
            out = families.image_input(self.processor, load_image(ref))
        else:
            clip = load_video(ref, fps=self.video_fps, max_frames=self.video_frames)
            part = self.processor.video_processor
            frames = shrink(clip.frames, part.patch_size * part.merge_size, view.max_pixels)
            out = families.video_input(self.processor, frames, clip.times)
        self._vision[key] = out
        self._vision_bytes += out.patches.nbytes
        while self._vision_bytes > VISION_CACHE and len(self._vision) > 1:
            self._vision_bytes -= self._vision.popitem(last=False)[1].patches.nbytes
        return out

    # --- encoding ---------------------------------------------------------------------------------------------------

    def encode_prompt(self, messages: Iterable[Mapping[str, Any]], media: Mapping[str, MediaRef]) -> Encoded:
        """Messages up to and including the header of the policy's first turn.

        Media parts name an id of `media`. Text that spells a control token is escaped: it stays text.
        """
        rendered, refs = self._prepare(messages, media)
        text = self._render(rendered, generation=True)
        return self._encode(text, [self.vision(r) for r in refs])

    def encode_dialogue(
        self, messages: Sequence[Mapping[str, Any]], media: Mapping[str, MediaRef]
    ) -> tuple[Encoded, list[int]]:
        """A whole dialogue for supervised training, and for each token 1 where the assistant wrote it.

        Assistant text is tokenised on its own between the template's pieces, exactly as a rollout would be laid out;
        the end-of-turn token counts as written by the assistant. Raises ValueError where turns do not alternate after
        the first of the assistant.
        """
        first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
        out = self.encode_prompt(messages[:first], media)
        tokens, vision, mask = list(out.tokens), list(out.vision), [0] * len(out.tokens)
        for i, message in enumerate(messages[first:]):
            if (message["role"] == "assistant") != (i % 2 == 0):
                raise ValueError(
                    f"message {first + i} is of role {message['role']!r}: after the first assistant message, "
                    "assistant and other messages take turns"
                )
            if message["role"] == "assistant":
                own = [*self.encode_text(self.escape(_plain(message["content"]))), self.end_of_turn]
                tokens += own
                mask += [1] * len(own)
            else:
                seen = self.encode_observation(message["content"], media, closed=True)
                tokens += seen.tokens
                vision += seen.vision
                mask += [0] * len(seen.tokens)
        return Encoded(tokens, vision), mask

    def encode_observation(
        self, content: Sequence[Mapping[str, Any]] | str, media: Mapping[str, MediaRef], *, closed: bool
    ) -> Encoded:
        """The tokens that follow a policy turn when the environment answers with a user turn of this content.

        `closed` says whether the policy's own last token already was `end_of_turn`; the tokens end with the header of
        the next policy turn.
        """
        spoken = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _HOLE}]
        rendered, refs = self._prepare([{"role": "user", "content": content}], media)
        before = self._render(spoken, generation=False)
        whole = self._render([*spoken, *rendered], generation=True)
        if not whole.startswith(before):
            raise ValueError("the chat template rewrites earlier turns: a dialogue cannot be extended with it")
        tail = before[before.index(_HOLE) + len(_HOLE) :] + whole[len(before) :]
        end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
        if closed:
            if not tail.startswith(end):
                raise ValueError(f"the chat template does not end an assistant turn with {end!r}")
            tail = tail.removeprefix(end)
        return self._encode(tail, [self.vision(r) for r in refs])

    def encode_text(self, text: str) -> list[int]:
        """Plain text as ids, without anything added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def escape(self, text: str) -> str:
        """Text in which the spellings of control tokens are broken by a zero-width space, so that they stay text."""
        return self._controls.sub(lambda m: m.group()[0] + "\u200b" + m.group()[1:], text)

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        names = {t.content for t in self._added.values() if t.special and len(t.content) > 1}
        names |= {self.processor.image_token, self.processor.video_token}
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")

    def _prepare(
        self, messages: Iterable[Mapping[str, Any]], media: Mapping[str, MediaRef]
    ) -> tuple[list[dict[str, Any]], list[MediaRef]]:
        out, refs = [], []
        for message in messages:
            content = message["content"]
            parts: list[dict[str, Any]] = []
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if part["type"] == "text":
                    # joined before escaping: two parts must not spell a control token together
                    before = parts.pop()["text"] if parts and parts[-1]["type"] == "text" else ""
                    parts.append({"type": "text", "text": self.escape(before + part["text"])})
                    continue
                if part["id"] not in media:
                    raise ValueError(f"message names medium {part['id']!r}; there are {', '.join(media) or 'none'}")
                ref = media[part["id"]]
                if ref.kind != part["type"]:
                    raise ValueError(f"medium {ref.id!r} is of kind {ref.kind}, the message says {part['type']}")
                refs.append(ref)
                parts.append({"type": ref.kind})
            # text alone as a string: some templates take nothing else from the system and the assistant (GLM-4.1V)
            plain = len(parts) == 1 and parts[0]["type"] == "text"
            out.append({"role": message["role"], "content": parts[0]["text"] if plain else parts})
        return out, refs

    def _render(self, messages: list[dict[str, Any]], *, generation: bool) -> str:
        return str(self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation))

    def _encode(self, text: str, vision: list[VisionInput]) -> Encoded:
        return Encoded(self.encode_text(families.expand_placeholders(self.processor, text, vision)), vision)

    # --- decoding ---------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int]) -> str:
        """Sampled ids as text; the end of the turn is left out."""
        body = tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens
        return str(self.tokenizer.decode(list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def spans(self, tokens: Sequence[int], syntax: Sequence[str] = ("hermes",)) -> list[Span]:
        """The span of each token of one policy turn. A tag and all that stands between it and its close are one span;
        a span never closed runs to the end. Calls inside thinking count as tool calls.

        syntax: forms of calls, keys of CALL_TAGS."""
        pieces = [self.token_bytes(t) for t in tokens]
        text = b"".join(pieces)
        owner = bytearray(len(text))
        tags = [("<think>", "</think>", Span.THINK), ("<answer>", "</answer>", Span.ANSWER)]
        tags += [(*CALL_TAGS[form], Span.TOOL_CALL) for form in syntax]
        for opening, closing, span in tags:  # later ones win where they nest
            pattern = rb"%b.*?(?:%b|\Z)" % (re.escape(opening).encode(), re.escape(closing).encode())
            for match in re.finditer(pattern, text, re.DOTALL):
                owner[match.start() : match.end()] = bytes([span]) * (match.end() - match.start())
        out: list[Span] = []
        at = 0
        for piece in pieces:
            out.append(Span(owner[at]) if piece and at < len(owner) else (out[-1] if out else Span.OTHER))
            at += len(piece)
        if tokens and tokens[-1] in self.stop_ids:
            out[-1] = Span.OTHER
        return out

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        if token in self._added:
            return str(self._added[token].content).encode()
        piece = self.tokenizer.convert_ids_to_tokens(token) or ""  # ids beyond the vocabulary have no token
        try:
            return bytes(_BYTE_OF[c] for c in piece)
        except KeyError:  # not a byte-level tokenizer
            return str(self.tokenizer.decode([token])).encode()


def pad_rows(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids padded to the longest: tokens and attention, both [N, T]."""
    width = max((len(r) for r in rows), default=0)
    tokens = torch.full((len(rows), width), pad, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    for n, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        tokens[n, where] = torch.tensor(row, dtype=torch.long)
        attention[n, where] = 1
    return tokens, attention


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content)


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character; this maps the characters back."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    shifted = (b for b in range(256) if b not in printable)
    table.update({chr(256 + i): b for i, b in enumerate(shifted)})
    return table


_BYTE_OF = _byte_alphabet()
