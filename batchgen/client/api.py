"""The calls of the REST interface, one method each. Objects are the server's JSON, as it stands."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self
from urllib.parse import quote

from batchgen.client.download import fetch
from batchgen.client.events import Event, parsed
from batchgen.client.transport import Transport
from batchgen.client.upload import Upload, multipart
from batchgen.domain.errors import Unavailable

Object = dict[str, Any]
Part = Literal["results", "errors", "timings"]
Action = Literal["cancel", "pause", "resume", "retry"]


class Client:
    """One server. Every method raises a UserError as the server says it, or Unavailable."""

    def __init__(self, url: str, key: str):
        self._transport = Transport(url, key)

    @property
    def url(self) -> str:
        return self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @contextmanager
    def telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        """While inside, `tell` gets a line when the server goes away and when it is back."""
        before, self._transport.tell = self._transport.tell, tell
        try:
            yield
        finally:
            self._transport.tell = before

    # -- files ---------------------------------------------------------------------------------

    def upload(self, upload: Upload, progress: Callable[[int], None] | None = None) -> Object:
        """Send a file as it is read; never repeated, for its chunks come only once."""
        headers, body = multipart(upload, progress)
        with self._transport.stream("POST", "/v1/files", content=body, headers=headers) as answer:
            answer.read()
            return self._transport.object_in(answer)

    def file(self, file_id: str) -> Object:
        return self._transport.json("GET", f"/v1/files/{_segment(file_id)}")

    def delete_file(self, file_id: str) -> Object:
        return self._transport.json("DELETE", f"/v1/files/{_segment(file_id)}")

    # -- jobs ----------------------------------------------------------------------------------

    def create_job(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Object:
        """A new job. It carries an Idempotency-Key, so that a lost answer makes no second one."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self._transport.json("POST", "/v1/jobs", body=body, headers=headers, repeatable=True)

    def jobs(
        self, *, limit: int, states: str | None = None, model: str | None = None
    ) -> list[Object]:
        """The newest `limit` jobs, newest first, over as many pages as it takes."""
        found: list[Object] = []
        after: str | None = None
        while len(found) < limit:
            page = self._transport.json(
                "GET",
                "/v1/jobs",
                params={
                    "limit": min(limit - len(found), 100),
                    "after": after,
                    "state": states,
                    "model": model,
                },
            )
            listed = self._data(page)
            found += listed
            if not page.get("has_more") or not listed:
                break
            after = listed[-1]["id"]
        return found

    def job(self, job_id: str) -> Object:
        return self._transport.json("GET", _job(job_id))

    def act(self, job_id: str, action: Action) -> Object:
        """Cancel, pause, resume or retry; the job after it."""
        return self._transport.json("POST", f"{_job(job_id)}/{action}")

    def set_priority(self, job_id: str, priority: int) -> Object:
        return self._transport.json(
            "PATCH", _job(job_id), body={"priority": priority}, repeatable=True
        )

    def metrics(self, job_id: str) -> Object:
        return self._transport.json("GET", f"{_job(job_id)}/metrics")

    def manifest(self, job_id: str) -> Object:
        return self._transport.json("GET", f"{_job(job_id)}/manifest")

    def events(self, job_id: str) -> Iterator[Event]:
        """The job's events from its first to `end`, each recorded one once, over reconnections."""
        last: str | None = None
        for attempt in self._transport.attempts():
            headers = {"Accept": "text/event-stream"}
            if last is not None:
                headers["Last-Event-ID"] = last
            try:
                with self._transport.stream(
                    "GET", f"{_job(job_id)}/events", headers=headers
                ) as answer:
                    for event in parsed(answer.iter_raw()):
                        last = event.id or last
                        attempt.progressed = True
                        yield event
                        if event.name == "end":
                            return
                attempt.failed(Unavailable(f"{self.url} keeps ending the events of {job_id}"))
            except Unavailable as error:
                attempt.failed(error)

    def download(self, job_id: str, part: Part, out: BinaryIO) -> int:
        """Write a job's results, errors or timings to `out`, as far as they are; returns the bytes.

        Once the job has ended, a broken connection is resumed where it broke.
        """
        return fetch(self._transport, f"{_job(job_id)}/{part}", out)

    # -- models, devices, keys -----------------------------------------------------------------

    def add_model(self, body: Mapping[str, Any]) -> Object:
        """Register a model, or a new revision; the same spec again gives the same revision."""
        return self._transport.json("POST", "/v1/models", body=body, repeatable=True)

    def apply_models(self, body: Mapping[str, Any]) -> Object:
        """Make the models those declared, or say what that would change; returns the plan."""
        return self._transport.json("PUT", "/v1/models", body=body, repeatable=True)

    def models(self) -> list[Object]:
        return self._data(self._transport.json("GET", "/v1/models"))

    def model(self, name: str) -> Object:
        return self._transport.json("GET", f"/v1/models/{quote(name)}")

    def remove_model(self, name: str) -> Object:
        return self._transport.json("DELETE", f"/v1/models/{quote(name)}")

    def check_model(self, name: str, body: Mapping[str, Any]) -> Object:
        """Ask for a check of the model; it is looked at with `check`."""
        return self._transport.json("POST", f"/v1/models/{quote(name)}/checks", body=body)

    def check(self, name: str, check_id: str) -> Object:
        return self._transport.json("GET", f"/v1/models/{quote(name)}/checks/{_segment(check_id)}")

    def devices(self) -> list[Object]:
        return self._data(self._transport.json("GET", "/v1/devices"))

    def caches(self) -> list[Object]:
        return self._data(self._transport.json("GET", "/v1/caches"))

    def prune_caches(self, body: Mapping[str, Any]) -> Object:
        return self._transport.json("POST", "/v1/caches/prune", body=body)

    def create_key(self, body: Mapping[str, Any]) -> Object:
        return self._transport.json("POST", "/v1/keys", body=body)

    def keys(self) -> list[Object]:
        return self._data(self._transport.json("GET", "/v1/keys"))

    def revoke_key(self, key_id: str) -> Object:
        return self._transport.json("DELETE", f"/v1/keys/{_segment(key_id)}")

    def _data(self, page: Object) -> list[Object]:
        if not isinstance(page.get("data"), list):
            raise self._transport.no_batchgen()
        return list(page["data"])


def _job(job_id: str) -> str:
    return f"/v1/jobs/{_segment(job_id)}"


def _segment(value: str) -> str:
    # An id of the user's goes into the path: it must not become another path.
    return quote(value, safe="")
