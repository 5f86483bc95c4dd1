"""The simulated engine: continuous batching without a model.

A request's output is known when it is admitted (it repeats its prompt, or gives a scripted answer),
so nothing is done a token: each request leaves an event at the step of its first and of its last
token, and a step only looks at the events that are due. That keeps the engine's own cost far under
a real one's.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from batchgen import __version__
from batchgen.chat.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from batchgen.domain.errors import LoadFailed
from batchgen.domain.outcomes import Choice, Failed, Generation, Timings, TokenLogprob
from batchgen.engines.checks import kv_capacity, output_limit, prompt_fault
from batchgen.engines.compile_identity import CompileIdentity
from batchgen.engines.process import rss_bytes
from batchgen.engines.protocol import Applied, EngineRequest, EngineStats, Finished
from batchgen.engines.simulated.block_pool import KV_BLOCK_TOKENS, BlockPool, Held
from batchgen.engines.simulated.refusals import faults, refusal
from batchgen.engines.simulated.script import Deed, Output, Script, hang
from batchgen.engines.spec import EngineSpec, SimulatedSpec


@dataclass(slots=True)
class _Live:
    request: EngineRequest
    output: Output
    deed: Deed | None
    blocks: int
    held: Held
    t_enq: int
    t_adm: int = 0
    t_first: int = 0


@dataclass(slots=True)
class _Due:
    """What happens at one step."""

    first: list[_Live] = field(default_factory=list)
    last: list[_Live] = field(default_factory=list)
    deeds: list[_Live] = field(default_factory=list)


class SimulatedEngine:
    """See `spec.SimulatedSpec` for what it can be told to do."""

    def __init__(self) -> None:
        self._spec = SimulatedSpec()
        self._tokenizer: Tokenizer = ByteTokenizer()
        self._script = Script([], self._tokenizer)
        self._waiting: deque[_Live] = deque()
        self._running: dict[int, _Live] = {}
        self._sequences = 0
        self._due: dict[int, _Due] = {}
        self._pool = BlockPool(None)
        self._prefill_tokens = 0
        self._busy_until = 0.0
        self._steps = 0
        self._max_running = 0
        self._tokens_in = 0
        self._tokens_cached = 0
        self._tokens_out = 0

    def compile_identity(self, spec: EngineSpec, hashes: str | None) -> CompileIdentity | None:  # noqa: ARG002 - the seam's names
        return None

    def load(self, spec: EngineSpec) -> Applied:
        if not isinstance(spec, SimulatedSpec):
            raise LoadFailed(f"the simulated engine cannot run {type(spec).__name__}")
        started = time.monotonic()
        wrong = faults(spec)
        if wrong:
            raise LoadFailed("; ".join(wrong))
        if spec.path is not None:
            self._tokenizer = load_tokenizer(Path(spec.path))
        self._script = Script(spec.rules, self._tokenizer)
        time.sleep(spec.load_s)
        self._spec = spec
        self._pool = BlockPool(spec.kv_blocks, caches=spec.enable_prefix_caching)
        return Applied(
            engine="simulated",
            engine_version=__version__,
            device=spec.device or "CPU",
            device_name="simulated",
            config=msgspec.to_builtins(spec),
            max_model_len=spec.max_model_len,
            vocab_size=self._tokenizer.vocab_size,
            max_live=spec.max_num_seqs,
            load_s=time.monotonic() - started,
            simulated=True,
            kv_block_tokens=KV_BLOCK_TOKENS if spec.kv_blocks is not None else None,
            kv_blocks=spec.kv_blocks,
            cache_state="off",
            libraries={"batchgen": __version__},
        )

    def submit(self, requests: Sequence[EngineRequest]) -> list[Finished]:
        now = time.monotonic_ns()
        refused = []
        for request in requests:
            taken = self._take(request, now)
            if isinstance(taken, Failed):
                refused.append(Finished(id=request.id, failure=taken))
            else:
                self._waiting.append(taken)
        return refused

    def schedule(self) -> list[int]:
        started: list[int] = []
        while self._waiting and self._admit(self._waiting[0]):
            started.append(self._waiting.popleft().request.id)
        self._max_running = max(self._max_running, self._sequences)
        return started

    def step(self) -> list[Finished]:
        due = self._due.pop(self._steps, None)
        self._steps += 1
        ended: list[Finished] = []
        if due is not None and due.deeds:
            ended = self._do(due.deeds)
        self._sleep_a_step()
        if due is not None and (due.first or due.last):
            now = time.monotonic_ns()
            for live in due.first:
                live.t_first = now
            ended += [
                self._finish(live, now) for live in due.last if live.request.id in self._running
            ]
        return ended

    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def cancel(self, ids: Sequence[int]) -> list[int]:
        wanted = set(ids)
        dropped = [live.request.id for live in self._waiting if live.request.id in wanted]
        if dropped:
            self._waiting = deque(w for w in self._waiting if w.request.id not in wanted)
        for request_id in ids:
            live = self._running.get(request_id)
            if live is not None:
                self._leave(live)
                dropped.append(request_id)
        return dropped

    def stats(self) -> EngineStats:
        blocks, pool = self._spec.kv_blocks, self._pool
        return EngineStats(
            steps=self._steps,
            running=self._sequences,
            waiting=len(self._waiting),
            output_tokens=self._tokens_out,
            max_running=self._max_running,
            preemptions=0,
            recomputed_tokens=0,
            kv_utilisation=None if blocks is None else pool.used / blocks,
            kv_utilisation_peak=None if blocks is None else pool.peak / blocks,
            prompt_tokens=self._tokens_in,
            cached_prompt_tokens=self._tokens_cached,
            rss_bytes=rss_bytes(),
        )

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()

    def _take(self, request: EngineRequest, now: int) -> _Live | Failed:
        spec, sampling = self._spec, request.sampling
        fault = prompt_fault(
            request.prompt_ids,
            max_model_len=spec.max_model_len,
            vocab_size=self._tokenizer.vocab_size,
        ) or refusal(sampling)
        if fault is not None:
            return fault
        limit = output_limit(
            sampling,
            n_in=len(request.prompt_ids),
            max_model_len=spec.max_model_len,
            default=spec.default_max_tokens,
        )
        if sampling.n > spec.max_num_seqs:
            return Failed(
                400, "invalid_value", f"n is over max_num_seqs ({spec.max_num_seqs}).", "n"
            )
        output, deed = self._script.plan(request.prompt_ids, sampling, limit)
        blocks = sampling.n * -(-(len(request.prompt_ids) + len(output.ids)) // KV_BLOCK_TOKENS)
        if spec.kv_blocks is not None and blocks > spec.kv_blocks:
            return kv_capacity(
                f"The request needs {blocks} KV blocks; the engine has {spec.kv_blocks}."
            )
        held = Held((), 0, 0)
        return _Live(request=request, output=output, deed=deed, blocks=blocks, held=held, t_enq=now)

    def _admit(self, live: _Live) -> bool:
        """Its blocks are reserved for its whole output, so nothing is ever preempted."""
        n = live.request.sampling.n
        if self._sequences + n > self._spec.max_num_seqs:
            return False
        held = self._pool.take(live.request.prompt_ids, live.blocks)
        if held is None:
            return False
        live.held = held
        self._sequences += n
        self._running[live.request.id] = live
        self._prefill_tokens += len(live.request.prompt_ids) - held.cached_tokens
        live.t_adm = time.monotonic_ns()
        first = self._steps
        last = first + max(0, live.output.steps - 1)
        self._at(first).first.append(live)
        self._at(last).last.append(live)
        if live.deed is not None and first + live.deed.after_steps <= last:
            self._at(first + live.deed.after_steps).deeds.append(live)
        return True

    def _at(self, step: int) -> _Due:
        due = self._due.get(step)
        if due is None:
            due = self._due[step] = _Due()
        return due

    def _do(self, lives: list[_Live]) -> list[Finished]:
        ended = []
        for live in lives:
            if live.request.id not in self._running or live.deed is None:
                continue
            rule = live.deed.rule
            if not live.deed.take():
                continue
            match rule.action:
                case "fail":
                    self._leave(live)
                    failure = Failed(500, "scripted_failure", rule.message)
                    ended.append(Finished(id=live.request.id, failure=failure))
                case "crash":
                    os.kill(os.getpid(), rule.signal)
                case "raise":
                    raise RuntimeError(rule.message)
                case "hang":
                    hang()
        return ended

    def _sleep_a_step(self) -> None:
        """Steps end on a grid of their own durations, so that late wake-ups do not add up."""
        spec = self._spec
        duration = spec.step_s + spec.step_s_per_seq * self._sequences
        if spec.prefill_tok_s:
            duration += self._prefill_tokens / spec.prefill_tok_s
        self._prefill_tokens = 0
        if not duration:
            return
        now = time.monotonic()
        late = now - self._busy_until
        # After a pause the grid starts anew.
        start = self._busy_until if late < duration else now
        self._busy_until = start + duration
        time.sleep(max(0.0, self._busy_until - now))

    def _leave(self, live: _Live) -> None:
        del self._running[live.request.id]
        self._sequences -= live.request.sampling.n
        self._pool.give_back(live.held)

    def _finish(self, live: _Live, now: int) -> Finished:
        self._leave(live)
        request, output = live.request, live.output
        n, n_in = request.sampling.n, len(request.prompt_ids)
        logprobs = None
        if request.sampling.logprobs is not None:
            logprobs = tuple(TokenLogprob(i, 0.0) for i in output.ids)
        choice = Choice(token_ids=output.ids, finish_reason=output.finish_reason, logprobs=logprobs)
        n_out = n * len(output.ids)
        n_cached = live.held.cached_tokens
        self._tokens_in += n_in
        self._tokens_cached += n_cached
        self._tokens_out += n_out
        first = live.t_first if output.ids else None
        timings = Timings(live.t_enq, live.t_adm, first, now if output.ids else None)
        generation = Generation(
            choices=(choice,) * n, n_in=n_in, n_cached=n_cached, n_out=n_out, timings=timings
        )
        return Finished(id=request.id, generation=generation)
