"""Control tokens that a user typed stay plain text: hidden before rendering, told apart after it.

Each occurrence is replaced, before the template sees it, by a sign that no user can guess; it is
made of private-use characters, which no filter of a template changes. In the rendered text the
signs say what is the user's, and everything else is the template's.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from batchgen.domain.errors import InvalidRequest

_ALPHABET = [chr(0xE000 + i) for i in range(256)]
_SIGN_BYTES = 16


class Guard:
    """Knows a model's control tokens."""

    def __init__(self, special_tokens: Sequence[str]):
        self._specials = any_of(special_tokens)
        # What could become a control token together with what a template or the next message puts
        # beside it: a beginning at the text's end, an end at its beginning.
        parts = [(token[:i], token[i:]) for token in special_tokens for i in range(1, len(token))]
        self._heads = tuple(sorted({head for head, _ in parts}, key=len, reverse=True))
        self._tails = tuple(sorted({tail for _, tail in parts}, key=len, reverse=True))

    def suspects(self, value: Any) -> bool:
        """Whether a text in `value` holds a control token, or could make one with a neighbour."""
        if isinstance(value, str):
            return bool(
                self._specials.search(value)
                or value.rstrip().endswith(self._heads)
                or value.lstrip().startswith(self._tails)
            )
        if isinstance(value, Mapping):
            return any(self.suspects(k) or self.suspects(v) for k, v in value.items())
        if isinstance(value, list | tuple):
            return any(map(self.suspects, value))
        return False

    def count(self, text: str) -> int:
        """How many control tokens stand in the text."""
        return len(self._specials.findall(text))

    def hide(self, value: Any) -> tuple[Any, "Signs"]:
        """`value` with signs in the place of everything that `suspects` finds, and those signs."""
        signs = Signs()
        return self._hidden(value, signs), signs

    def _hidden(self, value: Any, signs: "Signs") -> Any:
        if isinstance(value, str):
            return self._hide_text(value, signs)
        if isinstance(value, Mapping):
            return {self._hidden(k, signs): self._hidden(v, signs) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item, signs) for item in value]
        return value

    def _hide_text(self, text: str, signs: "Signs") -> str:
        text = self._specials.sub(lambda found: signs.sign_for(found[0]), text)
        end = len(text.rstrip())
        head = next((h for h in self._heads if text.endswith(h, 0, end)), None)
        if head is not None:
            text = text[: end - len(head)] + signs.sign_for(head) + text[end:]
        start = len(text) - len(text.lstrip())
        tail = next((t for t in self._tails if text.startswith(t, start)), None)
        if tail is not None:
            text = text[:start] + signs.sign_for(tail) + text[start + len(tail) :]
        return text


class Signs:
    """The signs of one rendering and what they stand for."""

    def __init__(self) -> None:
        self._secret = "".join(_ALPHABET[byte] for byte in secrets.token_bytes(_SIGN_BYTES))
        self._texts: list[str] = []

    def sign_for(self, text: str) -> str:
        self._texts.append(text)
        number = len(self._texts) - 1
        digits = "".join(_ALPHABET[int(digit)] for digit in str(number))
        return f"{self._secret}{digits}{_ALPHABET[255]}"

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """The rendered text in pieces; True for the template's, False for what a user typed.

        Raises InvalidRequest where the template cut a sign in two.
        """
        pieces: list[tuple[str, bool]] = []
        first, *rest = rendered.split(self._secret)
        pieces.append((first, True))
        for part in rest:
            digits, _, after = part.partition(_ALPHABET[255])
            try:
                number = int("".join(str(_ALPHABET.index(digit)) for digit in digits))
                pieces += [(self._texts[number], False), (after, True)]
            except (ValueError, IndexError):
                raise InvalidRequest(
                    "the chat template cuts a message in the middle of a control token's text",
                    param="messages",
                ) from None
        return pieces


def any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of `texts`; it finds nothing where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
