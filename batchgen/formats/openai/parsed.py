"""What every endpoint makes of a line, whatever its body looks like."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchgen.domain.requests import AnswerForm, Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class Parsed:
    """A line's content; the fields are those of `GenerationRequest`."""

    custom_id: str
    prompt: Prompt
    sampling: SamplingParams
    answer: AnswerForm = field(default_factory=AnswerForm)
    default_max_tokens: int | None = None
    mirrored: Mapping[str, Any] = field(default_factory=dict)
