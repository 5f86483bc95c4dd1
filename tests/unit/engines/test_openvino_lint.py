"""The linter: what it refuses, with reason and mend, and what it only warns of."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchgen.engines.openvino.kv_size import block_tokens, kv_shape, memory_fault, pool_tokens
from batchgen.engines.registry import spec_faults, spec_warnings
from batchgen.engines.spec import (
    CacheEviction,
    DraftModel,
    OpenVinoSpec,
    PromptLookup,
    SchedulerSettings,
    SparseAttention,
)
from tests.house import MODELS

DRAFT = MODELS / "orders-qwen3-1m-ov"


def spec(scheduler: dict[str, Any] | None = None, **settings: Any) -> OpenVinoSpec:
    knobs = SchedulerSettings(**(scheduler or {}))
    return OpenVinoSpec(**({"path": "/not/here", "scheduler_config": knobs} | settings))


def draft(**settings: Any) -> DraftModel:
    return DraftModel(**({"path": "/not/here", "num_assistant_tokens": 3} | settings))


def evicting(**settings: Any) -> dict[str, Any]:
    return {"use_cache_eviction": True, "cache_eviction": CacheEviction(**settings)}


def sparse(**settings: Any) -> dict[str, Any]:
    return {"use_sparse_attention": True, "sparse_attention": SparseAttention(**settings)}


def xattention(**settings: Any) -> dict[str, Any]:
    return sparse(mode="XATTENTION", **settings)


def test_settings_that_work_have_no_faults() -> None:
    good = (
        spec(),
        spec({"num_kv_blocks": 0, "cache_size": 4}),
        spec(evicting(start_size=32, recent_size=64, max_cache_size=128)),
        spec(evicting(aggregation_mode="ADAPTIVE_RKV", adaptive_rkv_window_size=4)),
        spec(evicting(kvcrush_budget=2, kvcrush_rng_seed=1)),
        spec(sparse(num_retained_start_tokens_in_cache=64)),
        spec(xattention(xattention_stride=16, xattention_block_size=96)),
        spec(draft=draft()),
        spec({"dynamic_split_fuse": True, "max_num_batched_tokens": 16_384}, draft=draft()),
        spec(prompt_lookup=PromptLookup(num_assistant_tokens=3)),
        spec(device="HETERO:GPU.0,CPU", runtime_config={"OFFLOAD_RATIO": 50}),
        spec(
            device="HETERO:GPU.0,GPU.1",
            runtime_config={"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"},
        ),
        spec(device="CPU", runtime_config={"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}),
        spec(device="AUTO"),
        spec(device="AUTO:GPU,CPU"),
        spec(evicting(start_size=48), device="GPU"),
    )
    assert [spec_faults(each) for each in good] == [[]] * len(good)


@pytest.mark.parametrize(
    ("wrong", "reason", "mend"),
    [
        (spec({"num_kv_blocks": 1, "cache_size": 1}), "cache_size would be", "leave one out"),
        (spec(evicting(start_size=48)), "multiple of the KV block of 32", "64 is"),
        (spec(evicting(start_size=20), device="GPU.1"), "the KV block of 16", "16 is"),
        (
            spec(evicting(start_size=64, recent_size=64, max_cache_size=128)),
            "leaves nothing to choose",
            "over their sum",
        ),
        (spec(evicting(apply_rotation=True)), "fails when blocks are evicted", "leave it out"),
        (spec(evicting(kvcrush_rng_seed=1)), "no effect without kvcrush_budget", "set it"),
        (spec(evicting(adaptive_rkv_window_size=4)), "no effect unless", "ADAPTIVE_RKV"),
        (
            spec({"enable_prefix_caching": True, "use_cache_eviction": True}),
            "exclude each other",
            "switch one off",
        ),
        (spec(sparse(xattention_stride=8)), "xattention_stride has no effect", "XATTENTION"),
        (
            spec(sparse(mode="XATTENTION", num_retained_start_tokens_in_cache=32)),
            "num_retained_start_tokens_in_cache has no effect",
            "TRISHAPE",
        ),
        (
            spec(evicting(aggregation_mode="ADAPTIVE_RKV"), device="CPU"),
            "ends the engine at its first eviction",
            "use NORM_SUM",
        ),
        (spec(xattention(xattention_block_size=48)), "fails to load", "a multiple of 32"),
        (spec(xattention(xattention_stride=7)), "dies of memory", "must divide"),
        (spec(xattention(xattention_stride=128)), "(128) must divide", "(64)"),
        (spec(xattention(xattention_stride=0)), "(0) must divide", "(64)"),
        (spec(xattention(xattention_threshold=1.5)), "not 1.5", "from 0 to 1"),
        (spec(sparse(num_retained_recent_tokens_in_cache=31)), "multiple of the KV block", "31"),
        (
            spec(draft=draft(), prompt_lookup=PromptLookup(num_assistant_tokens=3)),
            "would ignore one without a word",
            "leave one out",
        ),
        (spec({"dynamic_split_fuse": True}, draft=draft()), "corrupts answers", "16384"),
        (spec(device="MULTI:CPU,GPU"), "cannot run on MULTI", "use HETERO"),
        (spec(device="HETERO:"), "names no devices", "HETERO:GPU.0,GPU.1"),
        (spec(device="HETERO:GPU,GPU"), "a device twice", "HETERO:GPU,GPU"),
        (spec(draft=draft(device="MULTI:CPU")), "draft.device", "use HETERO"),
        (
            spec(device="CPU", runtime_config={"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}),
            "no effect on CPU",
            "HETERO:GPU.0,GPU.1",
        ),
        (
            spec(
                device="HETERO:GPU.0,GPU.1",
                runtime_config={"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"},
            ),
            "takes PIPELINE_PARALLEL only",
            "device CPU",
        ),
        (spec(runtime_config={"MODEL_DISTRIBUTION_POLICY": 1}), "must be the text", "TENSOR_"),
        (spec(device="GPU", runtime_config={"OFFLOAD_RATIO": 0.5}), "percentage", "0 to 100"),
        (spec(device="GPU", runtime_config={"OFFLOAD_RATIO": True}), "percentage", "0 to 100"),
        (spec(device="CPU", runtime_config={"OFFLOAD_RATIO": 50}), "is a GPU's", "leave it out"),
        (spec(runtime_config={"CACHE_DIR": "/x"}), "the server's to set", "leave it out"),
        (
            spec(path=str(DRAFT), max_model_len=100_000),
            "over the model's max_position_embeddings 4096",
            "4096",
        ),
        (
            spec({"num_linear_attention_blocks": 5}, path=str(DRAFT)),
            "no linear attention",
            "leave it out",
        ),
        (
            spec({"cache_interval_multiplier": 5}, path=str(DRAFT)),
            "no linear attention",
            "leave it out",
        ),
        (
            spec(
                {"num_kv_blocks": 1},
                path=str(DRAFT),
                prompt_lookup=PromptLookup(num_assistant_tokens=31),
            ),
            "no request at all",
            "raise num_kv_blocks",
        ),
    ],
)
def test_each_fault_says_what_is_wrong_and_what_mends_it(
    wrong: OpenVinoSpec, reason: str, mend: str
) -> None:
    (fault,) = spec_faults(wrong)
    assert reason in fault
    assert mend in fault


def test_a_model_that_is_elsewhere_is_judged_by_its_settings_alone() -> None:
    # The control worker may have another machine than the models: it must not refuse them.
    elsewhere = spec({"num_linear_attention_blocks": 5}, draft=draft())
    assert spec_faults(elsewhere) == []


def test_a_pool_smaller_than_the_longest_request_is_a_warning_with_the_size_that_is_enough() -> (
    None
):
    (warning,) = spec_warnings(spec({"num_kv_blocks": 32}, path=str(DRAFT)))
    assert "holds 1024 tokens, less than one request of max_model_len (4096)" in warning
    assert "raise num_kv_blocks to 128, or lower max_model_len to 1024" in warning
    assert spec_warnings(spec({"num_kv_blocks": 128}, path=str(DRAFT))) == []
    assert spec_warnings(spec({"num_kv_blocks": 32}, path=str(DRAFT), max_model_len=1024)) == []
    assert spec_warnings(spec(path=str(DRAFT))) == []


def test_a_block_has_as_many_tokens_as_its_device_makes_it() -> None:
    sizes = {
        "CPU": block_tokens(spec(device="CPU")),
        "GPU.1": block_tokens(spec(device="GPU.1")),
        "two GPUs": block_tokens(spec(device="HETERO:GPU.0,GPU.1")),
        "both": block_tokens(spec(device="HETERO:GPU.0,CPU")),
        "GPU, XATTENTION": block_tokens(spec(xattention(), device="GPU")),
        "CPU, XATTENTION": block_tokens(spec(xattention(), device="CPU")),
        "the devices found": block_tokens(spec(device="AUTO"), ["GPU.0"]),
    }
    assert sizes == {
        "CPU": 32,
        "GPU.1": 16,
        "two GPUs": 16,
        "both": 32,
        "GPU, XATTENTION": 256,
        "CPU, XATTENTION": 32,
        "the devices found": 16,
    }
    pool = spec({"num_kv_blocks": 64}, path=str(DRAFT), device="GPU")
    (warning,) = spec_warnings(pool)
    assert "holds 1024 tokens" in warning
    assert "raise num_kv_blocks to 256" in warning


def test_a_model_over_a_gpu_and_a_cpu_is_a_warning() -> None:
    (warning,) = spec_warnings(spec(device="HETERO:GPU.0,CPU"))
    assert "one kind of device holds the whole model" in warning
    assert spec_warnings(spec(device="HETERO:GPU.0,GPU.1")) == []


def test_a_pool_beyond_the_devices_memory_is_told_from_config_and_precision() -> None:
    shape = kv_shape(DRAFT)
    assert shape is not None
    assert shape.bytes_per_token("f16") == 2 * 2 * 1 * 64 * 2
    blocks = spec({"num_kv_blocks": 1_000}, path=str(DRAFT), kv_cache_precision="f16")
    needed = 1_000 * 32 * 512
    assert memory_fault(blocks, needed) is None
    fault = memory_fault(blocks, needed - 1)
    assert fault is not None
    assert "lower num_kv_blocks to well under 999" in fault
    sized = spec({"cache_size": 2}, path=str(DRAFT))
    assert memory_fault(sized, 2 * 2**30) is None
    assert memory_fault(sized, 2**30) is not None
    assert memory_fault(sized, None) is None
    assert pool_tokens(sized) == 2 * 2**30 // 256


def test_a_config_that_does_not_tell_the_shape_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    assert kv_shape(tmp_path) is None
    unknown = spec({"num_kv_blocks": 10**9}, path=str(tmp_path))
    assert memory_fault(unknown, 1) is None


def test_layers_without_attention_have_no_kv_cache(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = kv_shape(tmp_path)
    assert shape is not None
    assert shape.bytes_per_token("u8") == 2 * 1 * 2 * 64


def test_the_linter_imports_no_runtime() -> None:
    code = (
        "import sys; from batchgen.engines.registry import spec_faults, spec_warnings; "
        "from batchgen.engines.spec import OpenVinoSpec; s = OpenVinoSpec(path=sys.argv[1]); "
        "spec_faults(s); spec_warnings(s); "
        "sys.exit('openvino' in sys.modules or 'openvino_genai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(DRAFT)], check=False)
    assert done.returncode == 0


def test_every_fault_of_every_kind_is_told_at_once() -> None:
    wrong = msgspec.structs.replace(
        spec({"max_num_seqs": 0, "num_kv_blocks": 1, "cache_size": 1}), max_model_len=1
    )
    assert len(spec_faults(wrong)) == 3
