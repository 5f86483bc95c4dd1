"""The traps of openvino-genai, each defended; and what a load checks, refuses and reports."""

import os
import random
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from batchgen.demo.orders import MAX_TOKENS, held_out
from batchgen.domain.errors import HostDied, LoadFailed
from batchgen.domain.outcomes import Failed, Generation
from batchgen.domain.requests import ChatPrompt, SamplingParams
from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import EngineRequest, Outputs
from batchgen.engines.registry import refusal
from batchgen.engines.spec import CacheEviction, DraftModel, PromptLookup, SparseAttention
from tests.conformance.conftest import MODEL, Loaded, load, openvino_spec

pytest.importorskip("openvino_genai")


TARGET = max(MODEL.parent.glob("*-ov"))


@pytest.fixture(scope="module")
def plain():
    made = load(openvino_spec())
    yield made
    made.engine.close()


def poll_until_it_ends(client: EngineClient) -> None:
    while True:
        client.poll(10.0)


def greedy(loaded: Loaded) -> list[tuple[int, ...]]:
    """The answers to demo orders, whose prompts together are far over a step's tokens."""
    prompts = [ChatPrompt(tuple(order.messages())) for order in held_out(24)]
    encoded = [loaded.encoder.encode(prompt) for prompt in prompts]
    results = loaded.run(*(loaded.request(ids, max_tokens=MAX_TOKENS) for ids in encoded))
    assert all(isinstance(result, Generation) for result in results), results
    return [result.choices[0].token_ids for result in results]


