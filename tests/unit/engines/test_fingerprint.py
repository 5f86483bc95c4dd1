"""Fingerprints outlive versions: jobs and measurements are filed under them."""

from typing import Any

import msgspec
import pytest

from batchgen.engines.fingerprint import fingerprint
from batchgen.engines.spec import OpenVinoSpec, decode_spec, encode_spec

PLAIN = {"engine": "openvino", "path": "/models/m"}
FULL = {
    **PLAIN,
    "device": "HETERO:GPU.0,GPU.1",
    "max_model_len": 4096,
    "kv_cache_precision": "u8",
    "scheduler_config": {
        "max_num_seqs": 64,
        "dynamic_split_fuse": False,
        "use_cache_eviction": True,
        "cache_eviction": {"max_cache_size": 1024},
        "use_sparse_attention": True,
        "sparse_attention": {"mode": "XATTENTION", "xattention_threshold": 0.8},
    },
    "runtime_config": {"NUM_STREAMS": 1},
    "draft": {"path": "/models/d", "num_assistant_tokens": 3},
    "cache": False,
}


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        (PLAIN, "68a1a2b9bb1bd2824d1ff06d5988ea51"),
        (FULL, "07505761b351e1898522970d08d30401"),
        (
            {**PLAIN, "prompt_lookup": {"num_assistant_tokens": 4}},
            "1fcaa9ca1c234a5941c22d42adffd5d8",
        ),
        ({"engine": "simulated"}, "d6b7c303b53bc02654ace991632be92a"),
        (
            {
                "engine": "simulated",
                "step_s": 0.25,
                "rules": [{"contains": "bad", "action": "fail"}],
            },
            "7bab421c11c1d2de196a7ae33158e96c",
        ),
    ],
)
def test_a_spec_of_the_first_version_keeps_its_fingerprint(
    spec: dict[str, Any], known: str
) -> None:
    assert fingerprint(decode_spec(spec)) == known


def test_a_stored_spec_has_the_fingerprint_that_it_was_stored_with() -> None:
    stored = encode_spec(decode_spec(FULL))
    assert fingerprint(decode_spec(stored)) == fingerprint(decode_spec(FULL))


class Newer(OpenVinoSpec, frozen=True, kw_only=True, tag="newer"):
    """A spec of a later version: no field of it was in the first."""

    window: int | None = None
    modes: tuple[str, ...] = ()


def test_a_setting_that_came_later_counts_only_where_it_is_set() -> None:
    plain = fingerprint(Newer(path="/m"))
    assert fingerprint(msgspec.structs.replace(Newer(path="/m"), window=None)) == plain
    assert fingerprint(Newer(path="/m", modes=())) == plain
    assert fingerprint(Newer(path="/m", window=0)) != plain
    assert fingerprint(Newer(path="/m", modes=("a",))) != plain


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/models/other"},
        {"cache": True},
        {"scheduler_config": {"dynamic_split_fuse": None}},
        {"draft": None},
        {"runtime_config": {"NUM_STREAMS": "1"}},
    ],
)
def test_every_other_setting_counts(change: dict[str, Any]) -> None:
    assert fingerprint(decode_spec({**FULL, **change})) != fingerprint(decode_spec(FULL))
