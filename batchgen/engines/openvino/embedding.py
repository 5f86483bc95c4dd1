"""The embedding engine, on openvino-genai's TextEmbeddingPipeline: texts in, vectors out.

The pipeline takes texts, tokenizes them by itself and computes a list of them at once. A text that
is longer than the model's positions makes it unusable for good, so lengths are checked before and
bound again inside.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from batchgen.domain.errors import LoadFailed
from batchgen.domain.outcomes import Embedding, Failed, Timings
from batchgen.engines.openvino.device import apply_properties, memory_bytes
from batchgen.engines.openvino.loading import check_content
from batchgen.engines.openvino.model_dir import content_hash, max_model_len, read_facts
from batchgen.engines.process import rss_bytes
from batchgen.engines.protocol import Applied, EngineRequest, EngineStats, Finished
from batchgen.engines.spec import EngineSpec, OpenVinoEmbeddingSpec


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: EngineRequest
    texts: list[str]
    t_enq: int


class OpenVinoEmbeddingEngine:
    """See `spec.OpenVinoEmbeddingSpec`."""

    def __init__(self) -> None:
        self._pipeline: genai.TextEmbeddingPipeline | None = None
        self._applied: Applied | None = None
        self._spec = OpenVinoEmbeddingSpec(path="")
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        self._made: list[bytes] = []
        self._admitted = 0
        self._steps = 0
        self._max_running = 0
        self._tokens_in = 0

    def load(self, spec: EngineSpec) -> Applied:
        if not isinstance(spec, OpenVinoEmbeddingSpec):
            raise LoadFailed(f"the embedding engine cannot run {type(spec).__name__}")
        started = time.monotonic()
        model_dir, device = Path(spec.path), spec.device or "CPU"
        facts = read_facts(model_dir)
        length = max_model_len(facts, spec.max_model_len)
        check_content(model_dir, spec.content_hash)
        core = ov.Core()
        held = apply_properties(core, device, spec.runtime_config)
        config = _config(spec, length)
        compiling = time.monotonic()
        try:
            pipeline = genai.TextEmbeddingPipeline(
                str(model_dir), device, config, **spec.runtime_config
            )
            compile_s = time.monotonic() - compiling
            (vector,) = pipeline.embed_documents(["a"])
        except RuntimeError as error:
            raise LoadFailed(f"openvino-genai: {str(error).strip()}") from error
        self._spec, self._pipeline = spec, pipeline
        self._applied = Applied(
            engine="openvino-embeddings",
            engine_version=genai.__version__,
            device=device,
            device_name=str(core.get_property(device.partition(":")[0], "FULL_DEVICE_NAME")),
            config={
                "pooling": config.pooling_type.name.lower(),
                "normalize": config.normalize,
                "embed_instruction": config.embed_instruction,
                "batch_size": spec.batch_size,
                "dimensions": len(vector),
                "max_model_len": length,
                "runtime_config": held.asked,
                "devices": held.devices,
                "device_memory_bytes": memory_bytes(core, device),
            },
            max_model_len=length,
            vocab_size=facts.vocab_size,
            max_live=spec.batch_size,
            load_s=time.monotonic() - started,
            compile_s=compile_s,
            cache_state="off",
            model_hash=content_hash(model_dir, None),
            libraries={
                "openvino": ov.__version__,
                "openvino-genai": genai.__version__,
                "openvino-tokenizers": version("openvino-tokenizers"),
                "numpy": np.__version__,
            },
        )
        return self._applied

    def submit(self, requests: Sequence[EngineRequest]) -> list[Finished]:
        now = time.monotonic_ns()
        refused = []
        for request in requests:
            if not request.texts:
                failure = Failed(
                    400, "unsupported_endpoint", "This model makes embeddings only.", "url"
                )
                refused.append(Finished(id=request.id, failure=failure))
            else:
                self._waiting.append(_Waiting(request, request.texts, now))
        return refused

    def schedule(self) -> list[int]:
        """One that has more texts than a batch holds runs alone, in several steps."""
        room = self._spec.batch_size - sum(len(waiting.texts) for waiting in self._batch)
        while self._waiting and (not self._batch or len(self._waiting[0].texts) <= room):
            taken = self._waiting.popleft()
            self._batch.append(taken)
            room -= len(taken.texts)
        self._max_running = max(self._max_running, len(self._batch))
        return [waiting.request.id for waiting in self._batch]

    def step(self) -> list[Finished]:
        self._steps += 1
        texts = [text for waiting in self._batch for text in waiting.texts]
        if not texts:
            return []
        if not self._made:
            self._admitted = time.monotonic_ns()
        # A step of thousands of texts would look like an engine that hangs.
        at = len(self._made)
        self._made += self._vectors(texts[at : at + self._spec.batch_size])
        if len(self._made) < len(texts):
            return []
        batch, self._batch = self._batch, []
        made, self._made = iter(self._made), []
        ended = []
        now = time.monotonic_ns()
        for waiting in batch:
            n_in = len(waiting.request.prompt_ids)
            self._tokens_in += n_in
            embedding = Embedding(
                vectors=tuple(islice(made, len(waiting.texts))),
                n_in=n_in,
                timings=Timings(waiting.t_enq, self._admitted, None, now),
            )
            ended.append(Finished(id=waiting.request.id, embedding=embedding))
        return ended

    def _vectors(self, texts: list[str]) -> list[bytes]:
        if self._pipeline is None:
            raise RuntimeError("the engine is not loaded")
        vectors = self._pipeline.embed_documents(texts)
        return [np.asarray(vector, dtype="<f4").tobytes() for vector in vectors]

    def has_work(self) -> bool:
        return bool(self._waiting or self._batch)

    def cancel(self, ids: Sequence[int]) -> list[int]:
        wanted = set(ids)
        every = [*self._batch, *self._waiting]
        self._batch = [w for w in self._batch if w.request.id not in wanted]
        if not self._batch:  # else none of it has been made yet
            self._made.clear()
        self._waiting = deque(w for w in self._waiting if w.request.id not in wanted)
        return [w.request.id for w in every if w.request.id in wanted]

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._steps,
            running=len(self._batch),
            waiting=len(self._waiting),
            output_tokens=0,
            max_running=self._max_running,
            prompt_tokens=self._tokens_in,
            rss_bytes=rss_bytes(),
        )

    def close(self) -> None:
        self._waiting.clear()
        self._batch.clear()
        self._made.clear()
        self._pipeline = None


def _config(spec: OpenVinoEmbeddingSpec, length: int) -> Any:
    config = genai.TextEmbeddingPipeline.Config()
    pooling = genai.TextEmbeddingPipeline.PoolingType
    config.pooling_type = {
        "cls": pooling.CLS,
        "mean": pooling.MEAN,
        "last_token": pooling.LAST_TOKEN,
    }[spec.pooling]
    config.normalize = spec.normalize
    config.max_length = length
    config.embed_instruction = spec.embed_instruction
    return config
