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
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_NOTED = frozenset({"id", "status", "type", "phase"})


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
        text = re.sub(r"messages\[(\d+)\]", lambda found: self.places[int(found[1])], text)
        for chat, own in _NAMES.items():
            text = re.sub(rf"(?<![\w.]){re.escape(chat)}(?!\w)", own, text)
        return text


def as_chat(body: ResponsesBody) -> AsChat:
    """Raises InvalidRequest for what no chat can say."""
    turns = _Turns()
    if body.instructions is not None:
        turns.add({"role": "system", "content": body.instructions}, "instructions")
    if isinstance(body.input, str):
        turns.add({"role": "user", "content": body.input}, "input")
    else:
        for i, item in enumerate(body.input):
            turns.take(item, f"input[{i}]")
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


class _Turns:
    """Messages as they come of items: one turn of the assistant may be several items."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._thought: str | None = None

    def add(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def take(self, item: Mapping[str, Any], place: str) -> None:
        kind = item.get("type", "message")
        if self._thought is not None and not _is_assistants(item):
            raise InvalidRequest(
                f"Invalid '{place}': the reasoning before it belongs to an assistant's turn.",
                param=place,
            )
        match kind:
            case "message":
                self._take_message(item, place)
            case "function_call":
                self._take_call(item, place)
            case "function_call_output":
                self._take_output(item, place)
            case "reasoning":
                self._take_reasoning(item, place)
            case _:
                raise InvalidRequest(
                    f"Invalid value for '{place}.type': {shown(kind)}; supported are 'message', "
                    "'function_call', 'function_call_output' and 'reasoning'.",
                    code="unsupported_value",
                    param=f"{place}.type",
                )

    def _take_message(self, item: Mapping[str, Any], place: str) -> None:
        _only(item, ("role", "content"), place)
        message: dict[str, Any] = {
            "role": _given(item, "role", place),
            "content": _content(_given(item, "content", place), f"{place}.content"),
        }
        self.add(self._with_thought(message), place)

    def _take_call(self, item: Mapping[str, Any], place: str) -> None:
        _only(item, ("call_id", "name", "arguments"), place)
        call = {
            "id": _given(item, "call_id", place),
            "type": "function",
            "function": {
                "name": _given(item, "name", place),
                "arguments": _given(item, "arguments", place),
            },
        }
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == "assistant" and self._thought is None:
            last.setdefault("tool_calls", []).append(call)
        else:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            self.add(self._with_thought(message), place)

    def _take_output(self, item: Mapping[str, Any], place: str) -> None:
        _only(item, ("call_id", "output"), place)
        message = {
            "role": "tool",
            "tool_call_id": _given(item, "call_id", place),
            "content": _content(_given(item, "output", place), f"{place}.output"),
        }
        self.add(message, place)

    def _take_reasoning(self, item: Mapping[str, Any], place: str) -> None:
        _only(item, ("summary", "content"), place)
        parts = item.get("content") or item.get("summary") or []
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InvalidRequest(
                f"Invalid '{place}': it holds no text (encrypted reasoning cannot be read).",
                code="unsupported_value",
                param=place,
            )
        self._thought = "\n".join([*filter(None, [self._thought]), *map(str, texts)])

    def _with_thought(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._thought is not None:
            message["reasoning_content"], self._thought = self._thought, None
        return message


def _is_assistants(item: Mapping[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _content(value: object, place: str) -> object:
    """Text parts by the name that chat has for them; the chat's reader refuses the others."""
    if not isinstance(value, list):
        return value
    parts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest(
                f"Invalid type for '{place}[{i}]': expected an object with a type.",
                code="invalid_type",
                param=f"{place}[{i}]",
            )
        match part["type"]:
            case kind if kind in _TEXT_PARTS:
                parts.append({"type": "text", "text": part.get("text")})
            case "input_image":
                url = {"url": part.get("image_url")}
                detail = {} if part.get("detail") is None else {"detail": part["detail"]}
                parts.append({"type": "image_url", "image_url": url | detail})
            case kind:
                raise InvalidRequest(
                    f"Invalid value for '{place}[{i}].type': {shown(kind)} is not supported.",
                    code="unsupported_value",
                    param=f"{place}[{i}].type",
                )
    return parts


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    _only(text, ("format", "verbosity"), "text")
    chat = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    form = text.get("format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return chat if form is None else {**chat, "response_format": form}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}


def _reasoning(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    _only(reasoning, ("effort", "summary", "generate_summary"), "reasoning")
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


def _only(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    noted = _NOTED if place.startswith("input[") else ()
    for name, given in value.items():
        if name not in known and name not in noted and given is not None:
            raise InvalidRequest(
                f"Unsupported parameter: '{place}.{shown(name)[1:-1]}' is not supported.",
                code="unsupported_parameter",
                param=f"{place}.{shown(name)[1:-1]}",
            )


def _given(item: Mapping[str, Any], name: str, place: str) -> Any:
    value = item.get(name)
    if value is None:
        raise InvalidRequest(
            f"Missing required parameter: '{place}.{name}'.",
            code="missing_required_parameter",
            param=f"{place}.{name}",
        )
    return value
