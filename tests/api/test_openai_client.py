"""The official `openai` client, unchanged, against the running server."""

import gzip
import json

import httpx
import openai
import pytest
from openai.types.responses import Response

from batchgen.domain.states import JobState
from tests.api.hand import Hand
from tests.house import House, chat_lines, jsonl

CHAT = "/v1/chat/completions"
INPUT = jsonl(chat_lines(6))


def create(client: openai.OpenAI, data: bytes = INPUT, **asked: object) -> "openai.types.Batch":
    made = client.files.create(file=("in.jsonl", data), purpose="batch")
    options = {"input_file_id": made.id, "endpoint": CHAT, "completion_window": "24h"} | asked
    return client.batches.create(**options)  # type: ignore[arg-type]


def test_it_uploads_lists_reads_and_deletes_a_file(client: openai.OpenAI) -> None:
    made = client.files.create(file=("in.jsonl", INPUT), purpose="batch")
    assert (made.object, made.bytes, made.filename) == ("file", len(INPUT), "in.jsonl")
    assert (made.purpose, made.status) == ("batch", "processed")
    assert [file.id for file in client.files.list()] == [made.id]
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).content == INPUT
    assert client.files.delete(made.id).deleted
    assert not list(client.files.list())
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


def test_an_expiry_asked_for_with_the_file_is_kept(client: openai.OpenAI) -> None:
    made = client.files.create(
        file=("in.jsonl", INPUT),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3_600},
    )
    assert made.expires_at == made.created_at + 3_600


