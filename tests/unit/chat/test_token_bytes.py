"""A token's bytes are what it adds to a text, whatever kind of tokenizer has it."""

import json
from pathlib import Path

import pytest

import batchgen
from batchgen.chat.token_bytes import token_bytes
from batchgen.chat.tokenizer import ByteTokenizer, load_tokenizer

MODEL = max((Path(batchgen.__file__).parent / "demo" / "models").glob("*-ov"))


@pytest.mark.parametrize("text", ["3 boxes, by Friday\n", "größer 😀 \u4f60\u597d", " é\u0301\x00"])
def test_the_bytes_of_a_texts_tokens_are_the_texts(text: str) -> None:
    for tokenizer in (load_tokenizer(MODEL), ByteTokenizer()):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_a_control_token_has_its_name_and_an_unknown_id_nothing() -> None:
    tokenizer = load_tokenizer(MODEL)
    for name, id_ in tokenizer.special_tokens.items():
        assert tokenizer.token_bytes(id_) == name.encode()
    assert tokenizer.token_bytes(10**6) == b""
    assert ByteTokenizer().token_bytes(256) == b""


@pytest.mark.parametrize(
    ("decoder", "token", "expected"),
    [
        ({"type": "ByteLevel"}, "\u0120caf\u00c3\u00a9", " café".encode()),
        ({"type": "ByteLevel"}, "\u00f0\u0141", b"\xf0\x9f"),
        ({"type": "Metaspace", "replacement": "\u2581"}, "\u2581to", b" to"),
        (
            {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                ],
            },
            "<0xF0>",
            b"\xf0",
        ),
        ({"type": "Metaspace", "replacement": "\u2581"}, "<0xF0>", b"<0xF0>"),
        ({"type": "WordPiece", "prefix": "##"}, "##ing", b"ing"),
        (None, "plain", b"plain"),
    ],
)
def test_each_kind_of_vocabulary_writes_bytes_its_own_way(
    decoder: dict[str, object] | None, token: str, expected: bytes
) -> None:
    assert token_bytes(json.dumps({"decoder": decoder}))(token) == expected
