"""A multipart form read while it arrives: nothing of the file is held, and no copy is made.

Only this form is understood: text fields of a few bytes, and one file.
"""

from collections.abc import AsyncIterator, Callable, Mapping

from anyio.to_thread import run_sync
from streaming_form_data.parser import (
    ParseFailedException,
    StreamingFormDataParser,
    UnexpectedPartException,
)
from streaming_form_data.targets import BaseTarget

from batchgen.domain.errors import InvalidRequest, UnknownOption

_FILE = "file"
_TEXTS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_LONGEST_TEXT = 64
# Boundaries and part headers: what arrives and is neither a field's text nor the file's.
_FRAME_BYTES = 64 * 1024
# Work is handed to a thread in bites of this size, for a hop costs as much as 100 kB.
_BITE_BYTES = 512 * 1024


class Form:
    """A form being read; the file's bytes go to `on_file` as they come."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        on_file: Callable[[bytes], None],
        on_text: Callable[[str, str], None],
    ) -> None:
        try:
            self._parser = StreamingFormDataParser(headers=headers, strict=True)
        except (ParseFailedException, UnicodeError) as error:
            raise InvalidRequest(
                "the body must be multipart/form-data with a boundary", code="invalid_multipart"
            ) from error
        self._file = _FilePart(on_file)
        self._parser.register(_FILE, self._file)
        self._texts = {name: _TextPart(name, on_text) for name in _TEXTS}
        for name, part in self._texts.items():
            self._parser.register(name, part)
        self._n_framing = 0

    async def read(self, body: AsyncIterator[bytes]) -> None:
        """Take the whole body. Raises InvalidRequest, or what the callbacks raise."""
        bite = bytearray()
        async for chunk in body:
            bite += chunk
            if len(bite) >= _BITE_BYTES:
                await run_sync(self.feed, bytes(bite))
                bite.clear()
        await run_sync(self.feed, bytes(bite))
        self._check_whole()

    def feed(self, data: bytes) -> None:
        """Take the body's next bytes."""
        if not data:
            return
        before = self._n_taken()
        try:
            self._parser.data_received(data)
        except UnexpectedPartException as error:
            raise UnknownOption.named(
                str(error.part_name)[:_LONGEST_TEXT], (_FILE, *_TEXTS), where="the form"
            ) from error
        except (ParseFailedException, UnicodeError) as error:
            raise _malformed() from error
        self._n_framing += len(data) - (self._n_taken() - before)
        if self._n_framing > _FRAME_BYTES:
            raise _malformed()

    @property
    def filename(self) -> str:
        return str(self._file.multipart_filename or "")

    def text(self, name: str) -> str | None:
        """A field's text; None where it was not sent."""
        return self._texts[name].value

    def _check_whole(self) -> None:
        if not self._file.seen:
            raise InvalidRequest("the form holds no file", code="missing", param=_FILE)
        if not self._file.whole or any(p.seen and not p.whole for p in self._texts.values()):
            raise InvalidRequest("the body ends inside the form", code="truncated_multipart")

    def _n_taken(self) -> int:
        return self._file.n_bytes + sum(part.n_bytes for part in self._texts.values())


class _Part(BaseTarget):  # type: ignore[misc] # the library is not typed
    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.whole = False
        self.n_bytes = 0

    def on_start(self) -> None:
        if self.seen:
            raise InvalidRequest("the form holds a field twice", code="invalid_multipart")
        self.seen = True

    def on_finish(self) -> None:
        self.whole = True


class _FilePart(_Part):
    def __init__(self, on_file: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_file = on_file

    def on_data_received(self, chunk: bytes) -> None:
        self.n_bytes += len(chunk)
        self._on_file(chunk)


class _TextPart(_Part):
    def __init__(self, name: str, on_text: Callable[[str, str], None]) -> None:
        super().__init__()
        self._name = name
        self._on_text = on_text
        self._data = b""
        self.value: str | None = None

    def on_data_received(self, chunk: bytes) -> None:
        self.n_bytes += len(chunk)
        self._data += chunk
        if len(self._data) > _LONGEST_TEXT:
            raise InvalidRequest(
                f"'{self._name}' is longer than {_LONGEST_TEXT} bytes", param=self._name
            )

    def on_finish(self) -> None:
        super().on_finish()
        try:
            self.value = self._data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"'{self._name}' is not UTF-8", param=self._name) from error
        self._on_text(self._name, self.value)


def _malformed() -> InvalidRequest:
    return InvalidRequest("the body is not well-formed multipart", code="invalid_multipart")
