"""The openvino engine: requests in, `step()`, results out.

Requests wait here until the running batch has room for them and only then reach the pipeline, so
that what can crash it is what the breadcrumbs name. A handle is kept for as long as its request
lives (dropping it drops the request) and read only when there is something to read (else it blocks
for ever).
"""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from batchgen.domain.errors import LoadFailed
from batchgen.domain.outcomes import Failed, FinishReason, Generation
from batchgen.engines.checks import kv_capacity, output_limit, prompt_fault
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.openvino.grammar_gate import GrammarGate
from batchgen.engines.openvino.identity import compile_identity
from batchgen.engines.openvino.knobs import generation_config
from batchgen.engines.openvino.kv_pool import KvPool
from batchgen.engines.openvino.kv_size import block_tokens, draft_tokens
from batchgen.engines.openvino.live import Live
from batchgen.engines.openvino.loading import LoadedPipeline, load_pipeline
from batchgen.engines.openvino.refusals import refusal
from batchgen.engines.openvino.speculation import accepted_tokens, drafted_tokens
from batchgen.engines.openvino.vision import image_tensors
from batchgen.engines.process import rss_bytes
from batchgen.engines.protocol import Applied, EngineRequest, EngineStats, Finished, Rebuilding
from batchgen.engines.spec import EngineSpec, OpenVinoSpec

_RUNNING = genai.GenerationStatus.RUNNING
_FINISHED = genai.GenerationStatus.FINISHED


