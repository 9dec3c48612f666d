"""Observations in the room that is left: smaller, or a notice, and always told."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import CROP, ForcedEngine, Tiny, make_prompt, picture, rescore

from mmrl import registry
from mmrl.chat import Chat
from mmrl.config import RolloutConfig
from mmrl.media import image_ref
from mmrl.registry import register
from mmrl.rollout import ToolContext, observation, rollout, schema
from mmrl.rollout.budget import fit_observation
from mmrl.types import FaultKind, MediaRef, Origin, StopReason, ToolResult

BIG = 10**6


@pytest.fixture
def tiny(tiny: Tiny) -> Tiny:
    """The same model, which sees pictures of up to a megapixel as they are."""
    return Tiny(tiny.family, tiny.model, Chat(copy.deepcopy(tiny.chat.processor), tiny.chat.config, max_pixels=10**6))


def results(*sizes: tuple[int, int], text: str = "seen") -> list[ToolResult]:
    refs = [image_ref(f"img_{n + 2}", picture(*size, n)) for n, size in enumerate(sizes)]
    return [ToolResult(f"{ref.id} {text}", (ref,)) for ref in refs] or [ToolResult(text)]


def media_of(found: list[ToolResult]) -> dict[str, MediaRef]:
    return {m.id: m for r in found for m in r.media}


def tokens_of(tiny: Tiny, found: list[ToolResult]) -> int:
    return len(tiny.chat.encode_observation(observation(found), media_of(found), closed=True).tokens)


def test_what_fits_stays_as_it_is(tiny: Tiny) -> None:
    found = results((200, 150), (60, 60))
    need = tokens_of(tiny, found)
    fitted = fit_observation(tiny.chat, found, media_of(found), need)
    assert fitted is not None
    assert fitted.notes == ()
    assert len(fitted.encoded.tokens) == need
    assert [r.media for r in fitted.results] == [r.media for r in found]
    counts = [v.n_tokens for v in fitted.encoded.vision]
    assert [r.tokens for r in fitted.results] == [
        n + len(tiny.chat.encode_text(r.text)) for n, r in zip(counts, found, strict=True)
    ]


def test_pictures_are_made_smaller_first(tiny: Tiny) -> None:
    found = results((448, 224), (60, 60))
    media = media_of(found)
    need = tokens_of(tiny, found)
    fitted = fit_observation(tiny.chat, found, media, need - 1)
    assert fitted is not None
    assert len(fitted.encoded.tokens) < need
    assert fitted.notes == ("img_2 shown at 224x112",)  # the small one stays
    assert (media["img_2"].width, media["img_2"].height, media["img_3"].width) == (224, 112, 60)
    assert fitted.results[0].media == (media["img_2"],)
    again = fit_observation(tiny.chat, found, media_of(found), len(fitted.encoded.tokens) - 1)
    assert again is not None
    assert again.notes[:2] == ("img_2 shown at 224x112", "img_2 shown at 112x56")


def test_a_smaller_picture_is_still_a_view_of_its_original(tiny: Tiny) -> None:
    whole = image_ref("img_1", picture(800, 400))
    view = image_ref("img_2", picture(448, 224), parent="img_1", region=(0, 0, 448, 224))
    media = {"img_1": whole, "img_2": view}
    found = [ToolResult("img_2", (view,))]
    fitted = fit_observation(tiny.chat, found, media, tokens_of(tiny, found) - 1)
    assert fitted is not None
    small = media["img_2"]
    assert (small.width, small.parent, small.region) == (224, "img_1", (0, 0, 448, 224))


def test_half_of_what_the_model_sees(tiny: Tiny) -> None:
    """A picture that is scaled down for the model anyway costs no less at half of its own sides."""
    chat = Chat(copy.deepcopy(tiny.chat.processor), tiny.chat.config, max_pixels=224 * 224)
    found = results((1000, 1000))
    media = media_of(found)
    need = len(chat.encode_observation(observation(found), media, closed=True).tokens)
    fitted = fit_observation(chat, found, media, need - 1)
    assert fitted is not None
    assert fitted.notes == ("img_2 shown at 112x112",)


def test_then_a_notice_takes_the_place_of_a_picture(tiny: Tiny) -> None:
    found = results((64, 64), (70, 70))  # too small to be made smaller
    media = media_of(found)
    fitted = fit_observation(tiny.chat, found, media, tokens_of(tiny, found) - 1)
    assert fitted is None or fitted.notes  # the notice may be longer than a tiny picture
    found = results((111, 2000), (111, 2100))
    media = media_of(found)
    fitted = fit_observation(tiny.chat, found, media, tokens_of(tiny, results((111, 2000))) + 60)
    assert fitted is not None
    assert fitted.notes == ("img_3 left out",)
    assert list(media) == ["img_2"]
    assert fitted.results[1].text == "img_3 seen [img_3 is not shown: no room is left for it]"
    assert [len(r.media) for r in fitted.results] == [1, 0]
    assert len(fitted.encoded.vision) == 1


def test_then_texts_are_cut(tiny: Tiny) -> None:
    found = results(text="red blue " * 1000)
    fitted = fit_observation(tiny.chat, found, {}, 900)
    assert fitted is not None
    assert len(fitted.encoded.tokens) <= 900
    assert "characters, no room is left]" in fitted.results[0].text
    assert fitted.notes[-1].startswith("text cut to")
    assert fit_observation(tiny.chat, found, {}, 5) is None


@given(
    st.lists(st.tuples(st.integers(30, 500), st.integers(30, 500)), max_size=3),
    st.integers(0, 3000),
    st.integers(1, 900),
)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
def test_never_more_than_the_room_and_never_less_than_told(
    tiny: Tiny, sizes: list[tuple[int, int]], length: int, room: int
) -> None:
    found = results(*sizes, text="x" * length)
    media = media_of(found)
    fitted = fit_observation(tiny.chat, found, media, room)
    if fitted is None:
        return
    assert len(fitted.encoded.tokens) <= room
    assert len(fitted.results) == len(found)
    kept = [m for r in fitted.results for m in r.media]
    assert {m.id: m for m in kept} == media
    assert len(fitted.encoded.vision) == len(kept)
    text = tiny.chat.decode(fitted.encoded.tokens)
    for before, after in zip(found, fitted.results, strict=True):
        for ref in before.media:
            if ref.id not in media:
                assert f"[{ref.id} is not shown" in after.text or "no room is left]" in after.text
        if not after.text.startswith(before.text):
            assert f"of {len(before.text)} characters" in text or "[cut:" in after.text


@pytest.fixture
def big_tool() -> Any:
    """A tool that shows the picture in a large size."""

    @register("tool", "enlarge", schema=schema("x", {}))
    def enlarge(arguments: Any, context: ToolContext) -> ToolResult:
        ref = context.add(picture(448, 448, 7))
        return ToolResult(f"{ref.id} enlarged", (ref,))

    yield "enlarge"
    registry._entries.pop(("tool", "enlarge"))


def test_in_a_dialogue(tiny: Tiny, big_tool: str) -> None:
    call = f"<tool_call>{json.dumps({'name': big_tool, 'arguments': {}})}</tool_call>"

    def play(context: int) -> Any:
        said = iter([call, "<answer>A</answer>"])
        engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
        config = RolloutConfig(group=1, max_turns=2, max_new_tokens=200, max_context=context)
        prompt = make_prompt("k", "which?", picture(60, 60), tools=(big_tool,))
        return rollout(engine, tiny.chat, [prompt], config, seed=0)[0]

    free = play(4000)
    tight = play(len(free.tokens) - 40)
    assert (free.stop, [f.code for f in free.faults]) == (StopReason.FINISHED, [])
    assert (tight.stop, [(f.kind, f.code) for f in tight.faults]) == (
        StopReason.FINISHED,
        [(FaultKind.TASK, "observation_shrunk")],
    )
    assert tight.faults[0].message == "img_2 shown at 224x224"
    assert tight.media["img_2"].width == 224
    assert tight.turns[0].results[0].media == (tight.media["img_2"],)
    assert len(tight.tokens) <= len(free.tokens) - 40
    again = rescore(tiny, tight)
    for place, (logp, origin) in enumerate(zip(tight.logp, tight.origin, strict=True)):
        assert origin is not Origin.POLICY or abs(float(again[place]) - logp) < 1e-4
    assert free.turns[0].results[0].tokens > tight.turns[0].results[0].tokens > 0


def test_a_crop_of_a_picture_that_was_shown_smaller_is_as_sharp_as_ever(tiny: Tiny) -> None:
    """The observation shows the crop at half its size; cropping the crop cuts from the original's pixels."""
    inner = CROP.replace("img_1", "img_2")
    whole = picture(900, 900)

    def play(context: int) -> Any:
        said = iter([CROP, inner, "<answer>A</answer>"])
        engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: next(said))
        config = RolloutConfig(group=1, max_turns=3, max_new_tokens=100, max_context=context)
        return rollout(engine, tiny.chat, [make_prompt("k", "which?", whole)], config, seed=0)[0]

    free = play(BIG)
    room = free.turns[1].stop
    tight = play(room - 20)
    assert [f.code for f in tight.faults if f.code == "observation_shrunk"]
    assert tight.media["img_2"].region == free.media["img_2"].region == (0, 0, 450, 450)
    if "img_3" in tight.media:
        assert tight.media["img_3"].region == free.media["img_3"].region == (0, 0, 225, 225)
