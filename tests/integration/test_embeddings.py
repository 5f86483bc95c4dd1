"""Jobs of /v1/embeddings, from the lines to the files, on the random embedder."""

import base64
import math
from array import array
from pathlib import Path
from typing import Any

import openai.types
import pytest

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.states import JobState
from batchgen.services import models
from tests.house import House, chat_lines

MODEL = Path(__file__).parents[1] / "models" / "random-embedder-ov"
URL = "/v1/embeddings"
DIMENSIONS = 32


def line(number: int, wanted: Any, **body: Any) -> dict[str, Any]:
    return {
        "custom_id": f"e{number}",
        "method": "POST",
        "url": URL,
        "body": {"model": "embedder", "input": wanted, **body},
    }


@pytest.fixture
def house(house: House) -> House:
    spec = {"engine": "openvino-embeddings", "path": str(MODEL), "pooling": "mean"}
    models.register(house.database, house.settings, name="embedder", spec=spec)
    return house


def bodies(house: House, job_id: Any) -> dict[str, dict[str, Any]]:
    return {out["custom_id"]: out["response"]["body"] for out in house.outputs(job_id)}


def test_each_text_gets_its_vector_in_openais_shape(house: House) -> None:
    texts = [f"{n} crates of pears" for n in range(40)]
    job = house.run([line(n, text) for n, text in enumerate(texts)], endpoint=URL)
    assert job.state is JobState.COMPLETED
    made = bodies(house, job.id)
    assert list(made) == [f"e{n}" for n in range(40)]
    for body in made.values():
        answer = openai.types.CreateEmbeddingResponse.model_validate(body)
        assert (answer.object, answer.model) == ("list", "embedder")
        (vector,) = answer.data
        assert len(vector.embedding) == DIMENSIONS
        assert math.hypot(*vector.embedding) == pytest.approx(1, abs=1e-3)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    assert job.usage.input_tokens == sum(body["usage"]["prompt_tokens"] for body in made.values())
    assert job.usage.output_tokens == 0


def test_lists_base64_and_fewer_dimensions_are_what_was_asked(house: House) -> None:
    job = house.run(
        [
            line(1, ["pears", "soap"]),
            line(2, "soap"),
            line(3, "soap", encoding_format="base64"),
            line(4, "soap", dimensions=8, user="somebody"),
        ],
        endpoint=URL,
    )
    made = bodies(house, job.id)
    both = made["e1"]["data"]
    assert [vector["index"] for vector in both] == [0, 1]
    whole = made["e2"]["data"][0]["embedding"]
    assert both[1]["embedding"] == pytest.approx(whole, abs=1e-4)
    packed = array("f")
    packed.frombytes(base64.b64decode(made["e3"]["data"][0]["embedding"]))
    assert packed.tolist() == pytest.approx(whole, abs=1e-4)
    cut = made["e4"]["data"][0]["embedding"]
    assert len(cut) == 8
    assert math.hypot(*cut) == pytest.approx(1, abs=1e-3)
    assert cut[0] / cut[1] == pytest.approx(whole[0] / whole[1], rel=1e-2)


BAD: list[tuple[Any, dict[str, Any], str, str]] = [
    ("", {}, "empty_prompt", "input"),
    ([], {}, "invalid_value", "input"),
    (["a", ""], {}, "empty_prompt", "input"),
    ([1, 2], {}, "unsupported_parameter", "input"),
    ("pear " * 400, {}, "context_length_exceeded", "input"),
    ("a", {"dimensions": 33}, "invalid_value", "dimensions"),
    ("a", {"dimensions": 0}, "invalid_value", "dimensions"),
    ("a", {"encoding_format": "int8"}, "invalid_value", "encoding_format"),
    ("a", {"temperature": 0}, "unknown_parameter", "temperature"),
    (["a"] * 2049, {}, "invalid_value", "input"),
]


def test_bad_lines_end_alone_and_say_why(house: House) -> None:
    lines = [line(n, wanted, **more) for n, (wanted, more, _, _) in enumerate(BAD)]
    job = house.run([line(100, "pears"), *lines, line(101, "soap")], endpoint=URL)
    assert (job.counts.completed, job.counts.failed) == (2, len(BAD))
    told = {
        error["custom_id"]: error["response"]["body"]["error"] for error in house.errors(job.id)
    }
    assert [(told[f"e{n}"]["code"], told[f"e{n}"]["param"]) for n in range(len(BAD))] == [
        (code, param) for _, _, code, param in BAD
    ]


def test_a_model_that_embeds_is_not_asked_to_generate_nor_the_other_way_round(
    house: House,
) -> None:
    house.register("sim")
    with pytest.raises(InvalidRequest, match="serves /v1/embeddings"):
        house.submit(chat_lines(2), model="embedder")
    with pytest.raises(InvalidRequest, match="not /v1/embeddings"):
        house.submit([line(1, "a")], endpoint=URL, model="sim")
    job = house.queue([line(1, "a") | {"body": {"model": "sim", "input": "a"}}], endpoint=URL)
    assert job.state is JobState.FAILED
    assert [fault.code for fault in job.faults] == ["unsupported_endpoint"]