def test_files_come_in_pages_in_both_orders(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{i}.jsonl", INPUT), purpose="batch").id for i in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == made
    assert [file.id for file in client.files.list(purpose="batch_output")] == []


def test_a_batch_runs_from_upload_to_download(
    client: openai.OpenAI, house: House, hand: Hand
) -> None:
    batch = create(client, metadata={"run": "1"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
    assert (batch.completion_window, batch.metadata) == ("24h", {"run": "1"})
    assert batch.expires_at == batch.created_at + 86_400
    house.ingest(batch.id)
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.model) == ("in_progress", "sim")
    hand.work_off(batch.id, failed=[2])
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.completed_at
    counts = batch.request_counts
    assert counts and (counts.total, counts.completed, counts.failed) == (6, 5, 1)
    usage = batch.usage
    assert usage and (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 15, 25)
    assert usage.input_tokens_details.cached_tokens == 5
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert batch.output_file_id and batch.error_file_id
    output = client.files.content(batch.output_file_id).text
    assert ids(output) == ["r0", "r1", "r3", "r4", "r5"]
    assert ids(client.files.content(batch.error_file_id).text) == ["r2"]
    produced = client.files.retrieve(batch.output_file_id)
    assert (produced.purpose, produced.bytes) == ("batch_output", len(output.encode()))


def test_a_rejected_input_lists_its_faults(client: openai.OpenAI, house: House) -> None:
    batch = create(client, INPUT + b"no json\n")
    house.ingest(batch.id)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "failed" and batch.failed_at and batch.errors and batch.errors.data
    assert batch.errors.object == "list"
    assert [(fault.code, fault.line) for fault in batch.errors.data] == [("invalid_json_line", 7)]


def test_batches_page_by_themselves_newest_first(client: openai.OpenAI) -> None:
    made = [create(client).id for _ in range(5)]
    first = client.batches.list(limit=2)
    assert (first.has_more, [batch.id for batch in first.data]) == (True, [made[4], made[3]])
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]


def test_a_batch_can_be_cancelled_and_its_rest_is_in_the_error_file(
    client: openai.OpenAI, house: House, hand: Hand
) -> None:
    batch = create(client)
    house.ingest(batch.id)
    hand.finish(hand.claim())
    assert client.batches.cancel(batch.id).status == "cancelling"
    assert client.batches.cancel(batch.id).status == "cancelling"
    house.finalize(batch.id)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "cancelled" and batch.cancelling_at and batch.cancelled_at
    assert batch.output_file_id and batch.error_file_id
    assert ids(client.files.content(batch.output_file_id).text) == ["r0", "r1", "r2", "r3"]
    cut = client.files.content(batch.error_file_id).text
    assert ids(cut) == ["r4", "r5"] and cut.count("batch_cancelled") == 2
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_cancelling_what_has_completed_is_a_conflict(
    client: openai.OpenAI, house: House, hand: Hand
) -> None:
    batch = create(client)
    house.ingest(batch.id)
    hand.work_off(batch.id)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    assert house.job(batch.id).state is JobState.COMPLETED


def test_a_conflict_is_not_sent_again(
    api_server: str, user_key: str, client: openai.OpenAI, house: House, hand: Hand
) -> None:
    batch = create(client)
    house.ingest(batch.id)
    hand.work_off(batch.id)
    sent: list[httpx.Request] = []
    with (
        httpx.Client(event_hooks={"request": [sent.append]}) as counted,
        openai.OpenAI(
            base_url=f"{api_server}/v1", api_key=user_key, http_client=counted
        ) as persistent,
        pytest.raises(openai.ConflictError),
    ):
        persistent.batches.cancel(batch.id)
    assert len(sent) == 1


@pytest.mark.parametrize("endpoint", ["/v1/unknown", "/v1/moderations", "v1/responses", ""])
def test_an_unsupported_endpoint_is_refused_with_the_supported_ones(
    client: openai.OpenAI, endpoint: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, endpoint=endpoint)
    assert (refused.value.code, refused.value.param) == ("unsupported_endpoint", "endpoint")
    assert "/v1/chat/completions, /v1/completions" in refused.value.message
    assert not list(client.batches.list())


def test_a_batch_of_responses_runs_and_its_lines_are_what_the_client_knows(
    client: openai.OpenAI, house: House
) -> None:
    house.register()
    url = "/v1/responses"
    bodies = [{"model": "sim", "input": f"say {i}", "max_output_tokens": 4} for i in range(3)]
    data = jsonl(
        [
            {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}
            for i, body in enumerate(bodies)
        ]
    )
    batch = create(client, data, endpoint=url)
    assert batch.endpoint == url
    house.ingest(batch.id)
    worker = house.worker()
    try:
        worker.serve()
    finally:
        worker.leave()
    house.finalize(batch.id)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    lines = client.files.content(batch.output_file_id).text.splitlines()
    found = [Response.model_validate(json.loads(line)["response"]["body"]) for line in lines]
    assert [response.output_text for response in found] == ["user"] * 3
    assert {response.status for response in found} == {"incomplete"}
    assert batch.usage is not None
    assert batch.usage.output_tokens == 12


@pytest.mark.parametrize("window", ["1h", "90m", "7d"])
def test_other_windows_than_a_day_are_taken(client: openai.OpenAI, window: str) -> None:
    seconds = {"1h": 3_600, "90m": 5_400, "7d": 604_800}[window]
    batch = create(client, completion_window=window)
    assert batch.expires_at == batch.created_at + seconds


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "99999999d"}, "completion_window"),
        ({"metadata": {f"k{i}": "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
def test_a_value_out_of_bounds_names_its_parameter(
    client: openai.OpenAI, asked: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, **asked)
    assert str(refused.value.param).startswith(param)
    assert refused.value.type == "invalid_request_error"


def test_models_are_listed_and_read(client: openai.OpenAI, house: House) -> None:
    house.register("team/model:1")
    assert {model.id for model in client.models.list()} == {"sim", "team/model:1"}
    model = client.models.retrieve("team/model:1")
    assert (model.object, model.owned_by, model.id) == ("model", "batchgen", "team/model:1")
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("unknown")
    assert missing.value.code == "model_not_found"


def test_a_wrong_key_is_an_authentication_error(api_server: str) -> None:
    with (
        openai.OpenAI(base_url=f"{api_server}/v1", api_key="bg_no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.batches.list()
    assert refused.value.code == "invalid_api_key"


def test_a_packed_file_is_kept_unpacked(client: openai.OpenAI) -> None:
    made = client.files.create(file=("in.jsonl.gz", gzip.compress(INPUT)), purpose="batch")
    assert made.bytes == len(INPUT)
    assert client.files.content(made.id).content == INPUT


def ids(text: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in text.splitlines()]
