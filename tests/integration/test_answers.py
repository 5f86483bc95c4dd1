"""Forms, tools and thinking through the whole worker: real hosts, a real database, real records."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from batchgen.domain.states import JobState
from batchgen.formats.schemas import answer_fault
from batchgen.storage import devices
from tests.house import MODELS, House, chat_line, chat_lines

OPENVINO = MODELS / "orders-qwen3-1m-ov"
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content %}{{- message.content }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- if opened %}{{- '<think>\\n' }}{%- endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"days": 3}}\n</tool_call>'
ANSWER = {
    "type": "json_schema",
    "json_schema": {"name": "days", "schema": PARAMETERS, "strict": True},
}


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """The demo's model with a template that knows tools and thinking."""
    made = tmp_path / "thinker"
    shutil.copytree(OPENVINO, made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def scripted(house: House, path: Path | None, *answers: str, **spec: Any) -> None:
    """A simulated model that answers `say 0.` with the first text, and so on."""
    rules = [
        {"contains": f"say {i}.", "action": "answer", "text": text}
        for i, text in enumerate(answers)
    ]
    given = {} if path is None else {"path": str(path)}
    house.register(rules=rules, max_model_len=8192, **given, **spec)


def openvino(house: House, path: Path) -> None:
    pytest.importorskip("openvino_genai")
    house.register(
        engine="openvino",
        path=str(path),
        scheduler_config={"max_num_seqs": 16, "num_kv_blocks": 1000},
        runtime_config={"INFERENCE_NUM_THREADS": 1},
    )


def choices(house: House, job_id: Any) -> list[dict[str, Any]]:
    return [record["response"]["body"]["choices"][0] for record in house.outputs(job_id)]


# forms


def test_bad_forms_cost_their_own_lines_in_the_same_engine(house: House) -> None:
    openvino(house, OPENVINO)
    lines = chat_lines(99, temperature=0, structured_outputs={"regex": "[0-9]{3}"})
    bad: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "foo**"}},
        {"structured_outputs": {"regex": "["}},
        {"response_format": ANSWER | {"json_schema": {"name": "a", "schema": {"$ref": "#"}}}},
        {"structured_outputs": {"grammar": "start ::= ("}},
    ]
    for i, body in enumerate(bad):
        lines.insert(20 * i, chat_line(f"bad{i}", "hi", **body))
    job = house.run(lines)
    assert job.state is JobState.COMPLETED
    assert house.codes(job.id) == {
        "bad0": "invalid_grammar",
        "bad1": "invalid_grammar",
        "bad2": "invalid_schema",
        "bad3": "invalid_grammar",
    }
    texts = house.texts(job.id)
    assert len(texts) == 99
    assert all(re.fullmatch("[0-9]{3}", text) for text in texts.values())
    with house.database.unit_of_work() as tx:
        assert len(devices.sessions_of_job(tx, job.id)) == 1


def test_json_that_ended_is_valid_and_json_that_was_cut_says_length(house: House) -> None:
    openvino(house, OPENVINO)
    whole = chat_lines(6, temperature=0, max_tokens=400, response_format=ANSWER)
    cut = chat_line("cut", "say 1.", temperature=0, max_tokens=3, response_format=ANSWER)
    job = house.run([*whole, cut])
    found = choices(house, job.id)
    assert found[-1]["finish_reason"] == "length"
    ended = [c["message"]["content"] for c in found if c["finish_reason"] == "stop"]
    assert [answer_fault(text, json.dumps(PARAMETERS)) for text in ended] == [None] * len(ended)


def test_an_engine_that_keeps_to_no_form_refuses_it(house: House) -> None:
    house.register()
    job = house.run(chat_lines(2, response_format=ANSWER))
    assert set(house.codes(job.id).values()) == {"unsupported_parameter"}


# tools and thinking


