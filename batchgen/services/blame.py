"""Which error ended most of a job's failed lines."""

import json
from collections import Counter
from typing import Any

from batchgen.domain.errors import NotFound
from batchgen.domain.jobs import FinalSegment, Section
from batchgen.storage.objects import ObjectStore

# Beyond so many error lines the commonest so far stands for all.
_ENOUGH = 5_000


class Blame:
    """Counts error lines by code; keeps one message of each."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._codes: Counter[str] = Counter()
        self._messages: dict[str, str] = {}

    def take(self, segment: FinalSegment) -> None:
        start, end = segment.span(Section.ERROR)
        if end == start or self._codes.total() >= _ENOUGH:
            return
        try:
            body = self._store.get_range(segment.object_key, start, end)
        except NotFound:
            return  # a job must not stay for ever because of its metrics
        for line in body.split(b"\n")[:-1]:
            error = _error_of(json.loads(line))
            code = str(error.get("code"))
            self._codes[code] += 1
            self._messages.setdefault(code, str(error.get("message")))

    def commonest(self) -> dict[str, Any] | None:
        """Code, one of its messages, and on how many of the lines looked at; None without
        errors.
        """
        if not self._codes:
            return None
        code, n = self._codes.most_common(1)[0]
        return {"code": code, "message": self._messages[code], "n": n}


def _error_of(record: dict[str, Any]) -> dict[str, Any]:
    response = record.get("response")
    error = record.get("error") if response is None else response["body"]["error"]
    return error or {}
