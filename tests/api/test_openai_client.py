"""The official `openai` client, unchanged, against the running server."""

import json
from collections.abc import Iterator

import openai
import pytest


def line(custom_id: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    url = "/v1/chat/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


INPUT = ("\n".join(line(f"r{i}") for i in range(3)) + "\n").encode()


@pytest.fixture
def client(api_server: str, user_key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api_server}/v1", api_key=user_key, max_retries=0) as made:
        yield made


def test_it_uploads_lists_reads_and_deletes_a_file(client: openai.OpenAI) -> None:
    made = client.files.create(file=("in.jsonl", INPUT), purpose="batch")
    assert (made.object, made.bytes, made.filename) == ("file", len(INPUT), "in.jsonl")
    assert [file.id for file in client.files.list()] == [made.id]
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).content == INPUT
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
