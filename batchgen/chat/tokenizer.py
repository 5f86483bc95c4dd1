"""Tokenizers: text to ids and back, with a way to keep typed control tokens plain text.

`load_tokenizer(model_dir)` reads a model directory's tokenizer.json; `ByteTokenizer` needs no
files.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from batchgen.chat.guard import any_of
from batchgen.chat.token_bytes import token_bytes
from batchgen.domain.errors import LoadFailed

_REMEMBERED_CHARS = range(256, 32_768)
_REMEMBERED_PIECES = 128
# Stages of a tokenizer that treat a piece alike wherever it stands.
_PLACELESS = frozenset({"ByteLevel", "Split", "Digits", "NFC", "NFD", "NFKC", "NFKD", "Lowercase"})


class Tokenizer(Protocol):
    """What a prompt encoder and the simulated engine need of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a generation."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The control tokens: their texts and ids."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of `text`, control tokens recognised; `add_special_tokens` adds e.g. a BOS."""
        ...

    def encode_guarded(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of the joined pieces; control tokens count in pieces marked True only."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without control tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text in UTF-8; a control token by its name."""
        ...


class ByteTokenizer:
    """UTF-8 bytes as tokens, and 256 as the end. It has no control tokens in text."""

    vocab_size = 257
    eos_ids = (256,)
    special_tokens: Mapping[str, int] = {}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 - it has none
        return list(text.encode())

    def encode_guarded(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        return list("".join(text for text, _ in pieces).encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


class ModelTokenizer:
    """The tokenizer of a model directory."""

    def __init__(self, definition: str, *, eos_ids: Sequence[int], bos_token: str | None):
        self._definition = definition
        self._plain = _from_definition(definition)
        self.eos_ids = tuple(eos_ids)
        self._bos_id = self._plain.token_to_id(bos_token) if bos_token else None

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id (ids may have gaps)."""
        return max(self._plain.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        added = self._plain.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items() if token.special}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if not add_special_tokens and self._pieces_are_independent:
            return self._encode_by_pieces(text)
        ids: list[int] = self._plain.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and self._bos_id is not None and ids[:2] == [self._bos_id] * 2:
            del ids[0]  # The text spelled out the BOS that the tokenizer adds.
        return ids

    def encode_guarded(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        guarded, names = self._guarded
        text = "".join(
            self._specials_re.sub(lambda found: names[found[0]], text) if recognised else text
            for text, recognised in pieces
        )
        ids: list[int] = guarded.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._plain.decode(list(ids), skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        if (added := self._added_texts.get(token_id)) is not None:
            return added.encode()
        token = self._plain.id_to_token(token_id)
        return b"" if token is None else self._bytes_of(token)

    def _encode_by_pieces(self, text: str) -> list[int]:
        """What lies between added tokens, each apart: a system message is tokenized only once."""
        ids: list[int] = []
        at = 0
        for found in self._added_re.finditer(text):
            ids += self._encode_piece(text[at : found.start()])
            ids.append(self._added_ids[found[0]])
            at = found.end()
        ids += self._encode_piece(text[at:])
        return ids

    def _encode_piece(self, text: str) -> Sequence[int]:
        if len(text) in _REMEMBERED_CHARS:
            return self._remembered(text)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids if text else []
        return ids

    @cached_property
    def _remembered(self) -> Callable[[str], Sequence[int]]:
        @lru_cache(maxsize=_REMEMBERED_PIECES)
        def remembered(text: str) -> Sequence[int]:
            return tuple(self._plain.encode(text, add_special_tokens=False).ids)

        return remembered

    @cached_property
    def _added_texts(self) -> dict[int, str]:
        return {id_: token for token, id_ in self._added_ids.items()}

    @cached_property
    def _bytes_of(self) -> Callable[[str], bytes]:
        return token_bytes(self._definition)

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        added = self._plain.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items()}

    @cached_property
    def _added_re(self) -> re.Pattern[str]:
        return any_of([*self._added_ids])

    @cached_property
    def _pieces_are_independent(self) -> bool:
        """Whether the tokenizer itself cuts at added tokens and forgets what was before the cut.

        It does where they are found in the text as it stands, and nothing in the pipeline depends
        on a piece's place in the text (Metaspace and Prepend may treat the first apart).
        """
        definition = json.loads(self._definition)
        exact = all(
            not (token["normalized"] or token["lstrip"] or token["rstrip"] or token["single_word"])
            for token in definition["added_tokens"]
        )
        stages = {*_stages(definition["normalizer"]), *_stages(definition["pre_tokenizer"])}
        return exact and stages <= _PLACELESS

    @cached_property
    def _specials_re(self) -> re.Pattern[str]:
        return any_of([*self.special_tokens])

    @cached_property
    def _guarded(self) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
        """A twin that knows the control tokens by secret names only, and those names.

        To it a control token's usual text is plain text, wherever it stands, while everything else
        is tokenized as ever. (Switching the recognition off for parts of a text would need the
        parts encoded apart, which changes ids at the seams.)
        """
        nonce = secrets.token_hex(16)
        names = {token: f"<{nonce}-{i}>" for i, token in enumerate(self.special_tokens)}
        definition = json.loads(self._definition)
        for added in definition["added_tokens"]:
            added["content"] = names.get(added["content"], added["content"])
        vocab = definition["model"].get("vocab")
        if isinstance(vocab, dict):
            definition["model"]["vocab"] = {names.get(t, t): i for t, i in vocab.items()}
        elif isinstance(vocab, list):
            definition["model"]["vocab"] = [[names.get(t, t), score] for t, score in vocab]
        if definition["model"].get("unk_token") in names:
            definition["model"]["unk_token"] = names[definition["model"]["unk_token"]]
        guarded = _from_definition(json.dumps(definition))
        for token, name in names.items():
            if guarded.token_to_id(name) != self.special_tokens[token]:
                raise LoadFailed(f"the tokenizer's control token {token!r} cannot be renamed")
        return guarded, names


def load_tokenizer(model_dir: Path) -> ModelTokenizer:
    """The tokenizer of a model directory. Raises LoadFailed where none can be read."""
    path = model_dir / "tokenizer.json"
    try:
        definition = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LoadFailed(
            f"{model_dir} has no tokenizer.json; save it there with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{path} cannot be read: {error}") from error
    settings = read_json(model_dir / "tokenizer_config.json")
    try:
        return ModelTokenizer(
            definition,
            eos_ids=_eos_ids(model_dir, definition, settings),
            bos_token=token_text(settings.get("bos_token")),
        )
    except LoadFailed:
        raise
    except Exception as error:  # the library raises bare Exception
        raise LoadFailed(f"{path} is not a tokenizer: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is no file. Raises LoadFailed for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise LoadFailed(f"{path} is not a JSON object")
    return value


def token_text(token: Any) -> str | None:
    """A token of tokenizer_config.json, which is a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def eos_ids(model_dir: Path) -> tuple[int, ...]:
    """The ids that end a generation, by generation_config.json, else config.json; may be none."""
    for name in ("generation_config.json", "config.json"):
        ids = read_json(model_dir / name).get("eos_token_id")
        if isinstance(ids, int):
            return (ids,)
        if isinstance(ids, list) and ids:
            return tuple(i for i in ids if isinstance(i, int))
    return ()


def _eos_ids(model_dir: Path, definition: str, settings: dict[str, Any]) -> tuple[int, ...]:
    ids = dict.fromkeys(eos_ids(model_dir))
    token = token_text(settings.get("eos_token"))
    if token is not None and token in definition:
        known = _from_definition(definition).token_to_id(token)
        if known is not None:
            ids[known] = None
    return tuple(ids)


def _stages(stage: Any) -> list[str]:
    """The types of a tokenizer's stages, those of a sequence one by one."""
    if stage is None:
        return []
    if stage["type"] == "Sequence":
        parts = stage.get("normalizers") or stage.get("pretokenizers") or []
        return [name for part in parts for name in _stages(part)]
    return [str(stage["type"])]


def _from_definition(definition: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(definition)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
