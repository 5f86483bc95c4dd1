"""The checks that every engine makes before it takes a request."""

import pytest

from batchgen.domain.requests import SamplingParams
from batchgen.engines.checks import output_limit, prompt_fault


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([1], None),
        ([1] * 9, None),
        ([1] * 10, "context_length_exceeded"),
        ([1] * 11, "context_length_exceeded"),
        ([], "invalid_value"),
        ([50], "invalid_value"),
        ([-1], "invalid_value"),
        ([0, 49], None),
    ],
)
def test_a_prompt_must_leave_room_and_be_of_the_vocabulary(ids, code):
    fault = prompt_fault(ids, max_model_len=10, vocab_size=50)
    assert (fault and fault.code) == code


@pytest.mark.parametrize(
    ("max_tokens", "default", "limit"),
    [(3, None, 3), (100, None, 6), (None, None, 6), (None, 4, 4), (None, 100, 6), (5, 4, 5)],
)
def test_an_answer_gets_what_was_asked_within_the_models_length(max_tokens, default, limit):
    sampling = SamplingParams(max_tokens=max_tokens)
    assert output_limit(sampling, n_in=4, max_model_len=10, default=default) == limit
