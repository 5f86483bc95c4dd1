"""The seam between a supervisor and an engine: the `Engine` interface and the frames on the pipe.

An engine runs alone in its host process (`host.py`); the supervisor speaks to it through
`client.py`. Requests carry token ids, results carry token ids: text is the supervisor's business,
except for engines that only take text, which get the request's `body`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import msgspec

from batchgen.domain.outcomes import Embedding, Failed, Generation
from batchgen.domain.requests import SamplingParams
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.spec import EngineSpec


class EngineRequest(msgspec.Struct, frozen=True):
    """One request as the engine gets it.

    `id` is the supervisor's own counter, never used twice in a host's life. `body` is None except
    for engines whose `Applied.takes_text` is true. `texts` are what vectors are wanted of, None for
    generation; `prompt_ids` are then the tokens of all of them. `text` is the prompt as engines
    want it that see images, with `Applied.image_tag` where each of `images` (encoded files) stands;
    `prompt_ids` then has `Applied.image_tokens` ids for each.
    """

    id: int
    prompt_ids: list[int]
    sampling: SamplingParams
    body: dict[str, Any] | None = None
    texts: list[str] | None = None
    text: str | None = None
    images: list[bytes] = []


class Finished(msgspec.Struct, frozen=True):
    """A request that has ended: a generation, an embedding, or the failure that is its error line.

    Exactly one of the three is set (msgpack cannot tell the dataclasses of a union apart);
    `result` is the one that is.
    """

    id: int
    generation: Generation | None = None
    failure: Failed | None = None
    embedding: Embedding | None = None

    @property
    def result(self) -> Generation | Embedding | Failed:
        if self.failure is not None:
            return self.failure
        if self.embedding is not None:
            return self.embedding
        return cast("Generation", self.generation)


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since load (monotonic) and levels now; None where the engine cannot tell.

    KV utilisation is a fraction 0-1; memory is in bytes. `output_tokens` may leave out those of
    requests that have not ended yet.
    """

    steps: int
    running: int
    waiting: int
    output_tokens: int
    max_running: int = 0
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    kv_utilisation: float | None = None
    kv_utilisation_peak: float | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    rss_bytes: int | None = None
    device_bytes: int | None = None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine really holds after `load`: the configuration as applied, and its limits.

    `config` is JSON: every knob as the pipeline reports it. `model_hash` is the content hash of
    weights and tokenizer. `compile_s` and `cache_state` (`cold`, `warm`, `off`) are None where the
    engine cannot tell; `cache_bytes` is the size of the cache's entry, None without one. `max_live`
    is how many requests are worth having in the running batch. `image_tag` marks an image in a
    prompt's text, by its number in the place of `{}`; None where the model sees no images. An image
    takes up to `image_tokens` of the prompt.
    """

    engine: str
    engine_version: str
    device: str
    device_name: str
    config: dict[str, Any]
    max_model_len: int
    vocab_size: int
    max_live: int
    load_s: float
    simulated: bool = False
    takes_text: bool = False
    kv_block_tokens: int | None = None
    kv_blocks: int | None = None
    kv_bytes_per_token: float | None = None
    compile_s: float | None = None
    cache_state: str | None = None
    cache_bytes: int | None = None
    model_hash: str | None = None
    image_tag: str | None = None
    image_tokens: int = 0
    libraries: dict[str, str] = {}


class Rebuilding(Exception):
    """Raised by a step that has to load the engine's model anew before it can go on.

    `ended` are the requests that ended so far; `go_on` does the rest, and returns what ended in it.
    """

    def __init__(self, ended: list[Finished], go_on: Callable[[], list[Finished]]) -> None:
        super().__init__("the engine loads its model anew")
        self.ended = ended
        self.go_on = go_on


class Engine(Protocol):
    """What every engine does. All calls come from one thread.

    Raises: `LoadFailed` from load. Anything raised by another method means that the engine is
    unusable and its process must be replaced.
    """

    def compile_identity(self, spec: EngineSpec, hashes: str | None) -> CompileIdentity | None:
        """What a compiled model of this spec depends on here; None where nothing is compiled.

        `hashes` is a directory for content hashes of files, so that they are read once only.
        """
        ...

    def load(self, spec: EngineSpec) -> Applied: ...

    def submit(self, requests: Sequence[EngineRequest]) -> list[Finished]:
        """Take requests; those that cannot run come back at once as failures."""
        ...

    def schedule(self) -> list[int]:
        """Admit what fits into the running batch; returns the ids admitted by this call.

        From here until they end, these ids are what a crash may be laid to, so nothing of them may
        reach the device before: the host notes them in the breadcrumbs between `schedule` and
        `step`.
        """
        ...

    def step(self) -> list[Finished]:
        """One step of the running batch; returns those that ended. Called only with work there.

        Raises Rebuilding where it would take as long as a load.
        """
        ...

    def has_work(self) -> bool: ...

    def cancel(self, ids: Sequence[int]) -> list[int]:
        """Drop these; returns the ids that were there to drop. They yield no `Finished`."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


# Frames, supervisor -> host


class Identify(msgspec.Struct, frozen=True, tag=True):
    """Asked before `Load`: where would this spec's compiled model belong?"""

    spec: EngineSpec
    hashes: str | None


class Load(msgspec.Struct, frozen=True, tag=True):
    spec: EngineSpec


class Submit(msgspec.Struct, frozen=True, tag=True):
    requests: list[EngineRequest]


class Cancel(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]


class AskStats(msgspec.Struct, frozen=True, tag=True):
    pass


class Close(msgspec.Struct, frozen=True, tag=True):
    pass


ToHost = Identify | Load | Submit | Cancel | AskStats | Close


# Frames, host -> supervisor


class Identified(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Identify`; a `LoadRefused` is the other one."""

    identity: CompileIdentity | None


class Loaded(msgspec.Struct, frozen=True, tag=True):
    applied: Applied


class LoadRefused(msgspec.Struct, frozen=True, tag=True):
    """The load failed; the host ends after this."""

    message: str


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """Requests that ended since the last frame."""

    finished: list[Finished]


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Cancel`: the ids that were dropped (the others had ended already)."""

    ids: list[int]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Sign of life, at most a few a second and only when steps are being made."""

    stats: EngineStats


class Busy(msgspec.Struct, frozen=True, tag=True):
    """What comes next takes as long as a load: silence until then is no hang."""


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The engine raised and is unusable; the host ends after this."""

    message: str


FromHost = Identified | Loaded | LoadRefused | Outputs | Cancelled | Progress | Busy | Fatal