def share_equal(some: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> float:
    """Greedy text may differ where two tokens are as likely: rounding depends on the batch."""
    return sum(a == b for a, b in zip(some, others, strict=True)) / len(some)


def test_what_is_applied_is_what_the_pipeline_holds(openvino):
    loaded = openvino(
        {
            "max_num_batched_tokens": 128,
            "max_num_seqs": 8,
            "num_kv_blocks": 50,
            "dynamic_split_fuse": True,
            "enable_prefix_caching": False,
        },
        kv_cache_precision="f16",
        max_model_len=1024,
        max_live_requests=4,
    )
    applied = loaded.applied
    scheduler = applied.config["scheduler_config"]
    assert scheduler["max_num_batched_tokens"] == 128
    assert scheduler["max_num_seqs"] == 8
    assert scheduler["num_kv_blocks"] == 50
    assert scheduler["enable_prefix_caching"] is False
    assert applied.config["runtime_config"]["KV_CACHE_PRECISION"] == "f16"
    assert applied.config["runtime_config"]["INFERENCE_NUM_THREADS"] == 1
    assert applied.config["devices"]["CPU"]["INFERENCE_NUM_THREADS"] == 1
    assert applied.config["devices"]["CPU"]["KV_CACHE_PRECISION"] == "f16"
    assert "INFERENCE_PRECISION_HINT" in applied.config["devices"]["CPU"]
    assert applied.config["runtime_config"]["CPU_RUNTIME_CACHE_CAPACITY"] == "0"
    assert (applied.max_model_len, applied.max_live, applied.vocab_size) == (1024, 4, 2048)
    assert (applied.kv_blocks, applied.kv_block_tokens) == (50, 32)
    assert set(applied.libraries) == {"openvino", "openvino-genai", "openvino-tokenizers", "numpy"}
    assert msgspec.json.encode(applied)


def test_the_pools_size_is_told_however_it_was_asked_for(openvino):
    by_blocks, by_size = (
        openvino({"num_kv_blocks": 64}),
        openvino({"num_kv_blocks": None, "cache_size": 1}),
    )
    assert by_blocks.applied.kv_blocks == 64
    bytes_per_token = by_blocks.applied.kv_bytes_per_token
    assert by_size.applied.kv_bytes_per_token == pytest.approx(bytes_per_token, rel=1e-3)
    assert by_size.applied.kv_blocks == pytest.approx(2**30 / bytes_per_token / 32, rel=1e-3)


def test_a_pool_that_grows_has_no_size(openvino):
    loaded = openvino({"num_kv_blocks": None})
    assert loaded.applied.kv_blocks is None
    assert loaded.one().n_out
    assert loaded.engine.stats().kv_utilisation is None


@pytest.mark.parametrize(
    ("scheduler", "changes", "why"),
    [
        ({}, {"path": "/nonexistent"}, r"no openvino_model\.xml; export the model"),
        ({}, {"device": "GPU.7"}, r"no device 'GPU\.7' here; there are: CPU"),
        ({}, {"device": "HETERO:NPU,CPU"}, "no device 'NPU' here"),
        ({}, {"max_model_len": 100_000}, "over the model's max_position_embeddings 4096"),
        ({}, {"runtime_config": {"NUM_STREAM": "1"}}, "did you mean NUM_STREAMS"),
        ({}, {"runtime_config": {"NUM_STREAMS": "many"}}, "does not take 'many'"),
        ({}, {"runtime_config": {"INFERENCE_NUM_THREADS": 4000}}, "4000 was asked for, CPU holds"),
        ({}, {"runtime_config": {"CACHE_DIR": "/tmp/x"}}, "CACHE_DIR is the server's to set"),
        ({"num_kv_blocks": 8, "cache_size": 1}, {}, "cache_size would be ignored"),
        (
            {"num_kv_blocks": None, "cache_size": 10**6},
            {},
            "the device has .* GB: .*lower cache_size",
        ),
        (
            {"num_linear_attention_blocks": 5},
            {},
            "num_linear_attention_blocks: the model has no linear",
        ),
        ({"cache_interval_multiplier": 2}, {}, "has no linear attention"),
        ({"enable_prefix_caching": True, "use_cache_eviction": True}, {}, "exclude each other"),
        ({"cache_eviction": CacheEviction(start_size=32)}, {}, "no effect without use_cache_evic"),
        ({"sparse_attention": SparseAttention()}, {}, "no effect without use_sparse_attention"),
        ({"dynamic_split_fuse": False, "max_num_batched_tokens": 8}, {}, r"max_num_seqs \(16\)"),
        ({}, {"max_live_requests": 17}, r"max_live_requests \(17\) is over max_num_seqs \(16\)"),
        ({"max_num_seqs": 0}, {}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 0}, {}, "max_num_batched_tokens must be at least 1"),
        (
            {},
            {"kv_cache_precision": "u8", "runtime_config": {"KV_CACHE_PRECISION": "u8"}},
            "the same knob twice",
        ),
        (
            {},
            {
                "draft": DraftModel(path=str(MODEL), num_assistant_tokens=3),
                "prompt_lookup": PromptLookup(num_assistant_tokens=3),
            },
            "draft and prompt_lookup exclude each other",
        ),
        ({}, {"draft": DraftModel(path=str(MODEL))}, "either num_assistant_tokens or"),
        (
            {},
            {"draft": DraftModel(path="/nonexistent", num_assistant_tokens=3)},
            "/nonexistent holds no openvino_model",
        ),
        (
            {"dynamic_split_fuse": True},
            {"draft": DraftModel(path=str(MODEL), num_assistant_tokens=3)},
            "corrupts answers whose prompt is split",
        ),
        (
            {},
            {"draft": DraftModel(path=str(MODEL), device="GPU", num_assistant_tokens=3)},
            "no device 'GPU' here",
        ),
    ],
)
def test_what_cannot_be_applied_fails_the_load_with_the_reason(scheduler, changes, why):
    with pytest.raises(LoadFailed, match=why):
        load(openvino_spec(scheduler, **changes))


def test_a_draft_with_another_vocabulary_is_refused_with_both_hashes(tmp_path):
    draft = tmp_path / "draft"
    shutil.copytree(MODEL, draft)
    definition = (draft / "tokenizer.json").read_text()
    (draft / "tokenizer.json").write_text(definition.replace("customer", "remotsuc"))
    spec = openvino_spec(draft=DraftModel(path=str(draft), num_assistant_tokens=3))
    with pytest.raises(LoadFailed, match=r"another vocabulary \([0-9a-f]{16}\).*\([0-9a-f]{16}\)"):
        load(spec)


