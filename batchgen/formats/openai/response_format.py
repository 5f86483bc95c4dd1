"""What an answer shall look like: `response_format`, and `structured_outputs` for other forms.

`response_format` is OpenAI's: `text`, `json_object`, or `json_schema` with `strict` or without; and
`regex` or `grammar` besides, each with its text in the field of that name.
`structured_outputs` is vLLM's, with one of `json`, `regex`, `choice`, `grammar` (EBNF, rule `root`)
and `json_object`. Whether an engine can compile it is its own to say; what shows here is said here.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from batchgen.domain.errors import InvalidRequest, UnknownOption
from batchgen.domain.requests import AnswerForm, Grammar, GrammarKind
from batchgen.formats.openai.convert import convert
from batchgen.formats.schemas import schema_fault

_MAX_REGEX_CHARS = 8_192
_MAX_GRAMMAR_CHARS = 65_536
_MAX_CHOICES = 1_000
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANY_OBJECT = '{"type":"object"}'
_PLAIN = AnswerForm()

Form = tuple[Grammar | None, AnswerForm]


class _JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    json_schema: _JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None


def answer_form(response_format: Any, structured_outputs: Any) -> Form:
    """The grammar that the text must keep to, and what it is checked against in the end.

    Raises InvalidRequest.
    """
    form = (None, _PLAIN) if response_format is None else _response_format(response_format)
    if structured_outputs is None:
        return form
    if form[0] is not None:
        raise InvalidRequest(
            "'response_format' and 'structured_outputs' cannot both say what the answer is.",
            param="structured_outputs",
        )
    return _structured(structured_outputs)


def schema_form(schema: Mapping[str, Any], param: str, *, strict: bool) -> Form:
    """The form of JSON that is valid against a schema. Raises InvalidRequest."""
    source = json_text(schema)
    fault = schema_fault(source)
    if fault is not None:
        raise InvalidRequest(
            f"Invalid schema for '{param}': {fault}.", code="invalid_schema", param=param
        )
    return Grammar(GrammarKind.JSON_SCHEMA, source, param), AnswerForm(source, strict)


def json_text(value: Any) -> str:
    """A JSON value as compact text, keys in their order. Raises InvalidRequest for what is none."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidRequest("the schema is nested too deeply", code="invalid_schema") from None
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the schema holds half of a surrogate pair, which is no Unicode text",
            code="invalid_schema",
        ) from None


def _response_format(asked: Any) -> Form:
    form = convert(asked, _ResponseFormat, at="response_format")
    for name in ("json_schema", "regex", "grammar"):
        if name != form.type and getattr(form, name) is not None:
            raise InvalidRequest(
                f"Invalid 'response_format.{name}': it belongs to the type '{name}'.",
                param=f"response_format.{name}",
            )
    match form.type:
        case "text":
            return None, _PLAIN
        case "json_object":
            return _object_form("response_format")
        case "json_schema":
            return _json_schema(form.json_schema)
        case "regex":
            return _regex(form.regex, "response_format.regex")
        case "grammar":
            return _ebnf(form.grammar, "response_format.grammar")
    raise InvalidRequest(
        "Invalid value for 'response_format.type': supported are 'text', 'json_object', "
        "'json_schema', 'regex' and 'grammar'.",
        code="invalid_value",
        param="response_format.type",
    )


def _json_schema(asked: _JsonSchema | None) -> Form:
    if asked is None or asked.schema is None:
        missing = "response_format.json_schema" + ("" if asked is None else ".schema")
        raise InvalidRequest(
            f"Missing required parameter: '{missing}'.",
            code="missing_required_parameter",
            param=missing,
        )
    if not _NAME.fullmatch(asked.name):
        raise InvalidRequest(
            "Invalid 'response_format.json_schema.name': 1 to 64 letters, digits, '_' and '-'.",
            param="response_format.json_schema.name",
        )
    return schema_form(asked.schema, "response_format", strict=bool(asked.strict))


def _object_form(param: str) -> Form:
    return Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT, param), AnswerForm(_ANY_OBJECT)


def _structured(given: Any) -> Form:
    if not isinstance(given, dict):
        raise InvalidRequest(
            "Invalid type for 'structured_outputs': expected an object.",
            code="invalid_type",
            param="structured_outputs",
        )
    asked = {name: value for name, value in given.items() if value not in (None, False)}
    for name in asked:
        if name not in _FORMS:
            unknown = UnknownOption.named(name, _FORMS, where="structured_outputs")
            raise InvalidRequest(
                unknown.message, code="unknown_parameter", param=f"structured_outputs.{name}"
            )
    if len(asked) != 1:
        raise InvalidRequest(
            f"Invalid 'structured_outputs': give one of {', '.join(_FORMS)}.",
            param="structured_outputs",
        )
    ((name, value),) = asked.items()
    return _FORMS[name](value, f"structured_outputs.{name}")


def _json(value: Any, param: str) -> Form:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _wrong(param, "a JSON schema") from None
    if not isinstance(value, dict):
        raise _wrong(param, "a JSON schema")
    return schema_form(value, param, strict=True)


def _regex(value: Any, param: str) -> Form:
    return Grammar(GrammarKind.REGEX, _text(value, param, _MAX_REGEX_CHARS), param), _PLAIN


def _ebnf(value: Any, param: str) -> Form:
    return Grammar(GrammarKind.EBNF, _text(value, param, _MAX_GRAMMAR_CHARS), param), _PLAIN


def _choice(value: Any, param: str) -> Form:
    if not isinstance(value, list) or not value or len(value) > _MAX_CHOICES:
        raise _wrong(param, f"an array of 1 to {_MAX_CHOICES} texts")
    choices = [_text(text, param, _MAX_GRAMMAR_CHARS) for text in value]
    # JSON's escapes are EBNF's as well.
    ebnf = "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)
    return Grammar(GrammarKind.EBNF, _text(ebnf, param, _MAX_GRAMMAR_CHARS), param), _PLAIN


def _any_object(value: Any, param: str) -> Form:
    if value is not True:
        raise _wrong(param, "true")
    return _object_form(param)


def _text(value: Any, param: str, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(param, "a text that is not empty")
    if len(value) > most:
        raise InvalidRequest(
            f"Invalid '{param}': string too long. Expected at most {most} characters.",
            code="string_above_max_length",
            param=param,
        )
    return value


def _wrong(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': expected {expected}.", code="invalid_type", param=param
    )


_FORMS: Mapping[str, Callable[[Any, str], Form]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "json_object": _any_object,
}
