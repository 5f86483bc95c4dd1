"""Records are single lines that keep what was put into them, in the shapes of the OpenAI API."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchgen.domain.outcomes import (
    Choice,
    Cut,
    CutReason,
    Failed,
    FinishReason,
    Generation,
    Timings,
    TokenLogprob,
)
from batchgen.domain.requests import Endpoint, GenerationRequest, SamplingParams, TextPrompt
from batchgen.formats.openai import cut_line, error_line, output_line, timing_line

BYTES = {1: b"Hel", 2: b"lo", 3: b"\xf0\x9f", 4: b"\x98\x80"}


def request(custom_id: str = "c", endpoint: Endpoint = Endpoint.COMPLETIONS) -> GenerationRequest:
    return GenerationRequest(custom_id, 3, 7, endpoint, TextPrompt("x"), SamplingParams())


def generation(*texts: str, logprobs: Any = None, n_cached: int | None = 2) -> Generation:
    choices = tuple(
        Choice((1, 2), FinishReason.STOP, text, logprobs=logprobs) for text in texts or ("Hello",)
    )
    return Generation(choices, 5, n_cached, 2 * len(choices), Timings(0))


def record(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    # Whatever a program takes for a line end, it sees one line.
    assert len(line.decode().splitlines()) == 1
    found = json.loads(line)
    assert isinstance(found, dict)
    assert found.keys() == {"id", "custom_id", "response", "error"}
    assert found["id"].startswith("batch_req_")
    return found


def body(endpoint: Endpoint, made: Generation, **options: Any) -> dict[str, Any]:
    found = record(
        output_line(request(endpoint=endpoint), made, model="m", created=1_700_000_000, **options)
    )
    assert found["error"] is None
    assert found["response"]["status_code"] == 200
    assert found["response"]["request_id"]
    content = found["response"]["body"]
    assert isinstance(content, dict)
    return content


def test_a_chat_record_holds_a_chat_completion() -> None:
    found = body(Endpoint.CHAT_COMPLETIONS, generation("Hello"), fingerprint="f")
    typed = ChatCompletion.model_validate(found, strict=True)
    assert typed.object == "chat.completion"
    assert (typed.model, typed.created, typed.system_fingerprint) == ("m", 1_700_000_000, "f")
    assert typed.choices[0].message.content == "Hello"
    assert typed.choices[0].message.role == "assistant"
    assert typed.choices[0].finish_reason == "stop"
    assert typed.usage is not None
    assert (typed.usage.prompt_tokens, typed.usage.completion_tokens) == (5, 2)
    assert typed.usage.total_tokens == 7
    assert typed.usage.prompt_tokens_details is not None
    assert typed.usage.prompt_tokens_details.cached_tokens == 2


def test_a_completion_record_holds_a_text_completion() -> None:
    found = body(Endpoint.COMPLETIONS, generation("one", "two"))
    typed = Completion.model_validate(found, strict=True)
    assert typed.object == "text_completion"
    assert [(c.index, c.text) for c in typed.choices] == [(0, "one"), (1, "two")]
    assert typed.usage is not None
    assert typed.usage.completion_tokens == 4


def test_unknown_cached_tokens_are_null_not_zero() -> None:
    found = body(Endpoint.COMPLETIONS, generation(n_cached=None))
    assert found["usage"]["prompt_tokens_details"] is None


def test_ids_are_never_the_same() -> None:
    lines = [output_line(request(), generation(), model="m", created=0) for _ in range(100)]
    assert len({record(line)["id"] for line in lines}) == 100


LOGPROBS = (
    TokenLogprob(1, -0.25, ((1, -0.25), (2, -2.0))),
    TokenLogprob(3, -0.5, ((3, -0.5),)),
    TokenLogprob(4, -math.inf, ()),
)


def test_chat_logprobs_carry_each_tokens_bytes() -> None:
    found = body(
        Endpoint.CHAT_COMPLETIONS,
        generation("x", logprobs=LOGPROBS),
        token_bytes=BYTES.__getitem__,
    )
    typed = ChatCompletion.model_validate(found, strict=True)
    assert typed.choices[0].logprobs is not None
    content = typed.choices[0].logprobs.content
    assert content is not None
    assert [(t.token, t.logprob) for t in content] == [
        ("Hel", -0.25),
        ("\ufffd", -0.5),
        ("\ufffd\ufffd", -9999.0),
    ]
    assert [bytes(t.bytes or ()) for t in content] == [b"Hel", b"\xf0\x9f", b"\x98\x80"]
    assert [(t.token, t.logprob) for t in content[0].top_logprobs] == [("Hel", -0.25), ("lo", -2.0)]


def test_completion_logprobs_are_lists_beside_each_other() -> None:
    found = body(
        Endpoint.COMPLETIONS, generation("Hel😀", logprobs=LOGPROBS), token_bytes=BYTES.__getitem__
    )
    typed = Completion.model_validate(found, strict=True)
    logprobs = typed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hel", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80"]
    assert logprobs.token_logprobs == [-0.25, -0.5, -9999.0]
    assert logprobs.text_offset == [0, 3, 3]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Hel": -0.25, "lo": -2.0}


def scored(text: str, prompt: dict[int, bytes], **sampling: Any) -> dict[str, Any]:
    """The logprobs of an echoed prompt and one more token, `!`."""
    names = prompt | {99: b"!"}
    last = TokenLogprob(99, -0.5, ((99, -0.5),) if sampling["logprobs"] else ())
    choice = Choice((99,), FinishReason.LENGTH, text, logprobs=(last,))
    scores = (None, *(-0.125 * 4**i for i in range(len(prompt) - 1)))
    made = Generation((choice,), len(prompt), 0, 1, Timings(0), prompt_logprobs=scores)
    asked = replace(request(), sampling=SamplingParams(echo=True, **sampling))
    line = output_line(
        asked, made, model="m", created=0, token_bytes=names.__getitem__, prompt_ids=[*prompt]
    )
    found = record(line)["response"]["body"]
    assert found["choices"][0]["text"] == text
    logprobs = found["choices"][0]["logprobs"]
    assert isinstance(logprobs, dict)
    return logprobs


def test_an_echoed_prompt_has_its_logprobs_before_the_answers() -> None:
    found = scored("to be sure!", {1: b"to", 2: b" be", 3: b" sure"}, logprobs=0)
    assert found == {
        "tokens": ["to", " be", " sure", "!"],
        "token_logprobs": [None, -0.125, -0.5, -0.5],
        "top_logprobs": [None, {" be": -0.125}, {" sure": -0.5}, {"!": -0.5}],
        "text_offset": [0, 2, 5, 10],
    }


def test_a_prompts_token_is_called_the_likeliest_only_where_no_other_can_be() -> None:
    names = {1: b"to", 2: b" be", 3: b" or", 4: b" not"}
    found = scored("to be or not!", names, logprobs=1)
    assert found["token_logprobs"] == [None, -0.125, -0.5, -2.0, -0.5]
    assert found["top_logprobs"] == [None, {" be": -0.125}, {" or": -0.5}, None, {"!": -0.5}]


def test_what_is_not_in_the_text_takes_no_place_in_it() -> None:
    names = {1: b"<s>", 2: b" Hi", 3: b"\xf0\x9f", 4: b"\x98\x80", 5: b"<e>"}
    found = scored("Hi😀!", names, logprobs=0)
    assert found["tokens"] == ["<s>", " Hi", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "<e>", "!"]
    assert found["text_offset"] == [0, 0, 2, 2, 3, 3]


def test_undecoded_choices_and_logprobs_without_bytes_are_a_programming_error() -> None:
    raw = Generation((Choice((1,), FinishReason.STOP),), 1, 0, 1, Timings(0))
    with pytest.raises(ValueError, match="decoded"):
        output_line(request(), raw, model="m", created=0)
    with pytest.raises(ValueError, match="bytes"):
        output_line(request(), generation("x", logprobs=LOGPROBS), model="m", created=0)


def test_a_failed_line_carries_the_apis_error() -> None:
    found = record(error_line("c", Failed(400, "invalid_value", "no", "seed")))
    assert found["custom_id"] == "c"
    assert found["error"] is None
    assert found["response"]["status_code"] == 400
    assert found["response"]["body"] == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "seed",
            "code": "invalid_value",
        }
    }


def test_a_failure_of_the_server_is_called_one() -> None:
    found = record(error_line("c", Failed(500, "engine_error", "no")))
    assert found["response"]["body"]["error"]["type"] == "server_error"


@pytest.mark.parametrize("reason", CutReason)
def test_a_cut_line_has_no_response_and_says_why(reason: CutReason) -> None:
    found = record(cut_line("c", Cut(reason)))
    assert found["response"] is None
    assert found["error"]["code"] == reason.value
    assert found["error"]["message"]


any_text = st.text(
    st.characters(codec=None) | st.sampled_from("\0\n\r\x85\u2028\u2029\ud83d\ude00")
)


@given(custom_id=any_text, text=any_text)
def test_any_text_survives_the_way_through_a_record(custom_id: str, text: str) -> None:
    made = generation(text)
    found = record(output_line(request(custom_id), made, model="m", created=0))
    assert found["custom_id"] == _as_utf16(custom_id)
    assert found["response"]["body"]["choices"][0]["text"] == _as_utf16(text)
    assert record(cut_line(custom_id, Cut(CutReason.EXPIRED)))["custom_id"] == _as_utf16(custom_id)
    failed = record(error_line(custom_id, Failed(400, "c", text)))
    assert failed["response"]["body"]["error"]["message"] == _as_utf16(text)
    timing = timing_line(request(custom_id), made)
    assert len(timing.decode().splitlines()) == 1
    assert json.loads(timing)["custom_id"] == _as_utf16(custom_id)


def _as_utf16(text: str) -> str:
    # Two lone halves that happen to stand side by side are, in JSON, the character they make.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