def test_eviction_and_sparse_attention_reach_the_pipeline_and_come_back(openvino):
    loaded = openvino(
        {
            "use_cache_eviction": True,
            "cache_eviction": CacheEviction(
                start_size=32, recent_size=64, max_cache_size=256, aggregation_mode="SUM"
            ),
            "use_sparse_attention": True,
            "sparse_attention": SparseAttention(mode="XATTENTION", xattention_threshold=0.7),
        }
    )
    held = loaded.applied.config["scheduler_config"]
    assert held["cache_eviction"]["max_cache_size"] == 256
    assert held["cache_eviction"]["aggregation_mode"] == "SUM"
    assert held["cache_eviction"]["snapkv_window_size"] == 8
    assert held["sparse_attention"]["mode"] == "XATTENTION"
    assert held["sparse_attention"]["xattention_threshold"] == pytest.approx(0.7)
    assert loaded.one([5] * 600, max_tokens=40, ignore_eos=True).n_out == 40


@pytest.mark.parametrize("device", ["HETERO:CPU", "AUTO:CPU", "AUTO"])
def test_device_strings_that_name_devices_here_work(openvino, plain, device):
    loaded = openvino(device=device)
    assert loaded.applied.device == device
    assert loaded.one(max_tokens=20).choices == plain.one(max_tokens=20).choices


def test_a_cache_is_called_cold_while_the_device_writes_it_anew(openvino, tmp_path):
    # On a CPU paged attention is compiled at every load: see tests/caching/test_openvino.py.
    cache = tmp_path / "cache"
    states = [openvino(cache_dir=str(cache)).applied.cache_state for _ in range(2)]
    assert states == ["cold", "cold"]
    assert openvino(cache_dir=str(cache), cache=False).applied.cache_state == "off"


def test_a_cache_that_cannot_be_written_breaks_no_load(openvino, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    read_only = tmp_path / "read-only"
    read_only.mkdir(mode=0o555)
    places = [file, tmp_path / "no" / "parent"]
    if os.access(read_only, os.W_OK) is False:
        places.append(read_only)
    for place in places:
        applied = openvino(cache_dir=str(place)).applied
        assert applied.cache_state == "off"
        assert str(place) in applied.config["cache_note"]
    assert file.read_text() == "x"
    assert not (tmp_path / "no").exists()


def test_the_model_hash_follows_the_weights_and_not_the_place(openvino, plain, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(MODEL, copy)
    assert openvino(path=str(copy)).applied.model_hash == plain.applied.model_hash
    config = copy / "generation_config.json"
    config.write_text(config.read_text() + "\n")
    assert openvino(path=str(copy)).applied.model_hash != plain.applied.model_hash


def test_hashes_are_taken_from_the_cache_only_while_a_file_is_unchanged(openvino, tmp_path):
    copy, cache = tmp_path / "copy", tmp_path / "cache"
    shutil.copytree(MODEL, copy)
    hashes = [openvino(path=str(copy), cache_dir=str(cache)).applied.model_hash for _ in range(2)]
    assert hashes[0] == hashes[1]
    config = copy / "generation_config.json"
    config.write_text(config.read_text() + "\n")
    assert openvino(path=str(copy), cache_dir=str(cache)).applied.model_hash != hashes[0]


def test_a_seed_decides_the_answer_and_its_absence_does_not(plain):
    def answer(seed: int | None) -> tuple[int, ...]:
        prompt = [7, 8, 9]
        choice = plain.one(prompt, temperature=1.5, seed=seed, max_tokens=30, ignore_eos=True)
        return choice.choices[0].token_ids

    assert answer(7) == answer(7)
    assert answer(7) != answer(8)
    assert len({answer(None) for _ in range(4)}) > 1
    assert answer(2**63 - 1)


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"n": 17, "temperature": 1.0}, "n"),
        ({"n": 2}, "n"),
        ({"logprobs": 1, "temperature": 1.0}, "top_logprobs"),
        ({"logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.0}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"stop": ("a", "")}, "stop"),
    ],
)
def test_values_that_the_pipeline_refuses_or_alters_end_their_line_only(plain, sampling, param):
    bad, good = plain.run(plain.request(**sampling), plain.request())
    assert isinstance(bad, Failed)
    assert (bad.status_code, bad.param) == (400, param)
    assert isinstance(good, Generation)
    # The supervisor knows it before a request is sent.
    asked = SamplingParams(**({"temperature": 0.0, "max_tokens": 8} | sampling))
    assert refusal(plain.spec, asked) == bad


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-4, "seed": 1},
        {"temperature": 100.0, "seed": 1},
        {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 1},
        {"presence_penalty": 2.0, "frequency_penalty": -2.0, "repetition_penalty": 1.3},
        {"min_tokens": 8},
        {"logprobs": 1},
        {"stop": ("nowhere to be found",), "stop_token_ids": (2047,)},
    ],
)
def test_values_that_it_takes_are_run(plain, sampling):
    assert plain.one(**sampling).n_out > 0


