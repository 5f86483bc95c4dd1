"""The items of a response's input as the messages of a chat.

One turn of the assistant may be several items: what it thought, what it said, what it called.
"""

from collections.abc import Mapping
from typing import Any

from batchgen.domain.errors import InvalidRequest
from batchgen.formats.faults import shown

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_NOTED = frozenset({"id", "status", "type", "phase"})


class Turns:
    """Messages as they come of items, and where in the request each of them comes from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._thought: str | None = None

    def add(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def finish(self, place: str) -> None:
        """Raises InvalidRequest where the last thought leads to nothing."""
        if self._thought is not None:
            raise InvalidRequest(
                f"Invalid '{place}': it ends with reasoning, and no assistant's turn follows.",
                param=place,
            )

    def take(self, item: Mapping[str, Any], place: str) -> None:
        kind = item.get("type") or "message"
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
        only(item, ("role", "content"), place)
        message: dict[str, Any] = {
            "role": _given(item, "role", place),
            "content": _content(_given(item, "content", place), f"{place}.content"),
        }
        self.add(self._with_thought(message), place)

    def _take_call(self, item: Mapping[str, Any], place: str) -> None:
        only(item, ("call_id", "name", "arguments"), place)
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
        only(item, ("call_id", "output"), place)
        message = {
            "role": "tool",
            "tool_call_id": _given(item, "call_id", place),
            "content": _content(_given(item, "output", place), f"{place}.output"),
        }
        self.add(message, place)

    def _take_reasoning(self, item: Mapping[str, Any], place: str) -> None:
        only(item, ("summary", "content"), place)
        parts = item.get("content") or item.get("summary") or []
        texts = [
            part.get("text") if isinstance(part, dict) else None
            for part in (parts if isinstance(parts, list) else [None])
        ]
        if not all(isinstance(text, str) for text in texts):
            raise InvalidRequest(
                f"Invalid '{place}': a part of it has no text.", code="invalid_value", param=place
            )
        if texts:
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


def only(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raises InvalidRequest for a field that is set and not known."""
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
