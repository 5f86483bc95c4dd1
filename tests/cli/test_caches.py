"""`batchgen cache` against a running stack."""

import pytest

from tests.cli.shell import Shell


def test_caches_are_listed_and_pruned(stack: Shell) -> None:
    assert stack("cache", "list").out.split("\t")[0] == "CACHE"
    before = {entry["id"] for entry in stack("cache", "list", "--json").json()}
    arguments = ("--max-size", "10GB", "--older-than", "30d", "--dry-run")
    pruned = stack("cache", "prune", *arguments, "--json").json()
    assert (pruned["dry_run"], pruned["bytes"], pruned["data"]) == (True, 0, [])
    assert "would be removed: 0" in stack("cache", "prune", *arguments).err
    assert {entry["id"] for entry in stack("cache", "list", "--json").json()} >= before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to remove"),
        (["--max-size", "much"], "is no size"),
        (["--older-than", "10y"], "--older-than '10y'"),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused(
    stack: Shell, arguments: list[str], said: str
) -> None:
    done = stack("cache", "prune", *arguments)
    assert (done.code, said in done.err) == (2, True)
