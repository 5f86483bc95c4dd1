"""Grammars are compiled by a throw-away process before the pipeline sees them.

    checks = GrammarChecks(model_dir)
    if not checks.knows(grammar):
        checks.ask(grammar)              # starts the process when it is needed first
    checks.hear(timeout_s)               # takes the verdicts that have come
    failure = checks.failure(grammar)    # of one that it knows; None: the pipeline may have it

Verdicts are kept by content: 10,000 requests with one schema pay once. A process that dies of a
grammar twice, or is not done in time, is replaced, and that is the verdict.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import openvino_genai as genai

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Grammar, GrammarKind
from batchgen.engines.pipe import FramePipe, PipeClosed

CPU_LIMIT_S = 10
MEMORY_LIMIT_BYTES = 2 << 30
# The kernel counts processor time; these are for a probe that does not even get any.
_WALL_LIMIT_S = 90.0
_START_LIMIT_S = 90.0
_START_ATTEMPTS = 2
_REMEMBERED = 20_000
_REASON_LIMIT = 300
_PROBE = (sys.executable, "-m", "batchgen.engines.openvino.grammar_probe")
_PLACE_IN_SOURCE = re.compile(r"^(\[[\d:]+\] )?(Exception from )?\S+\.(cc|cpp|h|hpp):\d+:?\s*")
_SIGXCPU = 24


class Check(msgspec.Struct, frozen=True, tag=True):
    """To the probe: compile this."""

    grammar: Grammar


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the probe, once: it can compile."""


class Verdict(msgspec.Struct, frozen=True, tag=True):
    """From the probe. `fault` None: it compiles. `costly`: not within its memory. `worn`: the next
    grammar needs a new probe.
    """

    fault: str | None
    costly: bool = False
    worn: bool = False


FromProbe = Ready | Verdict


def structured_output(grammar: Grammar) -> genai.StructuredOutputConfig:
    """The grammar as the pipeline takes it."""
    config = genai.StructuredOutputConfig()
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            config.json_schema = grammar.source
        case GrammarKind.REGEX:
            config.regex = grammar.source
        case GrammarKind.EBNF:
            config.grammar = grammar.source
        case GrammarKind.STRUCTURAL_TAG:
            config.structural_tags_config = grammar.source
    return config


def reason(error: Exception) -> str:
    """What the compiler has against a grammar, without the places in its own source."""
    lines = [_PLACE_IN_SOURCE.sub("", line).strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line) or "it cannot be compiled"
    return text[:_REASON_LIMIT]


@dataclass(frozen=True, slots=True)
class _Fault:
    status: int
    code: str
    text: str


