"""The throw-away process that compiles grammars: `python -m …openvino.grammar_probe`.

A grammar that openvino-genai cannot compile raises from the pipeline's step, which ends the
pipeline; others take minutes, gigabytes, or overflow the stack. Here it costs this process at most.
It holds the model's tokenizer, since a grammar is compiled for a vocabulary, and a model without
weights that yields zeros, since openvino-genai compiles where it generates.

The kernel keeps the bounds: each grammar may use so much processor time and so much more address
space. What is over ends the process, and its parent (`grammars.py`) takes that for the verdict.
"""

import argparse
import contextlib
import resource
import socket
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import openvino_genai as genai
from openvino import opset13 as ops

from batchgen.domain.requests import Grammar, GrammarKind
from batchgen.engines.host import die_with_parent
from batchgen.engines.openvino.grammars import Check, Ready, Verdict, reason, structured_output
from batchgen.engines.openvino.model_dir import read_facts
from batchgen.engines.pipe import FramePipe, PipeClosed
from batchgen.engines.process import rss_bytes

# What was compiled stays; once it is so much, the parent takes a new probe.
_WORN_BYTES = 512 << 20
_OOM_SCORE = 1000


class Probe:
    """Compiles grammars for one model's vocabulary."""

    def __init__(self, model_dir: Path):
        facts = read_facts(model_dir)
        self._ends = set(facts.eos_ids) or {0}
        self._prompt = ov.Tensor(np.zeros((1, 1), dtype=np.int64))
        with tempfile.TemporaryDirectory() as made:
            zeros = Path(made) / "openvino_model.xml"
            ov.save_model(_model_of_zeros(facts.vocab_size), str(zeros))
            tokenizer = genai.Tokenizer(str(model_dir))
            self._pipeline = genai.LLMPipeline(made, tokenizer, "CPU", ATTENTION_BACKEND="SDPA")
        # Threads and buffers that any compilation needs are there before the bounds are.
        self.compile(Grammar(GrammarKind.REGEX, "[a-z]+"))

    def compile(self, grammar: Grammar) -> Verdict:
        """Why the grammar cannot be compiled, if so."""
        config = genai.GenerationConfig()
        config.apply_chat_template = False
        config.max_new_tokens = 1
        config.stop_token_ids = self._ends
        config.eos_token_id = min(self._ends)
        try:
            config.structured_output_config = structured_output(grammar)
            self._pipeline.generate(self._prompt, config)
        except (RuntimeError, ValueError, TypeError) as error:
            return Verdict(fault=reason(error))
        except MemoryError:
            return Verdict(fault="compiling it takes too much memory", costly=True)
        return Verdict(fault=None)


def serve(pipe: FramePipe[Check], probe: Probe, *, cpu_s: int, memory_bytes: int) -> None:
    """Until the parent is gone."""
    worn_at = (rss_bytes() or 0) + _WORN_BYTES
    with contextlib.suppress(PipeClosed):
        pipe.send(Ready())
        while True:
            pipe.wait(None)
            for frame in pipe.receive():
                _bound(cpu_s, memory_bytes)
                verdict = probe.compile(frame.grammar)
                worn = verdict.costly or (rss_bytes() or 0) > worn_at
                pipe.send(msgspec.structs.replace(verdict, worn=worn))


def _bound(cpu_s: int, memory_bytes: int) -> None:
    """So much processor time and address space from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit_s = int(used.ru_utime + used.ru_stime) + cpu_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, most))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory_bytes, most))


def _model_of_zeros(vocab_size: int) -> ov.Model:
    """Logits of zeros for any input, with the inputs that openvino-genai wants of a model."""
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    mask = ops.parameter([-1, -1], np.int64, name="attention_mask")
    beams = ops.parameter([-1], np.int32, name="beam_idx")
    for node in (ids, mask, beams):
        node.output(0).set_names({node.friendly_name})
    shape = ops.concat([ops.shape_of(ids), ops.constant(np.array([vocab_size], np.int64))], 0)
    zeros = ops.broadcast(ops.constant(np.float32(0)), shape)
    # An input that nothing depends on would be removed.
    used = ops.add(
        ops.reduce_sum(mask, ops.constant(np.array([0, 1]))),
        ops.convert(ops.reduce_sum(beams, ops.constant(np.array([0]))), np.int64),
    )
    nothing = ops.multiply(ops.convert(used, np.float32), ops.constant(np.float32(0)))
    logits = ops.add(zeros, nothing)
    logits.output(0).set_names({"logits"})
    return ov.Model([ops.result(logits)], [ids, mask, beams], "zeros")


def main() -> int:
    parser = argparse.ArgumentParser(prog="grammar_probe", description=__doc__)
    parser.add_argument("--pipe-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cpu-limit-s", type=int, required=True)
    parser.add_argument("--memory-limit-bytes", type=int, required=True)
    args = parser.parse_args()
    die_with_parent(args.parent)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    pipe: FramePipe[Check] = FramePipe(socket.socket(fileno=args.pipe_fd), Check)
    serve(pipe, Probe(args.model), cpu_s=args.cpu_limit_s, memory_bytes=args.memory_limit_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
