"""What cannot work in an embedding engine's settings, each with reason and mend."""

from collections.abc import Iterator

from batchgen.engines.openvino.lint import RESERVED_PROPERTIES
from batchgen.engines.openvino.lint_devices import listed_devices
from batchgen.engines.spec import OpenVinoEmbeddingSpec


def embedding_faults(spec: OpenVinoEmbeddingSpec) -> Iterator[str]:
    """Known without importing openvino, as those of the generating engine."""
    for name, value in (
        ("max_model_len", spec.max_model_len),
        ("batch_size", spec.batch_size),
        ("max_requests_per_process", spec.max_requests_per_process),
    ):
        if value is not None and value < 1:
            yield f"{name} must be at least 1"
    if spec.device is not None and not spec.device.strip():
        yield "device is empty: name a device (CPU, GPU, GPU.1, NPU), or leave it out"
    meta, names = listed_devices(spec.device or "CPU")
    if meta and meta != "AUTO" and not names:
        yield f"device '{spec.device}' names no devices: write them as in {meta}:GPU.0,CPU"
    for name in spec.runtime_config:
        if name in RESERVED_PROPERTIES:
            yield f"runtime_config.{name} is the server's to set: leave it out"
