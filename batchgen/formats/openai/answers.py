"""What an endpoint's body is made from, the same for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.domain.outcomes import Choice, Generation
from batchgen.domain.requests import GenerationRequest
from batchgen.formats.openai.logprobs import TokenBytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A generation whose choices have their text, and what stands around it.

    `number` makes the ids of the record unique, `created` is in seconds since 1970, `fingerprint`
    names the engine. `token_bytes` gives a token's bytes and is needed where there are logprobs,
    `prompt_ids` where those of the prompt are among them.
    """

    request: GenerationRequest
    generation: Generation
    number: str
    model: str
    created: int
    fingerprint: str | None = None
    token_bytes: TokenBytes | None = None
    prompt_ids: Sequence[int] = ()

    @property
    def names(self) -> TokenBytes:
        if self.token_bytes is None:
            raise ValueError("records with logprobs need the tokens' bytes")
        return self.token_bytes


def text_of(choice: Choice) -> str:
    """Raises ValueError before a choice is decoded."""
    if choice.text is None:
        raise ValueError("a choice's tokens must be decoded before it becomes a record")
    return choice.text
