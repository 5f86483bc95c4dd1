"""Chat messages as templates want them: checked, and with text parts joined."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchgen.domain.errors import InvalidRequest


def chat_messages(
    messages: Sequence[Mapping[str, Any]], image_tag: str | None = None
) -> list[dict[str, Any]]:
    """The messages with every content as one text (parts joined with nothing between them).

    An image stands as `image_tag`, with its number in the place of `{}`; None: the model sees none.
    An assistant's content may be null or absent where it has tool calls. Raises InvalidRequest
    naming the place.
    """
    if not messages:
        raise InvalidRequest("messages is empty", code="empty_prompt", param="messages")
    return [_message(message, f"messages[{i}]", image_tag) for i, message in enumerate(messages)]


def chars_in(value: Any) -> int:
    """How many characters of text are in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + chars_in(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(chars_in, value))
    return 0


def _message(message: Mapping[str, Any], place: str, image_tag: str | None) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{place} is not an object", param=place)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{place}.role must be a text", param=f"{place}.role")
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise InvalidRequest(f"{place}.content is missing", param=f"{place}.content")
    return {**message, "content": _text(content, f"{place}.content", image_tag)}


def _text(content: Any, place: str, image_tag: str | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"{place} must be a text or a list of parts", param=place)
    return "".join(_part(part, f"{place}[{i}]", image_tag) for i, part in enumerate(content))


def _part(part: Any, place: str, image_tag: str | None) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image" and image_tag is not None:
        return image_tag.replace("{}", str(part["index"]))
    if kind != "text":
        raise InvalidRequest(
            f"{place} is of type {kind!r}; this model takes text only",
            code="unsupported_content",
            param=place,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.text must be a text", param=f"{place}.text")
    return text
