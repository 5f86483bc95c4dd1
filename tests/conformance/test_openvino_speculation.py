"""Speculation in the openvino engine: what was proposed and accepted."""

import random
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from batchgen.chat.encoder import PromptEncoder
from batchgen.demo.orders import held_out
from batchgen.domain.requests import ChatPrompt
from batchgen.engines.openvino.speculation import accepted_tokens, drafted_tokens
from batchgen.engines.spec import DraftModel, OpenVinoSpec, PromptLookup
from tests.conformance.conftest import MODEL

TARGET = max(MODEL.parent.glob("*-ov"))
PROPOSED = 3


def spec(draft: Path = MODEL, **how: float) -> OpenVinoSpec:
    how = how or {"num_assistant_tokens": PROPOSED}
    return OpenVinoSpec(path=str(TARGET), draft=DraftModel(path=str(draft), **how))


@pytest.fixture(scope="module")
def pipeline() -> genai.LLMPipeline:
    """The one that tells of a whole call what was proposed and accepted."""
    scheduler = genai.SchedulerConfig()
    scheduler.dynamic_split_fuse = False
    scheduler.max_num_batched_tokens = 1024
    scheduler.num_kv_blocks = 100
    draft = genai.draft_model(str(MODEL), "CPU")
    return genai.LLMPipeline(str(TARGET), "CPU", scheduler_config=scheduler, draft_model=draft)


def counts(
    pipeline: genai.LLMPipeline, ids: list[int], limit: int, **config: object
) -> tuple[tuple[int | None, int], tuple[int, int]]:
    """(drafted, accepted) as counted here, and as the engine tells them of a call of its own."""
    wanted = genai.GenerationConfig(
        max_new_tokens=limit, num_assistant_tokens=PROPOSED, apply_chat_template=False, **config
    )
    result = pipeline.generate(ov.Tensor(np.array([ids], dtype=np.int64)), wanted)
    sizes = [int(size) for size in result.perf_metrics.raw_metrics.m_batch_sizes]
    told = result.extended_perf_metrics
    return (
        (drafted_tokens(spec(), sizes, limit), accepted_tokens(sizes)),
        (told.get_num_draft_tokens(), told.get_num_accepted_tokens()),
    )


def test_on_answers_that_the_draft_knows_the_counts_are_the_engines_own(
    pipeline: genai.LLMPipeline,
) -> None:
    encoder = PromptEncoder(TARGET)
    for example in held_out(10):
        ids = encoder.encode(ChatPrompt(tuple(example.messages())))
        counted, told = counts(pipeline, ids, 100)
        assert counted == told
        assert counted[1] > 20


def test_a_draft_that_ends_the_text_itself_proposed_fewer_than_are_counted(
    pipeline: genai.LLMPipeline,
) -> None:
    rng = random.Random(3)
    for _ in range(20):
        ids = [rng.randrange(5, 1500) for _ in range(rng.randrange(3, 40))]
        counted, told = counts(pipeline, ids, rng.randrange(2, 40), ignore_eos=True)
        assert counted[1] == told[1]
        assert counted[0] is not None
        assert counted[0] >= told[0]


def test_a_request_says_what_was_drafted_and_accepted_for_it(openvino):
    draft = DraftModel(path=str(TARGET), num_assistant_tokens=PROPOSED)
    loaded = openvino(path=str(TARGET), draft=draft)
    generation = loaded.one(max_tokens=40, ignore_eos=True)
    assert generation.n_drafted > 0
    assert 0 < generation.n_accepted <= generation.n_drafted
    stats = loaded.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (
        generation.n_drafted,
        generation.n_accepted,
    )


def test_what_was_drafted_is_not_told_where_the_draft_decides_how_much(openvino):
    draft = DraftModel(path=str(MODEL), assistant_confidence_threshold=0.5)
    generation = openvino(path=str(TARGET), draft=draft).one(max_tokens=20, ignore_eos=True)
    assert generation.n_drafted is None
    assert generation.n_accepted is not None


def test_a_lookup_accepts_what_repeats_and_does_not_tell_what_it_proposed(openvino):
    loaded = openvino(prompt_lookup=PromptLookup(num_assistant_tokens=3, max_ngram_size=2))
    generation = loaded.one([5, 6, 7, 8] * 20, max_tokens=40, ignore_eos=True)
    assert generation.n_out == 40
    assert generation.n_drafted is None
    assert generation.n_accepted is not None


def test_without_speculation_nothing_is_counted(openvino):
    generation = openvino().one()
    assert (generation.n_drafted, generation.n_accepted) == (None, None)


def test_a_request_of_one_token_has_no_step_to_verify():
    assert accepted_tokens([1]) == 0
    assert drafted_tokens(spec(), [1], 1) == 0
    assert drafted_tokens(spec(), [], 1) == 0
