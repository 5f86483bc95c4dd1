"""`PromptEncoder`: a request's prompt to token ids, and generated ids back to text.

    encoder = PromptEncoder(model_dir)            # None: bytes as tokens, for the simulated engine
    ids = encoder.encode(request.prompt)          # raises InvalidRequest, with the field in `param`
    text = encoder.decode(choice.token_ids, sampling)

A chat prompt is what transformers' `apply_chat_template(tokenize=True, add_generation_prompt=True)`
makes of it, except that control tokens which a user typed stay plain text. A text prompt is
tokenized as it stands, with the tokens that the tokenizer adds (a BOS, say), never two of them.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from batchgen.chat.guard import Guard
from batchgen.chat.messages import chars_in, chat_messages
from batchgen.chat.template import ChatTemplate, load_template, plain_template
from batchgen.chat.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from batchgen.domain.errors import InvalidRequest
from batchgen.domain.requests import (
    ChatPrompt,
    EmbeddingInput,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)


class PromptEncoder:
    """For one model directory. May be used by several threads.

    Raises LoadFailed from the constructor where the directory's tokenizer or template is missing or
    broken; a directory without a chat template is refused per chat prompt only.
    """

    def __init__(self, model_dir: Path | None):
        self.tokenizer: Tokenizer
        self._template: ChatTemplate | None
        if model_dir is None:
            self.tokenizer, self._template = ByteTokenizer(), plain_template()
        else:
            self.tokenizer, self._template = load_tokenizer(model_dir), load_template(model_dir)
        self._guard = Guard([*self.tokenizer.special_tokens])

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids, at least one. Raises InvalidRequest."""
        match prompt:
            case ChatPrompt(messages=messages, template_kwargs=options, tools=tools):
                shown = {**options, "tools": [*tools]} if tools else options
                ids, field = self._encode_chat(messages, shown), "messages"
            case TextPrompt(text=text):
                _refuse_surrogates(text, "prompt")
                ids, field = self.tokenizer.encode(text, add_special_tokens=bool(text)), "prompt"
            case TokenPrompt(ids=given):
                ids, field = list(given), "prompt"
            case EmbeddingInput():
                raise InvalidRequest("the model generates text, it makes no vectors", param="input")
        if not ids:
            raise InvalidRequest("the prompt is empty", code="empty_prompt", param=field)
        return ids

    def write(self, prompt: Prompt, image_tag: str) -> str:
        """The prompt's text, for an engine that tokenizes by itself: see `chat_messages`.

        Raises InvalidRequest, also for what such an engine could not tell from the template's own:
        control tokens and image tags that a user typed.
        """
        head = image_tag.partition("{}")[0]
        match prompt:
            case ChatPrompt(messages=messages, template_kwargs=options, tools=tools):
                if self._template is None:
                    raise _no_template()
                shown = {**options, "tools": [*tools]} if tools else options
                typed = chat_messages(messages, "")
                if head in str((typed, shown)) or self._guard.suspects((typed, shown)):
                    raise InvalidRequest(
                        "a message holds what a model with images takes for a control token or an "
                        "image: leave it out",
                        code="unsupported_content",
                        param="messages",
                    )
                plain = chat_messages(messages, image_tag)
                chars = chars_in(plain) + chars_in(shown)
                text, field = self._template.render(plain, shown, chars=chars), "messages"
            case TextPrompt(text=text) if head not in text:
                field = "prompt"
            case _:
                raise InvalidRequest(
                    "a model with images takes a prompt of text without image tags",
                    code="unsupported_content",
                    param="prompt",
                )
        _refuse_surrogates(text, field)
        return text

    @property
    def template(self) -> str:
        """The source of the chat template; empty where there is none."""
        return "" if self._template is None else self._template.source

    def decode(
        self,
        ids: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        keep: Collection[str] = (),
    ) -> str:
        """The text of generated ids, without control tokens but those in `keep`, cut where
        `sampling` says to stop.
        """
        if sampling is None:
            return self._decode(ids, keep)
        if ids and ids[-1] in sampling.stop_token_ids:
            ids = ids[:-1]
        text = self._decode(ids, keep)
        ends = [at for stop in sampling.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    def _decode(self, ids: Sequence[int], keep: Collection[str]) -> str:
        special = self.tokenizer.special_tokens
        kept = {special[text]: text for text in keep if text in special}
        if kept.keys().isdisjoint(ids):
            return self.tokenizer.decode(ids)
        parts: list[str] = []
        start = 0
        for at, id_ in enumerate(ids):
            if id_ in kept:
                parts += [self.tokenizer.decode(ids[start:at]), kept[id_]]
                start = at + 1
        parts.append(self.tokenizer.decode(ids[start:]))
        return "".join(parts)

    def _encode_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[int]:
        if self._template is None:
            raise _no_template()
        plain = chat_messages(messages)
        chars = chars_in(plain) + chars_in(options)
        if self._guard.suspects(plain) or self._guard.suspects(options):
            (hidden, hidden_options), signs = self._guard.hide((plain, options))
            rendered = self._template.render(hidden, hidden_options, chars=chars)
            _refuse_surrogates(rendered, "messages")
            return self.tokenizer.encode_guarded(signs.split(rendered))
        rendered = self._template.render(plain, options, chars=chars)
        _refuse_surrogates(rendered, "messages")
        ids = self.tokenizer.encode(rendered, add_special_tokens=False)
        if self._control_tokens(ids) > self._guard.count(rendered):
            # The tokenizer's normalisation made a control token of something that looks like one.
            return self.tokenizer.encode_guarded([(rendered, True)])
        return ids

    def _control_tokens(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.special_tokens.values())


def _no_template() -> InvalidRequest:
    return InvalidRequest(
        "the model has no chat template; use /v1/completions, or register a model whose "
        "directory has a chat_template.jinja",
        code="no_chat_template",
        param="messages",
    )


def _refuse_surrogates(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}), no character",
            code="invalid_unicode",
            param=field,
        ) from None
