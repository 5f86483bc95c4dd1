"""Every setting of the scheduler reaches the pipeline's own configuration; none is dropped."""

from typing import Any

import msgspec
import pytest

from batchgen.domain.errors import LoadFailed
from batchgen.engines.openvino.knobs import held_by, scheduler_config
from batchgen.engines.openvino.loading import load_pipeline
from batchgen.engines.spec import (
    CacheEviction,
    DraftModel,
    OpenVinoSpec,
    SchedulerSettings,
    SparseAttention,
)
from tests.house import MODELS

SCHEDULER: dict[str, Any] = {
    "max_num_batched_tokens": 300,
    "max_num_seqs": 9,
    "num_kv_blocks": 40,
    "cache_size": 1,
    "num_linear_attention_blocks": 3,
    "cache_interval_multiplier": 2,
    "dynamic_split_fuse": False,
    "enable_prefix_caching": True,
    "use_cache_eviction": True,
    "use_sparse_attention": True,
}
EVICTION: dict[str, Any] = {
    "start_size": 64,
    "recent_size": 64,
    "max_cache_size": 512,
    "aggregation_mode": "SUM",
    "apply_rotation": True,
    "snapkv_window_size": 4,
    "kvcrush_budget": 2,
    "kvcrush_anchor_point_mode": "MEAN",
    "kvcrush_rng_seed": 7,
    "adaptive_rkv_attention_mass": 0.75,
    "adaptive_rkv_window_size": 5,
}
SPARSE: dict[str, Any] = {
    "mode": "XATTENTION",
    "num_last_dense_tokens_in_prefill": 50,
    "num_retained_start_tokens_in_cache": 64,
    "num_retained_recent_tokens_in_cache": 96,
    "xattention_threshold": 0.5,
    "xattention_block_size": 128,
    "xattention_stride": 4,
}


def test_every_setting_of_the_scheduler_is_held_by_the_pipeline() -> None:
    asked = SchedulerSettings(
        **SCHEDULER,
        cache_eviction=CacheEviction(**EVICTION),
        sparse_attention=SparseAttention(**SPARSE),
    )
    held = held_by(scheduler_config(OpenVinoSpec(path="/m", scheduler_config=asked), 100))
    assert held == msgspec.to_builtins(asked)


@pytest.mark.parametrize(
    ("kind", "values", "nested"),
    [
        (SchedulerSettings, SCHEDULER, {"cache_eviction", "sparse_attention"}),
        (CacheEviction, EVICTION, set()),
        (SparseAttention, SPARSE, set()),
    ],
)
def test_no_setting_is_left_out_above(
    kind: type[msgspec.Struct], values: dict[str, Any], nested: set[str]
) -> None:
    assert {field.name for field in msgspec.structs.fields(kind)} == set(values) | nested


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("eagle3", "hidden layer"), ("mtp", "MTP"), ("dflash", "DFlash")],
)
def test_a_draft_that_is_not_of_the_kind_asked_for_fails_the_load(kind: Any, reason: str) -> None:
    draft = DraftModel(path=str(MODELS / "orders-qwen3-1m-ov"), kind=kind, num_assistant_tokens=3)
    with pytest.raises(LoadFailed, match=reason):
        load_pipeline(OpenVinoSpec(path=str(MODELS / "orders-qwen3-2m-ov"), draft=draft))
