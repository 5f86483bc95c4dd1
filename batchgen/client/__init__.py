"""The HTTP client that the command line uses, synchronous, over the public REST interface."""

from batchgen.client.api import Client
from batchgen.client.events import Event
from batchgen.client.transport import Transport

__all__ = ["Client", "Event", "Transport"]
