"""Whatever bytes come in, files get faults and lines get failures; nothing raises."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.domain.jobs import ShardPlan
from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint, GenerationRequest
from batchgen.formats.cutting import Limits
from batchgen.formats.openai import parse_line
from batchgen.formats.stats import file_stats
from batchgen.formats.validate import Scan

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "\0", "\ud83d", "user", "text", "m", "POST", Endpoint.CHAT_COMPLETIONS])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "x", "tool_calls"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
body_names = st.sampled_from(
    [
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature"),
        *("top_p", "n", "seed", "stop", "logprobs", "top_logprobs", "top_k", "min_p", "stream"),
        *("stop_token_ids", "chat_template_kwargs", "tools", "response_format", "logit_bias"),
        *("user", "ignore_eos", "x", "\0", "\ud83d"),
    ]
)
bodies = st.dictionaries(body_names, values, max_size=6)
envelopes = st.dictionaries(
    st.sampled_from(["custom_id", "method", "url", "body", "x", "\0"]), values | bodies, max_size=5
)


def scanned(data: bytes) -> tuple[Scan, list[ShardPlan]]:
    found = Scan(
        lambda: [data], endpoint=Endpoint.CHAT_COMPLETIONS, model=None, limits=Limits(shard_lines=2)
    )
    return found, list(found)


def check_faults(found: Scan) -> None:
    for fault in found.faults:
        text = f"{fault.code}{fault.message}{fault.param}"
        assert "\0" not in text
        text.encode()
        assert len(text) < 1_000


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file(data: bytes) -> None:
    found, _ = scanned(data)
    assert found.faults
    check_faults(found)
    file_stats([data])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(envelopes, max_size=3))
def test_any_json_objects_are_a_file(lines: list[dict[str, Any]]) -> None:
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    found, _ = scanned(data)
    check_faults(found)
    assert found.n_lines == len(lines)
    file_stats([data])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(bodies, st.sampled_from(Endpoint))
def test_any_body_is_a_request_or_a_failure(body: dict[str, Any], endpoint: Endpoint) -> None:
    raw = json.dumps({"custom_id": "c", "body": body}).encode()
    found = parse_line(raw, index=0, line=1, endpoint=endpoint)
    match found:
        case Failed():
            assert found.status_code == 400
            assert found.code
        case GenerationRequest():
            assert found.custom_id == "c"


@pytest.mark.parametrize("depth", [100, 300, 900, 970, 990, 1_100, 50_000])
@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body", "x"])
def test_nesting_of_any_depth_is_at_most_a_fault(name: str, depth: int) -> None:
    good = {"custom_id": "c", "method": "POST", "url": Endpoint.CHAT_COMPLETIONS, "body": {}}
    raw = json.dumps(good | {name: 0}).encode().replace(b": 0", b": " + b"[" * depth + b"]" * depth)
    found, _ = scanned(raw)
    assert found.faults
    check_faults(found)


@pytest.mark.parametrize("depth", [100, 300, 900, 970, 990, 1_100, 50_000])
@pytest.mark.parametrize("name", ["model", "messages", "prompt", "tools", "user", "x", "stop"])
def test_a_body_nested_to_any_depth_is_at_most_a_failure(name: str, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    raw = b'{"custom_id":"c","body":{"prompt":"x","%s":%s}}' % (name.encode(), nested)
    found = parse_line(raw, index=0, line=1, endpoint=Endpoint.COMPLETIONS)
    assert isinstance(found, Failed) or name == "user"
