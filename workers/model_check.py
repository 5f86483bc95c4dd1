"""Check a model on this worker's device: load it, generate once, report what it turned out to be.

The engine stays loaded afterwards, as after a session: the next job of the model finds it warm.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection

from batchgen.chat.encoder import PromptEncoder
from batchgen.domain.checks import ClaimedCheck
from batchgen.domain.errors import (
    EngineError,
    HostHung,
    InvalidRequest,
    LostLease,
    Unavailable,
    UserError,
)
from batchgen.domain.ids import LeaseToken
from batchgen.domain.outcomes import Embedding, Failed, Generation
from batchgen.domain.requests import ChatPrompt, Endpoint, SamplingParams, TextPrompt
from batchgen.engines.client import EngineClient
from batchgen.engines.protocol import Applied, EngineRequest, EngineStats, Outputs, Progress
from batchgen.engines.registry import endpoints
from batchgen.engines.spec import EngineSpec, decode_spec
from batchgen.storage import model_checks
from workers.context import Context
from workers.device_record import DeviceRecord
from workers.resident import Resident
from workers.stop import Stop, Stopped

log = structlog.get_logger(__name__)

_LISTEN_S = 0.25
_DATABASE_REST_S = 1.0
_LONGEST_REASON = 4_000


class _Gone(Exception):
    """The check is another worker's by now."""


class ModelCheck:
    """One check under lease. `run` it once."""

    def __init__(
        self,
        context: Context,
        resident: Resident,
        record: DeviceRecord,
        stop: Stop,
        claimed: ClaimedCheck,
    ) -> None:
        self._context = context
        self._resident = resident
        self._record = record
        self._stop = stop
        self._claimed = claimed
        self._due = context.clock.monotonic()

    def run(self) -> None:
        """Check, and write down what came of it.

        Raises LostLease where another worker has the device, Stopped, Unavailable; the check is
        then for whoever comes next.
        """
        claimed = self._claimed
        log.info("check_began", check=claimed.id, device=self._record.id, model=claimed.model)
        try:
            try:
                report = self._checked(decode_spec(dict(claimed.engine_spec)))
            except (EngineError, UserError) as error:
                self._resident.unload("failed")
                self._end(model_checks.failed, str(error)[:_LONGEST_REASON])
            else:
                self._end(model_checks.passed, report)
        except _Gone:
            log.warning("check_lost", check=claimed.id)
        except (Stopped, LostLease, Unavailable):
            self._give_back()
            raise
        except Exception as error:
            # A template or a tokenizer may raise anything: again and again, if it were tried again.
            log.exception("check_failed", check=claimed.id)
            reason = f"{type(error).__name__}; the worker's log says where"
            with suppress(_Gone):
                self._end(model_checks.failed, reason)

    def _checked(self, spec: EngineSpec) -> dict[str, Any]:
        self._keep_alive()
        self._resident.load(spec, self._claimed.fingerprint, self._keep_alive)
        client, applied = self._resident.client, self._resident.applied
        if client is None or applied is None:
            raise EngineError("the engine is not loaded")
        encoder = PromptEncoder(None if spec.path is None else Path(spec.path))
        sampling = SamplingParams(temperature=0.0, max_tokens=self._claimed.max_tokens)
        request = _request(encoder, self._claimed.prompt, sampling, applied)
        request = msgspec.structs.replace(request, id=self._resident.next_id())
        if Endpoint.EMBEDDINGS in endpoints(spec):
            request = msgspec.structs.replace(request, texts=[self._claimed.prompt])
        made = self._made(client, request)
        self._resident.ran_well()
        return {
            "device": self._record.id,
            "applied": msgspec.to_builtins(applied),
            "stats": msgspec.to_builtins(self._stats(client)),
            "generation": _told(encoder, request, made),
        }

    def _made(self, client: EngineClient, request: EngineRequest) -> Generation | Embedding:
        client.submit([request])
        self._resident.submitted += 1
        while True:
            for event in client.poll(_LISTEN_S):
                if isinstance(event, Outputs):
                    # Others are of what was withdrawn from the engine before.
                    for result in (f.result for f in event.finished if f.id == request.id):
                        if isinstance(result, Failed):
                            raise EngineError(f"the engine refused the request: {result.message}")
                        return result
            self._keep_alive()

    def _stats(self, client: EngineClient) -> EngineStats:
        client.ask_stats()
        clock = self._context.clock
        patience_s = self._context.settings.step_timeout_s
        until = clock.monotonic() + patience_s
        # With nothing in flight nobody else watches the host.
        while clock.monotonic() < until:
            for event in client.poll(_LISTEN_S):
                if isinstance(event, Progress):
                    self._resident.last_stats = event.stats
                    return event.stats
            self._keep_alive()
        raise HostHung(f"the engine has answered, but says nothing more for {patience_s:g} s")

    def _keep_alive(self) -> None:
        """To be called while the engine works. Raises Stopped, LostLease, _Gone."""
        self._stop.raise_if_set()
        clock, settings = self._context.clock, self._context.settings
        if clock.monotonic() < self._due:
            return
        self._due = clock.monotonic() + settings.heartbeat_s
        try:
            with self._context.database.unit_of_work() as tx:
                with _held():
                    model_checks.renew(tx, self._claimed.token, settings.lease_s)
                self._record.beat_in(tx, "checking", detail=self._claimed.model)
        except Unavailable as error:
            # A load is too dear to end for a moment's loss; the fence stands if it was longer.
            log.warning("lease_not_renewed", check=self._claimed.id, reason=str(error))
            self._due = clock.monotonic() + _DATABASE_REST_S

    def _end(self, write: Callable[[Connection, LeaseToken, Any], None], told: Any) -> None:
        with self._context.database.unit_of_work() as tx, _held():
            write(tx, self._claimed.token, told)

    def _give_back(self) -> None:
        try:
            with self._context.database.unit_of_work() as tx:
                model_checks.release(tx, self._claimed.token)
        except Unavailable:
            return  # the lease ends by itself