def test_tool_calls_come_in_the_api_s_shape(house: House, thinker: Path) -> None:
    scripted(house, thinker, CALL, "It rains.", f"Let me see. {CALL}")
    job = house.run(chat_lines(3, max_tokens=200, tools=[WEATHER]))
    called, free, both = choices(house, job.id)
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["content"] is None
    [call] = called["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"days": 3}'}
    assert (call["type"], call["id"][:5]) == ("function", "call_")
    assert free["finish_reason"] == "stop"
    assert "tool_calls" not in free["message"]
    assert both["message"]["content"] == "Let me see."
    assert len(both["message"]["tool_calls"]) == 1


def test_a_call_without_tools_is_text(house: House, thinker: Path) -> None:
    scripted(house, thinker, CALL)
    job = house.run(chat_lines(1, max_tokens=200))
    assert house.texts(job.id) == {"r0": CALL}


def test_one_call_where_no_more_are_wanted(house: House, thinker: Path) -> None:
    scripted(house, thinker, f"{CALL}\n{CALL}")
    lines = chat_lines(1, max_tokens=300, tools=[WEATHER], parallel_tool_calls=False)
    [choice] = choices(house, house.run(lines).id)
    assert len(choice["message"]["tool_calls"]) == 1


def test_a_model_that_knows_no_tools_says_so(house: House) -> None:
    house.register()
    job = house.run(chat_lines(1, tools=[WEATHER]))
    assert house.codes(job.id) == {"r0": "unsupported_parameter"}


def test_a_way_of_calling_that_is_not_known_is_no_guess(house: House, thinker: Path) -> None:
    (thinker / "chat_template.jinja").write_text("{{ tools }}{{ messages[0].content }}")
    scripted(house, thinker, CALL)
    house.register("told", path=str(thinker), tool_parser="hermes")
    job = house.run(chat_lines(1, max_tokens=200, tools=[WEATHER]))
    assert house.codes(job.id) == {"r0": "unsupported_parameter"}
    lines = [chat_line("a", f"{CALL} ", model="told", max_tokens=400, tools=[WEATHER])]
    [choice] = choices(house, house.run(lines).id)
    assert choice["message"]["tool_calls"]


def test_thinking_is_apart_and_counted(house: House, thinker: Path) -> None:
    scripted(house, thinker, "<think>\nthree\n</think>\n\nIt is 3.", "It is 4.", "<think>\nendless")
    job = house.run(chat_lines(3, max_tokens=60))
    thought, quick, cut = choices(house, job.id)
    assert thought["message"]["reasoning_content"] == "three"
    assert thought["message"]["content"] == "It is 3."
    assert quick["message"]["content"] == "It is 4."
    assert "reasoning_content" not in quick["message"]
    assert cut["message"] == cut["message"] | {"reasoning_content": "endless", "content": ""}
    usages = [r["response"]["body"]["usage"] for r in house.outputs(job.id)]
    counts = [u["completion_tokens_details"]["reasoning_tokens"] for u in usages]
    assert 0 < counts[0] < usages[0]["completion_tokens"]
    assert counts[1] == 0
    assert counts[2] == usages[2]["completion_tokens"]


def test_a_prompt_that_leaves_the_model_thinking_begins_inside(house: House, thinker: Path) -> None:
    scripted(house, thinker, "three\n</think>\n\nIt is 3.")
    opened = chat_lines(1, max_tokens=60, chat_template_kwargs={"opened": True})
    [choice] = choices(house, house.run(opened).id)
    assert choice["message"]["reasoning_content"] == "three"
    assert choice["message"]["content"] == "It is 3."


def test_thinking_comes_before_calls(house: House, thinker: Path) -> None:
    scripted(house, thinker, f"<think>\nI call {CALL}, maybe\n</think>\n\n{CALL}")
    [choice] = choices(house, house.run(chat_lines(1, max_tokens=400, tools=[WEATHER])).id)
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == f"I call {CALL}, maybe"
    assert len(choice["message"]["tool_calls"]) == 1


def test_what_parsers_do_can_be_switched_off(house: House, thinker: Path) -> None:
    text = f"<think>\nhm\n</think>\n\n{CALL}"
    scripted(house, thinker, text, tool_parser="none", reasoning_parser="none")
    job = house.run(chat_lines(1, max_tokens=200, tools=[WEATHER]))
    assert house.texts(job.id) == {"r0": text}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_required_call_is_made_by_a_model_that_never_learned_it(
    house: House, thinker: Path, choice: Any
) -> None:
    openvino(house, thinker)
    lines = chat_lines(
        8, temperature=0, max_tokens=300, tools=[WEATHER], tool_choice=choice, seed=1
    )
    found = choices(house, house.run(lines).id)
    ended = [c for c in found if c["finish_reason"] != "length"]
    assert ended
    for made in ended:
        assert made["finish_reason"] == "tool_calls"
        arguments = [c["function"]["arguments"] for c in made["message"]["tool_calls"]]
        assert [answer_fault(a, json.dumps(PARAMETERS)) for a in arguments] == [None] * len(
            arguments
        )


def test_a_job_counts_the_tokens_of_thinking(house: House, thinker: Path) -> None:
    scripted(house, thinker, "<think>\nthree\n</think>\n\nIt is 3.", "<think>\nendless")
    job = house.run(chat_lines(2, max_tokens=60))
    usages = [r["response"]["body"]["usage"] for r in house.outputs(job.id)]
    counts = [u["completion_tokens_details"]["reasoning_tokens"] for u in usages]
    assert job.usage.reasoning_tokens == sum(counts) > 0
    assert job.usage.output_tokens == sum(u["completion_tokens"] for u in usages)


def test_a_response_holds_its_thinking_and_its_calls_as_items(house: House, thinker: Path) -> None:
    scripted(house, thinker, f"<think>\nhm\n</think>\n\nLet me see. {CALL}")
    tool = {"type": "function"} | WEATHER["function"]
    body = {"model": "sim", "input": "say 0.", "max_output_tokens": 300, "tools": [tool]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    job = house.run([line], endpoint="/v1/responses")
    [record] = house.outputs(job.id)
    items = record["response"]["body"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[0]["content"][0]["text"] == "hm"
    assert items[1]["content"][0]["text"] == "Let me see."
    assert items[2]["arguments"] == '{"days": 3}'
