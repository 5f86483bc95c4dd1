"""The bodies of the two endpoints: what is understood, what changes nothing, what is refused.

A field that is in none of these lists is unknown; none is ever dropped silently.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

Scalar = str | bool | int | float | None


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    """Where an image is; `detail` is up to the model's own preparation of images."""

    url: str
    detail: str | None = None


class Part(msgspec.Struct):
    """A part of a message's content; those of type `text` and `image_url` are understood."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """The function of an earlier tool call; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call in an assistant's message. `index`: its place, as some clients leave it there."""

    id: str
    function: CalledFunction
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One turn of a chat. The fields typed Any are refused unless null or empty."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: Any = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: Any = None


class _Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints share. From `top_k` on: extras, by the names that vLLM gives them."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: Any = None
    # What the text does not depend on: taken with any value.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatBody(_Sampling, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None


class CompletionBody(_Sampling, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/completions."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/responses. From `seed` on: extras, as the other endpoints have them."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    # What the text does not depend on: taken with any value.
    user: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None


class EmbeddingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/embeddings."""

    input: Any
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: Any = None


Body = ChatBody | CompletionBody | ResponsesBody | EmbeddingBody

_IGNORED_ANYWHERE = frozenset(
    {
        "user",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
IGNORED: Mapping[type[Body], frozenset[str]] = {
    ChatBody: _IGNORED_ANYWHERE | {"metadata"},
    CompletionBody: _IGNORED_ANYWHERE | {"metadata"},
    ResponsesBody: _IGNORED_ANYWHERE | {"prompt_cache_options"},
    EmbeddingBody: frozenset({"user"}),
}

# Known and not supported: the values that ask for nothing, null always among them.
_NEUTRAL_ANYWHERE: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "best_of": (1,),
    "length_penalty": (1, 1.0),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_special_tokens": (),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "priority": (0,),
    "cache_salt": (),
}
NEUTRAL: Mapping[type[Body], Mapping[str, tuple[Any, ...]]] = {
    ChatBody: {
        **_NEUTRAL_ANYWHERE,
        "echo": (False,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
    },
    EmbeddingBody: {},
    CompletionBody: {**_NEUTRAL_ANYWHERE, "suffix": ("",), "response_format": ({"type": "text"},)},
    ResponsesBody: {
        "stream": (False,),
        "stream_options": (),
        "background": (False,),
        "background_options": (),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "truncation": ("disabled",),
        "max_tool_calls": (),
        "context_management": ([],),
        "moderation": (),
        "image": (),
        "n": (1,),
        "logit_bias": ({},),
    },
}
