"""Specs: typed, complete, and refused where they name or combine what cannot work."""

import msgspec
import pytest

from batchgen.domain.errors import InvalidRequest, UnknownOption
from batchgen.domain.requests import SamplingParams
from batchgen.engines.fingerprint import fingerprint
from batchgen.engines.registry import refusal, spec_faults
from batchgen.engines.spec import (
    OpenVinoSpec,
    SchedulerSettings,
    SimulatedSpec,
    decode_spec,
    encode_spec,
)

OPENVINO = {"engine": "openvino", "path": "/models/m"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**OPENVINO, "devise": "CPU"}, "'devise' in openvino engine: did you mean 'device'"),
        (
            {**OPENVINO, "scheduler_config": {"max_num_seq": 4}},
            r"'max_num_seq' in openvino engine\.scheduler_config: did you mean 'max_num_seqs'",
        ),
        (
            {**OPENVINO, "scheduler_config": {"cache_eviction": {"start": 4}}},
            r"'start' in openvino engine\.scheduler_config\.cache_eviction",
        ),
        ({"engine": "simulated", "step": 1}, "'step' in simulated engine: did you mean 'step_s'"),
    ],
)
def test_an_unknown_option_is_refused_with_its_place_and_the_nearest_known_one(spec, message):
    with pytest.raises(UnknownOption, match=message):
        decode_spec(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": "cuda"},
        {},
        {"engine": "openvino"},
        {**OPENVINO, "max_model_len": "long"},
        {**OPENVINO, "kv_cache_precision": "f8"},
        {**OPENVINO, "runtime_config": {"NUM_STREAMS": {"nested": 1}}},
        {"engine": "simulated", "rules": [{"contains": "x", "action": "explode"}]},
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(spec):
    with pytest.raises(InvalidRequest):
        decode_spec(spec)


def test_false_and_zero_are_values_and_not_absences():
    with_values = decode_spec(
        {**OPENVINO, "scheduler_config": {"dynamic_split_fuse": False, "cache_size": 0}}
    )
    assert isinstance(with_values, OpenVinoSpec)
    assert with_values.scheduler_config.dynamic_split_fuse is False
    assert with_values.scheduler_config.cache_size == 0
    assert fingerprint(with_values) != fingerprint(decode_spec(OPENVINO))


def test_a_spec_survives_json_and_its_fingerprint_is_that_of_its_content():
    spec = OpenVinoSpec(path="/m", scheduler_config=SchedulerSettings(max_num_seqs=4))
    again = decode_spec(msgspec.json.decode(msgspec.json.encode(encode_spec(spec))))
    assert again == spec
    assert fingerprint(again) == fingerprint(spec)
    assert fingerprint(decode_spec(OPENVINO)) == fingerprint(OpenVinoSpec(path="/models/m"))


def test_what_cannot_work_shows_without_loading():
    assert spec_faults(OpenVinoSpec(path="/m")) == []
    assert spec_faults(SimulatedSpec()) == []
    both = SchedulerSettings(num_kv_blocks=8, cache_size=1)
    assert (
        "cache_size would be ignored"
        in spec_faults(OpenVinoSpec(path="/m", scheduler_config=both))[0]
    )
    assert spec_faults(SimulatedSpec(max_num_seqs=0, step_s=-1)) == [
        "max_num_seqs must be at least 1",
        "step_s must be at least 0",
    ]


def test_what_an_engine_lacks_shows_without_loading():
    lacking = SamplingParams(logprobs=5)
    for spec in (OpenVinoSpec(path="/m"), SimulatedSpec()):
        refused = refusal(spec, lacking)
        assert refused is not None
        assert (refused.status_code, refused.code) == (400, "unsupported_parameter")
        assert refusal(spec, SamplingParams()) is None
