"""The engines that the suite runs on, each with the demo model's tokenizer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import batchgen
from batchgen.chat.encoder import PromptEncoder
from batchgen.domain.outcomes import Failed, Generation
from batchgen.domain.requests import ChatPrompt, SamplingParams
from batchgen.engines.protocol import Applied, Engine, EngineRequest
from batchgen.engines.registry import make_engine
from batchgen.engines.spec import EngineSpec, OpenVinoSpec, SchedulerSettings, SimulatedSpec

MODEL = min((Path(batchgen.__file__).parent / "demo" / "models").glob("*-ov"))
KV_POOL_TOKENS = 256
ORDER = "Hi, Anna Berg from Oslo. 3 boxes of apples by Friday"


@dataclass
class Loaded:
    """An engine under test, driven as the host drives it."""

    spec: EngineSpec
    engine: Engine
    applied: Applied
    encoder: PromptEncoder
    _next_id: int = 0

    def prompt(
        self, text: str = "Hi, Anna Berg from Oslo. 3 boxes of apples by Friday"
    ) -> list[int]:
        return self.encoder.encode(ChatPrompt(({"role": "user", "content": text},)))

    def request(self, prompt: str | Sequence[int] = ORDER, **sampling: Any) -> EngineRequest:
        """Greedy and short, unless said otherwise."""
        self._next_id += 1
        ids = self.prompt(prompt) if isinstance(prompt, str) else list(prompt)
        defaults = SamplingParams(temperature=0.0, max_tokens=8)
        return EngineRequest(
            id=self._next_id, prompt_ids=ids, sampling=replace(defaults, **sampling)
        )

    def run(self, *requests: EngineRequest) -> list[Generation | Failed]:
        """The results, in the order of the requests; each must end exactly once."""
        ended = self.engine.submit(requests)
        while self.engine.has_work():
            self.engine.schedule()
            ended += self.engine.step()
        results = {finished.id: finished.result for finished in ended}
        assert len(ended) == len(results) == len(requests)
        return [results[request.id] for request in requests]

    def one(self, prompt: str | Sequence[int] = ORDER, **sampling: Any) -> Generation:
        (result,) = self.run(self.request(prompt, **sampling))
        assert isinstance(result, Generation), result
        return result

    def text(self, generation: Generation) -> str:
        return self.encoder.decode(generation.choices[0].token_ids)


def load(spec: EngineSpec) -> Loaded:
    engine = make_engine(spec)
    applied = engine.load(spec)
    return Loaded(spec, engine, applied, PromptEncoder(MODEL))


def ordinary_spec(kind: str) -> EngineSpec:
    if kind == "simulated":
        return SimulatedSpec(path=str(MODEL), max_num_seqs=16)
    pytest.importorskip("openvino_genai")
    return OpenVinoSpec(
        path=str(MODEL),
        scheduler_config=SchedulerSettings(max_num_seqs=16, num_kv_blocks=2000),
        runtime_config={"INFERENCE_NUM_THREADS": 1},
    )


def tiny_pool_spec(kind: str) -> EngineSpec:
    """Room for `KV_POOL_TOKENS` tokens of all requests together."""
    spec = ordinary_spec(kind)
    if isinstance(spec, SimulatedSpec):
        return msgspec.structs.replace(spec, kv_blocks=KV_POOL_TOKENS // 16)
    scheduler = msgspec.structs.replace(spec.scheduler_config, num_kv_blocks=KV_POOL_TOKENS // 32)
    return msgspec.structs.replace(spec, scheduler_config=scheduler)


KINDS = ["simulated", "openvino"]


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def loaded(kind: str) -> Iterator[Loaded]:
    """One ordinary engine for all tests, which leave it idle."""
    made = load(ordinary_spec(kind))
    yield made
    made.engine.close()


@pytest.fixture
def idle(loaded: Loaded) -> Iterator[Loaded]:
    """The engine, with nothing to do before and after the test."""
    assert not loaded.engine.has_work()
    yield loaded
    assert not loaded.engine.has_work()


@pytest.fixture
def openvino() -> Iterator[Callable[..., Loaded]]:
    """Loads openvino engines with changes to the ordinary spec; scheduler knobs apart."""
    made: list[Loaded] = []

    def make(scheduler: dict[str, Any] | None = None, **changes: Any) -> Loaded:
        made.append(load(openvino_spec(scheduler, **changes)))
        return made[-1]

    yield make
    for each in made:
        each.engine.close()


def openvino_spec(scheduler: dict[str, Any] | None = None, **changes: Any) -> OpenVinoSpec:
    spec = ordinary_spec("openvino")
    assert isinstance(spec, OpenVinoSpec)
    settings = msgspec.structs.replace(spec.scheduler_config, **(scheduler or {}))
    return msgspec.structs.replace(spec, **({"scheduler_config": settings} | changes))
