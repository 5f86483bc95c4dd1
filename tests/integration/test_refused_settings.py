"""Settings that cannot work are refused where they are handed in, before any device is troubled."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from batchgen.domain.errors import InvalidRequest
from batchgen.services import models
from tests.house import MODELS, House, chat_lines

TARGET, DRAFT = MODELS / "orders-qwen3-2m-ov", MODELS / "orders-qwen3-1m-ov"


def speculative(draft: Path) -> dict[str, Any]:
    return {"path": str(TARGET), "draft": {"path": str(draft), "num_assistant_tokens": 3}}


def test_a_draft_with_another_vocabulary_is_refused_at_registration_with_both_hashes(
    house: House, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(DRAFT, other)
    definition = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(definition.replace("customer", "remotsuc"))
    with pytest.raises(InvalidRequest, match=r"\([0-9a-f]{16}\).*\([0-9a-f]{16}\).*tokenizer"):
        house.register("orders", engine="openvino", **speculative(other))
    house.register("orders", engine="openvino", **speculative(DRAFT))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"scheduler_config": {"cache_interval_multiplier": 2}}, "no linear attention"),
        ({"scheduler_config": {"num_kv_blocks": 8, "cache_size": 1}}, "leave one out"),
        ({"max_model_len": 100_000}, "max_position_embeddings"),
        ({"prompt_lookup": {"num_assistant_tokens": 0}}, "at least 1"),
    ],
)
def test_what_a_job_overrides_is_judged_together_with_its_models_settings(
    house: House, overrides: dict[str, Any], reason: str
) -> None:
    house.register("orders", engine="openvino", path=str(DRAFT))
    with pytest.raises(InvalidRequest, match=reason):
        house.submit(chat_lines(1, model="orders"), model="orders", overrides=overrides)


def test_a_kv_cache_beyond_the_memory_of_every_device_is_refused_once_they_have_told_it(
    house: House,
) -> None:
    pytest.importorskip("openvino_genai")
    house.register("orders", engine="openvino", path=str(DRAFT))
    huge = {"scheduler_config": {"cache_size": 1_000_000}}
    first = house.run(chat_lines(1, model="orders"), model="orders")
    assert first.counts.completed == 1
    worker = house.worker()
    try:
        with pytest.raises(InvalidRequest, match=r"1,073,741\.8 GB, the device has .* lower"):
            house.submit(chat_lines(1, model="orders"), model="orders", overrides=huge)
        house.submit(chat_lines(1, model="orders"), model="orders")
        # Another device, which has not told, may be larger.
        other = house.worker(device="GPU.0")
        try:
            house.submit(chat_lines(1, model="orders"), model="orders", overrides=huge)
        finally:
            other.leave()
    finally:
        worker.leave()


def test_what_a_device_cannot_do_is_refused_where_the_models_device_is_known(house: House) -> None:
    settings = {"runtime_config": {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}}
    spec = {"engine": "openvino", "path": str(DRAFT), **settings}
    with pytest.raises(InvalidRequest, match="use HETERO"):
        models.register(house.database, house.settings, name="orders", spec=spec, device="CPU")
    house.register("orders", engine="openvino", path=str(DRAFT))
    models.register(
        house.database, house.settings, name="cpu", spec=spec | {"runtime_config": {}}, device="CPU"
    )
    with pytest.raises(InvalidRequest, match="use HETERO"):
        house.submit(chat_lines(1, model="cpu"), model="cpu", overrides=settings)
