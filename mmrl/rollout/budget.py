"""Observations within the room that is left: what does not fit is made smaller and says so, never lost in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmrl.chat import Chat, Encoded
from mmrl.media import MediaError, image_ref, load_image
from mmrl.rollout.tools import clean, observation
from mmrl.types import Fault, FaultKind, MediaRef, ToolResult

LEAST = 56  # pixels of the shorter side below which a picture is not made smaller
CUTS = (2000, 400, 80)  # characters of each text


@dataclass(frozen=True)
class Fitted:
    """An observation that fits, the results as they stand in it, and what was done to them."""

    encoded: Encoded
    results: tuple[ToolResult, ...]
    notes: tuple[str, ...] = ()


def fit_observation(
    chat: Chat, results: Sequence[ToolResult], media: dict[str, MediaRef], room: int, *, closed: bool = True
) -> Fitted | None:
    """The observation of `results` in at most `room` tokens, None where not even notices fit.

    In turn: as it is; pictures at half and at a quarter of the sides that the model sees; media replaced by a notice,
    the last first; texts cut. `media` are the media of the dialogue: what is changed or left out is changed there too.
    closed: as in `Chat.encode_observation`.
    """

    def encode(results: Sequence[ToolResult]) -> Encoded:
        return chat.encode_observation(observation(results), media, closed=closed)

    results = [_readable(chat, r, media) for r in results]
    notes: list[str] = []
    encoded = encode(results)
    if len(encoded.tokens) <= room:
        return _fitted(chat, results, encoded, notes)
    for _ in range(2):
        results = _map_media(results, lambda ref: _half(chat, ref, media, notes))
        encoded = encode(results)
        if len(encoded.tokens) <= room:
            return _fitted(chat, results, encoded, notes)
    for ref in reversed([ref for r in results for ref in r.media]):
        results = [_without(r, ref, media, notes, "no room is left for it") for r in results]
        encoded = encode(results)
        if len(encoded.tokens) <= room:
            return _fitted(chat, results, encoded, notes)
    for most in CUTS:
        results = [_cut(r, most, notes) for r in results]
        encoded = encode(results)
        if len(encoded.tokens) <= room:
            return _fitted(chat, results, encoded, notes)
    return None


def _fitted(chat: Chat, results: Sequence[ToolResult], encoded: Encoded, notes: list[str]) -> Fitted:
    """Each result with the tokens of its text and media."""
    pads = iter(encoded.vision)
    out = []
    for result in results:
        count = len(chat.encode_text(chat.escape(clean(result.text))))
        count += sum(next(pads).n_tokens for _ in result.media)
        out.append(replace(result, tokens=count))
    return Fitted(encoded, tuple(out), tuple(notes))


def _readable(chat: Chat, result: ToolResult, media: dict[str, MediaRef]) -> ToolResult:
    """The result without media that do not decode: those become a fault of the tool."""
    for ref in result.media:
        try:
            chat.vision(ref)
        except MediaError as error:
            result = _without(result, ref, media, [], f"it does not decode: {error.code}")
            result = replace(result, fault=result.fault or Fault(FaultKind.TOOL, "bad_media", f"{ref.id}: {error}"))
    return result


def _map_media(results: Sequence[ToolResult], change: Callable[[MediaRef], MediaRef]) -> list[ToolResult]:
    return [replace(r, media=tuple(change(ref) for ref in r.media)) for r in results]


def _half(chat: Chat, ref: MediaRef, media: dict[str, MediaRef], notes: list[str]) -> MediaRef:
    """A picture at half of the sides that the model sees, which may be less than its own already. It stays a view of
    its original, so that a crop of it is as sharp as before."""
    if ref.kind != "image":
        return ref
    width, height = (
        min(own, seen) // 2 for own, seen in zip((ref.width, ref.height), chat.vision(ref).seen, strict=True)
    )
    if min(width, height) < LEAST:
        return ref
    small = load_image(ref).resize((width, height))
    new = image_ref(ref.id, small, parent=ref.parent, region=ref.region)
    notes.append(f"{ref.id} shown at {new.width}x{new.height}")
    media[ref.id] = new
    return new


def _without(
    result: ToolResult, ref: MediaRef, media: dict[str, MediaRef], notes: list[str], reason: str
) -> ToolResult:
    if all(r.id != ref.id for r in result.media):
        return result
    media.pop(ref.id, None)
    notes.append(f"{ref.id} left out")
    rest = tuple(r for r in result.media if r.id != ref.id)
    return replace(result, media=rest, text=f"{result.text} [{ref.id} is not shown: {reason}]")


def _cut(result: ToolResult, most: int, notes: list[str]) -> ToolResult:
    if len(result.text) <= most:
        return result
    notes.append(f"text cut to {most} characters")
    return replace(result, text=f"{result.text[:most]} [cut: {most} of {len(result.text)} characters, no room is left]")
