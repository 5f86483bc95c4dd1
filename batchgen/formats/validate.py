"""Looking through an input file once, as a stream: its faults by line, and its shards.

A fault of the file (of its JSON, its envelopes, its ids) is found here and fails the whole job
before anything runs; a fault of one request's parameters is not, and costs that line only.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from batchgen.domain.jobs import Fault, ShardPlan
from batchgen.formats.cutting import Limits, ShardCutter
from batchgen.formats.duplicates import BUCKET_MASK, IdHashes, repeated
from batchgen.formats.faults import (
    MAX_CUSTOM_ID,
    envelope_faults,
    is_utf8,
    missing,
    model_faults,
    read_object,
    readable_id,
    shown,
)
from batchgen.formats.jsonl import Block, LongLine, blocks, is_blank


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: Literal["POST"]
    url: str
    body: _Body


_decode = msgspec.json.Decoder(_Envelope).decode


class Scan:
    """One look through a file for a job on `endpoint`: iterate for the shards, then read the rest.

    `open_chunks` opens the file's bytes (uncompressed); it is called a second time only where two
    ids look alike. `model` is the model that the job names, and lines may then leave theirs out;
    where it is None the first line names it. The shards count only if `faults` is empty at the end;
    `model` is then known.
    """

    def __init__(
        self,
        open_chunks: Callable[[], Iterable[bytes]],
        *,
        endpoint: str,
        model: str | None,
        limits: Limits,
    ) -> None:
        self._open_chunks = open_chunks
        self._endpoint = endpoint
        self._limits = limits
        self._job_names_model = model is not None
        self._ids = IdHashes()
        self._stopped = False
        self.model = model
        self.faults: list[Fault] = []
        self.n_requests = 0
        self.n_lines = 0
        self.n_bytes = 0

    def __iter__(self) -> Iterator[ShardPlan]:
        cutter = ShardCutter(self._limits)
        for piece in self._pieces():
            match piece:
                case LongLine():
                    self._take_long_line(piece)
                case Block():
                    yield from self._take_block(piece, cutter)
            if cutter.n_requests > self._limits.max_lines:
                message = f"the file holds more than {self._limits.max_lines} requests"
                self._report([Fault("too_many_lines", message)])
                self._stopped = True
            if self._stopped:
                break
        self.n_requests = cutter.n_requests
        yield from cutter.finish(self.n_bytes)
        if not self._stopped:
            self._report_duplicates()
            if not self.n_requests and not self.faults:
                self.faults.append(Fault("empty_file", "the file holds no request"))

    def _pieces(self) -> Iterator[Block | LongLine]:
        return blocks(self._open_chunks(), max_line_bytes=self._limits.max_line_bytes)

    def _take_long_line(self, found: LongLine) -> None:
        limit = self._limits.max_line_bytes
        message = f"the line has {found.n_bytes} bytes, more than {limit}"
        self._report([Fault("line_too_large", message, found.line)])
        self.n_lines = found.line
        self.n_bytes = found.byte_start + found.n_bytes

    def _take_block(self, block: Block, cutter: ShardCutter) -> Iterator[ShardPlan]:
        # All that a good line costs is in this loop: hence local names, and few calls.
        decode, url, buckets, mask = _decode, self._endpoint, self._ids.buckets, BUCKET_MASK
        models, trusted = self._models(), is_utf8(block.data)
        offset, number = block.byte_start, block.first_line - 1
        for line in block.lines():
            number += 1
            start, offset = offset, offset + len(line) + 1
            try:
                envelope = decode(line)
                body = envelope.body
                good = envelope.url == url and body.model in models and not body.stream and trusted
            except (msgspec.MsgspecError, RecursionError):
                if is_blank(line):
                    continue
                good = False
            if good:
                value = hash(envelope.custom_id)
                buckets[value & mask].append(value)
            else:
                self._look_closely(line, number)
                models = self._models()
                if self._stopped:
                    break
            if (plan := cutter.add(start, offset, number)) is not None:
                yield plan
        self.n_lines = number
        self.n_bytes = block.byte_start + len(block.data)

    def _models(self) -> tuple[str | None, ...]:
        """What a line's model may be; None: it may be missing."""
        if self._job_names_model:
            return (self.model, None)
        return () if self.model is None else (self.model,)

    def _look_closely(self, line: bytes, number: int) -> None:
        value = read_object(line, number)
        if isinstance(value, Fault):
            self._report([value])
            return
        found = envelope_faults(value, number, self._endpoint)
        body = value.get("body")
        if isinstance(body, dict):
            found += self._model_faults(body, number)
        if (custom_id := readable_id(value)) is not None:
            self._ids.add(custom_id)
        self._report(found)

    def _model_faults(self, body: dict[str, Any], number: int) -> list[Fault]:
        found = model_faults(body, number)
        model = body.get("model")
        if found or model in self._models():
            return found
        if model is None:
            return [missing("body.model", number)]
        if self.model is None:
            self.model = model
            return []
        whose = "the job's model" if self._job_names_model else "the first line's model"
        message = f"{whose} is {shown(self.model)}, this line's {shown(model)}"
        return [Fault("model_mismatch", message, number, "body.model")]

    def _report(self, found: list[Fault]) -> None:
        self.faults += found
        most = self._limits.max_reported_faults
        if len(self.faults) >= most:
            del self.faults[most:]
            message = f"stopped after {most} faults: the rest of the file was not looked at"
            self.faults.append(Fault("too_many_faults", message))
            self._stopped = True

    def _report_duplicates(self) -> None:
        clashes = self._ids.clashing()
        if not clashes:
            return
        for line, custom_id, before in repeated(self._all_ids(), clashes):
            message = f"custom_id {shown(custom_id)} was on line {before} already"
            self._report([Fault("duplicate_custom_id", message, line, "custom_id")])
            if self._stopped:
                break
        self.faults.sort(key=lambda fault: (fault.line is None, fault.line))

    def _all_ids(self) -> Iterator[tuple[int, str]]:
        for piece in self._pieces():
            if isinstance(piece, LongLine):
                continue
            for number, line in enumerate(piece.lines(), piece.first_line):
                if not is_blank(line) and (custom_id := custom_id_of(line)) is not None:
                    yield number, custom_id


def custom_id_of(line: bytes) -> str | None:
    """The custom_id of a line, or None where it has no usable one."""
    try:
        return _decode(line).custom_id
    except (msgspec.MsgspecError, RecursionError):
        value = read_object(line, 0)
        return None if isinstance(value, Fault) else readable_id(value)