@contextmanager
def _held() -> Iterator[None]:
    """For writes under the check's lease: its loss is not the device's."""
    try:
        yield
    except LostLease as error:
        raise _Gone from error


def _request(
    encoder: PromptEncoder, prompt: str, sampling: SamplingParams, applied: Applied
) -> EngineRequest:
    """The prompt as a chat message, or as text where the model has no chat template.

    Raises InvalidRequest where it does not fit.
    """
    asked: ChatPrompt | TextPrompt = ChatPrompt(({"role": "user", "content": prompt},))
    try:
        ids = encoder.encode(asked)
    except InvalidRequest as error:
        if error.code != "no_chat_template":
            raise
        asked = TextPrompt(prompt)
        ids = encoder.encode(asked)
    text = None if applied.image_tag is None else encoder.write(asked, applied.image_tag)
    room = max(1, applied.max_model_len - len(ids))  # what is too long the engine refuses itself
    limit = min(sampling.max_tokens or room, room)
    within = replace(sampling, max_tokens=limit)
    return EngineRequest(id=1, prompt_ids=ids, sampling=within, text=text)


def _told(
    encoder: PromptEncoder, request: EngineRequest, made: Generation | Embedding
) -> dict[str, Any]:
    """What was made, and how fast (one request alone, so no measure of throughput)."""
    if isinstance(made, Embedding):
        none = ("finish_reason", "ttft_ms", "tpot_ms", "text")
        return {"prompt_tokens": made.n_in, "output_tokens": 0, **dict.fromkeys(none)}
    generation = made
    (choice,) = generation.choices
    times = generation.timings
    begun = times.t_adm or times.t_enq
    first = None if times.t_first is None else (times.t_first - begun) / 1e6
    rest = None
    if times.t_first is not None and times.t_last is not None and generation.n_out > 1:
        rest = (times.t_last - times.t_first) / 1e6 / (generation.n_out - 1)
    return {
        "prompt_tokens": generation.n_in,
        "output_tokens": generation.n_out,
        "finish_reason": choice.finish_reason.value,
        "ttft_ms": first,
        "tpot_ms": rest,
        "text": encoder.decode(choice.token_ids, request.sampling),
    }
