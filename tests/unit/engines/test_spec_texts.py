"""Every engine setting says what it means, in the source beside it."""

import msgspec
import pytest

from batchgen.engines import spec
from batchgen.engines.spec_texts import texts_of

KINDS = [
    kind
    for kind in vars(spec).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_has_its_text(kind: type[msgspec.Struct]) -> None:
    texts = texts_of(kind)
    assert [f.name for f in msgspec.structs.fields(kind) if not texts.get(f.name)] == []


def test_a_text_is_one_line() -> None:
    assert texts_of(spec.DraftModel)["num_assistant_tokens"] == "Tokens proposed each time."
