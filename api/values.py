"""Bodies, queries and values from outside: exact types, bounded sizes, no unknown name."""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from batchgen.domain.errors import UnknownOption

_T = TypeVar("_T")
_LONGEST_NAME = 64
_DEEPEST = 12


def _text(text: str) -> str:
    """What Postgres cannot hold as text is refused."""
    if "\0" in text:
        raise ValueError("must not hold the character NUL")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("must not hold lone surrogates")
    return text


def _storable(value: dict[str, Any]) -> dict[str, Any]:
    _check_json(value, _DEEPEST)
    return value


def _check_json(value: Any, depth: int) -> None:
    """What Postgres cannot hold as JSON is refused, and what nobody means."""
    if depth == 0:
        raise ValueError(f"must not be nested deeper than {_DEEPEST} levels")
    match value:
        case str():
            _text(value)
        case float() if not math.isfinite(value):
            raise ValueError("must not hold NaN or infinities")
        case list():
            for item in value:
                _check_json(item, depth - 1)
        case dict():
            for key, item in value.items():
                _check_json(key, 1)
                _check_json(item, depth - 1)


Text = Annotated[str, Field(max_length=512), AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_text)]
LongText = Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(_text)]
Metadata = dict[Annotated[str, AfterValidator(_text)], Annotated[str, AfterValidator(_text)]]
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]


class _Known(BaseModel):
    """Unknown names are errors that say the nearest known one."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for name in given:
                if name not in known:
                    shown = name if name.isprintable() else ascii(name)[1:-1]
                    raise UnknownOption.named(shown[:_LONGEST_NAME], known)
        return given


class Body(_Known):
    """A JSON body: no coercion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(_Known):
    """The parameters after the question mark, which are all text to begin with."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpiresAfter(Body):
    """When a file goes away by itself, as OpenAI bounds it."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3_600, le=2_592_000)


class Page(BaseModel, Generic[_T]):
    """A page of a list. The next one begins `after` the last id."""

    object: Literal["list"] = "list"
    data: list[_T]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, found: Iterable[tuple[str, _T]], limit: int) -> Self:
        """The first `limit` of (id, item) pairs; one more than that shows that there are more."""
        pairs = list(found)
        shown = pairs[:limit]
        return cls(
            data=[item for _, item in shown],
            first_id=shown[0][0] if shown else None,
            last_id=shown[-1][0] if shown else None,
            has_more=len(pairs) > limit,
        )


class Deleted(BaseModel):
    """The answer to a deletion."""

    id: str
    object: str
    deleted: Literal[True] = True


def epoch(at: datetime) -> int:
    """Seconds since 1970, as OpenAI writes times."""
    return int(at.timestamp())


def epoch_or_none(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
