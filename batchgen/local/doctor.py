"""Says what is wrong with this machine's batchgen, and the mend."""

from collections.abc import Iterator

from batchgen.local.check import Check
from batchgen.local.machine_checks import machine_checks
from batchgen.local.service_checks import service_checks
from batchgen.settings import Settings

__all__ = ["Check", "checks"]


def checks(settings: Settings) -> Iterator[Check]:
    """Look at everything, one finding after the other; never raises for what it finds.

    Changes nothing but one empty directory and one probe object, made and removed again.
    """
    yield from machine_checks(settings)
    yield from service_checks(settings)