def test_one_alternative_of_a_greedy_answer_is_the_chosen_token(plain):
    choice = plain.one(max_tokens=4, logprobs=1).choices[0]
    assert [t.top for t in choice.logprobs] == [((t.token_id, t.logprob),) for t in choice.logprobs]


def test_mixed_temperatures_have_no_effect_on_the_greedy_one(plain):
    alone = plain.one(max_tokens=20)
    greedy_one, *_ = plain.run(
        plain.request(max_tokens=20),
        plain.request(max_tokens=20, temperature=1e-4, seed=1),
        plain.request(max_tokens=20, temperature=1.0, seed=1),
    )
    assert greedy_one.choices == alone.choices


def test_answers_are_the_same_with_and_without_prefix_caching(openvino, plain):
    caching = openvino({"enable_prefix_caching": True})
    expected = greedy(plain)
    assert share_equal(greedy(caching), expected) >= 0.9
    assert share_equal(greedy(caching), expected) >= 0.9  # now from the cache


def test_cached_tokens_are_none_where_the_pipeline_cannot_tell(openvino, plain):
    assert plain.one().n_cached == 0
    assert openvino({"enable_prefix_caching": True}).one().n_cached is None


def test_a_draft_model_leaves_the_greedy_answers_as_they_are(openvino):
    """Prompts that were split across steps came back with their beginning doubled (trap 18)."""
    draft = DraftModel(path=str(MODEL), num_assistant_tokens=3)
    plain, speculative = openvino(path=str(TARGET)), openvino(path=str(TARGET), draft=draft)
    assert speculative.applied.config["scheduler_config"]["dynamic_split_fuse"] is False
    expected, got = greedy(plain), greedy(speculative)
    assert [answer[:6] for answer in got] == [answer[:6] for answer in expected]
    assert share_equal(got, expected) >= 0.9
    assert speculative.one(max_tokens=60).n_accepted > 0
    assert speculative.engine.stats().accepted_tokens > 0


def test_a_draft_model_refuses_what_it_would_corrupt(openvino):
    loaded = openvino(draft=DraftModel(path=str(MODEL), num_assistant_tokens=3))
    (result,) = loaded.run(loaded.request(temperature=0.7))
    assert (result.code, result.param) == ("unsupported_parameter", "temperature")


def test_without_split_prefill_a_prompt_over_the_batch_is_an_error_line(openvino):
    loaded = openvino({"dynamic_split_fuse": False, "max_num_batched_tokens": 64})
    long, short = loaded.run(loaded.request([5] * 65), loaded.request([5] * 64))
    assert isinstance(long, Failed)
    assert "max_num_batched_tokens, 64" in long.message
    assert isinstance(short, Generation)


def test_requests_of_the_same_id_one_after_another_do_not_hang(plain):
    for _ in range(2):
        request = EngineRequest(1, plain.prompt(), SamplingParams(temperature=0.0, max_tokens=3))
        assert isinstance(plain.run(request)[0], Generation)


