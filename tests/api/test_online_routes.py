"""Calls that want an answer at once: refused in OpenAI's form, with the way that there is."""

import openai
import pytest

from api.openai.online import ONLINE


def test_a_chat_through_the_official_client_is_told_how_to_submit_a_batch(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "hi"}])
    assert refused.value.code == "offline_only"
    assert refused.value.type == "invalid_request_error"
    for named in ("/v1/files", "/v1/batches", "/v1/chat/completions", "`batchgen submit`"):
        assert named in str(refused.value)


@pytest.mark.parametrize("path", ONLINE)
def test_every_online_route_says_that_batchgen_works_offline(
    client: openai.OpenAI, path: str
) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.post(path.removeprefix("/v1"), body={"model": "sim"}, cast_to=object)
    assert refused.value.code == "offline_only"
    assert "batches" in str(refused.value)
