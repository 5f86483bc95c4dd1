"""One server's address and key, its answers as JSON or streams, its errors as the domain's."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from batchgen.client.answers import error_of
from batchgen.domain.clock import Clock, SystemClock
from batchgen.domain.errors import InvalidRequest, NotAuthenticated, Unavailable

# How long a server that has answered before may be away: it is then most likely being restarted.
_PATIENCE_S = 30.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_AWAY = frozenset({502, 503, 504})
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
MEND = "start one with `batchgen up` or set BATCHGEN_API_URL"


class Transport:
    """Requests to the server at `url` with `key` as bearer.

    A server that has never answered is Unavailable at once; one that has gets `patience_s` to come
    back, for calls that may be repeated without harm. `tell` gets a line when it goes away and when
    it is back.
    """

    tell: Callable[[str], None]

    def __init__(
        self,
        url: str,
        key: str,
        *,
        patience_s: float = _PATIENCE_S,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.url = _checked_url(url)
        self._patience_s = patience_s
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._reached = False
        self._away = False
        self.tell = _nobody
        self._http = httpx.Client(
            base_url=self.url,
            headers=_headers(key),
            timeout=_TIMEOUT,
            # A proxy meant for the internet cannot reach a server of this machine.
            trust_env=not _is_loopback(self.url),
        )

    def close(self) -> None:
        self._http.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> dict[str, Any]:
        """The answer's JSON object.

        `repeatable` says that the call may be sent twice (default: GET and DELETE). Raises a
        UserError as the server says it, or Unavailable.
        """
        request = self._http.build_request(
            method, path, json=body, params=_given(params), headers=headers
        )
        again = method in {"GET", "DELETE"} if repeatable is None else repeatable
        for attempt in self.attempts():
            try:
                response = self._http.send(request)
                if response.status_code in _AWAY:
                    raise error_of(response, self.url)
            except (httpx.TransportError, Unavailable) as error:
                attempt.failed(error, again=again)
                continue
            self.answered()
            return self.object_in(response)
        raise AssertionError("attempts end by raising")

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        content: Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[httpx.Response]:
        """The answer with its body still to come; one attempt.

        Raises as `json` does. What breaks while the body is read is raised as Unavailable too.
        """
        request = self._http.build_request(
            method, path, content=content, headers=headers, params=_given(params)
        )
        try:
            response = self._http.send(request, stream=True)
            try:
                if response.status_code not in _AWAY:
                    self.answered()
                if response.is_error:
                    response.read()
                    raise error_of(response, self.url)
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def attempts(self) -> Iterator["Attempt"]:
        """Attempts at one call, each told how it `failed`; the loop goes on until one did not."""
        deadline: float | None = None
        wait_s = _FIRST_WAIT_S
        while True:
            attempt = Attempt(self)
            yield attempt
            if attempt.error is None or attempt.progressed:
                deadline, wait_s = None, _FIRST_WAIT_S
            now = self._clock.monotonic()
            if deadline is None:
                deadline = now + self._patience_s
            if attempt.error is not None and now + wait_s > deadline:
                raise attempt.error
            self._sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def has_answered(self) -> bool:
        return self._reached

    def answered(self) -> None:
        """The server is there."""
        self._reached = True
        if self._away:
            self._away = False
            self.tell(f"the batchgen API at {self.url} is back")

    def lost(self) -> None:
        """The server has gone away, and is waited for."""
        if not self._away:
            self._away = True
            self.tell(
                f"the batchgen API at {self.url} is away: trying again for {self._patience_s:g} s"
            )

    def unreachable(self, error: Exception) -> Unavailable:
        """The error for a connection that failed, with the mend."""
        reason = str(error) or type(error).__name__
        return Unavailable(f"cannot reach the batchgen API at {self.url} ({reason}): {MEND}")

    def object_in(self, response: httpx.Response) -> dict[str, Any]:
        """The JSON object of an answer that has been read. Raises as `json` does."""
        if response.is_error:
            raise error_of(response, self.url)
        if response.status_code == 204 or not response.content:
            return {}
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.no_batchgen()
        return value

    def no_batchgen(self) -> Unavailable:
        """The error for an address where something else answers."""
        return Unavailable(f"{self.url} answers, but not as a batchgen API does: {MEND}")


class Attempt:
    """One try at a call. `progressed` is set where it got somewhere before it failed."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self.error: Unavailable | None = None
        self.progressed = False

    def failed(self, error: httpx.TransportError | Unavailable, *, again: bool = True) -> None:
        """Note the failure. Raises Unavailable where there shall be no other attempt."""
        known = error if isinstance(error, Unavailable) else self._transport.unreachable(error)
        if not again or not self._transport.has_answered():
            raise known from error
        self._transport.lost()
        self.error = known


def _nobody(_text: str) -> None:
    return


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"the API's URL '{url}' is not one: {error}", param="url") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InvalidRequest(
            f"the API's URL '{url}' must be of the form http://host:port", param="url"
        )
    # The base URL of an OpenAI client ends in /v1; people will give the same one here.
    return url.rstrip("/").removesuffix("/v1")


def _is_loopback(url: str) -> bool:
    return httpx.URL(url).host in {"localhost", "127.0.0.1", "::1"}


def _headers(key: str) -> dict[str, str]:
    plain = {"Accept-Encoding": "identity"}  # ranges of a download count the file's own bytes
    if not key:
        return plain
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise NotAuthenticated("the API key holds characters that no key has: check how it is set")
    return {**plain, "Authorization": f"Bearer {key}"}


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
