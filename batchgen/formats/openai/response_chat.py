"""A request for a response, put as the chat that it is: `input` items become messages.

The chat's reader then decides what can run; what it refuses is told in the words of this endpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchgen.domain.errors import InvalidRequest
from batchgen.formats.faults import shown
from batchgen.formats.openai.bodies import ResponsesBody
from batchgen.formats.openai.response_items import Turns, only

# Fields that chat has under the same name and with the same meaning.
_SAME = (
    "model",
    "temperature",
    "top_p",
    "top_logprobs",
    "parallel_tool_calls",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "chat_template_kwargs",
)
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "'logprobs' to be true": "'message.output_text.logprobs' in 'include'",
}
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class AsChat:
    """The body of the chat, and where in the request each of its messages comes from."""

    body: dict[str, Any]
    places: tuple[str, ...]

    def in_its_words(self, error: InvalidRequest) -> InvalidRequest:
        """What is wrong with the chat, said of the request that it was made from."""
        param = None if error.param is None else self._renamed(error.param)
        return InvalidRequest(self._renamed(error.message), code=error.code, param=param)

    def _renamed(self, text: str) -> str:
        text = re.sub(r"messages\[(\d{1,9})\]", self._place, text)
        for chat, own in _NAMES.items():
            text = re.sub(rf"(?<![\w.]){re.escape(chat)}(?!\w)", own, text)
        return text

    def _place(self, found: re.Match[str]) -> str:
        number = int(found[1])  # what a message quotes of the request may look like a place, too
        return self.places[number] if number < len(self.places) else found[0]


def as_chat(body: ResponsesBody) -> AsChat:
    """Raises InvalidRequest for what no chat can say."""
    turns = Turns()
    if body.instructions is not None:
        turns.add({"role": "system", "content": body.instructions}, "instructions")
    if isinstance(body.input, str):
        turns.add({"role": "user", "content": body.input}, "input")
    else:
        for i, item in enumerate(body.input):
            turns.take(item, f"input[{i}]")
        turns.finish("input")
    chat: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(body, name)) is not None
    }
    chat["messages"] = turns.messages
    chat["max_completion_tokens"] = body.max_output_tokens
    if _wants_logprobs(body.include or []):
        chat["logprobs"] = True
    chat |= _text(body.text or {}) | _reasoning(body.reasoning or {})
    if body.tools:
        chat["tools"] = [_tool(tool, i) for i, tool in enumerate(body.tools)]
    if body.tool_choice is not None and (body.tools or body.tool_choice != "auto"):
        chat["tool_choice"] = _tool_choice(body.tool_choice)
    return AsChat(chat, tuple(turns.places))


def mirrored(body: ResponsesBody) -> dict[str, Any]:
    """The fields of the request that a Response object repeats, with the API's defaults."""
    reasoning = body.reasoning or {}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [{"parameters": None, "strict": None, **tool} for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
    }


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    only(text, ("format", "verbosity"), "text")
    chat = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    form = text.get("format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return chat if form is None else {**chat, "response_format": form}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}


def _reasoning(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    only(reasoning, ("effort", "summary", "generate_summary"), "reasoning")
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) is not None:
            raise InvalidRequest(
                f"Unsupported parameter: 'reasoning.{name}' is not supported: what a model thinks "
                "is given whole.",
                code="unsupported_parameter",
                param=f"reasoning.{name}",
            )
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _tool(tool: Mapping[str, Any], i: int) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequest(
            f"Invalid value for 'tools[{i}].type': {shown(kind)}; only 'function' is supported.",
            code="unsupported_value",
            param=f"tools[{i}].type",
        )
    return {
        "type": "function",
        "function": {name: value for name, value in tool.items() if name != "type"},
    }


def _tool_choice(choice: str | Mapping[str, Any]) -> object:
    if (
        isinstance(choice, Mapping)
        and choice.get("type") == "function"
        and "function" not in choice
    ):
        return {
            "type": "function",
            "function": {name: value for name, value in choice.items() if name != "type"},
        }
    return choice


def _wants_logprobs(include: list[str]) -> bool:
    for i, name in enumerate(include):
        if name != _LOGPROBS:
            raise InvalidRequest(
                f"Invalid value for 'include[{i}]': {shown(name)}; only '{_LOGPROBS}' is "
                "supported.",
                code="unsupported_value",
                param=f"include[{i}]",
            )
    return bool(include)
