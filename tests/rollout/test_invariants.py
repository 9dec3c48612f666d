"""What must hold for every trajectory: all families, several turns with pictures, batches with padding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from tiny_models import CROP, ZOOM, ForcedEngine, Tiny, make_prompt, picture, rescore

from mmrl import families
from mmrl.chat import pad_rows
from mmrl.config import RolloutConfig
from mmrl.rollout import Request, TransformersEngine, rollout
from mmrl.types import Origin, Prompt, Span, Trajectory

CONFIG = RolloutConfig(group=3, max_new_tokens=60, max_turns=3, max_context=1500)


def prompts() -> list[Prompt]:
    """Of unequal length and with none to two pictures."""
    return [
        make_prompt("one", "which colour?", picture(100, 70)),
        make_prompt("two", "which colour is the first? " * 6, picture(64, 64, 1), picture(50, 120, 2)),
        make_prompt("none", "red or blue?"),
        make_prompt("three", "and?", picture(300, 90, 3)),
    ]


def script(tiny: Tiny) -> Callable[[Request, int], str | None]:
    """First turn: two calls, one call, or free; second turn: a crop of the crop, or free."""

    def say(request: Request, continuation: int) -> str | None:
        if tiny.turns(request.tokens) == 1:
            return (f"<think>x</think>{CROP}{ZOOM}", f"<think>y{ZOOM}", None)[continuation]
        return CROP.replace("img_1", "img_2") if len(request.vision) == 2 else None

    return say


@pytest.fixture(scope="module")
def trajectories(tiny: Tiny) -> list[Trajectory]:
    return rollout(ForcedEngine(tiny.model, tiny.chat, script(tiny)), tiny.chat, prompts(), CONFIG, seed=5)


def test_the_scripted_rollouts_are_what_they_should_be(trajectories: list[Trajectory]) -> None:
    assert [(t.group, t.index) for t in trajectories] == [(g, i) for g in range(4) for i in range(3)]
    assert max(len(t.turns) for t in trajectories) == 5
    assert max(len(t.vision) for t in trajectories) >= 4
    assert len({len(t.tokens) for t in trajectories}) > 5


def test_log_probs_equal_one_plain_pass_over_the_whole(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    for t in trajectories:
        again = rescore(tiny, t)
        own = [i for i, o in enumerate(t.origin) if o is Origin.POLICY]
        gap = (again[own] - torch.tensor([t.logp[i] for i in own])).abs().max()
        assert gap < 1e-4
        assert torch.tensor([t.logp[i] for i in own]).max() <= 0


def test_the_test_model_looks_at_its_pictures_and_is_undecided(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    """Else the equalities here would show little."""
    first = trajectories[2]
    sampled = [x for x in first.logp if not math.isnan(x)]
    assert 0.3 < -sum(sampled) / len(sampled) < 6
    first_logp = rescore(tiny, first)
    other = make_prompt("one", "which colour?", picture(100, 70, 77))
    swapped = dataclasses.replace(first, vision=[tiny.chat.vision(other.sample.media[0])])
    own = [i for i, o in enumerate(first.origin) if o is Origin.POLICY]
    assert (rescore(tiny, swapped)[own] - first_logp[own]).abs().max() > 0.01


def test_log_probs_equal_one_padded_batch(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    for left in (False, True):
        tokens, attention = pad_rows([t.tokens for t in trajectories], tiny.chat.pad_id, left=left)
        with torch.no_grad():
            inputs = families.forward_inputs(tiny.model, tokens, attention, [t.vision for t in trajectories])
            logits = tiny.model(**inputs, use_cache=False).logits
        logp = families.mask_banned(logits, tiny.chat.banned_ids).log_softmax(-1)
        logp = logp[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
        for row, mask, t in zip(logp, attention, trajectories, strict=True):
            own = row[-(len(t.tokens) - 1) :] if left else row[: int(mask.sum()) - 1]
            for value, recorded in zip(own.tolist(), t.logp[1:], strict=True):
                assert math.isnan(recorded) or value == pytest.approx(recorded, abs=1e-4)


def test_only_sampled_tokens_are_the_policys(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    for t in trajectories:
        prompt = tiny.chat.encode_prompt(t.prompt.messages, t.media)
        assert t.tokens[: len(prompt.tokens)] == prompt.tokens
        rebuilt = list(prompt.tokens)
        for turn in t.turns:
            part = t.tokens[turn.start : turn.stop]
            assert turn.start == len(rebuilt)
            assert set(t.origin[turn.start : turn.stop]) == {turn.origin}
            if turn.origin is Origin.POLICY:
                assert not set(part) & set(tiny.chat.banned_ids)
                assert tiny.chat.decode(part) == turn.text
                assert t.span[turn.start : turn.stop] == tiny.chat.spans(part)
            else:
                assert set(t.span[turn.start : turn.stop]) == {Span.OTHER}
                assert all(math.isnan(x) for x in t.logp[turn.start : turn.stop])
            rebuilt += part
        assert rebuilt == t.tokens
        assert t.length == sum(u.stop - u.start for u in t.turns if u.origin is Origin.POLICY)
        assert [o is Origin.POLICY for o in t.origin] == [not math.isnan(x) for x in t.logp]
        numbers = [t.turn[u.start] for u in t.turns]
        assert numbers == [i // 2 for i in range(len(t.turns))]
        assert t.turn[: len(prompt.tokens)] == [-1] * len(prompt.tokens)
        families.check_counts(tiny.chat.config, torch.tensor([t.tokens]), [t.vision])


def test_forced_texts_are_the_sampled_tokens(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    first = trajectories[0]
    want = [*tiny.chat.encode_text(f"<think>x</think>{CROP}{ZOOM}"), tiny.chat.end_of_turn]
    assert first.tokens[first.turns[0].start : first.turns[0].stop] == want
    assert [c.name for c in first.turns[0].calls] == ["crop", "zoom"]
    assert first.turns[1].origin is Origin.OBSERVATION
    assert [r.text.split(":")[0] for r in first.turns[0].results] == ["img_2", "img_3"]
    assert list(first.media) == ["img_1", "img_2", "img_3"]


def test_whatever_the_batch_the_numbers_are_the_same(tiny: Tiny, trajectories: list[Trajectory]) -> None:
    """One prompt alone, in another order, in batches of one row, without shared caches: the same rollouts."""

    class Forgetful(ForcedEngine):
        def add(self, request):  # type: ignore[no-untyped-def]
            return super().add(dataclasses.replace(request, state=None))

    say = script(tiny)
    engine = ForcedEngine(tiny.model, tiny.chat, say)
    everything = prompts()
    for run in (
        [rollout(engine, tiny.chat, [p], CONFIG, seed=5) for p in everything],
        [rollout(engine, tiny.chat, everything[::-1], CONFIG, seed=5)],
        [rollout(ForcedEngine(tiny.model, tiny.chat, say, batch_tokens=1), tiny.chat, everything, CONFIG, seed=5)],
        [rollout(Forgetful(tiny.model, tiny.chat, say), tiny.chat, everything, CONFIG, seed=5)],
    ):
        found = {(t.prompt.sample.key, t.index): t for ts in run for t in ts}
        for t in trajectories:
            other = found[(t.prompt.sample.key, t.index)]
            assert other.tokens == t.tokens
            assert other.logp == pytest.approx(t.logp, abs=1e-4, nan_ok=True)
            assert other.stop == t.stop


def test_seeds(tiny: Tiny) -> None:
    engine = TransformersEngine(tiny.model, tiny.chat)
    short = RolloutConfig(group=4, max_new_tokens=12)
    prompt = prompts()[0]

    def texts(seed: int, *which: Prompt) -> list[list[int]]:
        return [t.tokens for t in rollout(engine, tiny.chat, which, short, seed=seed)]

    assert texts(1, prompt) == texts(1, prompt)
    assert texts(1, prompt) != texts(2, prompt)
    assert len({tuple(t) for t in texts(1, prompt)}) > 1
    twice = texts(1, prompt, prompt)  # the same prompt twice in a batch: other draws
    assert twice[:4] == texts(1, prompt) != twice[4:]
    fewer = [t.tokens for t in rollout(engine, tiny.chat, [prompt], short, seed=1, group=2)]
    assert fewer == texts(1, prompt)[:2]


def test_greedy_equals_generate(tiny: Tiny) -> None:
    """model.generate on each prompt alone, with the banned ids suppressed."""
    engine = TransformersEngine(tiny.model, tiny.chat)
    encoded = [tiny.chat.encode_prompt(p.messages, {m.id: m for m in p.sample.media}) for p in prompts()]
    requests = [Request(e.tokens, e.vision, 1, 0, 25, temperature=0.0) for e in encoded]
    own = [out[0].tokens for out in engine.generate(requests)]
    for e, mine in zip(encoded, own, strict=True):
        tokens = torch.tensor([e.tokens])
        inputs = families.forward_inputs(tiny.model, tokens, torch.ones_like(tokens), [e.vision])
        inputs.pop("position_ids")
        theirs = tiny.model.generate(
            **inputs,
            mm_token_type_ids=families.token_types(tiny.model.config, tokens),
            do_sample=False,
            max_new_tokens=25,
            suppress_tokens=list(tiny.chat.banned_ids),
        )
        assert theirs[0, len(e.tokens) :].tolist() == mine


def test_the_first_token_is_sampled_as_often_as_its_probability(tiny: Tiny) -> None:
    encoded = tiny.chat.encode_prompt(prompts()[0].messages, {m.id: m for m in prompts()[0].sample.media})
    request = Request(encoded.tokens, encoded.vision, 3000, 1, 1)
    (out,) = TransformersEngine(tiny.model, tiny.chat).generate([request])
    probs: dict[int, float] = {}
    counts: dict[int, int] = {}
    for s in out:
        probs[s.tokens[0]] = math.exp(s.logp[0])
        counts[s.tokens[0]] = counts.get(s.tokens[0], 0) + 1
    for token, p in probs.items():
        assert counts[token] / 3000 == pytest.approx(p, abs=5 * math.sqrt(p / 3000) + 1e-3)


def test_tempered_sampling_records_the_untempered_log_prob(tiny: Tiny) -> None:
    prompt = prompts()[0]
    config = RolloutConfig(group=3, max_new_tokens=15, temperature=0.5, top_p=0.9)
    for t in rollout(TransformersEngine(tiny.model, tiny.chat), tiny.chat, [prompt], config, seed=1):
        again = rescore(tiny, t)
        for i, o in enumerate(t.origin):
            assert o is not Origin.POLICY or float(again[i]) == pytest.approx(t.logp[i], abs=1e-4)


def test_the_prompt_is_computed_once_for_its_group(tiny: Tiny) -> None:
    """Vision tower: one call for all prompts. Language model: rows of the prompt pass = prompts, not rollouts."""
    shapes, pictures = [], []
    inner = families.base_model(tiny.model)
    hooks = [
        inner.language_model.layers[0].register_forward_hook(lambda m, a, o: shapes.append(tuple(a[0].shape[:2]))),
        inner.visual.register_forward_pre_hook(lambda m, a, k: pictures.append(1), with_kwargs=True),
    ]
    config = RolloutConfig(group=5, max_new_tokens=4)
    out = rollout(TransformersEngine(tiny.model, tiny.chat), tiny.chat, prompts(), config, seed=1)
    for h in hooks:
        h.remove()
    longest = max(len(t.tokens) - t.length for t in out)
    assert shapes[0] == (4, longest)
    assert all(s[1] == 1 and s[0] <= 20 for s in shapes[1:])
    assert len(shapes) <= 4
    assert len(pictures) == 1


def test_a_later_turn_computes_only_what_is_new(tiny: Tiny) -> None:
    widths: list[int] = []
    hook = (
        families.base_model(tiny.model)
        .language_model.layers[0]
        .register_forward_hook(lambda m, a, o: widths.append(a[0].shape[1]))
    )
    ran = rollout(ForcedEngine(tiny.model, tiny.chat, script(tiny)), tiny.chat, prompts()[:1], CONFIG, seed=5)
    hook.remove()
    prompt = len(ran[0].tokens) - sum(u.stop - u.start for u in ran[0].turns)
    observed = max(u.stop - u.start for t in ran for u in t.turns if u.origin is Origin.OBSERVATION)
    passes = [w for w in widths if w > 1]
    assert passes[0] == prompt
    assert passes[1:]
    assert all(w <= observed + 1 for w in passes[1:])


def test_mode_and_rope_deltas_of_the_model_are_left_alone(tiny: Tiny) -> None:
    inner = families.base_model(tiny.model)
    inner.rope_deltas = torch.tensor([[99]])
    tiny.model.train()
    try:
        config = RolloutConfig(group=2, max_new_tokens=5)
        out = rollout(TransformersEngine(tiny.model, tiny.chat), tiny.chat, prompts()[:1], config, seed=1)
        assert tiny.model.training
        assert inner.rope_deltas.item() == 99
    finally:
        tiny.model.eval()
        inner.rope_deltas = None
    again = rescore(tiny, out[0])
    assert all(
        o is not Origin.POLICY or abs(float(again[i]) - out[0].logp[i]) < 1e-4 for i, o in enumerate(out[0].origin)
    )


def test_a_state_of_another_context_is_refused(tiny: Tiny) -> None:
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: "x")
    encoded = tiny.chat.encode_prompt(prompts()[2].messages, {})
    ((sampled,),) = engine.generate([Request(encoded.tokens, [], 1, 0, 5, keep=True)])
    longer = [*encoded.tokens, *sampled.tokens, *encoded.tokens]
    engine.generate([Request(longer, [], 1, 0, 5, state=sampled.state)])
    with pytest.raises(ValueError, match="do not extend"):
        engine.generate([Request([5, *longer], [], 1, 0, 5, state=sampled.state)])


def test_engine_without_work(tiny: Tiny) -> None:
    assert TransformersEngine(tiny.model, tiny.chat).generate([]) == []
    assert rollout(TransformersEngine(tiny.model, tiny.chat), tiny.chat, [], CONFIG, seed=1) == []


def test_limits_of_one_row_do_not_cut_another(tiny: Tiny) -> None:
    engine = ForcedEngine(tiny.model, tiny.chat, lambda r, j: "which colour is it? " * 20)
    encoded = tiny.chat.encode_prompt(prompts()[2].messages, {})
    sizes = (3, 17, 1, 8)
    out = engine.generate([Request(encoded.tokens, [], 2, 0, n) for n in sizes])
    assert [[len(s.tokens) for s in group] for group in out] == [[n, n] for n in sizes]
    assert not any(s.stopped for group in out for s in group)
