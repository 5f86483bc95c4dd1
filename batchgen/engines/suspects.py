"""Who killed the engine? Pure logic; the worker session drives it.

    suspicions = Suspicions(live_limit=32)                  # one for a session
    ...
    except (HostDied, HostHung) as error:
        crumbs = client.breadcrumbs()
        ages = {key_of[i]: crumbs.age(i) for i in crumbs.live}
        investigation = suspicions.died(death_of(error), ages)
        while (probe := investigation.next_probe()) is not None:
            # persist a strike against probe.key; run it alone, for probe.steps
            investigation.passed()                          # or .crashed(death_of(error))
            # passed: take the strike back
        verdict = investigation.verdict()                   # then feed again, within its live_limit

Rules. Only those that the engine was working on are suspects. A suspect is run alone, the youngest
first, for as many steps as it had lived and two more; a crash alone convicts, and nothing else
does. A conviction explains the crash, and as soon as another suspect has passed the search is over.
When all pass, the crash was a passing one.

Bounds. A process ended by SIGKILL lacked memory, most likely, or somebody killed it: the first time
it is merely restarted, and alone it must happen twice to convict. Crashes that stay unexplained
halve the number of requests in the batch, down to one, where every crash is a crash alone. A
request's first probe is cut at `PROBE_STEPS`; if it is live at a second crash it is run to its
whole age. Strikes outlive the worker: a request whose probes took the worker down `STRIKES` times
is convicted without another try. When `SICK` requests in a row crash alone and none runs well in
between, it is the engine or the device rather than they: the verdict is `sick` and convicts nobody
more.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from batchgen.domain.errors import HostDied, HostHung

Key = TypeVar("Key", bound=Hashable)

PROBE_STEPS = 256
EXTRA_STEPS = 2
STRIKES = 2
SICK = 4
RECOVERY = 500  # requests that must end well before a halved live limit is doubled again


class Death(StrEnum):
    """How a host ended."""

    CRASHED = "crashed"
    KILLED = "killed"
    HUNG = "hung"


def death_of(error: HostDied | HostHung) -> Death:
    if isinstance(error, HostHung):
        return Death.HUNG
    return Death.KILLED if error.exit_code == -9 else Death.CRASHED


@dataclass(frozen=True)
class Probe(Generic[Key]):
    """Run this request alone for so many steps."""

    key: Key
    steps: int


@dataclass(frozen=True)
class Verdict(Generic[Key]):
    """How to go on: `guilty` end as error lines, everybody else is run again.

    `live_limit` bounds the running batch from now on. `sick`: the engine crashes on whatever it is
    given, so stop and say so.
    """

    guilty: tuple[Key, ...]
    live_limit: int
    sick: bool = False


class Investigation(Generic[Key]):
    """One death's probes, one at a time."""

    def __init__(
        self, owner: "Suspicions[Key]", probes: Iterable[Probe[Key]], guilty: Iterable[Key] = ()
    ):
        self._owner = owner
        self._probes = deque(probes)
        self._convicted = tuple(guilty)
        self._accused: list[Key] = []
        self._any_passed = False
        self._killed_once = False
        self._sick = False

    def next_probe(self) -> Probe[Key] | None:
        """The probe to run now, or None: there is a verdict."""
        return self._probes[0] if self._probes else None

    def passed(self) -> None:
        """The probe ran its steps, or its request ended."""
        self._probes.popleft()
        self._any_passed, self._killed_once = True, False
        self._owner.ran_well()
        if self._accused:
            self._probes.clear()

    def crashed(self, death: Death) -> None:
        """The host died in the probe."""
        if death is Death.KILLED and not self._killed_once:
            self._killed_once = True  # It may have been somebody's kill: once more.
            return
        self._killed_once = False
        self._accused.append(self._probes.popleft().key)
        self._sick = self._owner.crashed_alone()
        if self._any_passed or self._sick:
            self._probes.clear()

    def verdict(self) -> Verdict[Key]:
        """Only once `next_probe` is None."""
        if self._probes:
            raise RuntimeError("there are probes to run before there is a verdict")
        guilty = self._convicted + (() if self._sick else tuple(self._accused))
        return Verdict(guilty=guilty, live_limit=self._owner.conclude(guilty), sick=self._sick)


class Suspicions(Generic[Key]):
    """What one session remembers of its engine's deaths. `live_limit` is the engine's own."""

    def __init__(self, live_limit: int):
        self._whole_limit = self._live_limit = max(1, live_limit)
        self._live_at_death: Counter[Key] = Counter()
        self._unexplained = 0
        self._kills = 0
        self._in_a_row = 0
        self._ended_well = 0

    @property
    def live_limit(self) -> int:
        """How many requests the running batch may hold."""
        return self._live_limit

    def died(self, death: Death, ages: Mapping[Key, int]) -> Investigation[Key]:
        """The host died while it worked on these; `ages` in steps, at least 1."""
        self._ended_well = 0
        self._live_at_death.update(ages.keys())
        if death is Death.KILLED:
            self._kills += 1
            if self._kills == 1:
                return Investigation(self, ())
        # Who was live at more deaths is asked first, but only a crash alone convicts.
        order = sorted(ages, key=lambda key: (-self._live_at_death[key], ages[key]))
        return Investigation(self, [self._probe(key, ages[key]) for key in order])

    def inherit(self, strikes: Mapping[Key, int]) -> Investigation[Key]:
        """What to do first with requests whose probes another worker did not live to finish."""
        guilty = [key for key, count in strikes.items() if count >= STRIKES]
        probes = [Probe(key, PROBE_STEPS) for key, count in strikes.items() if count < STRIKES]
        return Investigation(self, probes, guilty)

    def finished(self, keys: Iterable[Key]) -> None:
        """These ended, in whatever way but by the host's death."""
        for key in keys:
            self._ended_well += 1
            self._live_at_death.pop(key, None)
        if self._ended_well:
            self.ran_well()
        if self._ended_well >= RECOVERY:
            self._ended_well = self._unexplained = self._kills = 0
            self._live_limit = min(self._whole_limit, 2 * self._live_limit)

    def ran_well(self) -> None:
        self._in_a_row = 0

    def crashed_alone(self) -> bool:
        """Count it; True where nothing has run well for so long that the engine is the suspect."""
        self._in_a_row += 1
        return self._in_a_row >= SICK

    def conclude(self, guilty: Iterable[Key]) -> int:
        """The live limit from here on."""
        convicted = list(guilty)
        for key in convicted:
            self._live_at_death.pop(key, None)
        if convicted:
            self._unexplained = self._kills = 0
            self._live_limit = self._whole_limit
        else:
            self._unexplained += 1
            if self._unexplained > 1:
                self._live_limit = max(1, self._live_limit // 2)
        return self._live_limit

    def _probe(self, key: Key, age: int) -> Probe[Key]:
        steps = age + EXTRA_STEPS
        first = self._live_at_death[key] == 1
        return Probe(key, min(steps, PROBE_STEPS) if first else steps)
