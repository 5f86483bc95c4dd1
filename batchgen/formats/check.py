"""What can be said of an input file without a server: its faults, and the lines that would fail."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from batchgen.domain.jobs import Fault
from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint
from batchgen.formats.cutting import Limits
from batchgen.formats.jsonl import Block, blocks, request_lines
from batchgen.formats.openai import parse_line
from batchgen.formats.validate import Scan


class _Url(msgspec.Struct):
    url: str | None = None


@dataclass(frozen=True, slots=True)
class FileReport:
    """`faults` would fail the whole job, `failures` (the first of `n_failing`) one line each.

    `endpoint_line` is the line that named the endpoint, None where none did.
    """

    endpoint: str
    endpoint_line: int | None
    model: str | None
    n_bytes: int
    n_lines: int
    n_requests: int
    n_shards: int
    faults: tuple[Fault, ...]
    failures: tuple[Fault, ...]
    n_failing: int

    @property
    def is_valid(self) -> bool:
        """A server would take the file."""
        return not self.faults


def check_file(
    open_chunks: Callable[[], Iterable[bytes]],
    *,
    endpoint: str | None = None,
    model: str | None = None,
    limits: Limits | None = None,
    max_output_tokens: int = 1_000_000,
) -> FileReport:
    """Read an uncompressed file twice: as ingest does, and each request as a worker does.

    `endpoint` None: the one that the first line names.
    """
    limits = limits or Limits()
    endpoint_line = None
    if endpoint is None:
        endpoint, endpoint_line = _first_endpoint(open_chunks(), limits)
    scan = Scan(open_chunks, endpoint=endpoint, model=model, limits=limits)
    n_shards = sum(1 for _ in scan)
    failures: list[Fault] = []
    n_failing = 0
    if not scan.faults:
        for failure in _failures(open_chunks(), endpoint, limits, max_output_tokens):
            n_failing += 1
            if len(failures) < limits.max_reported_faults:
                failures.append(failure)
    return FileReport(
        endpoint=endpoint,
        endpoint_line=endpoint_line,
        model=scan.model,
        n_bytes=scan.n_bytes,
        n_lines=scan.n_lines,
        n_requests=scan.n_requests,
        n_shards=n_shards,
        faults=tuple(scan.faults),
        failures=tuple(failures),
        n_failing=n_failing,
    )


def _failures(
    chunks: Iterable[bytes], endpoint: str, limits: Limits, max_output_tokens: int
) -> Iterator[Fault]:
    for piece in blocks(chunks, max_line_bytes=limits.max_line_bytes):
        if not isinstance(piece, Block):
            continue
        for line in request_lines(piece.data, first_line=piece.first_line, first_index=0):
            found = parse_line(
                line.raw,
                index=line.index,
                line=line.line,
                endpoint=endpoint,
                max_output_tokens=max_output_tokens,
            )
            if isinstance(found, Failed):
                yield Fault(found.code, found.message, line.line, found.param)


def _first_endpoint(chunks: Iterable[bytes], limits: Limits) -> tuple[str, int | None]:
    """The endpoint that the first request names, and its line."""
    for piece in blocks(chunks, max_line_bytes=limits.max_line_bytes):
        if isinstance(piece, Block):
            for line in request_lines(piece.data, first_line=piece.first_line, first_index=0):
                found = _endpoint_of(line.raw)
                if found is None:
                    return Endpoint.CHAT_COMPLETIONS, None
                return found, line.line
    return Endpoint.CHAT_COMPLETIONS, None


def _endpoint_of(line: bytes) -> str | None:
    try:
        url = msgspec.json.decode(line, type=_Url).url
    except (msgspec.MsgspecError, RecursionError):
        return None
    return url if url in set(Endpoint) else None
