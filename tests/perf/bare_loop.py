"""The loop that the platform is measured against: nothing but add_request and step.

    python -m tests.perf.bare_loop MODEL_DIR REQUESTS.json IN_FLIGHT

Loads once; for each line on stdin, runs all requests and prints output tokens a second.
"""

import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from tests.perf.overhead import SCHEDULER


def pipeline_of(model: Path, in_flight: int) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    for name, value in (SCHEDULER | {"max_num_seqs": in_flight}).items():
        setattr(scheduler, name, value)
    return genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU")


def run(
    pipeline: genai.ContinuousBatchingPipeline,
    requests: list[dict[str, Any]],
    in_flight: int,
    ids: "count[int]",
) -> float:
    """Output tokens a second with so many requests in the pipeline at any time."""
    waiting = list(reversed(requests))
    live: list[genai.GenerationHandle] = []
    tokens = 0
    began = time.monotonic()
    while waiting or live:
        while waiting and len(live) < in_flight:
            request = waiting.pop()
            config = genai.GenerationConfig()
            config.max_new_tokens = request["max_tokens"]
            config.do_sample = False
            config.set_eos_token_id(pipeline.get_config().eos_token_id)
            config.stop_token_ids = pipeline.get_config().stop_token_ids
            prompt = ov.Tensor(np.array([request["ids"]], dtype=np.int64))
            live.append(pipeline.add_request(next(ids), prompt, config))
        pipeline.step()
        for handle in [h for h in live if h.get_status() == genai.GenerationStatus.FINISHED]:
            live.remove(handle)
            while handle.can_read():
                tokens += sum(len(out.generated_ids) for out in handle.read().values())
    return tokens / (time.monotonic() - began)


def main() -> None:
    model, path, in_flight = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    requests = json.loads(path.read_text())
    pipeline = pipeline_of(model, in_flight)
    ids = count()
    for _ in sys.stdin:
        print(run(pipeline, requests, in_flight, ids), flush=True)


if __name__ == "__main__":
    main()
