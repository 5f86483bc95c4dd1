"""Lines of each endpoint through a real engine: what comes back is what its clients read."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.responses import Response

from batchgen.demo.orders import held_out
from batchgen.domain.states import JobState
from tests.house import MODELS, House

pytest.importorskip("openvino_genai")

TARGET = max(MODELS.glob("*-ov"))
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m"} | body}


def run(house: House, url: str, *bodies: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each line, named by its place, became: its body, or its error's."""
    job = house.run([line(str(i), url, **body) for i, body in enumerate(bodies)], endpoint=url)
    assert job.state is JobState.COMPLETED
    found = {r["custom_id"]: r["response"]["body"] for r in house.outputs(job.id)}
    found |= {r["custom_id"]: r["response"]["body"]["error"] for r in house.errors(job.id)}
    assert sorted(found) == sorted(str(i) for i in range(len(bodies)))
    return found


@pytest.fixture
def real(house: House) -> House:
    house.register(
        "m",
        engine="openvino",
        path=str(TARGET),
        runtime_config={"INFERENCE_NUM_THREADS": 1},
        scheduler_config={"num_kv_blocks": 500},
    )
    return house


def test_a_prompt_is_scored_as_the_legacy_api_did(real: House) -> None:
    text = "3 boxes of apples für Anna 😀"
    asked = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0}
    found = run(
        real,
        COMPLETIONS,
        asked,
        {**asked, "max_tokens": 4, "temperature": 0, "ignore_eos": True},
        {**asked, "max_tokens": 4},
        {"prompt": text, "echo": True, "temperature": 0, "max_tokens": 4, "ignore_eos": True},
    )
    (choice,) = found["0"]["choices"]
    logprobs = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    n = len(logprobs["tokens"])
    assert {len(logprobs[name]) for name in logprobs} == {n}
    assert found["0"]["usage"]["prompt_tokens"] == n
    assert found["0"]["usage"]["completion_tokens"] == 0
    assert logprobs["token_logprobs"][0] is None
    assert all(logprob <= 0 for logprob in logprobs["token_logprobs"][1:])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text.startswith(token, offset)
    # With an answer: the prompt's are the same, the answer's come after.
    (longer,) = found["1"]["choices"]
    assert longer["text"].startswith(text)
    assert len(longer["logprobs"]["tokens"]) == n + 4
    assert longer["logprobs"]["token_logprobs"][1:n] == pytest.approx(
        logprobs["token_logprobs"][1:], abs=0.1
    )
    assert longer["logprobs"]["text_offset"][n] == len(text)
    # The likeliest token of a sampled answer is not known.
    assert (found["2"]["code"], found["2"]["param"]) == ("unsupported_parameter", "logprobs")
    # An echo alone is the text.
    (plain,) = Completion.model_validate(found["3"]).choices
    assert plain.text == longer["text"]
    assert plain.logprobs is None


def test_with_prefix_caching_a_prompt_is_not_scored_and_the_error_says_the_mend(
    real: House,
) -> None:
    asked = {"prompt": "3 boxes", "echo": True, "logprobs": 0, "max_tokens": 0}
    caching = {"scheduler_config": {"enable_prefix_caching": True}}
    job = real.run(
        [line("a", COMPLETIONS, **asked)], endpoint=COMPLETIONS, overrides=caching, model="m"
    )
    (record,) = real.errors(job.id)
    error = record["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "echo")
    assert "scheduler_config.enable_prefix_caching=false" in error["message"]


def test_a_default_length_gives_way_to_the_models_and_a_wish_is_refused(house: House) -> None:
    house.register("m", max_model_len=20)
    prompt = {"prompt": [1] * 15}
    found = run(
        house,
        COMPLETIONS,
        prompt,
        {**prompt, "max_tokens": 16},
        {**prompt, "max_tokens": 5},
        {"prompt": [1] * 20},
    )
    assert found["0"]["usage"]["completion_tokens"] == 5
    assert (found["1"]["code"], found["1"]["param"]) == ("context_length_exceeded", "max_tokens")
    assert "at most 5" in found["1"]["message"]
    assert found["2"]["usage"]["completion_tokens"] == 5
    assert (found["3"]["code"], found["3"]["param"]) == ("context_length_exceeded", "prompt")


def test_responses_are_what_the_chat_would_answer(real: House) -> None:
    (example,) = held_out(1)
    system, user = example.messages()
    common = {"instructions": system["content"], "temperature": 0}
    text = user["content"]
    items = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
    schema = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    found = run(
        real,
        RESPONSES,
        {**common, "input": text, "max_output_tokens": 200},
        {**common, "input": items, "max_output_tokens": 200},
        {**common, "input": text, "max_output_tokens": 5},
        {**common, "input": text, "previous_response_id": "resp_0"},
        {**common, "input": text, "max_output_tokens": 10**6},
        {**common, "input": "four", "max_output_tokens": 300, "text": {"format": form}},
    )
    whole, same, cut = (Response.model_validate(found[i]) for i in "012")
    assert json.loads(whole.output_text) == example.order.to_dict()
    assert same.output_text == whole.output_text
    assert (whole.status, cut.status) == ("completed", "incomplete")
    assert whole.usage is not None
    assert cut.usage is not None
    assert cut.usage.output_tokens == 5
    assert whole.usage.input_tokens == cut.usage.input_tokens
    assert found["3"]["param"] == "previous_response_id"
    assert found["4"]["param"] == "max_output_tokens"
    # A model that was never taught it is held to the form, and may still not find its end.
    formed = Response.model_validate(found["5"])
    assert formed.output_text.lstrip().startswith("{")
    if formed.status == "completed":
        assert isinstance(json.loads(formed.output_text)["n"], bool)


def test_a_failure_names_the_field_that_its_endpoint_has(house: House) -> None:
    house.register(
        "m",
        engine="openvino",
        path=str(TARGET),
        runtime_config={"INFERENCE_NUM_THREADS": 1},
        scheduler_config={"num_kv_blocks": 4},
    )
    long = "boxes " * 300
    by_prompt = run(house, COMPLETIONS, {"prompt": long}, {"prompt": "a", "logprobs": 3})
    assert (by_prompt["0"]["code"], by_prompt["0"]["param"]) == ("kv_capacity", "prompt")
    assert by_prompt["1"]["param"] == "logprobs"
    by_input = run(house, RESPONSES, {"input": long}, {"input": long * 40})
    assert (by_input["0"]["code"], by_input["0"]["param"]) == ("kv_capacity", "input")
    assert by_input["1"]["param"] == "input"
