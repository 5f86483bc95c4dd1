"""Events as a stream: every recorded one once and in order, progress, and an end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from batchgen.client.events import Event, parsed
from batchgen.domain.ids import KeyId
from batchgen.services import keys
from tests.api.hand import Hand
from tests.house import House, chat_lines


@contextmanager
def watched(
    client: httpx.Client, job_id: str, last: str | None = None
) -> Iterator[Iterator[Event]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield parsed(answer.iter_raw())


def until_named(events: Iterator[Event], name: str) -> list[Event]:
    seen = []
    for event in events:
        seen.append(event)
        if event.name == name:
            return seen
    raise AssertionError(f"the stream ended without {name}")


def recorded(events: list[Event]) -> list[str]:
    return [event.name for event in events if event.id is not None]


def test_a_stream_follows_a_job_to_its_end(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.submit(chat_lines(6))
    with watched(user, job.id) as events:
        until_named(events, "progress")
        house.ingest(job.id)
        assert recorded(until_named(events, "sharded")) == ["sharded"]
        shard = hand.claim()
        until_named(events, "claimed")
        hand.checkpoint(shard, [0, 1])
        progress = [e.data for e in until_any(events, lambda e: e.name == "progress" and done(e))]
        assert progress[-1]["counts"] == {"total": 6, "completed": 2, "failed": 0, "open": 4}
        hand.finish(shard, failed=[3])
        hand.work_off(job.id)
        seen = until_named(events, "end")
        assert recorded(seen)[-2:] == ["worked_off", "published"]
        assert seen[-1].data == {"state": "completed"}
        assert [e for e in seen if e.name == "progress"][-1].data["counts"]["failed"] == 1
        assert list(events) == []


def test_an_ended_job_tells_all_and_ends(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(2))
    hand.work_off(job.id)
    with watched(user, job.id) as events:
        seen = list(events)
    assert recorded(seen) == ["created", "sharded", "claimed", "worked_off", "published"]
    assert [event.name for event in seen][-2:] == ["progress", "end"]
    assert all(event.data["at"] > 1.7e9 for event in seen if event.id)
    assert seen[1].data["data"] == {"from": "validating", "to": "queued"}


def test_a_stream_goes_on_after_the_last_event_seen(
    user: httpx.Client, house: House, hand: Hand
) -> None:
    job = house.queue(chat_lines(2))
    hand.work_off(job.id)
    with watched(user, job.id) as events:
        everything = [event for event in events if event.id]
    for i, event in enumerate(everything):
        with watched(user, job.id, last=event.id) as events:
            assert [e for e in events if e.id] == everything[i + 1 :]


def test_a_long_record_comes_whole(user: httpx.Client, house: House) -> None:
    job = house.queue(b"no json\n")
    with house.database.unit_of_work() as tx:
        for n in range(450):
            tx.exec_driver_sql(
                "INSERT INTO job_events (job_id, event, data) VALUES (%s, 'note', %s)",
                (job.id, f'{{"n": {n}}}'),
            )
    with watched(user, job.id) as events:
        notes = [event.data["data"]["n"] for event in events if event.name == "note"]
    assert notes == list(range(450))


def test_two_streams_of_one_job_both_hear(user: httpx.Client, house: House, hand: Hand) -> None:
    job = house.queue(chat_lines(2))
    with watched(user, job.id) as first, watched(user, job.id) as second:
        until_named(first, "progress")
        until_named(second, "progress")
        hand.work_off(job.id)
        assert until_named(first, "end")[-1] == until_named(second, "end")[-1]


def test_a_stream_ends_when_its_key_is_revoked(
    user: httpx.Client, user_key: str, house: House
) -> None:
    job = house.queue(chat_lines(2))
    with watched(user, job.id) as events:
        until_named(events, "progress")
        keys.revoke(house.database, KeyId(user_key.split("_")[1]))
        assert "end" not in [event.name for event in events]
    assert user.get(f"/v1/jobs/{job.id}/events").status_code == 401


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
def test_a_last_event_that_is_none_is_refused(user: httpx.Client, house: House, last: str) -> None:
    job = house.queue(chat_lines(1))
    refused = user.get(f"/v1/jobs/{job.id}/events", headers={"Last-Event-ID": last})
    assert (refused.status_code, refused.json()["param"]) == (400, "Last-Event-ID")


def done(event: Event) -> bool:
    return bool(event.data["counts"]["completed"])


def until_any(events: Iterator[Event], wanted: Callable[[Event], bool]) -> list[Event]:
    seen = []
    for event in events:
        seen.append(event)
        if wanted(event):
            return seen
    raise AssertionError("the stream ended before")
