"""Sizes as people write them."""

import pytest

from batchgen.cli.cache import size_in_bytes
from batchgen.domain.errors import InvalidRequest


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [("10GB", 10**10), ("1.5 mb", 1_500_000), ("2T", 2 * 10**12), ("7", 7), ("0B", 0)],
)
def test_a_size_is_read(written: str, n_bytes: int) -> None:
    assert size_in_bytes(written) == n_bytes


@pytest.mark.parametrize("written", ["", "GB", "-1GB", "10 G B", "1e3", "10PB"])
def test_what_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(InvalidRequest, match="is no size"):
        size_in_bytes(written)
