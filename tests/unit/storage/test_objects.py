"""The object store: a directory and a bucket behave alike, and what a directory has is durable."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchgen.domain.errors import InvalidRequest, NotFound, Unavailable
from batchgen.storage.objects import ObjectStore
from tests.unit.storage.fake_s3 import FakeS3


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with FakeS3() as bucket:
        for name, value in {
            "AWS_ENDPOINT": bucket.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        yield bucket


@pytest.fixture(params=["directory", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "memory":
            return ObjectStore.from_url("memory://")
        case "s3":
            request.getfixturevalue("s3")
            return ObjectStore.from_url("s3://bucket/some/prefix")
        case _:
            return ObjectStore.from_url((tmp_path / "a dir").as_uri())


@pytest.fixture
def directory(tmp_path: Path) -> ObjectStore:
    return ObjectStore.from_url((tmp_path / "objects").as_uri())


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return list(store.list(prefix))


def test_what_was_put_comes_back_with_its_size_and_hash(store: ObjectStore) -> None:
    stored = store.put("files/file-1", b"hello\n")
    assert stored.size == store.size("files/file-1") == 6
    assert stored.sha256 == hashlib.sha256(b"hello\n").hexdigest()
    assert b"".join(store.stream("files/file-1")) == b"hello\n"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.exists("empty")
    assert b"".join(store.stream("empty")) == b""
    assert store.get_range("empty", 0, 0) == b""


def test_a_large_stream_is_stored_whole_and_in_order(store: ObjectStore) -> None:
    chunks = [bytes([i]) * 700_001 for i in range(30)]
    stored = store.put_stream("big", iter(chunks))
    whole = b"".join(chunks)
    assert stored.size == len(whole)
    assert stored.sha256 == hashlib.sha256(whole).hexdigest()
    assert b"".join(store.stream("big", chunk=1_000_000)) == whole


@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (4, 4), (10, 10)])
def test_a_range_is_exactly_the_bytes_asked_for(store: ObjectStore, start: int, end: int) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", start, end) == b"0123456789"[start:end]
    assert b"".join(store.stream("k", start, end, chunk=2)) == b"0123456789"[start:end]


def test_a_stream_without_an_end_goes_to_the_end(store: ObjectStore) -> None:
    store.put("k", b"0123456789")
    assert b"".join(store.stream("k", 4, chunk=3)) == b"456789"


@pytest.mark.parametrize(("start", "end"), [(5, 11), (20, 30)])
def test_a_range_beyond_the_end_is_refused_not_shortened(
    store: ObjectStore, start: int, end: int
) -> None:
    store.put("k", b"0123456789")
    with pytest.raises(NotFound):
        store.get_range("k", start, end)


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    assert not store.exists("nope")
    for act in (
        lambda: store.size("nope"),
        lambda: store.get_range("nope", 0, 1),
        lambda: list(store.stream("nope")),
    ):
        with pytest.raises(NotFound):
            act()


def test_deleting_twice_is_no_error(store: ObjectStore) -> None:
    store.put("a/k", b"x")
    store.delete("a/k")
    store.delete("a/k")
    assert not store.exists("a/k")


def test_a_listing_is_of_one_folder_and_below(store: ObjectStore) -> None:
    for key in ("jobs/1/a", "jobs/1/b/c", "jobs/10/a", "files/a"):
        store.put(key, b"xy")
    assert (
        sorted(keys(store, "jobs/1/"))
        == sorted(keys(store, "jobs/1"))
        == ["jobs/1/a", "jobs/1/b/c"]
    )
    assert len(keys(store)) == 4
    assert keys(store, "files/") == ["files/a"]
    assert keys(store, "none") == []


def test_nothing_is_visible_before_the_end_or_after_an_abort(store: ObjectStore) -> None:
    writer = store.open_writer("k")
    writer.write(b"x" * 20_000_000)
    assert not store.exists("k")
    assert keys(store) == []
    writer.abort()
    writer.abort()
    assert not store.exists("k")
    assert keys(store) == []


def test_a_source_that_fails_leaves_nothing_behind(store: ObjectStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 10
        raise RuntimeError("the client hung up")

    with pytest.raises(RuntimeError, match="hung up"):
        store.put_stream("k", broken())
    assert keys(store) == []


def test_a_finished_writer_takes_no_more(store: ObjectStore) -> None:
    writer = store.open_writer("k")
    writer.finish()
    with pytest.raises(ValueError, match="finished"):
        writer.write(b"x")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        ".partial/x",
        "a\0b",
        "a b",
        "é",
        "x" * 600,
    ],
)
def test_a_key_that_is_no_key_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        store.put(key, b"")
    with pytest.raises(InvalidRequest):
        store.get_range(key, 0, 1)


def test_the_directory_and_its_objects_are_their_owners_alone(tmp_path: Path) -> None:
    store = ObjectStore.from_url((tmp_path / "objects").as_uri())
    store.put("a/b/c", b"x")
    for folder, folders, names in os.walk(tmp_path / "objects"):
        for name in (*folders, *names):
            mode = stat.S_IMODE((Path(folder) / name).stat().st_mode)
            assert mode & 0o077 == 0, name
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o700


def test_a_second_store_on_the_directory_sees_the_objects(tmp_path: Path) -> None:
    url = (tmp_path / "objects").as_uri()
    ObjectStore.from_url(url).put("k", b"x")
    assert ObjectStore.from_url(url).get_range("k", 0, 1) == b"x"


def test_what_a_killed_writer_left_is_removed_when_old_enough(
    directory: ObjectStore, tmp_path: Path
) -> None:
    directory.open_writer("k").write(b"x")
    assert directory.remove_abandoned(3600) == 0
    assert directory.remove_abandoned(0) == 1
    assert list((tmp_path / "objects" / ".partial").iterdir()) == []


def test_a_disk_that_fails_is_unavailable_not_a_crash(
    directory: ObjectStore, tmp_path: Path
) -> None:
    directory.put("folder/k", b"x")
    # A file where a folder must be made, and a folder where a file must go.
    with pytest.raises(Unavailable):
        directory.put("folder/k/below", b"x")
    with pytest.raises(NotFound):
        directory.size("folder")


@pytest.mark.parametrize("what", ["write", "finish", "read", "delete", "list", "remove_abandoned"])
def test_a_directory_that_is_not_mounted_is_unavailable_whatever_is_asked(
    directory: ObjectStore, tmp_path: Path, what: str
) -> None:
    directory.put("folder/k", b"x")
    writer = directory.open_writer("other")
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    (tmp_path / "objects").mkdir()
    asked: dict[str, Callable[[], object]] = {
        "write": lambda: directory.put("folder/l", b"x"),
        "finish": writer.finish,
        "read": lambda: directory.size("folder/k"),
        "delete": lambda: directory.delete("folder/k"),
        "list": lambda: keys(directory),
        "remove_abandoned": lambda: directory.remove_abandoned(0),
    }
    with pytest.raises(Unavailable):
        asked[what]()
    assert list((tmp_path / "objects").iterdir()) == []


@pytest.mark.parametrize("url", ["ftp://host/x", "nonsense", "file://elsewhere/x", "file:relative"])
def test_an_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        ObjectStore.from_url(url)


def test_a_large_object_reaches_a_bucket_in_parts_under_its_prefix(s3: FakeS3) -> None:
    store = ObjectStore.from_url("s3://bucket/some/prefix")
    store.put_stream("big", [b"x" * 9_000_000, b"y" * 9_000_000])
    assert list(s3.objects) == ["some/prefix/big"]
    assert s3.objects["some/prefix/big"] == b"x" * 9_000_000 + b"y" * 9_000_000
    assert s3.uploads == {}


def test_a_bucket_that_refuses_is_unavailable_and_the_message_is_one_line(s3: FakeS3) -> None:
    store = ObjectStore.from_url("s3://bucket")
    store.put("k", b"x")
    s3.broken = True
    for act in (lambda: store.get_range("k", 0, 1), lambda: store.put("k2", b"x")):
        with pytest.raises(Unavailable) as caught:
            act()
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
