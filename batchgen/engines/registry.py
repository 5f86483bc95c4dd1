"""The engines there are, by name, and what each lacks: known without importing or loading one."""

from importlib import import_module
from typing import cast

from batchgen.domain.outcomes import Failed
from batchgen.domain.requests import Endpoint, SamplingParams
from batchgen.engines.openvino import kv_size as openvino_kv_size
from batchgen.engines.openvino import lint as openvino_lint
from batchgen.engines.openvino import refusals as openvino
from batchgen.engines.openvino.lint_embedding import embedding_faults
from batchgen.engines.protocol import Engine
from batchgen.engines.simulated import refusals as simulated
from batchgen.engines.spec import EngineSpec, OpenVinoEmbeddingSpec, OpenVinoSpec, SimulatedSpec

# Imported in the host only: an engine's module may import its whole runtime.
_ENGINES: dict[type, tuple[str, str]] = {
    OpenVinoSpec: ("batchgen.engines.openvino.engine", "OpenVinoEngine"),
    OpenVinoEmbeddingSpec: ("batchgen.engines.openvino.embedding", "OpenVinoEmbeddingEngine"),
    SimulatedSpec: ("batchgen.engines.simulated.engine", "SimulatedEngine"),
}


def make_engine(spec: EngineSpec) -> Engine:
    """A new engine of the spec's kind, not loaded."""
    module, name = _ENGINES[type(spec)]
    return cast("Engine", getattr(import_module(module), name)())


def spec_faults(spec: EngineSpec) -> list[str]:
    """What cannot work in a spec, each with the reason, as far as it shows without loading it."""
    match spec:
        case OpenVinoSpec():
            return openvino_lint.faults(spec)
        case OpenVinoEmbeddingSpec():
            return list(embedding_faults(spec))
        case SimulatedSpec():
            return simulated.faults(spec)


def memory_fault(spec: EngineSpec, memory_bytes: int | None) -> str | None:
    """Why an engine cannot fit into a device of so much memory; None where it may, or is not
    known.
    """
    match spec:
        case OpenVinoSpec():
            return openvino_kv_size.memory_fault(spec, memory_bytes)
        case OpenVinoEmbeddingSpec() | SimulatedSpec():
            return None


def spec_warnings(spec: EngineSpec) -> list[str]:
    """What works and costs something all the same, each with what would change it."""
    match spec:
        case OpenVinoSpec():
            return openvino_lint.warnings(spec)
        case OpenVinoEmbeddingSpec() | SimulatedSpec():
            return []


def refusal(spec: EngineSpec, sampling: SamplingParams) -> Failed | None:
    """The error line for a request that asks what this engine cannot do, or None.

    Its code is `unsupported_parameter` where the engine lacks the feature, `invalid_value` where
    the value is outside what the engine takes; `param` is the OpenAI name of the field.
    """
    match spec:
        case OpenVinoSpec():
            return openvino.refusal(spec, sampling)
        case OpenVinoEmbeddingSpec():
            return None
        case SimulatedSpec():
            return simulated.refusal(sampling)


def endpoints(spec: EngineSpec) -> frozenset[Endpoint]:
    """What a model with this engine can be asked."""
    match spec:
        case OpenVinoEmbeddingSpec():
            return frozenset({Endpoint.EMBEDDINGS})
        case OpenVinoSpec() | SimulatedSpec():
            return frozenset(Endpoint) - {Endpoint.EMBEDDINGS}