@pytest.mark.parametrize(("lengths", "grown_bytes"), [(1, 4 * 2**20), (241, 48 * 2**20)])
def test_memory_stays_bounded_over_many_requests(openvino, lengths, grown_bytes):
    """Of one shape it stays flat; of many shapes the runtime itself keeps a little of each."""
    loaded = openvino({"num_kv_blocks": 300})

    def serve(count: int) -> int:
        loaded.run(
            *(
                loaded.request([5] * (10 + 7 * i % lengths), max_tokens=5, ignore_eos=True)
                for i in range(count)
            )
        )
        return loaded.engine.stats().rss_bytes

    serve(300)
    before = serve(300)
    assert serve(1500) - before < grown_bytes


def test_the_host_runs_it_and_its_death_keeps_what_was_finished(tmp_path: Path):
    spec = openvino_spec()
    client = EngineClient(log_path=tmp_path / "host.log")
    try:
        applied = client.load(spec, timeout_s=60)
        assert applied.engine == "openvino"
        greedy_ = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
        short = SamplingParams(temperature=0.0, max_tokens=3)
        client.submit([EngineRequest(1, [5, 6, 7], greedy_), EngineRequest(2, [5, 6], short)])
        finished = []
        while not finished:
            for event in client.poll(10.0):
                if isinstance(event, Outputs):
                    finished += event.finished
        assert [f.id for f in finished] == [2]
        assert abs(time.monotonic_ns() - finished[0].generation.timings.t_first) < 60 * 10**9
        os.kill(client.pid, 9)
        with pytest.raises(HostDied):
            poll_until_it_ends(client)
        assert set(client.breadcrumbs().live) == {1}
    finally:
        client.close()


def test_the_host_tells_a_failed_load_in_the_engines_words(tmp_path: Path):
    client = EngineClient(log_path=tmp_path / "host.log")
    with client, pytest.raises(LoadFailed, match=r"no device 'GPU' here; there are: CPU"):
        client.load(openvino_spec(device="GPU"), timeout_s=60)


@pytest.mark.parametrize("seed", range(3))
def test_whoever_fits_the_kv_pool_alone_finishes_whatever_the_others_do(openvino, seed):
    """Shared prefixes, several choices and cancellations on a tiny pool: left to queue them itself,
    the pipeline gives up on all of them, or hangs in a step.
    """
    rng = random.Random(seed)
    blocks = rng.choice([4, 8])
    loaded = openvino(
        {
            "num_kv_blocks": blocks,
            "enable_prefix_caching": True,
            "max_num_batched_tokens": rng.choice([32, 1024]),
        }
    )
    pool = blocks * 32
    shared = [rng.randint(3, 900) for _ in range(pool)]
    requests, fit = [], set()
    for _ in range(60):
        n, n_in, n_out = rng.choice([1, 1, 1, 2]), rng.randint(1, pool - 1), rng.randint(1, pool)
        prompt = shared[:n_in] if rng.random() < 0.5 else [rng.randint(3, 900)] * n_in
        temperature = 0.0 if n == 1 else 1.0
        requests.append(
            loaded.request(
                prompt, max_tokens=n_out, ignore_eos=True, n=n, temperature=temperature, seed=1
            )
        )
        if n_in + n_out <= blocks // n * 32:
            fit.add(requests[-1].id)
    ended = loaded.engine.submit(requests)
    cancelled = set()
    while loaded.engine.has_work():
        loaded.engine.schedule()
        ended += loaded.engine.step()
        if rng.random() < 0.02:
            cancelled.update(loaded.engine.cancel([rng.choice(requests).id]))
    results = {finished.id: finished.result for finished in ended}
    assert len(ended) == len(results)
    assert results.keys() | cancelled == {request.id for request in requests}
    for request in requests:
        result = results.get(request.id)
        if request.id in fit and request.id not in cancelled:
            assert isinstance(result, Generation), result
            assert result.n_out == request.sampling.n * request.sampling.max_tokens
        elif isinstance(result, Failed):
            assert result.code == "kv_capacity"
