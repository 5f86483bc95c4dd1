"""The traps of openvino-genai by their numbers (docs/openvino-traps.md), each one survived."""

import gc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchgen.demo.orders import MAX_TOKENS, held_out
from batchgen.domain.errors import LoadFailed, UnknownOption
from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.domain.requests import ChatPrompt, Grammar, GrammarKind, SamplingParams
from batchgen.engines.registry import spec_faults
from batchgen.engines.spec import (
    CacheEviction,
    DraftModel,
    PromptLookup,
    SparseAttention,
    decode_spec,
)
from batchgen.formats import openai
from tests.conformance.conftest import MODEL, Loaded, load, openvino_spec

pytest.importorskip("openvino_genai")

from batchgen.engines.openvino.knobs import generation_config

ROOT = Path(__file__).resolve().parents[2]
TARGET = max(MODEL.parent.glob("*-ov"))


@pytest.fixture(scope="module")
def plain():
    made = load(openvino_spec())
    yield made
    made.engine.close()


def orders(loaded: Loaded, count: int) -> list[list[int]]:
    prompts = [ChatPrompt(tuple(order.messages())) for order in held_out(count)]
    return [loaded.encoder.encode(prompt) for prompt in prompts]


def answers(loaded: Loaded, count: int) -> list[tuple[int, ...]]:
    requests = [loaded.request(ids, max_tokens=MAX_TOKENS) for ids in orders(loaded, count)]
    return [result.choices[0].token_ids for result in loaded.run(*requests)]


def or_reason(openvino: Callable[..., Loaded], **settings: Any) -> Loaded | str:
    """The engine, or why it cannot be loaded."""
    try:
        return openvino(**settings)
    except LoadFailed as error:
        return str(error)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what it is about may hang the one that it is in."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )


def test_trap_1_a_step_holds_the_interpreter_so_nobody_but_the_host_imports_the_engine():
    code = (
        "import sys, api.app, workers.app, batchgen.cli.main, batchgen.services.submit, "
        "batchgen.engines.client; sys.exit('openvino' in sys.modules or "
        "'openvino_genai' in sys.modules)"
    )
    assert run_python(code).returncode == 0


