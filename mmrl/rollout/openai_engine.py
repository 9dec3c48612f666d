"""Any OpenAI-compatible server as an engine: vLLM or SGLang on other machines, or a hosted model.

Each continuation is a request of its own with a seed of its own, so that one that fails or is slow touches no other.
The requests run in a thread with an event loop; `step` takes what has been answered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch

from mmrl import families
from mmrl.chat import Chat
from mmrl.config import ConfigError
from mmrl.registry import nearest, register
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.openai_server import Answers, Patience, Server, ServerError
from mmrl.rollout.openai_wire import Body, ChatMessages, Completions, Generate, Wire, ask_for_raw, probe, read_raw
from mmrl.rollout.sampling import derive_seed
from mmrl.types import Fault, FaultKind

MODES = ("auto", "tokens", "text")
LOOK = 0.1  # seconds after which `step` looks up: a tool may have answered
QUIET = 30.0  # seconds without an answer after which it is said what is waited for
RENDER = "/v1/chat/completions/render"
ABSENT = (403, 404, 405, 501)  # of a server that does not have an interface, or has it switched off
WRONG = (401, 403, 404)  # of a wrong key, address or name, as long as nothing was answered

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """A request under way."""

    request: Request
    done: dict[int, Sampled] = field(default_factory=dict)  # continuations by number
    context: Body | None = None  # made once for all of them, when the first is sent


@register("engine", "openai")
class OpenAIEngine:
    """Sampling by a server. Its weights are its own: nothing is synced.

    A continuation that the server does not give, after all retries or because it refuses the request, comes back
    without tokens and with a fault; the others go on. Only a server that answers nothing but 401, 403 or 404 from the
    start, or that nobody can reach from the start, is an error at once: the address, key or name is wrong.

    `exact` says whether tokens are the very ids that were sampled, with log-probs: training needs that, evaluation
    does not. In mode `text` they are not, see `mmrl.rollout.openai_wire.ChatMessages`. `counts` says how much was
    asked, retried, taken from disk and failed.

    Log-probs are of the model's own distribution over the ids that are not banned, as elsewhere, where vLLM runs with
    `--logprobs-mode processed_logprobs`; that is taken at temperature 0 or 1 and top_p 1 only. Without it they are
    those of all ids, lower by what the model gives to banned ones.

    Args:
        model: unused, here so that all engines are made alike.
        chat: the chat format; in mode `tokens` that of the served model.
        url: what clients of OpenAI call the base URL: http://HOST:8000/v1, https://HOST/api/v3. `/v1` is added where
            there is no path.
        served: name of the model, as the server calls it.
        key_env: environment variable that holds the key; none is sent where it is not set. No message shows it.
        mode: `tokens` asks vLLM by token ids and patches (`vllm serve --enable-scale-out`; without that option
            by token ids alone, no pictures), `text` any server by messages and pictures, `auto` the first where the
            server has it with pictures, else the second, and says so.
        concurrency: requests under way at the same time.
        timeout: seconds of one try.
        retries: tries after the first, on time-outs, lost connections, garbled answers, 408, 409, 425, 429 and 5xx.
        backoff, longest_wait: seconds before the second try, doubled for each further one up to the longest; a server
            that asks for a longer rest than that (Retry-After) is not asked again.
        cache: folder in which answers are kept, so that a run that was killed asks only what is missing. One folder
            for one state of one model; the server may be at another address the next time.
        length: field that bounds an answer in mode `text`.
        extra: fields laid over the body of every request, such as {repetition_penalty: 1.0}; those that are null are
            left out, for servers that refuse them: {seed: null}.

    Raises ValueError for options that cannot work, and ServerError where the server does not do what `mode` needs.
    """

    def __init__(
        self,
        model: Any,
        chat: Chat,
        *,
        url: str,
        served: str,
        key_env: str = "OPENAI_API_KEY",
        mode: Literal["auto", "tokens", "text"] = "auto",
        concurrency: int = 32,
        timeout: float = 600.0,
        retries: int = 6,
        backoff: float = 0.5,
        longest_wait: float = 60.0,
        cache: str | Path | None = None,
        length: str = "max_tokens",
        extra: dict[str, Any] | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"no mode {mode!r} of the engine openai: {nearest(mode, list(MODES))}")
        if concurrency < 1 or retries < 0 or timeout <= 0:
            raise ValueError(f"concurrency {concurrency}, retries {retries}, timeout {timeout}: too small")
        try:
            import httpx  # noqa: F401
            import msgpack  # noqa: F401
        except ImportError as error:
            raise RuntimeError(f"the engine openai needs httpx and msgpack ({error}): install mmrl[openai]") from error
        self.chat = chat
        self.extra = {"model": served, **(extra or {})}
        self._jobs: dict[int, _Job] = {}
        self._tickets = 0
        self._whole: list[int] = []  # tickets whose continuations are all there
        self._heard = time.monotonic()  # when an answer came last
        self._tasks: set[asyncio.Task[None]] = set()
        self._found: queue.SimpleQueue[tuple[int, int, Sampled | BaseException]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mmrl-openai", daemon=True)
        self._thread.start()
        patience = Patience(timeout=timeout, retries=retries, backoff=backoff, longest=longest_wait)
        try:
            answers = None if cache is None else Answers(cache)
            root, self._v1 = _root(url)
            self._server = self._await(_made(root, _key(key_env), patience, concurrency, answers))
            self._wire, self.processed = self._await(self._choose(mode, length))
        except BaseException:
            self.close()
            raise

    # --- what callers use -------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        return self._wire.exact

    @property
    def identity(self) -> str:
        """What tells its model from others where there are no weights to look at."""
        return f"openai:{self.extra['model']}"

    @property
    def counts(self) -> Counter[str]:
        return self._server.counts

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        """See `Engine.generate`. What was added before and not yet fetched stays for `step`."""
        for request in requests:
            self._check(request)
        tickets = [self._add(r) for r in requests]
        while not all(t in self._whole for t in tickets):
            self._receive()
        return [self._take(t) for t in tickets]

    def add(self, request: Request) -> int:
        """Send a request; the ticket under which `step` gives its continuations. Raises ValueError."""
        self._check(request)
        return self._add(request)

    def step(self) -> list[tuple[int, list[Sampled]]]:
        """Wait for answers, but not for long so that new requests can join: there may be no whole one yet."""
        if self._jobs and not self._whole:
            self._receive()
        return [(ticket, self._take(ticket)) for ticket in list(self._whole)]

    def sync(self) -> None:
        """Raise ConfigError: a server's weights cannot be set from here."""
        raise ConfigError("rollout.engine: openai cannot give a server new weights: train with transformers or vllm")

    def sleep(self) -> None:
        """Nothing: the memory is the server's."""

    def close(self) -> None:
        """Stop what is under way. The engine cannot be used any more."""
        if self._loop.is_closed():
            return
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- the queue --------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        if request.max_new_tokens < 1:
            raise ValueError(f"a request for {request.max_new_tokens} new tokens")
        families.check_counts(self.chat.config, torch.tensor([request.tokens]), [request.vision])
        self._wire.check(request)
        if self.processed and (request.temperature not in (0, 1) or request.top_p != 1):
            raise ValueError(
                f"the server scores after temperature {request.temperature:g} and top_p {request.top_p:g}, not the "
                "model itself: start it with --logprobs-mode raw_logprobs, or use `mode: text`"
            )

    def _add(self, request: Request) -> int:
        self._tickets += 1
        ticket = self._tickets
        if not self._jobs:
            self._heard = time.monotonic()
        self._jobs[ticket] = job = _Job(request)
        if not request.n:
            self._whole.append(ticket)
        for number in range(request.n):
            self._loop.call_soon_threadsafe(self._start, ticket, job, number)
        return ticket

    def _receive(self) -> None:
        """Take what has been answered, waiting a moment where there is nothing."""
        try:
            self._file(*self._found.get(timeout=LOOK))
            while True:
                self._file(*self._found.get_nowait())
        except queue.Empty:
            if time.monotonic() > self._heard + QUIET:
                self._heard = time.monotonic()
                missing = sum(j.request.n - len(j.done) for j in self._jobs.values())
                log.warning("waiting for %d answers of %s: %s", missing, self._server.url, dict(self.counts))

    def _file(self, ticket: int, number: int, sampled: Sampled | BaseException) -> None:
        self._heard = time.monotonic()
        if isinstance(sampled, BaseException):
            self._reset()
            raise sampled
        job = self._jobs[ticket]
        job.done[number] = sampled
        if len(job.done) == job.request.n:
            self._whole.append(ticket)

    def _take(self, ticket: int) -> list[Sampled]:
        self._whole.remove(ticket)
        job = self._jobs.pop(ticket)
        return [job.done[j] for j in range(job.request.n)]

    def _reset(self) -> None:
        """Forget everything that is under way."""
        self._await(self._cancel())
        self._found = queue.SimpleQueue()
        self._jobs, self._whole = {}, []

    # --- in the thread of the loop ----------------------------------------------------------------------------------

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _start(self, ticket: int, job: _Job, number: int) -> None:
        task = self._loop.create_task(self._continue(ticket, job, number))
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _continue(self, ticket: int, job: _Job, number: int) -> None:
        found, limit = self._found, job.request.max_new_tokens

        def body() -> Body:
            if job.context is None:
                job.context = self._wire.context(job.request)
            whole = {**job.context, **self._wire.sampling(job.request, number), **self.extra}
            return {name: value for name, value in whole.items() if value is not None}

        def read(answer: Any) -> Sampled:
            return self._wire.read(answer, limit)

        try:
            sampled = await self._server.ask(
                self._at(self._wire.path),
                body,
                read,
                draw=derive_seed(job.request.seed, number),
                # an empty turn may be a hiccup of the server: the next run asks again
                keep=lambda s: self.exact or len(s.tokens) > 1,
            )
            found.put((ticket, number, sampled))
        except ServerError as error:
            if (error.absent or error.status in WRONG) and not self.counts["answered"]:
                found.put((ticket, number, error))
                return
            log.warning("%s", error)
            found.put((ticket, number, unanswered(error)))
        except Exception as error:
            found.put((ticket, number, error))

    async def _choose(self, mode: str, length: str) -> tuple[Wire, bool]:
        """The interface to use, and whether its log-probs are those after temperature and banned ids."""
        if mode != "text":
            try:
                path = self._at(RENDER)
                raw = await self._server.ask(path, lambda: {**ask_for_raw(), **self.extra}, read_raw, fresh=True)
                return await self._probed(Generate(self.chat, raw))
            except ServerError as error:
                # any refusal but that of the key may be how a server says that it does not know the interface
                if error.status not in ABSENT and (mode == "tokens" or not error.refused or error.status == 401):
                    raise
                why = str(error)
            if mode == "tokens":
                return await self._probed(Completions(self.chat))
            log.warning("asking by messages: token ids are not the sampled ones, without log-probs (%s)", why)
        return ChatMessages(self.chat, length), False

    async def _probed(self, wire: Generate | Completions) -> tuple[Wire, bool]:
        def read(answer: Any) -> bool:
            sampled = wire.read(answer, 1)
            if sampled.tokens != [self.chat.end_of_turn]:
                raise ServerError("the server does not heed logit_bias")
            return sampled.logp[0] > -1e-3

        path = self._at(wire.path)
        return wire, await self._server.ask(path, lambda: {**probe(wire), **self.extra}, read, fresh=True)

    def _at(self, path: str) -> str:
        return path if self._v1 else path.removeprefix("/v1")

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self) -> None:
        await self._cancel()
        if hasattr(self, "_server"):
            await self._server.close()


def _root(url: str) -> tuple[str, bool]:
    """The address without `/v1`, and whether the interfaces of OpenAI are under `/v1` there.

    Raises ValueError for what is no address, or holds a password: messages show the address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {url!r} of the engine openai: write http://HOST:PORT/v1, or https://HOST/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            f"the url of the engine openai at {parts.hostname} holds a user, password or query, which would be logged: "
            "name the environment variable of the key with `key_env`"
        )
    whole = url.rstrip("/")
    return whole.removesuffix("/v1"), whole.endswith("/v1") or not parts.path.strip("/")


def _key(name: str) -> str:
    """The key in an environment variable, empty where there is none."""
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"the environment variable {name} holds characters that no key has: set it again")
    return key


async def _made(url: str, key: str, patience: Patience, concurrency: int, answers: Answers | None) -> Server:
    return Server(url, key, patience=patience, concurrency=concurrency, answers=answers)


def unanswered(error: ServerError) -> Sampled:
    """The place of a continuation that there is none of: it ends its trajectory."""
    fault = Fault(FaultKind.INFRASTRUCTURE, "server_refused" if error.refused else "server_failed", str(error))
    return Sampled([], [], False, fault=fault)
