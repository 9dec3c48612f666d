"""One HTTP server asked politely: bounded concurrency, time-outs, retries that back off, answers kept on disk.

Nothing here knows what is asked. A question is a path and a JSON body; an answer is a JSON object that the caller's
`read` accepts. What `read` refuses counts as garbled and is asked again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from mmrl.rollout.sampling import derive_seed

T = TypeVar("T")
AGAIN = frozenset({408, 409, 425, 429})  # the same question may be answered later; so it may after most from 500 on
# what reading a garbled answer may raise
NOT_WHOLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
SAY = 5.0  # seconds of waiting from which a wait is logged
KEY = "check the key: it is read from the environment variable that `key_env` names"
HINTS = {  # what to do about a status, behind what the server itself says
    401: KEY,
    403: KEY,
    404: "check `url` and `served`",
    413: "lower model.max_pixels, or raise the server's limit on the size of a request",
    429: "lower `concurrency`",
}

log = logging.getLogger(__name__)


class Garbled(ValueError):
    """An answer of the right status that is not what was asked for."""


class ServerError(RuntimeError):
    """A question that was not answered.

    status: of the last answer, None where there was none. refused: asking again would be no use; else every try failed.
    absent: nothing listens at the address.
    """

    def __init__(self, message: str, status: int | None = None, *, refused: bool = True, absent: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.refused = refused
        self.absent = absent


class _Again(Exception):
    """Why a try failed that is worth another, and for how many seconds the server wants to be left alone."""

    def __init__(self, reason: str, status: int | None = None, after: float = 0.0, *, absent: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.after = after
        self.absent = absent


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a server is asked.

    Before try k + 2 passes `backoff` * 2^k seconds, `longest` at most, times a number in [0.5, 1) that is drawn from
    the question itself. Where the server asks for a rest (Retry-After), the first pause is added to it, so that
    questions do not all come back at the same moment; where it asks for more than `longest`, the question is given up.
    """

    timeout: float = 600.0  # seconds of one try, from connecting to the last byte
    retries: int = 6  # tries after the first
    backoff: float = 0.5
    longest: float = 60.0

    def pause(self, key: str, tries: int, after: float = 0.0) -> float:
        """Seconds before the next try after `tries` of them, where the server asked for a rest of `after` seconds."""
        jitter = 0.5 + derive_seed("backoff", key, tries) / 2**65
        whole = min(self.longest, self.backoff * 2 ** min(tries - 1, 64))
        return float(max(whole * jitter, after + min(self.longest, self.backoff) * jitter if after else 0.0))


