"""Chat templates: from messages to the text that a model was trained on, made in the sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError

from batchgen.chat.sandbox import BoundedEnvironment, TooCostly
from batchgen.chat.tokenizer import read_json, token_text
from batchgen.domain.errors import InvalidRequest, LoadFailed

_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_MESSAGE_LIMIT = 300

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ChatTemplate:
    """One template. `tokens` are the model's special tokens by name, as templates use them."""

    def __init__(self, source: str, tokens: Mapping[str, str]):
        environment = BoundedEnvironment()
        environment.add_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            with environment.budget(len(source)):
                self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise LoadFailed(f"the chat template cannot be compiled: {error}") from error
        self.source = source
        self._environment = environment
        self._tokens = dict(tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], *, chars: int
    ) -> str:
        """The text of the messages, ready for the assistant's turn unless `options` says otherwise.

        `chars` is the size of the messages, which bounds the work. Raises InvalidRequest where the
        template refuses the messages or cannot cope with them.
        """
        names = {
            **self._tokens,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **options,
            "messages": messages,
        }
        try:
            with self._environment.budget(chars):
                return self._template.render(names)
        except TooCostly as error:
            raise InvalidRequest(
                str(error), code="template_too_costly", param="messages"
            ) from error
        except _Refused as error:
            raise _cannot(f"the chat template refuses the messages: {error}") from error
        except Exception as error:  # a template can raise anything that an expression can
            kind = type(error).__name__
            raise _cannot(f"the chat template cannot render this: {kind}: {error}") from error


class _Refused(TemplateError):
    """What `raise_exception` of a template raises."""


def load_template(model_dir: Path) -> ChatTemplate | None:
    """The chat template of a model directory; None where it has none.

    Looked for as transformers does: chat_template.jinja, then tokenizer_config.json, there as a
    string or as a list of named templates. Raises LoadFailed where what is there cannot be used.
    """
    settings = read_json(model_dir / "tokenizer_config.json")
    source = _source(model_dir, settings.get("chat_template"))
    if source is None:
        return None
    return ChatTemplate(source, _named_tokens(model_dir, settings))


def plain_template() -> ChatTemplate:
    """For engines without a model directory: roles and contents in lines."""
    return ChatTemplate(PLAIN_TEMPLATE, {})


def _source(model_dir: Path, configured: Any) -> str | None:
    path = model_dir / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{path} cannot be read: {error}") from error
    if isinstance(configured, list):
        named = {t["name"]: t["template"] for t in configured if {"name", "template"} <= t.keys()}
        if named and "default" not in named:
            raise LoadFailed(
                f"{model_dir} has chat templates named {', '.join(sorted(named))}, but no 'default'"
            )
        configured = named.get("default")
    if configured is not None and not isinstance(configured, str):
        raise LoadFailed(f"{model_dir}/tokenizer_config.json: chat_template is not text")
    return configured


def _named_tokens(model_dir: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    named = read_json(model_dir / "special_tokens_map.json") | dict(settings)
    texts = {name: token_text(named.get(name)) for name in _TOKEN_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _cannot(message: str) -> InvalidRequest:
    return InvalidRequest(message[:_MESSAGE_LIMIT], param="messages")


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - templates mean the local date


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: jinja2's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