def test_trap_2_reading_where_there_is_nothing_hangs_so_it_is_asked_first():
    code = """
import sys
from tests.conformance.conftest import load, openvino_spec
loaded = load(openvino_spec())
loaded.engine.submit([loaded.request(max_tokens=5)])
loaded.engine.schedule()
(live,) = loaded.engine._starting
loaded.engine._start()
assert live.drain() == 0
while loaded.engine.has_work():
    loaded.engine.step()
assert live.drain() == live.drain()
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_trap_3_a_dropped_handle_drops_its_request_so_the_engine_keeps_it(plain):
    ended = plain.engine.submit([plain.request(max_tokens=6, ignore_eos=True) for _ in range(5)])
    while plain.engine.has_work():
        plain.engine.schedule()
        gc.collect()
        ended += plain.engine.step()
    assert [finished.result.n_out for finished in ended] == [6] * 5


def test_trap_4_a_grammar_that_would_end_the_pipeline_ends_its_own_line_only(plain):
    broken = Grammar(GrammarKind.REGEX, "((")
    bad, good, after = (*plain.run(plain.request(grammar=broken), plain.request()), plain.one())
    assert isinstance(bad, Failed)
    assert (bad.status_code, bad.code) == (400, "invalid_grammar")
    assert isinstance(good, Generation)
    assert after.choices == good.choices


def test_trap_5_a_prompt_over_the_kv_pool_is_an_error_line_and_the_others_finish(openvino):
    loaded = openvino({"num_kv_blocks": 4})
    large, *small = loaded.run(
        loaded.request([5] * 200), *(loaded.request([5] * 20) for _ in range(5))
    )
    assert isinstance(large, Failed)
    assert large.code == "kv_capacity"
    assert all(isinstance(result, Generation) for result in small)


def test_trap_6_ids_in_the_pipeline_are_the_engines_own_and_never_used_twice(plain):
    for _ in range(2):
        plain._next_id = 40
        first, second = plain.run(plain.request(), plain.request())
        assert first.choices == second.choices


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([5] * 4096, "maximum context length is 4096"),
        ([2048], "outside the vocabulary of 2048"),
        ([-1], "outside the vocabulary"),
        ([], "empty"),
    ],
)
def test_trap_7_what_the_pipeline_does_not_check_of_a_prompt_is_checked(plain, ids, reason):
    bad, good = plain.run(plain.request(ids), plain.request())
    assert isinstance(bad, Failed)
    assert reason in bad.message
    assert isinstance(good, Generation)
    assert any(
        "max_position_embeddings" in f for f in spec_faults(openvino_spec(max_model_len=9999))
    )


@pytest.mark.parametrize("field", ["lora", "adapters", "adapter", "lora_request"])
def test_trap_8_an_adapter_asked_for_by_a_request_is_refused_and_not_ignored(field):
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m",'
        f' "messages": [{{"role": "user", "content": "x"}}], "{field}": "x"}}}}'
    )
    parsed = openai.parse_line(
        line.encode(), index=0, line=1, endpoint="/v1/chat/completions", max_output_tokens=10
    )
    assert isinstance(parsed, Failed)
    assert (parsed.status_code, parsed.param) == (400, field)


def test_trap_9_names_that_the_engine_would_take_and_ignore_are_errors_with_the_nearest():
    with pytest.raises(UnknownOption, match="did you mean 'max_num_seqs'"):
        decode_spec({"engine": "openvino", "path": "/m", "scheduler_config": {"max_num_seq": 1}})
    with pytest.raises(LoadFailed, match="did you mean NUM_STREAMS"):
        load(openvino_spec(runtime_config={"NUM_STREAM": "1"}))
    # Of a generation's configuration only fields that it has are set: pybind refuses others.
    config = generation_config(
        openvino_spec(), SamplingParams(temperature=0.0), max_new_tokens=1, end_ids=(2,), seed=0
    )
    with pytest.raises(AttributeError):
        config.no_such_field = 1


def test_trap_10_without_split_prefill_a_prompt_over_the_batch_is_an_error_line(openvino):
    loaded = openvino({"dynamic_split_fuse": False, "max_num_batched_tokens": 64})
    long, short = loaded.run(loaded.request([5] * 65), loaded.request([5] * 64))
    assert isinstance(long, Failed)
    assert long.code == "context_length_exceeded"
    assert isinstance(short, Generation)


@pytest.mark.parametrize(
    "scheduler",
    [
        {"enable_prefix_caching": True, "use_cache_eviction": True},
        {"use_cache_eviction": True, "cache_eviction": CacheEviction(apply_rotation=True)},
        {"num_linear_attention_blocks": 5},
        {"cache_interval_multiplier": 5},
        {
            "use_sparse_attention": True,
            "sparse_attention": SparseAttention(mode="XATTENTION", xattention_stride=7),
        },
    ],
)
def test_trap_11_combinations_that_die_are_refused_before_a_load(scheduler: dict[str, Any]):
    faults = spec_faults(openvino_spec(scheduler))
    assert len(faults) == 1
    with pytest.raises(LoadFailed, match=re.escape(faults[0])):
        load(openvino_spec(scheduler))


@pytest.mark.parametrize("device", ["CPU", "AUTO:CPU", "AUTO"])
def test_trap_11_what_dies_on_a_cpu_only_is_refused_where_the_device_is_known(device):
    rkv = {
        "use_cache_eviction": True,
        "cache_eviction": CacheEviction(aggregation_mode="ADAPTIVE_RKV"),
    }
    assert spec_faults(openvino_spec(rkv)) == []
    with pytest.raises(LoadFailed, match="first eviction on a CPU"):
        load(openvino_spec(rkv, device=device))


@pytest.mark.parametrize(
    "scheduler",
    [
        {"cache_eviction": CacheEviction(start_size=32, recent_size=64, max_cache_size=256)},
        {
            "cache_eviction": CacheEviction(
                start_size=32,
                recent_size=64,
                max_cache_size=256,
                aggregation_mode="SUM",
                kvcrush_budget=2,
                kvcrush_anchor_point_mode="RANDOM",
                kvcrush_rng_seed=3,
            )
        },
        {"sparse_attention": SparseAttention(mode="TRISHAPE")},
        {
            "sparse_attention": SparseAttention(
                mode="XATTENTION", xattention_block_size=96, xattention_stride=24
            )
        },
    ],
)
def test_trap_11_what_is_left_of_eviction_and_sparse_attention_runs(openvino, scheduler):
    """Prompts that outgrow what is kept, so that blocks are dropped and left out."""
    which = "use_cache_eviction" if "cache_eviction" in scheduler else "use_sparse_attention"
    loaded = openvino({which: True, **scheduler})
    results = loaded.run(
        *(loaded.request([5] * n, max_tokens=40, ignore_eos=True) for n in (600, 300, 50))
    )
    assert [result.n_out for result in results] == [40, 40, 40]


@pytest.mark.parametrize("precision", ["u8", "u4", "f16", "bf16", "f32"])
def test_trap_12_a_kv_precision_is_held_as_asked_or_fails_the_load_with_the_mend(
    openvino, precision
):
    """Which ones a CPU takes depends on its instructions; another one is never held in silence."""
    loaded = or_reason(openvino, kv_cache_precision=precision)
    if isinstance(loaded, str):
        assert precision not in {"u8", "f16"}
        assert "kv_cache_precision" in loaded.casefold()
        return
    assert loaded.applied.config["devices"]["CPU"]["KV_CACHE_PRECISION"] == precision
    assert loaded.applied.kv_blocks == 2000
    bits = {"u8": 8, "u4": 4, "f16": 16, "bf16": 16, "f32": 32}[precision]
    of_elements = 2 * 2 * 64 * bits / 8
    if bits >= 16:
        assert loaded.applied.kv_bytes_per_token == pytest.approx(of_elements, rel=1e-3)
    else:
        assert loaded.applied.kv_bytes_per_token > of_elements
    assert loaded.one().n_out == 8


def test_trap_13_the_cache_of_shapes_is_off_unless_somebody_wants_it(openvino, plain):
    name = "CPU_RUNTIME_CACHE_CAPACITY"
    assert plain.applied.config["runtime_config"][name] == "0"
    assert plain.spec.max_requests_per_process == 20_000
    wanted = openvino(runtime_config={name: "100"})
    assert wanted.applied.config["runtime_config"][name] == "100"


def test_trap_14_tokens_are_counted_for_each_request_of_a_batch(plain):
    lengths = [3, 11, 7, 1]
    results = plain.run(
        *(plain.request([5] * (10 + n), max_tokens=n, ignore_eos=True) for n in lengths)
    )
    assert [result.n_out for result in results] == lengths
    assert [result.n_in for result in results] == [10 + n for n in lengths]


def test_trap_15_an_answer_cut_at_its_limit_never_counts_as_of_its_form(plain):
    """Whatever a grammar lets a weak model repeat, the reason of the end tells it from a whole."""
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
    grammar = Grammar(GrammarKind.JSON_SCHEMA, schema)
    (cut,) = plain.run(plain.request(grammar=grammar, max_tokens=3))
    assert isinstance(cut, Generation)
    assert cut.choices[0].finish_reason is FinishReason.LENGTH


def test_trap_16_more_logprobs_than_there_are_is_an_honest_error(plain):
    two, one = plain.run(plain.request(logprobs=2), plain.request(logprobs=1))
    assert isinstance(two, Failed)
    assert (two.code, two.param) == ("unsupported_parameter", "top_logprobs")
    assert len(one.choices[0].logprobs) == one.n_out


def test_trap_16_stop_tokens_of_a_request_come_on_top_of_the_models_end():
    sampling = SamplingParams(temperature=0.0, stop_token_ids=(9,))
    config = generation_config(openvino_spec(), sampling, max_new_tokens=1, end_ids=(2, 7), seed=0)
    assert config.stop_token_ids == {2, 7, 9}
    assert config.eos_token_id in config.stop_token_ids


def test_trap_17_answers_may_differ_with_the_batch_and_mostly_do_not(openvino, plain):
    """Where two tokens are as likely, rounding decides, and it depends on what else is computed."""
    together = answers(plain, 12)
    alone = [
        plain.one(ids, max_tokens=MAX_TOKENS).choices[0].token_ids for ids in orders(plain, 12)
    ]
    assert sum(a == b for a, b in zip(together, alone, strict=True)) >= 9
    # Nowhere is more promised than that.
    promises = (ROOT / "README.md").read_text() + (ROOT / "docs/openvino-traps.md").read_text()
    assert "batch-invariant" not in promises or "not batch-invariant" in promises


def test_trap_18_with_a_draft_no_prompt_is_split_across_steps(openvino):
    draft = DraftModel(path=str(MODEL), num_assistant_tokens=3)
    split = openvino_spec({"dynamic_split_fuse": True, "max_num_batched_tokens": 2048}, draft=draft)
    assert "corrupts answers" in spec_faults(split)[0]
    large = openvino_spec(
        {"dynamic_split_fuse": True, "max_num_batched_tokens": 16_384}, draft=draft
    )
    assert spec_faults(large) == []
    # The model drafts for itself: nothing that is proposed is wrong.
    expected = answers(openvino(), 12)
    got = answers(openvino(draft=draft), 12)
    assert sum(a == b for a, b in zip(got, expected, strict=True)) >= 10
    assert [answer[:6] for answer in got] == [answer[:6] for answer in expected]


def test_trap_18_both_ways_of_speculation_together_are_refused():
    both = openvino_spec(
        draft=DraftModel(path=str(MODEL), num_assistant_tokens=3),
        prompt_lookup=PromptLookup(num_assistant_tokens=3),
    )
    assert "would ignore one without a word" in spec_faults(both)[0]


def test_trap_19_a_policy_is_held_by_the_device_that_has_it(openvino):
    policy = "MODEL_DISTRIBUTION_POLICY"
    hetero = openvino(device="HETERO:CPU", runtime_config={policy: "PIPELINE_PARALLEL"})
    devices = hetero.applied.config["devices"]
    assert hetero.applied.config["runtime_config"][policy] == "PIPELINE_PARALLEL"
    assert devices["HETERO"][policy] == "PIPELINE_PARALLEL"
    assert devices["CPU"]["KV_CACHE_PRECISION"]
    assert hetero.one().n_out == 8
    sockets = openvino(device="CPU", runtime_config={policy: "TENSOR_PARALLEL"})
    assert sockets.applied.config["devices"]["CPU"][policy] == "TENSOR_PARALLEL"
    with pytest.raises(LoadFailed, match="must be the text"):
        load(openvino_spec(device="HETERO:CPU", runtime_config={policy: 1}))


@pytest.mark.parametrize("device", ["HETERO:CPU", "AUTO:CPU", "AUTO"])
def test_trap_19_what_devices_behind_a_device_string_hold_is_read_from_them(openvino, device):
    loaded = openvino(
        device=device, kv_cache_precision="f16", runtime_config={"INFERENCE_NUM_THREADS": 1}
    )
    state = loaded.applied.config["devices"]["CPU"]
    assert (state["KV_CACHE_PRECISION"], state["INFERENCE_NUM_THREADS"]) == ("f16", 1)
    with pytest.raises(LoadFailed, match="4000 was asked for, CPU holds"):
        load(openvino_spec(device=device, runtime_config={"INFERENCE_NUM_THREADS": 4000}))


@pytest.mark.parametrize("device", ["GPU", "GPU.1", "NPU", "HETERO:GPU.0,CPU", "AUTO:GPU"])
def test_trap_19_devices_that_are_not_there_are_named_with_those_that_are(device):
    with pytest.raises(
        LoadFailed, match=r"there is no device '(GPU|NPU).*' here; there are: .*CPU"
    ):
        load(openvino_spec(device=device))


def test_trap_19_a_draft_may_have_a_device_of_its_own(openvino):
    draft = DraftModel(path=str(MODEL), device="HETERO:CPU", num_assistant_tokens=3)
    loaded = openvino(path=str(TARGET), draft=draft)
    assert loaded.applied.config["draft"]["device"] == "HETERO:CPU"
    assert loaded.one(max_tokens=20).n_out > 0


def test_a_compile_cache_of_the_kernel_or_of_nobody_breaks_no_load(openvino):
    """EN-11, for places that even a superuser cannot write to."""
    for place in ("/proc/self/fdinfo", "/sys/kernel", "/proc/nowhere/cache"):
        loaded = openvino(cache_dir=place)
        assert loaded.applied.cache_state == "off"
        assert place in loaded.applied.config["cache_note"]
        assert loaded.one().n_out


def test_every_trap_has_a_test():
    here = Path(__file__).read_text()
    tested = {int(number) for number in re.findall(r"^def test_trap_(\d+)_", here, re.MULTILINE)}
    described = (ROOT / "docs/openvino-traps.md").read_text()
    listed = {int(n) for n in re.findall(r"^(\d+)\. ", described, re.MULTILINE)}
    assert tested == listed == set(range(1, 20))
