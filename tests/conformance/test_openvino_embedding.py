"""The embedding engine on the random embedder: vectors of the right texts, whatever the batch."""

import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchgen.domain.errors import LoadFailed
from batchgen.domain.outcomes import Embedding, Failed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.client import EngineClient
from batchgen.engines.openvino.embedding import OpenVinoEmbeddingEngine
from batchgen.engines.protocol import EngineRequest, Outputs
from batchgen.engines.registry import spec_faults
from batchgen.engines.spec import OpenVinoEmbeddingSpec

MODEL = Path(__file__).parents[1] / "models" / "random-embedder-ov"
DIMENSIONS = 32


def spec(**changes: Any) -> OpenVinoEmbeddingSpec:
    return OpenVinoEmbeddingSpec(path=str(MODEL), device="CPU", **changes)


def request(number: int, *texts: str) -> EngineRequest:
    return EngineRequest(number, [0] * len(texts), SamplingParams(), texts=list(texts))


def run(engine: OpenVinoEmbeddingEngine, *requests: EngineRequest) -> dict[int, Embedding | Failed]:
    ended = engine.submit(requests)
    while engine.has_work():
        engine.schedule()
        ended += engine.step()
    assert len(ended) == len(requests)
    return {finished.id: finished.result for finished in ended}


def vectors(made: Embedding | Failed) -> list[list[float]]:
    assert isinstance(made, Embedding), made
    return [array("f", raw).tolist() for raw in made.vectors]


@pytest.fixture(scope="module")
def engine() -> Iterator[OpenVinoEmbeddingEngine]:
    made = OpenVinoEmbeddingEngine()
    applied = made.load(spec(batch_size=4))
    assert applied.config["dimensions"] == DIMENSIONS
    assert applied.max_model_len == 128
    yield made
    made.close()


def test_a_texts_vector_does_not_depend_on_what_is_computed_beside_it(engine):
    ((alone,),) = [vectors(run(engine, request(1, "apples for Oslo"))[1])]
    made = run(engine, *(request(i, "apples for Oslo", f"{i} boxes of soap") for i in range(2, 9)))
    assert len(made) == 7
    for result in made.values():
        first, second = vectors(result)
        assert first == pytest.approx(alone, abs=1e-4)
        assert second != pytest.approx(alone, abs=1e-2)


def test_a_request_of_more_texts_than_a_batch_keeps_their_order(engine):
    texts = [f"{i} crates of pears" for i in range(11)]
    together = vectors(run(engine, request(1, *texts))[1])
    for text, vector in zip(texts, together, strict=True):
        ((alone,),) = [vectors(run(engine, request(2, text))[2])]
        assert vector == pytest.approx(alone, abs=1e-4)


def test_a_request_of_many_texts_takes_a_step_for_each_batch_and_can_be_cancelled_between(engine):
    engine.submit([request(1, *(f"{i} crates" for i in range(9))), request(2, "pears")])
    assert engine.schedule() == [1]
    assert engine.step() == []
    assert engine.schedule() == [1]
    assert engine.cancel([1]) == [1]
    assert engine.schedule() == [2]
    (finished,) = engine.step()
    assert vectors(finished.result) == [
        pytest.approx(vector, abs=1e-4) for vector in vectors(run(engine, request(3, "pears"))[3])
    ]


def test_vectors_have_length_one_unless_it_is_switched_off(engine):
    ((vector,),) = [vectors(run(engine, request(1, "pears"))[1])]
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-3)
    plain = OpenVinoEmbeddingEngine()
    plain.load(spec(normalize=False))
    ((longer,),) = [vectors(run(plain, request(1, "pears"))[1])]
    plain.close()
    assert math.hypot(*longer) > 1.5


@pytest.mark.parametrize("pooling", ["mean", "last_token"])
def test_the_pooling_that_is_asked_for_is_applied(engine, pooling):
    other = OpenVinoEmbeddingEngine()
    applied = other.load(spec(pooling=pooling))
    assert applied.config["pooling"] == pooling
    made = [vectors(run(e, request(1, "soap and pears"))[1])[0] for e in (engine, other)]
    other.close()
    assert made[0] != pytest.approx(made[1], abs=1e-2)


def test_an_instruction_is_put_before_each_text(engine):
    instructed = OpenVinoEmbeddingEngine()
    instructed.load(spec(embed_instruction="Order: "))
    (with_it,) = vectors(run(instructed, request(1, "pears"))[1])
    instructed.close()
    (spelled_out,) = vectors(run(engine, request(1, "Order: pears"))[1])
    assert with_it == pytest.approx(spelled_out, abs=1e-4)


def test_what_was_cancelled_yields_nothing(engine):
    assert engine.submit([request(1, "a"), request(2, "b")]) == []
    assert engine.cancel([1, 7]) == [1]
    engine.schedule()
    assert [finished.id for finished in engine.step()] == [2]


def test_a_request_to_generate_ends_as_an_error_line(engine):
    (refused,) = engine.submit([EngineRequest(1, [5], SamplingParams())])
    assert isinstance(refused.result, Failed)
    assert refused.result.code == "unsupported_endpoint"


def test_settings_that_cannot_work_are_named():
    bad = spec(batch_size=0, max_model_len=0, runtime_config={"CACHE_DIR": "x"})
    assert [fault.split()[0] for fault in spec_faults(bad)] == [
        "max_model_len",
        "batch_size",
        "runtime_config.CACHE_DIR",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_model_len": 129}, "over the model's max_position_embeddings"),
        ({"runtime_config": {"NUM_STREAM": 1}}, "did you mean NUM_STREAMS"),
    ],
)
def test_what_cannot_be_applied_fails_the_load(changes, why):
    with pytest.raises(LoadFailed, match=why):
        OpenVinoEmbeddingEngine().load(spec(**changes))


def test_the_host_sends_vectors_over_its_pipe(tmp_path):
    client = EngineClient(log_path=tmp_path / "host.log")
    try:
        assert client.load(spec(), timeout_s=60).engine == "openvino-embeddings"
        client.submit([request(1, "pears", "soap")])
        finished = []
        while not finished:
            for event in client.poll(10.0):
                if isinstance(event, Outputs):
                    finished += event.finished
        assert [len(vector) for vector in vectors(finished[0].result)] == [DIMENSIONS] * 2
    finally:
        client.close()
