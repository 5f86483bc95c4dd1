"""The demo tokenizer: byte-level BPE in which every word of the task is one token.

Text splits into words, single digits, single spaces and single punctuation marks before any merge,
so a word has the same token in a message and in JSON. Whatever is not a known word falls apart into
shorter pieces, at worst into bytes: any text is encoded and decoded without loss.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from batchgen.demo import phrasing, words
from batchgen.demo.orders import INSTRUCTION, examples

END_OF_TEXT: Final = "<|endoftext|>"
START_OF_TURN: Final = "<|im_start|>"
END_OF_TURN: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
VOCAB_SIZE: Final = 2_048
MAX_POSITIONS: Final = 4_096

_PIECES: Final = r"\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}]"
_SAMPLE_ORDERS: Final = 20_000  # enough to meet every word of the task many times

CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""ChatML, as Qwen3 writes it without tools and thinking."""

COMMON_WORDS: Final = """
    a about after all also always an and answer any are as ask at away back be because been before
    best better big but by came change child code come could data day different do does down each
    early else end even ever every example explain few find first follow food for from get give go
    good great group had hand has have he head help her here high him his home house how if
    important in into is it its just keep kind know language large last later left less let life
    light like line list little live long look made make man many me more most much music must my
    new next night no not now number of off old on once one only or other our out over own people
    place play poem question read right run said same say school see sentence she short should
    show small so some story such take tell text than that the their them then there these they
    thing think this those through time to today too try two under up us use very was water way we
    well were what when where which while who why will with without word work world would write
    year yes you your
"""
"""For the room that is left: as many as fit, so that ordinary English is not all fragments."""


def build() -> Tokenizer:
    """The tokenizer, made from the words of the task; the same one on every run."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(_task_words())
    room = VOCAB_SIZE - len(SPECIAL_TOKENS) - len(alphabet) - len({a + b for a, b in merges})
    if room < 0:
        raise ValueError(f"the words of the task need {-room} tokens more than {VOCAB_SIZE}")
    merges += _merges(_byte_letters(set(COMMON_WORDS.split())), after=merges)
    vocab = {piece: number for number, piece in enumerate([*SPECIAL_TOKENS, *alphabet])}
    kept = []
    for a, b in merges:
        if a + b not in vocab:
            if len(vocab) == VOCAB_SIZE:
                break
            vocab[a + b] = len(vocab)
        kept.append((a, b))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=kept))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of `token`, which must be in the vocabulary."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return number


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the three files that Hugging Face tokenizers consist of to `directory`."""
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(token_id(tokenizer, token)): {
                    "content": token,
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": True,
                }
                for token in SPECIAL_TOKENS
            },
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": None,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": END_OF_TURN,
            "errors": "replace",
            "model_max_length": MAX_POSITIONS,
            "pad_token": END_OF_TEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
    )
    _write_json(
        directory / "special_tokens_map.json",
        {"eos_token": END_OF_TURN, "pad_token": END_OF_TEXT},
    )


def _task_words() -> list[str]:
    """Every word that a task prompt or answer can hold, in byte-level letters, sorted."""
    sampler = examples(0, "training")
    texts = [INSTRUCTION, "system user assistant"]
    texts += [text for text, _ in zip(_texts(sampler), range(2 * _SAMPLE_ORDERS), strict=False)]
    lists = (words.FIRST_NAMES, words.LAST_NAMES, words.CITIES, words.MATERIALS, words.GOODS)
    texts += [" ".join(entries) for entries in lists]
    texts += [" ".join(text) for text in (words.MONTHS, words.NUMBER_WORDS, words.UNITS)]
    texts += [re.sub(r"\{\w+\}", "", text) for text in phrasing.REQUESTS]
    return _byte_letters(set(re.findall(r"[^\W\d_]+", " ".join(texts))))


def _texts(sampler: Iterable[Any]) -> Iterable[str]:
    for example in sampler:
        yield example.message
        yield example.order.to_json()


def _byte_letters(plain: set[str]) -> list[str]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return sorted(byte_level.pre_tokenize_str(word)[0][0] for word in plain)


def _merges(spelled: list[str], after: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """The BPE merges (Sennrich et al. 2016) that make each of `spelled` one piece.

    `after` holds merges that come first. Ties go to the pair that sorts first, so the result
    depends on the words alone.
    """
    split = [list(word) for word in spelled]
    for pair in after:
        split = [_merged(pieces, pair) for pieces in split]
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for pieces in split for pair in pairwise(pieces)):
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        split = [_merged(pieces, best) for pieces in split]
    return merges


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    if pair[0] not in pieces:
        return pieces
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
