"""The engine that runs vLLM in this process, on the real vLLM for CPUs, with tiny models of both families."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from media.clips import BIKES
from tiny_models import CROP, ForcedEngine, Tiny, build, make_prompt, picture, rescore
from vllm_lent import NEAR, OPTIONS, Garage, Lent, Spelled, one_garage, watched

from mmrl.config import ConfigError, LoraConfig, RolloutConfig
from mmrl.media import file_ref, image_ref
from mmrl.policy.load import add_lora
from mmrl.rollout import rollout, vllm_process
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.transformers_engine import TransformersEngine
from mmrl.rollout.vllm_engine import VllmEngine
from mmrl.rollout.vllm_inputs import content_name
from mmrl.types import StopReason, Trajectory

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.xdist_group("vllm"),
]
ANSWER = "<think>x</think><answer>A</answer>"
BLOCK = 32  # tokens


@pytest.fixture(scope="module")
def garage() -> Iterator[Garage]:
    with one_garage() as out:
        yield out


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lent(garage: Garage, family: str) -> Lent:
    return garage.get(family)


@pytest.fixture
def first(garage: Garage) -> Lent:
    """For what does not depend on the family."""
    return garage.lent or garage.get("qwen2_5_vl")


def ask(tiny: Tiny, text: str, *pictures: Any, **options: Any) -> Request:
    return told(tiny, [*(image_ref(f"img_{i + 1}", p) for i, p in enumerate(pictures))], text, **options)


def told(tiny: Tiny, media: list[Any], text: str, **options: Any) -> Request:
    parts = [*({"type": m.kind, "id": m.id} for m in media), {"type": "text", "text": text}]
    encoded = tiny.chat.encode_prompt([{"role": "user", "content": parts}], {m.id: m for m in media})
    return Request(encoded.tokens, encoded.vision, **{"n": 1, "seed": 0, "max_new_tokens": 24, **options})


def greedy(tiny: Tiny, *args: Any, **options: Any) -> Request:
    return ask(tiny, *args, **{"temperature": 0.0, **options})


def flat(rows: list[list[Sampled]]) -> list[Sampled]:
    return list(itertools.chain.from_iterable(rows))


def assert_same(found: list[list[Sampled]], wanted: list[list[Sampled]]) -> None:
    for own, right in zip(flat(found), flat(wanted), strict=True):
        assert (own.tokens, own.stopped) == (right.tokens, right.stopped)
        assert own.logp == pytest.approx(right.logp, abs=NEAR)


def assert_scored(tiny: Tiny, request: Request, sampled: Sampled) -> None:
    """The log-probs are those of one plain pass of the model over context and continuation."""
    whole = SimpleNamespace(tokens=[*request.tokens, *sampled.tokens], vision=request.vision)
    right = rescore(tiny, whole)[len(request.tokens) :]
    assert sampled.logp == pytest.approx(right.tolist(), abs=NEAR)


def plain(tiny: Tiny, requests: list[Request], model: Any = None) -> list[list[Sampled]]:
    return TransformersEngine(tiny.model if model is None else model, tiny.chat).generate(requests)


# --- the same numbers -----------------------------------------------------------------------------------------------


def test_greedy_tokens_and_log_probs_are_those_of_the_transformers_engine(lent: Lent) -> None:
    tiny = lent.tiny
    requests = [
        greedy(tiny, "which colour?", picture(80, 60, 1)),
        greedy(tiny, "which colour?", picture(80, 60, 2)),  # the same tokens, another picture
        greedy(tiny, "red or blue?", picture(64, 64, 3), picture(40, 90, 4), picture(64, 64, 3)),
        greedy(tiny, "and without?"),
    ]
    wanted = plain(tiny, requests)
    assert wanted[0][0].tokens != wanted[1][0].tokens  # else pictures would not matter
    assert_same(lent.engine.generate(requests), wanted)
    assert_same(lent.engine.generate(requests), wanted)  # now with full caches


def test_pictures_and_clips_in_one_prompt(lent: Lent) -> None:
    tiny = lent.tiny
    clip = file_ref("vid_1", BIKES, "video")
    request = told(
        tiny, [image_ref("img_1", picture(60, 80)), clip, image_ref("img_2", picture(70, 70))], "then?", temperature=0.0
    )
    assert [v.kind for v in request.vision] == ["image", "video", "image"]
    assert_same(lent.engine.generate([request]), plain(tiny, [request]))


@pytest.mark.parametrize("family", ["qwen2_5_vl"], indirect=True)  # the other one is told times in its text
def test_seconds_of_a_clip_count_although_its_pixels_are_the_same(lent: Lent) -> None:
    request = told(lent.tiny, [file_ref("vid_1", BIKES, "video")], "then?", temperature=0.0)
    (clip,) = request.vision
    assert clip.seconds_per_grid is not None
    slower = replace(request, vision=[replace(clip, seconds_per_grid=9 * clip.seconds_per_grid)])
    wanted = plain(lent.tiny, [request, slower])
    assert wanted[0][0].logp != pytest.approx(wanted[1][0].logp, abs=10 * NEAR)
    assert_same(lent.engine.generate([request, slower]), wanted)


def test_names_of_media_are_those_of_what_they_hold(first: Lent) -> None:
    (one,) = ask(first.tiny, "x", picture(80, 60, 1)).vision
    t, h, w = one.grid
    assert content_name(replace(one, patches=one.patches.clone())) == content_name(one)
    others = [
        replace(one, patches=one.patches + 1e-6),
        replace(one, grid=(t, w, h)),
        replace(one, kind="video"),
        replace(one, seconds_per_grid=0.5),
    ]
    assert len({content_name(v) for v in (one, *others)}) == len(others) + (h != w)


# --- sampling -------------------------------------------------------------------------------------------------------


def test_samples_are_scored_as_the_trainer_scores_them_whatever_the_temperature(lent: Lent) -> None:
    tiny = lent.tiny
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.9), (1.6, 1.0)):
        request = ask(tiny, "which?", picture(80, 60, 1), n=4, temperature=temperature, top_p=top_p)
        (samples,) = lent.engine.generate([request])
        assert len({tuple(s.tokens) for s in samples}) == 4
        for sampled in samples:
            assert_scored(tiny, request, sampled)
            assert not set(sampled.tokens) & set(tiny.chat.banned_ids)
            assert (sampled.tokens[-1] in tiny.chat.stop_ids) == sampled.stopped
            assert sampled.stopped or len(sampled.tokens) == request.max_new_tokens


def test_a_continuation_depends_on_seed_and_number_alone(lent: Lent) -> None:
    request = ask(lent.tiny, "which?", picture(80, 60, 1), n=4, seed=5)
    (alone,) = lent.engine.generate([request])
    company = [ask(lent.tiny, "red or blue?", n=3, seed=9), greedy(lent.tiny, "and?"), request]
    assert [s.tokens for s in lent.engine.generate(company)[2]] == [s.tokens for s in alone]
    (fewer,) = lent.engine.generate([replace(request, n=2)])
    assert [s.tokens for s in fewer] == [s.tokens for s in alone[:2]]
    (other,) = lent.engine.generate([replace(request, seed=6)])
    assert not {tuple(s.tokens) for s in other} & {tuple(s.tokens) for s in alone}


def test_draws_are_the_same_where_contexts_are_computed_in_parts(first: Lent) -> None:
    texts = [f"{n} " + "which colour? " * 300 for n in range(8)]  # more tokens than vLLM takes in one pass
    requests = [ask(first.tiny, t, n=1, seed=n, max_new_tokens=20) for n, t in enumerate(texts)]
    together = flat(first.engine.generate(requests))
    first.engine.sync()
    alone = flat([first.engine.generate([r])[0] for r in requests])
    assert [s.tokens for s in together] == [s.tokens for s in alone]
    assert (
        sum(len(r.tokens) for r in requests) > 2 * first.engine.llm.vllm_config.scheduler_config.max_num_batched_tokens
    )


def test_a_banned_id_is_not_sampled_where_the_model_wants_nothing_else(lent: Lent) -> None:
    tiny = lent.tiny
    request = greedy(tiny, "which?", picture(80, 60, 1), max_new_tokens=4)
    with changed(tiny.model) as model:
        table = model.get_input_embeddings().weight
        favourite = plain(tiny, [request])[0][0].tokens[0]
        for banned in tiny.chat.banned_ids:
            table[banned] = 3 * table[favourite]
        samples = lent.engine.generate([request, replace(request, temperature=1.0, n=3)])
        assert_same(samples[:1], plain(tiny, [request]))
        for sampled in flat(samples):
            assert not set(sampled.tokens) & set(tiny.chat.banned_ids)
            assert_scored(tiny, request, sampled)


def test_requests_that_cannot_be(first: Lent) -> None:
    engine, request = first.engine, ask(first.tiny, "which?", picture(80, 60, 1))
    with pytest.raises(ValueError, match=r"over max_len 4096: set rollout\.engine\.params\.max_len"):
        engine.generate([replace(request, max_new_tokens=4090)])
    with pytest.raises(ValueError, match="0 new tokens"):
        engine.add(replace(request, max_new_tokens=0))
    with pytest.raises(ValueError, match="placeholder tokens for 0 vision features"):
        engine.add(replace(request, vision=[]))
    with pytest.raises(ValueError, match="does not sample like this: top_p"):
        engine.add(replace(request, top_p=7.0))
    engine.max_medium, limit = 1, engine.max_medium
    try:
        with pytest.raises(ValueError, match="over the 1 that vLLM takes at once"):
            engine.add(request)
    finally:
        engine.max_medium = limit
    assert engine.generate([replace(request, n=0)]) == [[]]
    assert engine.step() == []


def test_requests_join_while_others_are_under_way(first: Lent) -> None:
    tiny, engine = first.tiny, first.engine
    long = greedy(tiny, "which colour?", picture(80, 60, 1), max_new_tokens=60)
    short, between = greedy(tiny, "red?", n=2, max_new_tokens=3), greedy(tiny, "blue?", max_new_tokens=5)
    wanted = plain(tiny, [long, short, between])
    slow = engine.add(long)
    engine.step()
    quick = engine.add(short)
    assert_same(engine.generate([between]), wanted[2:])  # what was added stays
    with pytest.raises(RuntimeError, match="requests are under way"):
        engine.sync()
    done: dict[int, list[Sampled]] = {}
    order = []
    while len(done) < 2:
        for ticket, samples in engine.step():
            done[ticket] = samples
            order.append(ticket)
    assert order == [quick, slow]
    assert_same([done[slow], done[quick]], wanted[:2])


# --- shared work ----------------------------------------------------------------------------------------------------


def test_samples_share_their_beginning_and_a_turn_goes_on_from_the_last(lent: Lent) -> None:
    tiny, engine = lent.tiny, lent.engine
    request = ask(tiny, "which of these is it, red or blue? " * 6, picture(80, 60, 1), n=4, max_new_tokens=40)
    length = len(request.tokens)
    assert length > 2 * BLOCK
    engine.sync()
    with watched(engine) as work:
        (samples,) = engine.generate([request])
    sampled = sum(len(s.tokens) - 1 for s in samples)
    assert work.media == 1
    assert length <= work.tokens - sampled <= length + 3 * BLOCK
    longer = [*request.tokens, *samples[0].tokens, *tiny.chat.encode_text("and then?")]
    with watched(engine) as work:
        engine.generate([replace(request, tokens=longer, n=1, max_new_tokens=1)])
    assert work.media == 0
    assert work.tokens <= len(longer) - (length + len(samples[0].tokens) - 1) + BLOCK


# --- new weights ----------------------------------------------------------------------------------------------------


@contextmanager
def changed(model: Any) -> Iterator[Any]:
    """A model whose weights may be changed for a while."""
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        yield model
    model.load_state_dict(before)


def test_new_weights_speak_at_once_and_nothing_computed_before_stays(lent: Lent) -> None:
    tiny, engine = lent.tiny, lent.engine
    request = greedy(tiny, "which colour?", picture(80, 60, 1))
    before = engine.generate([request])
    with changed(tiny.model) as model:
        for part in ("language_model.layers", "visual.merger", "embed_tokens"):
            for name, weight in model.named_parameters():
                if part in name and weight.ndim == 2:
                    weight.mul_(1.3)
            with watched(engine) as work:
                found = engine.generate([request])
            assert work.media == 1
            assert work.tokens >= len(request.tokens)
            assert_same(found, plain(tiny, [request]))
            assert found[0][0].logp != pytest.approx(before[0][0].logp, abs=10 * NEAR)
    assert_same(engine.generate([request]), before)


def test_weights_changed_behind_torch_need_a_sync(first: Lent) -> None:
    tiny, engine = first.tiny, first.engine
    request = greedy(tiny, "which colour?")
    before = engine.generate([request])
    norm = tiny.model.model.language_model.norm.weight
    norm.data.mul_(0.5)  # nothing tells that it was changed
    try:
        assert_same(engine.generate([request]), before)
        engine.sync()
        wanted = plain(tiny, [request])
        assert wanted[0][0].logp != pytest.approx(before[0][0].logp, abs=10 * NEAR)
        assert_same(engine.generate([request]), wanted)
    finally:
        norm.data.mul_(2)
        engine.sync()
    assert_same(engine.generate([request]), before)


def test_a_stop_id_is_the_last_token_and_has_a_log_prob(lent: Lent) -> None:
    tiny = lent.tiny
    request = greedy(tiny, "which?", picture(80, 60, 1))
    with changed(tiny.model) as model:
        table = model.get_input_embeddings().weight
        table[tiny.chat.end_of_turn] = 2 * table[plain(tiny, [request])[0][0].tokens[0]]
        (sampled,) = lent.engine.generate([request])[0]
        assert (sampled.tokens, sampled.stopped) == ([tiny.chat.end_of_turn], True)
        assert_scored(tiny, request, sampled)


# --- rollouts -------------------------------------------------------------------------------------------------------


def test_a_tool_in_two_turns_gives_the_trajectories_of_the_transformers_engine(lent: Lent) -> None:
    tiny, engine = lent.tiny, lent.engine
    config = RolloutConfig(group=2, max_new_tokens=120, max_turns=3, max_context=1000)
    prompts = [make_prompt("a", "which?", picture(120, 90)), make_prompt("b", "what?", picture(60, 60, 1))]
    forced = ForcedEngine(tiny.model, tiny.chat, lambda r, j: CROP if len(r.vision) == 1 else ANSWER)
    wanted = rollout(forced, tiny.chat, prompts, config, seed=1)

    def script(context: list[int]) -> list[int]:
        seen = context.count(tiny.chat.config.vision_start_token_id)
        return forced._spell(CROP if seen == 1 else ANSWER)

    with Spelled(engine, script).at_work():
        found = rollout(engine, tiny.chat, prompts, config, seed=1)
    assert len(found) == 4
    for own, right in zip(found, wanted, strict=True):
        assert own.stop is StopReason.FINISHED
        assert [t.origin for t in own.turns] == [t.origin for t in right.turns]
        assert len(own.turns) == 3
        for part in ("tokens", "origin", "span", "turn", "faults"):
            assert getattr(own, part) == getattr(right, part)
        assert [v.grid for v in own.vision] == [v.grid for v in right.vision]
        assert len(own.vision) == 2
        assert own.logp == pytest.approx(right.logp, abs=NEAR, nan_ok=True)
        assert_trained(tiny, own)


def test_free_rollouts_are_scored_alike_by_the_model_itself(lent: Lent) -> None:
    tiny = lent.tiny
    prompts = [make_prompt("a", "which colour?", picture(80, 60, 1)), make_prompt("b", "red?", picture(64, 64, 2))]
    config = RolloutConfig(group=3, max_new_tokens=16, max_context=1000)
    found = rollout(lent.engine, tiny.chat, prompts, config, seed=3)
    assert len({tuple(t.tokens) for t in found}) == 6
    for trajectory in found:
        assert_trained(tiny, trajectory)
    again = rollout(lent.engine, tiny.chat, prompts[1:], config, seed=3)
    assert [t.tokens for t in again] == [t.tokens for t in found[3:]]


def assert_trained(tiny: Tiny, trajectory: Trajectory) -> None:
    own = torch.tensor(trajectory.logp)
    sampled = ~own.isnan()
    assert int(sampled.sum()) == trajectory.length > 0
    torch.testing.assert_close(own[sampled], rescore(tiny, trajectory)[sampled], atol=NEAR, rtol=0)


# --- a guest in the process -----------------------------------------------------------------------------------------


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("the chip caught fire")


@pytest.mark.parametrize("where", ["", "visual"])
def test_a_step_that_breaks_leaves_no_trace(first: Lent, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, engine = first.tiny, first.engine
    request = greedy(tiny, "which of these colours is it? " * 6, picture(90, 60, 7), n=2)
    wanted = plain(tiny, [request])
    engine.sync()  # nothing is in its caches
    with monkeypatch.context() as patch:
        engine.llm.apply_model(lambda model: patch.setattr(model.get_submodule(where), "forward", broken))
        engine.add(request)
        with pytest.raises(RuntimeError, match="caught fire"):
            engine.generate([greedy(tiny, "and?"), request])
    assert engine.step() == []
    assert_same(engine.generate([request]), wanted)


def test_the_process_keeps_its_random_numbers_threads_and_environment(first: Lent) -> None:
    threads, torch_state = torch.get_num_threads(), torch.get_rng_state()
    first.engine.generate([ask(first.tiny, "which?", picture(80, 60, 1), n=2)])
    first.engine.sync()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.get_num_threads() == threads
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS"} & set(os.environ)


def test_vllm_keeps_the_number_of_threads_that_it_began_with(first: Lent) -> None:
    """With another number its kernels for CPUs are wrong by 1 and more in log-probs (measured with 2, then 1)."""
    began, seen = vllm_process._threads, []
    assert began == torch.get_num_threads() == 1
    request = greedy(first.tiny, "which?")

    def counted(*args: Any, **kwargs: Any) -> None:
        seen.append(torch.get_num_threads())

    hooks: list[Any] = []
    first.engine.llm.apply_model(lambda model: hooks.append(model.register_forward_pre_hook(counted)))
    torch.set_num_threads(2)
    try:
        assert_same(first.engine.generate([request]), plain(first.tiny, [request]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(began)
        hooks[0].remove()
    assert set(seen) == {1}


def test_it_runs_only_once(first: Lent) -> None:
    with pytest.raises(RuntimeError, match="close the other engine first"):
        VllmEngine(first.tiny.model, first.tiny.chat, **OPTIONS)
    request = greedy(first.tiny, "which?")
    assert_same(first.engine.generate([request]), plain(first.tiny, [request]))


def test_what_is_broken_for_good_is_closed(garage: Garage, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = garage.lent or garage.get("qwen2_5_vl")
    for name in ("step", "abort_request"):
        monkeypatch.setattr(lent.engine.llm, name, broken)
    with pytest.raises(RuntimeError, match="caught fire"):
        lent.engine.generate([greedy(lent.tiny, "and?")])
    with pytest.raises(RuntimeError, match="closed"):
        lent.engine.generate([greedy(lent.tiny, "and?")])
    assert not Path(lent.engine.folder).exists()
    garage.lent = None


def test_adapters_are_merged_and_the_process_group_of_the_trainer_outlives_the_engine(
    garage: Garage, tmp_path: Path
) -> None:
    garage.close()
    assert not dist.is_initialized()
    tiny = build("qwen2_5_vl")
    request = greedy(tiny, "which colour?", picture(80, 60, 1))
    bare = plain(tiny, [request])
    model = add_lora(tiny.model, LoraConfig(rank=4, alpha=16, targets=["q_proj", "v_proj", "down_proj"]))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        engine = VllmEngine(model, tiny.chat, **OPTIONS)
        assert_same(engine.generate([request]), bare)  # fresh adapters do nothing
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".lora_B." in name:
                    weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
        adapted = plain(tiny, [request], model)
        assert adapted[0][0].logp != pytest.approx(bare[0][0].logp, abs=10 * NEAR)
        assert_same(engine.generate([request]), adapted)
        folder = Path(engine.folder)
        assert folder.exists()
        engine.sleep()  # nothing on a CPU
        assert_same(engine.generate([request]), adapted)
        engine.close()
        engine.close()
        assert not folder.exists()
        with pytest.raises(RuntimeError, match="closed"):
            engine.generate([request])
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == 1
    finally:
        dist.destroy_process_group()


def test_where_it_cannot_start_nothing_is_left(garage: Garage, tmp_path: Path, monkeypatch: Any) -> None:
    garage.close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tiny = build("qwen2_5_vl")
    with pytest.raises(ValueError):
        VllmEngine(tiny.model, tiny.chat, max_len=1024, kv_cache=1e-5)  # not even one context
    assert list(tmp_path.iterdir()) == []
    assert not dist.is_initialized()


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = build("qwen2_5_vl")
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", None)
    with pytest.raises(ConfigError, match=r"pip install 'mmrl\[vllm\]'"):
        VllmEngine(tiny.model, tiny.chat)
