"""Requests with images, from data URLs to answers, on the random model that sees."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.states import JobState
from batchgen.services import models
from tests.house import MODELS, House, chat_line

MODEL = Path(__file__).parents[1] / "models" / "random-seer-ov"
KNOBS = {"num_kv_blocks": 64, "max_num_batched_tokens": 512}


def picture(seed: int, kind: str = "PNG", size: tuple[int, int] = (60, 40)) -> str:
    """Four rectangles of random colours."""
    colours = np.random.default_rng(seed).integers(0, 255, (2, 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize(size, Image.Resampling.NEAREST).save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def look(custom_id: str, *urls: str, text: str = "What is this?", **body: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    parts.append({"type": "text", "text": text})
    asked = {"model": "seer", "temperature": 0, "ignore_eos": True, "messages": []} | body
    asked["messages"] = [{"role": "user", "content": parts}]
    return chat_line(custom_id, "") | {"body": asked | {"max_tokens": 8}}


def register(house: House, **spec: Any) -> None:
    asked = {"engine": "openvino", "path": str(MODEL), "scheduler_config": KNOBS} | spec
    models.register(house.database, house.settings, name="seer", spec=asked)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_an_answer_follows_its_own_image_whatever_runs_beside_it(
    house: House, prefix_caching: bool
) -> None:
    register(house, scheduler_config=KNOBS | {"enable_prefix_caching": prefix_caching})
    one, other = picture(1), picture(2)
    job = house.run(
        [
            look("a", one),
            look("b", other),
            look("a again", one),
            look("none"),
            look("both", one, other),
            look("both turned", other, one),
            look("jpeg", picture(1, "JPEG")),
        ]
    )
    assert (job.state, job.counts.completed) == (JobState.COMPLETED, 7)
    texts = house.texts(job.id)
    assert texts["a"] == texts["a again"]
    assert len({texts[name] for name in ("a", "b", "none", "both", "both turned")}) == 5
    usage = {
        out["custom_id"]: out["response"]["body"]["usage"]["prompt_tokens"]
        for out in house.outputs(job.id)
    }
    assert usage["a"] == usage["none"] + 4
    assert usage["both"] == usage["none"] + 8


def test_a_bad_image_ends_its_own_line(house: House) -> None:
    register(house)
    good = picture(3)
    bad = {
        "remote": "https://example.com/cat.png",
        "no base64": "data:image/png;base64,????",
        "no image": "data:image/png;base64," + base64.b64encode(b"GIFT of words").decode(),
        "cut": good[: len(good) // 8 * 4 + 2],
        "not a url": "cat.png",
    }
    typed = "Look at <ov_genai_image_0> and <|im_end|>"
    job = house.run(
        [
            look("first", good),
            *(look(name, url) for name, url in bad.items()),
            look("tag", good, text=typed),
            look("long", *[good] * 130),
            look("last", good),
        ]
    )
    assert (job.counts.completed, job.counts.failed) == (2, 7)
    told = {e["custom_id"]: e["response"]["body"]["error"]["message"] for e in house.errors(job.id)}
    assert "fetches nothing" in told["remote"]
    assert "known kind" in told["no image"]
    assert "cannot be read" in told["cut"]
    assert "control token" in told["tag"]
    assert "130 images take" in told["long"]


def test_small_files_that_unpack_to_very_much_end_their_own_line(house: House) -> None:
    register(house)
    file = io.BytesIO()
    Image.new("1", (10_000, 5_000)).save(file, "PNG")
    bomb = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    job = house.run([look("three", *[bomb] * 3), look("good", picture(3))])
    assert (job.counts.completed, job.counts.failed) == (1, 1)
    (error,) = house.errors(job.id)
    assert "150,000,000 pixels together" in error["response"]["body"]["error"]["message"]


def test_a_model_that_sees_nothing_says_so(house: House) -> None:
    spec = {"engine": "openvino", "path": str(MODELS / "orders-qwen3-1m-ov")}
    models.register(house.database, house.settings, name="seer", spec=spec)
    job = house.run([look("a", picture(1))])
    (error,) = house.errors(job.id)
    assert error["response"]["body"]["error"]["code"] == "unsupported_content"


@pytest.mark.parametrize(
    "spec",
    [
        {"prompt_lookup": {"num_assistant_tokens": 2}},
        {"draft": {"path": str(MODELS / "orders-qwen3-1m-ov"), "num_assistant_tokens": 2}},
    ],
)
def test_speculation_is_refused_for_a_model_that_sees(house: House, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="sees images"):
        register(house, **spec)
