"""What speculation did, from the engine to a job's metrics and timings."""

from typing import Any

from batchgen.demo.orders import batch_line, held_out
from batchgen.domain.jobs import Section
from batchgen.services import models
from tests.house import MODELS, House

TARGET, DRAFT = MODELS / "orders-qwen3-2m-ov", MODELS / "orders-qwen3-1m-ov"
ORDERS = 12


def run(house: House, **spec: Any) -> tuple[dict[str, str], dict[str, Any], list[dict[str, Any]]]:
    """The answers, the job's metrics, and its timing lines."""
    asked = {"engine": "openvino", "path": str(TARGET), **spec}
    models.register(house.database, house.settings, name="demo", spec=asked)
    job = house.run([batch_line(order, f"o{n}") for n, order in enumerate(held_out(ORDERS))])
    assert job.counts.completed == ORDERS
    assert job.metrics is not None
    return house.texts(job.id), job.metrics["values"], house.lines(job.id, Section.TIMINGS)


def test_a_draft_model_is_counted_by_request_and_by_job_and_leaves_the_text(house: House) -> None:
    plain, nothing, _ = run(house)
    assert nothing["accepted_tokens"] == {
        "value": None,
        "unit": "tok",
        "reason": "no speculative decoding",
    }
    texts, values, timings = run(house, draft={"path": str(DRAFT), "num_assistant_tokens": 4})
    assert texts == plain
    for name in ("drafted", "accepted"):
        assert values[f"{name}_tokens"]["value"] == sum(t[f"n_{name}"] for t in timings) > 0
    assert 0.5 < values["draft_acceptance"]["value"] <= 1


def test_a_lookup_tells_what_was_accepted_and_why_not_how_much_was_proposed(house: House) -> None:
    _, values, _ = run(house, prompt_lookup={"num_assistant_tokens": 4})
    assert values["accepted_tokens"]["value"] > 0
    assert values["drafted_tokens"]["value"] is None
    assert "does not tell" in values["draft_acceptance"]["reason"]