class OpenVinoEngine:
    """See `spec.OpenVinoSpec`."""

    def __init__(self) -> None:
        self._spec = OpenVinoSpec(path="")
        self._loaded: LoadedPipeline | None = None
        self._pool = KvPool(None)
        self._most_live = 1
        self._gate = GrammarGate(Path())
        self._waiting: deque[Live] = deque()
        self._starting: list[Live] = []
        self._running: dict[int, Live] = {}
        self._dropping = False
        self._sequences = 0
        self._steps = 0
        self._max_running = 0
        self._tokens_in = 0
        self._tokens_out = 0
        self._drafted: int | None = None
        self._accepted = 0
        self._pipeline_ids = itertools.count()

    def compile_identity(self, spec: EngineSpec, hashes: str | None) -> CompileIdentity | None:
        if not isinstance(spec, OpenVinoSpec):
            raise LoadFailed(f"the openvino engine cannot run {type(spec).__name__}")
        return compile_identity(spec, None if hashes is None else Path(hashes))

    def load(self, spec: EngineSpec) -> Applied:
        if not isinstance(spec, OpenVinoSpec):
            raise LoadFailed(f"the openvino engine cannot run {type(spec).__name__}")
        self._spec = spec
        self._loaded = load_pipeline(spec)
        applied = self._loaded.applied
        self._gate = GrammarGate(Path(spec.path))
        self._most_live = applied.max_live
        self._pool = KvPool(
            applied.kv_blocks,
            block_tokens=block_tokens(spec, self._loaded.devices),
            evicts=self._loaded.scheduler["use_cache_eviction"],
            draft_tokens=draft_tokens(spec),
        )
        return applied

    def submit(self, requests: Sequence[EngineRequest]) -> list[Finished]:
        now = time.monotonic_ns()
        refused = []
        for request in requests:
            taken = self._take(request, now)
            if isinstance(taken, Failed):
                refused.append(Finished(id=request.id, failure=taken))
            elif request.sampling.grammar is not None:
                self._gate.enter(taken)
            else:
                self._waiting.append(taken)
        return refused

    def schedule(self) -> list[int]:
        # What was cancelled keeps its blocks until the next step has swept it out.
        swept = not self._dropping or self._loaded_pipeline().applied.kv_blocks is None
        while swept and self._waiting and self._has_room(self._waiting[0]):
            live = self._waiting.popleft()
            self._sequences += live.request.sampling.n
            self._running[live.request.id] = live
            self._starting.append(live)
        self._max_running = max(self._max_running, self._sequences)
        return [live.request.id for live in self._starting]

    def step(self) -> list[Finished]:
        pipeline = self._pipeline()
        ended = self._start()
        if self._gate:
            fine, refused = self._gate.open(wait=not self._running and not self._waiting)
            self._waiting += fine
            ended += refused
        self._steps += 1
        self._dropping = False
        if pipeline.has_non_finished_requests():
            pipeline.step()
        # One comparison a request: they are as dear as the question itself.
        status = [(live, live.handle.get_status()) for live in self._running.values()]
        left = [(live, is_) for live, is_ in status if is_ != _RUNNING]
        ended += [self._finish(live) for live, is_ in left if is_ == _FINISHED]
        ignored = [live for live, is_ in left if is_ != _FINISHED]
        if ignored:
            raise Rebuilding(ended, lambda: self._start_over(ignored))
        return ended

    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._dropping or self._gate)

    def cancel(self, ids: Sequence[int]) -> list[int]:
        wanted = set(ids)
        dropped = [live.request.id for live in self._waiting if live.request.id in wanted]
        if dropped:
            self._waiting = deque(w for w in self._waiting if w.request.id not in wanted)
        dropped += self._gate.drop(wanted)
        for live in [self._running[i] for i in ids if i in self._running]:
            if live.handle is not None:
                live.handle.cancel()
                self._dropping = True  # The pipeline frees its blocks in its next step.
            self._leave(live)
            dropped.append(live.request.id)
        self._starting = [live for live in self._starting if live.request.id not in wanted]
        return dropped

    def stats(self) -> EngineStats:
        applied = self._loaded_pipeline().applied
        metrics = self._pipeline().get_metrics()
        fixed_pool = applied.kv_blocks is not None
        return EngineStats(
            steps=self._steps,
            running=self._sequences,
            waiting=len(self._waiting) + len(self._gate),
            output_tokens=self._tokens_out,
            max_running=self._max_running,
            kv_utilisation=metrics.cache_usage / 100 if fixed_pool else None,
            kv_utilisation_peak=metrics.max_cache_usage / 100 if fixed_pool else None,
            prompt_tokens=self._tokens_in,
            cached_prompt_tokens=None if self._caches_prefixes() else 0,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted if self._speculates() else None,
            rss_bytes=rss_bytes(),
        )

    def close(self) -> None:
        self._waiting.clear()
        self._gate.close()
        self._running.clear()
        self._loaded = None

    def _loaded_pipeline(self) -> LoadedPipeline:
        if self._loaded is None:
            raise RuntimeError("the engine is not loaded")
        return self._loaded

    def _pipeline(self) -> genai.ContinuousBatchingPipeline:
        return self._loaded_pipeline().pipeline

    def _caches_prefixes(self) -> bool:
        return bool(self._loaded_pipeline().scheduler["enable_prefix_caching"])

    def _speculates(self) -> bool:
        return self._spec.draft is not None or self._spec.prompt_lookup is not None

    def _take(self, request: EngineRequest, now: int) -> Live | Failed:
        """Check all that the pipeline does not, or that would end it."""
        loaded, sampling = self._loaded_pipeline(), request.sampling
        applied, scheduler = loaded.applied, loaded.scheduler
        if (request.text is None) == loaded.facts.sees:
            return Failed(
                400,
                "unsupported_content",
                "A model that sees images takes its prompt as text, any other as token ids.",
                "prompt",
            )
        n_in = len(request.prompt_ids)
        fault = prompt_fault(
            request.prompt_ids,
            max_model_len=applied.max_model_len,
            vocab_size=applied.vocab_size,
        ) or refusal(self._spec, sampling)
        if fault is not None:
            return fault
        batched = scheduler["max_num_batched_tokens"]
        if not scheduler["dynamic_split_fuse"] and n_in > batched:
            return Failed(
                400,
                "context_length_exceeded",
                f"The prompt has {n_in} tokens; without dynamic_split_fuse the engine takes "
                f"max_num_batched_tokens, {batched}.",
                "prompt",
            )
        asked = output_limit(sampling, n_in=n_in, max_model_len=applied.max_model_len)
        # One that outgrows the cache ends everybody else with it: it must not begin, and must not
        # grow so far. Where that cuts its answer short it ends as an error.
        limit = self._pool.answer_limit(n_in, sampling.n, asked)
        if isinstance(limit, Failed):
            return limit
        return Live(request=request, limit=limit, asked=asked, t_enq=now)

    def _has_room(self, live: Live) -> bool:
        sequences = self._sequences + live.request.sampling.n
        if (
            len(self._running) >= self._most_live
            or sequences > self._loaded_pipeline().scheduler["max_num_seqs"]
        ):
            return False
        if not self._may_join(live):
            return False
        metrics = self._pipeline().get_metrics()
        return self._pool.admits(
            live,
            self._running.values(),
            used=metrics.cache_usage / 100,
            some_unscheduled=metrics.requests > metrics.scheduled_requests,
        )

    def _may_join(self, new: Live) -> bool:
        """Prompts are scored by themselves, as many in a step as go whole into it.

        The pipeline mixes up the logprobs of prompts with whatever else is in their step: parts of
        other prompts, and tokens of answers. One that is alone may come in parts.
        """
        if not self._running:
            return not (new.scores_prompt and self._dropping)
        one = next(iter(self._running.values()))
        if not (new.scores_prompt or one.scores_prompt):
            return True
        if not (new.scores_prompt and one.scores_prompt):
            return False
        tokens = sum(len(live.request.prompt_ids) for live in (new, *self._starting))
        none_begun = len(self._starting) == len(self._running)
        return none_begun and tokens <= self._loaded_pipeline().scheduler["max_num_batched_tokens"]

    def _start(self) -> list[Finished]:
        """Hand over what was scheduled; what the pipeline refuses ends as an error line."""
        starting, self._starting = self._starting, []
        refused = []
        for live in starting:
            sampling = live.request.sampling
            try:
                config = generation_config(
                    self._spec,
                    sampling,
                    max_new_tokens=live.limit,
                    end_ids=self._loaded_pipeline().facts.eos_ids,
                    seed=secrets.randbits(63),
                )
                live.t_adm = time.monotonic_ns()
                live.handle = self._add(live.request, config)
            except (RuntimeError, TypeError, ValueError) as error:
                self._leave(live)
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                failure = Failed(400, "invalid_value", f"The engine refuses the request: {reason}")
                refused.append(Finished(id=live.request.id, failure=failure))
        return refused

    def _add(self, request: EngineRequest, config: genai.GenerationConfig) -> Any:
        """The pipeline's handle of the request. A model that sees takes text only."""
        number = next(self._pipeline_ids)
        if request.text is not None:
            images = image_tensors(request.images)
            return self._pipeline().add_request(number, request.text, images, config)
        ids = np.array([request.prompt_ids], dtype=np.int64)
        return self._pipeline().add_request(number, ov.Tensor(ids), config)

    def _leave(self, live: Live) -> None:
        del self._running[live.request.id]
        self._sequences -= live.request.sampling.n

    def _finish(self, live: Live) -> Finished:
        self._leave(live)
        n_in, n_out = len(live.request.prompt_ids), live.drain()
        self._tokens_in += n_in
        self._tokens_out += n_out
        choices = live.choices()
        cut = any(choice.finish_reason is FinishReason.LENGTH for choice in choices)
        if cut and live.limit < live.asked:
            failure = kv_capacity(
                f"The answer outgrew the KV cache after {live.limit} tokens; "
                f"{live.asked} were asked for."
            )
            return Finished(id=live.request.id, failure=failure)
        drafted = accepted = None
        if self._speculates():
            sizes = live.step_sizes()
            drafted = drafted_tokens(self._spec, sizes, live.limit)
            accepted = accepted_tokens(sizes)
            self._drafted = None if drafted is None else (self._drafted or 0) + drafted
            self._accepted += accepted
        generation = Generation(
            choices=choices,
            n_in=n_in,
            n_cached=None if self._caches_prefixes() else 0,
            n_out=n_out,
            timings=live.timings(),
            n_drafted=drafted,
            n_accepted=accepted,
            prompt_logprobs=live.prompt_logprobs(),
        )
        return Finished(id=live.request.id, generation=generation)

    def _start_over(self, ignored: list[Live]) -> list[Finished]:
        """The pipeline could schedule nothing and gave up on all that it had.

        Each of them fits alone, so they wait to run again, fewer at once; only one that was alone
        on a new pipeline cannot be run. The old one may have lost blocks, so there is a new one.
        """
        lives = list(self._running.values())
        alone = len(lives) == 1
        for live in lives:
            self._leave(live)
            live.forget()
        self._most_live = max(1, len(lives) // 2)
        self._loaded = None  # The old cache is freed before a new one is made.
        self._loaded = load_pipeline(self._spec)
        if alone and ignored[0].was_alone:
            failure = kv_capacity("The KV cache has no room for this request.")
            return [Finished(id=ignored[0].request.id, failure=failure)]
        lives[0].was_alone = alone
        self._waiting.extendleft(reversed(lives))
        return []
