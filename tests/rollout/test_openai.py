"""The engine for servers, against one that misbehaves by script: what is retried, refused, kept and resumed."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import math
import multiprocessing
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import CROP, Tiny, build, make_prompt, picture

from mmrl.chat import Chat
from mmrl.config import ConfigError, RolloutConfig
from mmrl.families import video_input
from mmrl.media import image_ref
from mmrl.rollout import rollout
from mmrl.rollout.engine import Request, Sampled, make_engine
from mmrl.rollout.openai_engine import OpenAIEngine
from mmrl.rollout.openai_messages import messages_of
from mmrl.rollout.openai_server import Answers, Patience, Server, ServerError
from mmrl.rollout.parsing import parse_turn
from mmrl.rollout.tools import observation
from mmrl.types import FaultKind, Origin, StopReason, ToolResult
from mmrl_eval import RunError
from mmrl_eval.run import EvalConfig, evaluate

CHAT = "/v1/chat/completions"
RENDER = "/v1/chat/completions/render"
GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
Reply = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Misbehaving:
    """A server whose next answers go by `script`, one entry for each request; then by `replies[path]`.

    Entries: drop, stall, truncate, garble, empty, ok, or (status, headers). A path without a reply is 404.
    """

    replies: dict[str, Reply]
    script: deque[Any] = field(default_factory=deque)
    seen: list[tuple[str, dict[str, Any], float, dict[str, str]]] = field(default_factory=list)
    inside: int = 0
    most: int = 0
    gate: Callable[[dict[str, Any]], None] = lambda body: None
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def bodies(self, path: str = CHAT) -> list[dict[str, Any]]:
        return [body for at, body, _, _ in self.seen if at == path]


def chat_reply(text: str = "", reason: str = "stop", **message: Any) -> Reply:
    """An answer of the chat interface: `text`, or one that names the seed."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        content = text or f"seed {body['seed']}"
        return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}]}

    return reply


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    state = Misbehaving({CHAT: chat_reply()})

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with state.lock:
                state.seen.append((self.path, body, time.monotonic(), {k.lower(): v for k, v in self.headers.items()}))
                todo = state.script.popleft() if state.script else "ok"
                state.inside += 1
                state.most = max(state.most, state.inside)
            try:
                state.gate(body)
                self._answer(todo, body)
            finally:
                with state.lock:
                    state.inside -= 1

        def _answer(self, todo: Any, body: dict[str, Any]) -> None:
            status, headers = (200, {}) if isinstance(todo, str) else todo
            reply = state.replies.get(self.path)
            if status != 200 or reply is None:
                status = status if status != 200 else 404
                data = json.dumps({"error": {"message": f"said with {status}"}}).encode()
            else:
                data = json.dumps(reply(body)).encode()
            length = len(data)
            if todo == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if todo == "stall":
                time.sleep(0.2)
            if todo == "truncate":
                data, self.close_connection = data[: length // 2], True
            if todo == "garble":
                data = data[: length // 2]
                length = len(data)
            if todo == "empty":
                data = b'{"choices": []}'
                length = len(data)
            try:
                self.send_response(status)
                for name, value in {"content-length": str(length), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # the client went away

    http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield state
    http.shutdown()
    http.server_close()


@pytest.fixture(scope="module")
def plain() -> Tiny:
    return build("qwen2_5_vl")


@pytest.fixture
def engine(plain: Tiny, server: Misbehaving) -> Iterator[Callable[..., OpenAIEngine]]:
    made: list[OpenAIEngine] = []

    def make(**options: Any) -> OpenAIEngine:
        settings = {"mode": "text", "retries": 2, "backoff": 0.001, "timeout": 5.0, "longest_wait": 1.0} | options
        made.append(OpenAIEngine(None, plain.chat, url=f"{server.url}/v1", served="m", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(chat: Chat, text: str, *pictures: Image.Image, n: int = 1, seed: int = 1, **options: Any) -> Request:
    prompt = make_prompt(text, text, *pictures)
    encoded = chat.encode_prompt(prompt.messages, {m.id: m for m in prompt.sample.media})
    return Request(encoded.tokens, encoded.vision, n, seed, **{"max_new_tokens": 64, **options})


def fault_of(sampled: Sampled) -> Any:
    return sampled.fault


# --- tries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    ["drop", "stall", "truncate", "garble", "empty", (429, {}), (408, {}), (409, {}), (500, {}), (503, {})],
    ids=str,
)
def test_a_failed_try_is_made_again(plain, server, engine, first):
    server.script.append(first)
    one = engine(timeout=0.1 if first == "stall" else 5.0)
    (sampled,) = one.generate([ask(plain.chat, "what?")])[0]
    assert [b["seed"] for b in server.bodies()] == [server.bodies()[0]["seed"]] * 2
    assert plain.chat.decode(sampled.tokens) == f"seed {server.bodies()[0]['seed']}"
    assert (one.counts["asked"], one.counts["retried"], one.counts["failed"]) == (2, 1, 0)


def test_a_server_that_never_answers_costs_one_continuation_not_the_batch(plain, server, engine):
    good = chat_reply()

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": None} if "bad" in json.dumps(body["messages"][-1]) else good(body)

    server.replies[CHAT] = reply
    one = engine()
    good_one, bad_one = one.generate([ask(plain.chat, "good", n=2), ask(plain.chat, "bad")])
    assert all(s.stopped and s.tokens for s in good_one)
    assert (bad_one[0].tokens, bad_one[0].logp, bad_one[0].stopped) == ([], [], False)
    fault = fault_of(bad_one[0])
    assert (fault.kind, fault.code) == (FaultKind.INFRASTRUCTURE, "server_failed")
    assert "3 tries" in fault.message
    assert len(server.bodies()) == 2 + 3


def test_a_refused_request_is_not_made_again_and_says_what_the_server_said(plain, server, engine):
    server.script += ["ok", (400, {})]
    one = engine(concurrency=1)
    first, second = one.generate([ask(plain.chat, "a"), ask(plain.chat, "b")])
    assert first[0].stopped
    fault = fault_of(second[0])
    assert fault.code == "server_refused"
    assert "HTTP 400: said with 400" in fault.message
    assert len(server.bodies()) == 2


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_address_or_key_is_an_error_while_nothing_was_answered(plain, server, engine, status):
    one = engine(concurrency=1)
    server.script.append((status, {}))
    with pytest.raises(ServerError, match=f"HTTP {status}"):
        one.generate([ask(plain.chat, "a")])
    assert one.step() == []  # nothing is left of it
    server.script += ["ok", (status, {})]
    sampled = one.generate([ask(plain.chat, "a"), ask(plain.chat, "b")])
    assert sampled[0][0].stopped
    assert fault_of(sampled[1][0]).code == "server_refused"


def test_an_address_where_nothing_listens_is_an_error_at_once(plain):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    one = OpenAIEngine(None, plain.chat, url=url, served="m", mode="text", retries=1, backoff=0.001)
    with pytest.raises(ServerError, match=f"{url}/v1/chat/completions gave no answer in 2 tries.*check `url`"):
        one.generate([ask(plain.chat, "a", n=2)])
    one.close()
    with pytest.raises(ServerError, match="2 tries"):
        OpenAIEngine(None, plain.chat, url=url, served="m", retries=1, backoff=0.001)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("{}", "/v1"),
        ("{}/", "/v1"),
        ("{}/v1/", "/v1"),
        ("{}/api/v1", "/api/v1"),
        ("{}/v1beta/openai", "/v1beta/openai"),
    ],
)
def test_the_address_is_read_as_other_clients_read_it(plain, server, url, path):
    server.replies = {f"{path}/chat/completions": chat_reply("hello")}
    one = OpenAIEngine(None, plain.chat, url=url.format(server.url), served="m", mode="text")
    assert plain.chat.decode(one.generate([ask(plain.chat, "a")])[0][0].tokens) == "hello"
    one.close()


def test_the_key_is_in_no_message(plain, server, engine, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", " sk-top-secret\n")  # as read from a file
    echo = {"error": {"message": "no such key: sk-top-secret"}}
    server.replies[CHAT] = lambda body: echo  # garbled: no choices
    one = engine(key_env="MY_KEY")
    fault = fault_of(one.generate([ask(plain.chat, "a")])[0][0])
    assert server.seen[0][3]["authorization"] == "Bearer sk-top-secret"
    assert "no such key: [key]" in fault.message
    server.script.append((401, {}))
    with pytest.raises(ServerError, match="key_env"):
        one.generate([ask(plain.chat, "a")])
    assert "no such key" in caplog.text
    assert "top-secret" not in caplog.text
    monkeypatch.setenv("MY_KEY", "sk-top\nsecret")
    with pytest.raises(ValueError, match="MY_KEY") as raised:
        engine(key_env="MY_KEY")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://me:secret@host/v1"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(plain, url):
    with pytest.raises(ValueError, match="url") as raised:
        OpenAIEngine(None, plain.chat, url=url, served="m", mode="text")
    assert "secret" not in str(raised.value)


def test_retry_after_is_heeded(plain, server, engine):
    server.script.append((429, {"retry-after": "0.15"}))
    engine().generate([ask(plain.chat, "a")])
    first, second = (at for _, _, at, _ in server.seen)
    assert second - first >= 0.15


def test_a_rest_that_the_server_asks_for_ends_at_another_moment_for_each_question():
    patience = Patience(backoff=0.5, longest=6.0)
    pauses = {patience.pause(f"question {i}", 1, 2.0) for i in range(50)}
    assert len(pauses) == 50
    assert all(2.25 <= p < 2.5 for p in pauses)
    assert patience.pause("a", 4, 0.5) == patience.pause("a", 4)  # its own pause is longer


@pytest.mark.parametrize("rest", ["3600", "Fri, 31 Dec 2100 23:59:59 GMT"])
def test_a_rest_longer_than_the_longest_wait_is_not_waited_for(plain, server, engine, rest):
    server.script.append((429, {"retry-after": rest}))
    one = engine()
    fault = fault_of(one.generate([ask(plain.chat, "a")])[0][0])
    assert fault.code == "server_failed"
    assert "of rest" in fault.message
    assert len(server.bodies()) == 1


def test_a_date_that_has_passed_or_cannot_be_read_asks_for_no_rest(plain, server, engine):
    server.script += [(503, {"retry-after": "Fri, 01 Jan 2010 00:00:00 GMT"}), (503, {"retry-after": "soon"})]
    (sampled,) = engine().generate([ask(plain.chat, "a")])[0]
    assert sampled.stopped
    assert len(server.bodies()) == 3


def test_pauses_double_up_to_the_longest_and_are_drawn_from_the_question():
    patience = Patience(backoff=0.5, longest=6.0)
    for tries, whole in [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 6.0), (9, 6.0)]:
        pauses = {patience.pause(f"question {i}", tries) for i in range(50)}
        assert len(pauses) == 50
        assert all(whole / 2 <= p < whole for p in pauses)
    assert patience.pause("a", 2) == patience.pause("a", 2)


# --- many at once ---------------------------------------------------------------------------------------------------


def test_no_more_than_concurrency_are_under_way(plain, server, engine):
    server.gate = lambda body: time.sleep(0.02)
    engine(concurrency=3).generate([ask(plain.chat, f"q{i}") for i in range(10)])
    assert server.most == 3


def test_a_slow_answer_holds_nobody_up(plain, server, engine):
    free = threading.Event()
    server.gate = lambda body: "slow" in json.dumps(body["messages"][-1]) and free.wait(10) and None
    one = engine()
    slow, quick = one.add(ask(plain.chat, "slow")), one.add(ask(plain.chat, "quick"))
    found: list[int] = []
    while not found:
        found = [ticket for ticket, _ in one.step()]
    assert found == [quick]
    later = one.add(ask(plain.chat, "later"))
    while later not in found:
        found += [ticket for ticket, _ in one.step()]
    free.set()
    while slow not in found:
        found += [ticket for ticket, _ in one.step()]
    assert sorted(found) == [slow, quick, later]
    assert one.step() == []


def test_each_continuation_has_a_seed_of_its_own_whatever_else_is_asked(plain, server, engine):
    one = engine()
    alone = one.generate([ask(plain.chat, "a", n=3, seed=7)])[0]
    beside = one.generate([ask(plain.chat, "b", n=2, seed=8), ask(plain.chat, "a", n=3, seed=7)])[1]
    assert [s.tokens for s in alone] == [s.tokens for s in beside]
    assert len({tuple(s.tokens) for s in alone}) == 3
    assert one.generate([ask(plain.chat, "a", n=0)]) == [[]]
    assert one.generate([]) == []


# --- answers on disk ------------------------------------------------------------------------------------------------


def test_answers_on_disk_are_not_asked_again(plain, server, engine, tmp_path):
    requests = [ask(plain.chat, "a", picture(60, 60), n=2), ask(plain.chat, "b")]
    server.script += ["ok", "ok", (400, {})]
    first = engine(cache=tmp_path, concurrency=1).generate(requests)
    assert fault_of(first[1][0]).code == "server_refused"
    again = engine(cache=tmp_path)
    second = again.generate(requests)
    assert [s.tokens for s in second[0]] == [s.tokens for s in first[0]]
    assert second[1][0].stopped  # a fault is not kept
    assert (again.counts["kept"], again.counts["asked"]) == (2, 1)
    assert len(server.bodies()) == 4
    changed = [ask(plain.chat, "a", picture(60, 60, seed=1)), ask(plain.chat, "a", picture(60, 60), seed=2)]
    again.generate([*changed, ask(plain.chat, "a", picture(60, 60), temperature=0.5)])
    assert again.counts["asked"] == 4  # another picture, seed or temperature is another question


def test_an_empty_answer_is_not_kept(plain, server, engine, tmp_path):
    server.replies[CHAT] = lambda body: {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}
    (empty,) = engine(cache=tmp_path).generate([ask(plain.chat, "a")])[0]
    assert empty.tokens == [plain.chat.end_of_turn]
    server.replies[CHAT] = chat_reply("words")
    (sampled,) = engine(cache=tmp_path).generate([ask(plain.chat, "a")])[0]
    assert plain.chat.decode(sampled.tokens) == "words"


def all_of(url: str, folder: str) -> tuple[list[Any], Any]:
    """The answers to six questions, with what they cost."""

    async def main() -> tuple[list[Any], Any]:
        one = Server(url, "", patience=Patience(), concurrency=2, answers=Answers(folder))
        work = (one.ask(CHAT, lambda i=i: {"seed": i}, lambda a: a["choices"]) for i in range(6))
        try:
            return await asyncio.gather(*work), one.counts
        finally:
            await one.close()

    return asyncio.run(main())


def test_a_run_that_was_killed_asks_only_what_is_missing(server, tmp_path):
    free = threading.Event()
    server.gate = lambda body: body["seed"] >= 4 and free.wait(20) and None
    child = multiprocessing.get_context("fork").Process(target=all_of, args=(server.url, str(tmp_path)), daemon=True)
    child.start()
    deadline = time.monotonic() + 60
    while len(server.seen) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert sorted(b["seed"] for b in server.bodies()) == [0, 1, 2, 3, 4, 5]
    free.set()
    answers, counts = all_of(server.url.replace("127.0.0.1", "localhost"), str(tmp_path))  # at another address by now
    assert [a[0]["message"]["content"] for a in answers] == [f"seed {i}" for i in range(6)]
    assert sorted(b["seed"] for b in server.bodies()[6:]) == [4, 5]
    assert counts["kept"] == 4


def test_samples_that_are_one_question_to_the_server_are_kept_apart(plain, server, engine, tmp_path):
    numbers = iter(range(100))
    server.replies[CHAT] = lambda body: chat_reply(f"answer {next(numbers)}")(body)
    options = {"cache": tmp_path, "concurrency": 1, "extra": {"seed": None}}
    first = engine(**options).generate([ask(plain.chat, "a", n=3)])[0]
    assert all("seed" not in body for body in server.bodies())
    assert [plain.chat.decode(s.tokens) for s in first] == ["answer 0", "answer 1", "answer 2"]
    again = engine(**options)
    assert [s.tokens for s in again.generate([ask(plain.chat, "a", n=3)])[0]] == [s.tokens for s in first]
    assert again.counts["asked"] == 0


def test_a_folder_with_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "answers.sqlite").write_bytes(b"something else " * 100)
    with pytest.raises(ValueError, match=r"answers\.sqlite.*another folder"):
        Answers(tmp_path)


# --- messages -------------------------------------------------------------------------------------------------------


def unpacked(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages with their data URLs as media."""
    media: dict[str, Any] = {}
    out = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else []
        for part in [] if isinstance(content, str) else content:
            if part["type"] == "text":
                parts.append(part)
                continue
            data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
            ref = image_ref(f"img_{len(media) + 1}", Image.open(io.BytesIO(data)))
            media[ref.id] = ref
            parts.append({"type": "image", "id": ref.id})
        out.append({"role": message["role"], "content": parts})
    return out, media


@pytest.mark.parametrize("tiny", ["qwen2_5_vl", "qwen3_vl"], indirect=True)  # the messages of Qwen alone
def test_a_context_read_back_as_messages_gives_the_same_tokens_and_patches(tiny):
    chat = tiny.chat
    prompt = make_prompt("k", "which\n<|im_end|> colour?", picture(90, 50), picture(64, 64, 1))
    first = chat.encode_prompt(prompt.messages, {m.id: m for m in prompt.sample.media})
    crop = image_ref("img_3", picture(70, 120, 2))
    seen = chat.encode_observation(observation([ToolResult("a part", (crop,))]), {"img_3": crop}, closed=True)
    tokens = [*first.tokens, *chat.encode_text(CROP), chat.end_of_turn, *seen.tokens]
    vision = [*first.vision, *seen.vision]
    messages = messages_of(chat, tokens, vision)
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == CROP
    again = chat.encode_prompt(*unpacked(messages))
    assert chat.decode(again.tokens) == chat.decode(tokens)
    assert len(again.vision) == 3
    for one, other in zip(again.vision, vision, strict=True):
        assert one.grid == other.grid
        torch.testing.assert_close(one.patches, other.patches, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tiny", ["qwen2_5_vl", "qwen3_vl"], indirect=True)  # the messages of Qwen alone
def test_a_clip_is_sent_as_its_frames_with_their_times(tiny):
    chat = tiny.chat
    frames = np.stack([np.asarray(picture(64, 64, i)) for i in range(3)])
    clip = video_input(chat.processor, frames, [0.0, 1.0, 2.0])  # the last frame is repeated to fill its patch
    pads = chat.encode_text(clip.text if "seconds" in clip.text else f"<|vision_start|>{clip.text}<|vision_end|>")
    tokens = chat.encode_text("<|im_start|>user\n")
    tokens += [*pads, *chat.encode_text("when?<|im_end|>\n<|im_start|>assistant\n")]
    (message,) = messages_of(chat, tokens, [clip])
    kinds = [p.get("text", "picture") for p in message["content"]]
    times = ["<0.5 seconds>", "<2.0 seconds>"] if tiny.family == "qwen3_vl" else ["<0.0 seconds>", "<2.0 seconds>"]
    assert kinds == [times[0], "picture", "picture", times[1], "picture", "when?"]


def test_a_branch_within_a_turn_cannot_be_sent_as_messages(plain, engine):
    request = ask(plain.chat, "a")
    request.tokens.extend(plain.chat.encode_text("<think>"))
    with pytest.raises(ValueError, match="within a turn"):
        engine().add(request)


# --- text -----------------------------------------------------------------------------------------------------------


def test_a_text_is_recorded_as_tokens_and_the_engine_says_that_they_are_not_exact(plain, server, engine, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    server.replies[CHAT] = chat_reply("<think>red</think><|image_pad|> it is")
    one = engine(key_env="MY_KEY", extra={"top_k": 5}, length="max_completion_tokens")
    (sampled,) = one.generate([ask(plain.chat, "a", temperature=0.3, top_p=0.9)])[0]
    assert one.exact is False
    assert plain.chat.decode(sampled.tokens).replace("\u200b", "") == "<think>red</think><|image_pad|> it is"
    assert not set(sampled.tokens) & set(plain.chat.banned_ids)
    assert len(sampled.logp) == len(sampled.tokens)
    assert all(map(math.isnan, sampled.logp))
    assert sampled.tokens[-1] == plain.chat.end_of_turn
    ((_, body, _, headers),) = server.seen
    assert headers["authorization"] == "Bearer secret"
    wanted = {"model": "m", "temperature": 0.3, "top_p": 0.9, "top_k": 5, "max_completion_tokens": 64}
    assert wanted.items() <= body.items()


def test_an_answer_cut_by_the_server_or_longer_than_asked_for_counts_as_cut(plain, server, engine):
    server.replies[CHAT] = chat_reply("it is re", "length")
    (cut,) = engine().generate([ask(plain.chat, "a")])[0]
    assert (plain.chat.decode(cut.tokens), cut.stopped) == ("it is re", False)
    server.replies[CHAT] = chat_reply("0123456789")
    (long,) = engine().generate([ask(plain.chat, "a", max_new_tokens=4)])[0]
    assert (plain.chat.decode(long.tokens), long.stopped) == ("0123", False)


def test_thinking_that_a_server_takes_apart_is_put_back(plain, server, engine):
    server.replies[CHAT] = chat_reply("red", reasoning_content="hm")
    (sampled,) = engine().generate([ask(plain.chat, "a")])[0]
    assert plain.chat.decode(sampled.tokens) == "<think>hm</think>red"


def test_thinking_that_was_cut_stays_open(plain, server, engine):
    server.replies[CHAT] = lambda body: chat_reply("x", "length", content=None, reasoning="hm and")(body)
    (sampled,) = engine().generate([ask(plain.chat, "a")])[0]
    assert (plain.chat.decode(sampled.tokens), sampled.stopped) == ("<think>hm and", False)


def test_a_turn_that_the_template_opens_with_thinking_is_not_opened_twice(plain, server, engine, monkeypatch):
    template = plain.chat.processor.chat_template
    opened = template.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    assert opened != template
    monkeypatch.setattr(plain.chat.processor, "chat_template", opened)
    request = ask(plain.chat, "a")
    assert plain.chat.decode(request.tokens).endswith("<think>\n")
    server.replies[CHAT] = chat_reply("red", reasoning_content="hm")
    (sampled,) = engine().generate([request])[0]
    assert plain.chat.decode(sampled.tokens) == "hm</think>red"
    assert server.bodies()[0]["messages"][-1] == {"role": "user", "content": "a"}


@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_calls_that_a_server_takes_apart_are_put_back(plain, server, engine, reason):
    function = {"name": "crop", "arguments": '{"image": "img_1", "box": [0, 0, 500, 500]}'}
    calls = [{"id": "1", "type": "function", "function": function}, {"function": {"name": "zoom", "arguments": "{oh"}}]
    server.replies[CHAT] = chat_reply("look", reason, tool_calls=calls)
    (sampled,) = engine().generate([ask(plain.chat, "a")])[0]
    assert sampled.stopped
    first, second = parse_turn(plain.chat.decode(sampled.tokens), cut=False, turn=0).calls
    assert (first.name, first.arguments) == ("crop", {"image": "img_1", "box": [0, 0, 500, 500]})
    assert second.error is not None  # what the policy wrote wrongly stays wrong
    assert second.error.code == "bad_json"


@pytest.mark.parametrize("reason", [None, "abort", "error"])
def test_a_message_without_an_end_is_asked_again(plain, server, engine, reason):
    answers = iter([chat_reply("half", reason), chat_reply("whole")])
    server.replies[CHAT] = lambda body: next(answers)(body)
    (sampled,) = engine().generate([ask(plain.chat, "a")])[0]
    assert plain.chat.decode(sampled.tokens) == "whole"


def test_a_filtered_answer_is_a_fault_and_not_asked_again(plain, server, engine):
    server.replies[CHAT] = chat_reply("no", "content_filter")
    fault = fault_of(engine().generate([ask(plain.chat, "a")])[0][0])
    assert "content_filter" in fault.message
    assert server.url in fault.message
    assert len(server.bodies()) == 1


# --- tokens ---------------------------------------------------------------------------------------------------------


def token_replies(chat: Chat, ids: list[int], *, processed: bool = True, raw: bool = True) -> dict[str, Reply]:
    """The token interface of vLLM: a probe gets what its bias asks for, everything else `ids`."""
    import msgpack

    def generate(body: dict[str, Any]) -> dict[str, Any]:
        settings = body["sampling_params"]
        (best, bias), *_ = sorted(settings["logit_bias"].items(), key=lambda pair: -pair[1])
        made = [int(best)] if bias > 0 else ids
        score = 0.0 if bias > 0 and processed else -1.5
        reason = "stop" if made[-1] in settings["stop_token_ids"] else "length"
        content = [{"token_id": i, "logprob": score} for i in made]
        return {"choices": [{"token_ids": made, "finish_reason": reason, "logprobs": {"content": content}}]}

    def render(body: dict[str, Any]) -> dict[str, Any]:
        item = msgpack.packb({"pixel_values": {"data": ["uint8" if raw else "float32", [1], b""]}})
        return {"features": {"kwargs_data": {"image": [base64.b64encode(item).decode()]}}}

    return {GENERATE: generate, RENDER: render, CHAT: chat_reply()}


@pytest.mark.parametrize("raw", [True, False])
def test_tokens_and_patches_are_sent_and_sampled_ids_come_back_as_they_are(plain, server, engine, raw):
    import msgpack

    chat = plain.chat
    server.replies = token_replies(chat, [40, 41, chat.end_of_turn], raw=raw)
    one = engine(mode="auto")
    assert one.exact is True
    request = ask(chat, "a", picture(90, 60), picture(60, 60, 1))
    (sampled,) = one.generate([request])[0]
    assert (sampled.tokens, sampled.logp, sampled.stopped) == ([40, 41, chat.end_of_turn], [-1.5] * 3, True)
    body = server.bodies(GENERATE)[-1]
    assert body["token_ids"] == request.tokens
    assert body["sampling_params"]["logit_bias"] == {str(i): -100.0 for i in chat.banned_ids}
    found = body["features"]
    pad = chat.config.image_token_id
    for medium, place, data in zip(
        request.vision, found["mm_placeholders"]["image"], found["kwargs_data"]["image"], strict=True
    ):
        start, stop = place["offset"], place["offset"] + place["length"]
        assert request.tokens[start:stop] == [pad] * medium.n_tokens
        assert pad not in (request.tokens[start - 1], request.tokens[stop])
        kind, shape, pixels = msgpack.unpackb(base64.b64decode(data))["pixel_values"]["data"]
        sent = np.frombuffer(pixels.data, kind).reshape(shape).astype(np.float64)
        mean = std = 0.5
        wanted = medium.patches.numpy().astype(np.float64)
        np.testing.assert_allclose((sent / 255 - mean) / std if raw else sent, wanted, atol=1e-6)
    assert len(set(found["mm_hashes"]["image"])) == 2


@pytest.mark.parametrize("status", [400, 404, 422])
def test_auto_says_that_it_falls_back_to_text_and_why(server, engine, caplog, status):
    server.script.append((status, {}))
    one = engine(mode="auto")
    assert one.exact is False
    assert f"HTTP {status}: said with {status}" in caplog.text
    server.script.append((401, {}))
    with pytest.raises(ServerError, match="HTTP 401"):
        engine(mode="auto")


def test_auto_falls_back_to_text_and_tokens_to_text_only_completions(plain, server, engine):
    assert engine(mode="auto").exact is False
    with pytest.raises(ServerError, match="HTTP 404"):
        engine(mode="tokens")
    chat = plain.chat

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        made = [int(i) for i, bias in body["logit_bias"].items() if bias > 0] or [40, chat.end_of_turn]
        logprobs = {"token_logprobs": [-2.0] * len(made)}
        return {"choices": [{"token_ids": made, "finish_reason": "stop", "logprobs": logprobs}]}

    server.replies[COMPLETIONS] = complete
    one = engine(mode="tokens")
    request = ask(chat, "a")
    (sampled,) = one.generate([request])[0]
    assert (sampled.tokens, sampled.logp) == ([40, chat.end_of_turn], [-2.0, -2.0])
    assert server.bodies(COMPLETIONS)[-1]["prompt"] == request.tokens
    with pytest.raises(ValueError, match="--enable-scale-out"):
        one.add(ask(chat, "a", picture(60, 60)))


def test_a_server_that_samples_banned_ids_is_a_fault(plain, server, engine):
    banned = plain.chat.banned_ids[0]
    server.replies = token_replies(plain.chat, [banned, plain.chat.end_of_turn])
    fault = fault_of(engine(mode="tokens").generate([ask(plain.chat, "a")])[0][0])
    assert str(banned) in fault.message
    assert fault.code == "server_refused"


def test_scores_after_temperature_are_refused_where_they_would_differ(plain, server, engine):
    server.replies = token_replies(plain.chat, [40, plain.chat.end_of_turn], processed=True)
    one = engine(mode="tokens")
    with pytest.raises(ValueError, match="raw_logprobs"):
        one.add(ask(plain.chat, "a", temperature=0.7))
    server.replies = token_replies(plain.chat, [40, plain.chat.end_of_turn], processed=False)
    assert engine(mode="tokens").generate([ask(plain.chat, "a", temperature=0.7)])[0][0].stopped


def test_clips_are_not_sent_as_patches(plain, server, engine):
    chat = plain.chat
    server.replies = token_replies(chat, [chat.end_of_turn])
    clip = video_input(chat.processor, np.zeros((2, 64, 64, 3), np.uint8), [0.0, 1.0])
    tokens = [chat.config.video_token_id] * clip.n_tokens
    with pytest.raises(ValueError, match="clips"):
        engine(mode="tokens").add(Request(tokens, [clip], 1, 0, 8))


@pytest.mark.parametrize("broken", ["nan", "short", "reason", "vocabulary", "words"])
def test_an_answer_whose_parts_do_not_fit_each_other_is_asked_again(plain, server, engine, broken):
    good = token_replies(plain.chat, [40, plain.chat.end_of_turn])
    server.replies = dict(good)
    one = engine(mode="tokens")
    asked: list[int] = []

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        answer = good[GENERATE](body)
        asked.append(1)
        if len(asked) == 1:
            choice = answer["choices"][0]
            if broken == "nan":
                choice["logprobs"]["content"][0]["logprob"] = float("nan")
            elif broken in ("vocabulary", "words"):
                choice["token_ids"] = [10**6 if broken == "vocabulary" else "a", plain.chat.end_of_turn]
            elif broken == "short":
                choice["logprobs"]["content"].pop()
            else:
                choice["finish_reason"] = "abort"
        return answer

    server.replies[GENERATE] = reply
    (sampled,) = one.generate([ask(plain.chat, "a")])[0]
    assert sampled.tokens == [40, plain.chat.end_of_turn]
    assert len(asked) == 2


# --- rollouts -------------------------------------------------------------------------------------------------------


def test_rollouts_with_tools_over_a_server_and_one_prompt_that_it_refuses(plain, server):
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        turns = sum(m["role"] == "assistant" for m in body["messages"])
        if "bad" in json.dumps(body["messages"][1]):
            return chat_reply("", "content_filter")(body)
        return chat_reply(CROP if turns == 0 else "<answer>red</answer>")(body)

    server.replies[CHAT] = reply
    options = {"mode": "text", "url": server.url, "served": "m", "backoff": 0.001}
    one: Any = make_engine("openai", None, plain.chat, **options)
    prompts = [make_prompt("good", "good", picture(80, 80)), make_prompt("bad", "bad", picture(80, 80))]
    config = RolloutConfig(max_context=2048)
    good, _, bad, _ = rollout(one, plain.chat, prompts, config, seed=0, group=2)
    one.close()
    assert (good.stop, good.answer_text) == (StopReason.FINISHED, "<answer>red</answer>")
    assert [t.origin for t in good.turns] == [Origin.POLICY, Origin.OBSERVATION, Origin.POLICY]
    last = next(b for b in server.bodies() if len(b["messages"]) == 4)["messages"][3]
    assert [p["type"] for p in last["content"]].count("image_url") == 1  # the crop
    assert all(math.isnan(v) for v in good.logp)
    assert (bad.stop, bad.length, bad.turns) == (StopReason.FAULT, 0, [])
    assert [(f.kind, f.code, f.turn) for f in bad.faults] == [(FaultKind.INFRASTRUCTURE, "server_refused", 0)]


def test_an_evaluation_over_a_server_asks_again_what_failed_and_nothing_else(plain, server, engine, tmp_path):
    samples = [make_prompt(key, key, picture(60, 60)).sample for key in ("first", "second")]
    config = EvalConfig(consistency=False, tools=(), max_context=2048)
    server.replies[CHAT] = chat_reply("<answer>A</answer>")
    server.script += ["ok", (400, {})]
    one = engine(concurrency=1)
    result = evaluate(None, plain.chat, samples, config=config, out=tmp_path, engine=one, progress=False)
    assert not result.complete
    assert [(r["score"], r["stop"], r["answer_logp"]) for r in result.records] == [
        (1.0, "finished", None),
        (0.0, "fault", None),
    ]
    again = evaluate(None, plain.chat, samples, config=config, out=tmp_path, engine=one, progress=False)
    assert again.complete
    assert [r["score"] for r in again.records] == [1.0, 1.0]
    assert len(server.bodies()) == 3
    other = OpenAIEngine(None, plain.chat, url=server.url, served="another", mode="text")
    with pytest.raises(RunError, match="another run"):
        evaluate(None, plain.chat, samples, config=config, out=tmp_path, engine=other, progress=False)
    other.close()


def test_what_cannot_work_is_said(plain, engine):
    one = engine()
    with pytest.raises(ConfigError, match="new weights"):
        one.sync()
    with pytest.raises(ValueError, match="new tokens"):
        one.add(ask(plain.chat, "a", max_new_tokens=0))
    with pytest.raises(ValueError, match="did you mean 'tokens'"):
        engine(mode="token")