class Answers:
    """Answers on disk by the hash of their question: a run that was killed asks only what is missing.

    One SQLite file in a folder; processes may share it. The same question is never asked twice, whatever address the
    server has by then, so a folder belongs to one state of one model. Raises ValueError for a file of another kind.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "answers.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise ValueError(f"{self.path}: {error}: choose another folder, or delete the file") from error

    def get(self, key: str) -> Any:
        row = self._db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, answer: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))

    def close(self) -> None:
        self._db.close()


class Server:
    """A server under `url`. Used within one event loop.

    Args:
        url: its root, without a trailing slash.
        key: sent as a bearer token where it is not empty; never part of a message.
        patience: time-outs and retries.
        concurrency: questions under way at the same time.
        answers: where answers are kept.

    `counts` says what was done: `asked` (requests sent), `answered`, `retried`, `kept` (answers taken from disk) and
    `failed` (questions given up).
    """

    def __init__(
        self, url: str, key: str, *, patience: Patience, concurrency: int, answers: Answers | None = None
    ) -> None:
        import httpx

        self.url = url
        self._key = key
        self.patience = patience
        self.answers = answers
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(concurrency)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=None,  # `Patience.timeout` bounds a whole try; httpx would bound each read
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )

    async def close(self) -> None:
        await self._http.aclose()
        if self.answers is not None:
            self.answers.close()

    async def ask(
        self,
        path: str,
        body: Callable[[], dict[str, Any]],
        read: Callable[[Any], T],
        *,
        draw: int = 0,
        keep: Callable[[T], bool] = lambda _: True,
        fresh: bool = False,
    ) -> T:
        """What `read` makes of the answer to POST `path`.

        Args:
            body: makes the question; called once there is a slot for it, so that few large ones exist at a time.
            read: raises Garbled, or another of NOT_WHOLE, for what is no whole answer.
            draw: tells questions apart that are the same to the server, such as samples of one prompt without a seed.
            keep: whether an answer may be kept on disk.
            fresh: the disk is left out altogether.

        Raises ServerError where the server refuses the question, or no try gave an answer.
        """
        answers = None if fresh else self.answers
        data, name, tries = b"", "", 0
        while True:
            async with self._slots:
                if not tries:
                    data = json.dumps(body(), sort_keys=True, separators=(",", ":")).encode()
                    name = xxhash.xxh3_128_hexdigest(f"{path}\n{draw}\n".encode() + data)
                    kept = None if answers is None else answers.get(name)
                    if kept is not None:
                        with suppress(*NOT_WHOLE):  # what an older version kept is asked again
                            found = read(kept)
                            self.counts["kept"] += 1
                            return found
                tries += 1
                self.counts["asked"] += 1
                try:
                    answer, found = await self._try(path, data, read)
                    break
                except _Again as error:
                    failed = error
            await self._pause(path, name, tries, failed)
        self.counts["answered"] += 1
        if answers is not None and keep(found):
            answers.put(name, answer)
        return found

    async def _try(self, path: str, data: bytes, read: Callable[[Any], T]) -> tuple[Any, T]:
        import httpx

        try:
            async with asyncio.timeout(self.patience.timeout):
                response = await self._http.post(path, content=data)
        except TimeoutError:
            seconds = f"{self.patience.timeout:g} s"
            raise _Again(f"no answer within {seconds} (raise `timeout`, or lower `concurrency`)") from None
        except httpx.ConnectError as error:
            raise _Again(self._hidden(f"nothing can be reached there ({error}): check `url`"), absent=True) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _Again(self._hidden(f"{type(error).__name__}: {error}".removesuffix(": "))) from None
        status = response.status_code
        if status == 200:
            try:
                answer = response.json()
                return answer, read(answer)
            except NOT_WHOLE as error:
                raise _Again(self._hidden(f"a garbled answer: {type(error).__name__}: {error}"), status) from None
            except ServerError as error:
                self.counts["failed"] += 1
                raise ServerError(self._hidden(f"{self.url}{path}: {error}"), status) from None
        said = self._hidden(f"HTTP {status}: {_said(response)}")
        if status in HINTS:
            said += f" ({HINTS[status]})"
        if status in AGAIN or (status >= 500 and status != 501):
            raise _Again(said, status, _retry_after(response.headers.get("retry-after")))
        self.counts["failed"] += 1
        raise ServerError(f"{self.url}{path} refuses: {said}", status)

    def _hidden(self, text: str) -> str:
        """A message without the key, which some servers and libraries repeat."""
        return text.replace(self._key, "[key]") if self._key else text

    async def _pause(self, path: str, name: str, tries: int, error: _Again) -> None:
        """Wait before another try. Raises ServerError where there is none."""
        patience = self.patience
        if tries > patience.retries or error.after > patience.longest:
            self.counts["failed"] += 1
            why = f"; it asks for {error.after:g} s of rest" if error.after > patience.longest else ""
            message = f"{self.url}{path} gave no answer in {tries} tries; the last: {error}{why}"
            raise ServerError(message, error.status, refused=False, absent=error.absent) from error
        seconds = patience.pause(name, tries, error.after)
        self.counts["retried"] += 1
        log.log(
            logging.WARNING if seconds >= SAY else logging.INFO,
            "%s%s: %s; try %d of %d in %.1f s",
            *(self.url, path, error, tries + 1, patience.retries + 1, seconds),
        )
        await asyncio.sleep(seconds)


def _said(response: Any) -> str:
    """The server's own message, shortened."""
    if response.has_redirect_location:
        return f"it is at {response.headers['location']}"
    try:
        found = response.json()
        error = found.get("error", found)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text
    text = str(text).strip() or "no message"
    return text if len(text) <= 500 else f"{text[:500]} [cut: 500 of {len(text)} characters]"


def _retry_after(value: str | None) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date. 0 where it says nothing that can be read."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
