"""What a compiled model depends on, as values; it names the place where the model is kept."""

import hashlib
from typing import Any

import msgspec

from batchgen.engines.spec import Json


class PhysicalDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as far as a compiled model cares: two cards of one kind and driver are one.

    `driver` is the version of the device's driver, or of the runtime's plugin where the device has
    no driver of its own.
    """

    kind: str
    name: str
    architecture: str
    driver: str


class CompileIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a compiled model.

    The namespace is everything but `graph`: the model's content, the devices with their drivers,
    the libraries' versions, and the properties that reach the compiler. `graph` is what makes
    several compiled models of one namespace: settings that change the model's graph before it is
    compiled, and where the model lies (OpenVINO names its files by the path, too).
    """

    model_hash: str
    device: str
    devices: list[PhysicalDevice]
    libraries: dict[str, str]
    properties: dict[str, Json]
    graph: dict[str, Json]
    draft_hash: str | None = None

    @property
    def namespace(self) -> str:
        """32 hex digits."""
        return _digest({k: v for k, v in msgspec.to_builtins(self).items() if k != "graph"}, 16)

    @property
    def variant(self) -> str:
        """Which of the namespace's compiled models: 16 hex digits."""
        return _digest(self.graph, 8)


def _digest(value: dict[str, Any], size: int) -> str:
    canonical = msgspec.json.encode(value, order="sorted")
    return hashlib.blake2b(canonical, digest_size=size).hexdigest()
