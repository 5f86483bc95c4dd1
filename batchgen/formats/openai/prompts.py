"""Messages and prompts of OpenAI bodies, checked."""

import json
from collections.abc import Mapping
from typing import Any

from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import ChatPrompt, TextPrompt, TokenPrompt
from batchgen.formats.openai.bodies import CalledTool, ChatBody, CompletionBody, Message
from batchgen.formats.openai.images import image_file

# A developer message is what newer clients call a system message; templates know the older name.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED = ("refusal", "function_call", "audio", "annotations")
_MAX_TOKEN_ID = 2**31 - 1
# What the template is given by the server; a request may not put its own in their place.
_TEMPLATE_OWN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"}
)


def chat_prompt(body: ChatBody, tools: tuple[Mapping[str, Any], ...] = ()) -> ChatPrompt:
    """The messages, and the tools to be shown. Raises InvalidRequest naming the message."""
    if not body.messages:
        raise InvalidRequest(
            "Invalid 'messages': empty array. Expected an array with minimum length 1.",
            code="empty_array",
            param="messages",
        )
    images: list[bytes] = []
    messages = tuple(_message(message, i, images) for i, message in enumerate(body.messages))
    if not any(message["content"] for message in messages):
        raise InvalidRequest(
            "Invalid 'messages': no message holds any text.", code="empty_prompt", param="messages"
        )
    kwargs = body.chat_template_kwargs or {}
    for name in kwargs:
        if name in _TEMPLATE_OWN:
            raise InvalidRequest(
                f"Invalid 'chat_template_kwargs': '{name}' is not the request's to set.",
                param=f"chat_template_kwargs.{name}",
            )
    return ChatPrompt(messages, kwargs, tools, tuple(images))


def completion_prompt(body: CompletionBody) -> TextPrompt | TokenPrompt:
    """Raises InvalidRequest for an empty prompt, or more than one."""
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise InvalidRequest(
                f"Invalid 'prompt': {len(prompt)} prompts; a batch line holds one prompt, so give "
                "each its own line.",
                code="unsupported_value",
                param="prompt",
            )
        prompt = prompt[0]
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': it is empty.", code="empty_prompt", param="prompt")
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    for id_ in prompt:
        if type(id_) is not int or not 0 <= id_ <= _MAX_TOKEN_ID:
            raise InvalidRequest(
                "Invalid 'prompt': expected a string, or an array of token ids.",
                code="invalid_type",
                param="prompt",
            )
    return TokenPrompt(tuple(prompt))


def _message(message: Message, i: int, images: list[bytes]) -> dict[str, Any]:
    role = _ROLES.get(message.role)
    if role is None:
        supported = ", ".join(f"'{name}'" for name in _ROLES)
        raise InvalidRequest(
            f"Invalid value for 'messages[{i}].role': supported are {supported}.",
            code="unsupported_value" if message.role == "function" else "invalid_value",
            param=f"messages[{i}].role",
        )
    for name in _REFUSED:
        if getattr(message, name) not in (None, []):
            raise InvalidRequest(
                f"Unsupported parameter: 'messages[{i}].{name}' is not supported.",
                code="unsupported_parameter",
                param=f"messages[{i}].{name}",
            )
    calls = _calls(message, role, i)
    # A turn that calls tools need not say anything.
    said = bool(message.content) or not calls
    out: dict[str, Any] = {"role": role, "content": _content(message, i, images) if said else None}
    if calls:
        out["tool_calls"] = calls
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    if message.reasoning_content is not None:
        out["reasoning_content"] = message.reasoning_content
    return out


def _calls(message: Message, role: str, i: int) -> list[dict[str, Any]]:
    """The tool calls of an assistant's turn, as templates want them: with arguments as objects."""
    for name, belongs_to in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, name) and role != belongs_to:
            raise InvalidRequest(
                f"Invalid 'messages[{i}].{name}': it belongs to messages of role '{belongs_to}'.",
                param=f"messages[{i}].{name}",
            )
    if role == "tool" and message.tool_call_id is None:
        raise InvalidRequest(
            f"Missing required parameter: 'messages[{i}].tool_call_id'.",
            code="missing_required_parameter",
            param=f"messages[{i}].tool_call_id",
        )
    calls = message.tool_calls or []
    return [_call(call, f"messages[{i}].tool_calls[{j}]") for j, call in enumerate(calls)]


def _call(call: CalledTool, place: str) -> dict[str, Any]:
    if call.type != "function":
        raise InvalidRequest(
            f"Invalid value for '{place}.type': only 'function' is supported.",
            code="unsupported_value",
            param=f"{place}.type",
        )
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(
            f"Invalid '{place}.function.arguments': expected the JSON text of an object.",
            param=f"{place}.function.arguments",
        )
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(message: Message, i: int, images: list[bytes]) -> str | list[dict[str, Any]]:
    """One text; parts only where there are images among them, which go to `images`."""
    content = message.content
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(
            f"Missing required parameter: 'messages[{i}].content'.",
            code="missing_required_parameter",
            param=f"messages[{i}].content",
        )
    texts: list[str] = []
    parts: list[dict[str, Any]] = []
    n_before = len(images)
    for j, part in enumerate(content):
        place = f"messages[{i}].content[{j}]"
        if part.type == "image_url" and part.image_url is not None:
            parts.append({"type": "image", "index": len(images)})
            images.append(image_file(part.image_url.url, place))
            continue
        if part.type != "text":
            raise InvalidRequest(
                f"Invalid value for '{place}.type': 'text' and 'image_url' are supported.",
                code="unsupported_value",
                param=f"{place}.type",
            )
        if part.text is None:
            raise InvalidRequest(
                f"Missing required parameter: '{place}.text'.",
                code="missing_required_parameter",
                param=f"{place}.text",
            )
        texts.append(part.text)
        parts.append({"type": "text", "text": part.text})
    if len(images) > n_before:
        return parts
    # Templates of text models take one string; servers of this kind join parts by a newline.
    return "\n".join(texts)