class GrammarChecks:
    """For one model. One grammar is compiled at a time, so that a death has one cause."""

    def __init__(
        self,
        model_dir: Path,
        *,
        cpu_limit_s: int = CPU_LIMIT_S,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    ) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._command = [
            *_PROBE,
            f"--model={model_dir}",
            f"--cpu-limit-s={cpu_limit_s}",
            f"--memory-limit-bytes={memory_limit_bytes}",
        ]
        self._probe: _Probe | None = None
        self._asked: OrderedDict[bytes, Grammar] = OrderedDict()
        self._verdicts: OrderedDict[bytes, _Fault | None] = OrderedDict()
        self._failed_starts = 0
        # The grammar that a probe died with, once.
        self._doubtful: bytes | None = None

    @property
    def busy(self) -> bool:
        """Whether verdicts are still to come."""
        return bool(self._asked)

    @property
    def pid(self) -> int | None:
        """The process that compiles; None while there is none."""
        return None if self._probe is None else self._probe.pid

    def knows(self, grammar: Grammar) -> bool:
        return _key(grammar) in self._verdicts

    def failure(self, grammar: Grammar) -> Failed | None:
        """The error line of a request with this grammar, or None: it compiles."""
        fault = self._verdicts[_key(grammar)]
        if fault is None:
            return None
        message = f"Invalid '{grammar.param}': {fault.text}"
        return Failed(fault.status, fault.code, message, grammar.param)

    def ask(self, grammar: Grammar) -> None:
        """Have a grammar compiled; asking twice is asking once."""
        self._asked.setdefault(_key(grammar), grammar)
        self._go_on()

    def hear(self, timeout_s: float = 0.0) -> None:
        """Take the verdicts that have come, waiting at most so long for the next one."""
        until = time.monotonic() + timeout_s
        waiting_for = len(self._asked)
        while self._asked and len(self._asked) == waiting_for:
            left = until - time.monotonic()
            self._hear_probe(max(0.0, left))
            if left <= 0:
                return

    def close(self) -> None:
        self._asked.clear()
        self._end_probe()

    def _hear_probe(self, timeout_s: float) -> None:
        probe = self._go_on()
        try:
            for frame in probe.hear(timeout_s):
                match frame:
                    case Ready():
                        self._failed_starts = 0
                    case Verdict(fault=fault, costly=costly, worn=worn):
                        code = "grammar_too_costly" if costly else "invalid_grammar"
                        self._settle(None if fault is None else _Fault(400, code, fault))
                        if worn:
                            self._end_probe()
        except PipeClosed:
            self._end_probe()
            self._died(probe)
        if self._asked:
            self._go_on()

    def _go_on(self) -> "_Probe":
        """A probe, and the next grammar given to it once it can take one."""
        if self._probe is None:
            self._probe = _Probe(self._command)
        if self._probe.idle and self._asked:
            self._probe.check(next(iter(self._asked.values())))
        return self._probe

    def _died(self, probe: "_Probe") -> None:
        if not probe.ready:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                text = f"the process that checks grammars does not start ({probe.end()})"
                self._settle(_Fault(500, "grammar_not_checked", text))
        elif probe.overdue:
            text = f"compiling it is not done within {_WALL_LIMIT_S:g} s"
            self._settle(_Fault(400, "grammar_too_costly", text))
        elif probe.end() == -_SIGXCPU:
            text = f"compiling it takes more than {self._cpu_limit_s} s of processor time"
            self._settle(_Fault(400, "grammar_too_costly", text))
        elif self._doubtful != (key := next(iter(self._asked))):
            # It may have died before, or of something else: memory ran out, say.
            self._doubtful = key
        else:
            text = "the compiler breaks down on it: it is too deep or too large"
            self._settle(_Fault(400, "grammar_too_costly", text))

    def _settle(self, fault: _Fault | None) -> None:
        key, _ = self._asked.popitem(last=False)
        self._verdicts[key] = fault
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)

    def _end_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.end()


class _Probe:
    """One probe process, from its start to its end."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self._pipe: FramePipe[FromProbe] = FramePipe(ours, FromProbe)
        with theirs:
            # What compilers print of a grammar is the user's, and belongs in no log.
            self._process = subprocess.Popen(
                [*command, f"--pipe-fd={theirs.fileno()}", f"--parent={os.getpid()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ,
            )
        self.ready = False
        self._checking = False
        self._limit = time.monotonic() + _START_LIMIT_S

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        return self.ready and not self._checking

    @property
    def overdue(self) -> bool:
        return time.monotonic() > self._limit

    def check(self, grammar: Grammar) -> None:
        self._checking = True
        self._limit = time.monotonic() + _WALL_LIMIT_S
        try:
            self._pipe.send(Check(grammar=grammar))
        except PipeClosed:
            return  # the next `hear` says so

    def hear(self, timeout_s: float) -> list[FromProbe]:
        """What it says. Raises PipeClosed when it is gone, or not done in time."""
        self._pipe.wait(timeout_s)
        frames = self._pipe.receive()
        for frame in frames:
            if isinstance(frame, Ready):
                self.ready = True
            else:
                self._checking = False
        if not frames and not self.idle and self.overdue:
            raise PipeClosed
        return frames

    def end(self) -> int:
        """Its exit code; killed where it runs still."""
        if self._pipe.fileno() >= 0:
            self._pipe.close()
        # One that is gone by itself keeps its code: a signal to a zombie changes nothing.
        self._process.kill()
        return self._process.wait()


def _key(grammar: Grammar) -> bytes:
    text = f"{grammar.kind}:{grammar.source}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
