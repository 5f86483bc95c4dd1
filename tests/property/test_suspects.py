"""Whatever kills the engine and whenever: the guilty are found, and nobody else is convicted."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.domain.errors import HostDied, HostHung
from batchgen.engines.suspects import (
    PROBE_STEPS,
    RECOVERY,
    SICK,
    STRIKES,
    Death,
    Probe,
    Suspicions,
    Verdict,
    death_of,
)


@dataclass
class Poison:
    """Kills the engine in the step in which it becomes so old."""

    age: int
    death: Death = Death.CRASHED


@dataclass
class Machine:
    """A session over an engine that counts steps: feeds requests, dies, investigates, goes on."""

    lengths: dict[int, int]
    poisons: dict[int, Poison]
    max_live: int
    random_deaths: dict[int, Death] = field(default_factory=dict)
    enemies: frozenset[frozenset[int]] = frozenset()
    deaths: int = 0
    steps: int = 0
    done: set[int] = field(default_factory=set)
    guilty: set[int] = field(default_factory=set)
    sick: bool = False

    def run(self) -> None:
        suspicions: Suspicions[int] = Suspicions(self.max_live)
        while not self.sick and len(self.done | self.guilty) < len(self.lengths):
            died = self._feed(suspicions)
            if died is not None:
                self.deaths += 1
                self._investigate(suspicions, *died)
            assert self.deaths < 1000

    def _feed(self, suspicions: Suspicions[int]) -> tuple[Death, dict[int, int]] | None:
        ages: dict[int, int] = {}
        waiting = [i for i in self.lengths if i not in self.done | self.guilty]
        while waiting or ages:
            while waiting and len(ages) < suspicions.live_limit:
                ages[waiting.pop(0)] = 0
            death = self._step(ages, alone=False)
            if death is not None:
                return death, dict(ages)
            ended = [i for i, age in ages.items() if age >= self.lengths[i]]
            self.done.update(ended)
            suspicions.finished(ended)
            for i in ended:
                del ages[i]
        return None

    def _step(self, ages: dict[int, int], *, alone: bool) -> Death | None:
        self.steps += 1
        for i in ages:
            ages[i] += 1
        for i, age in ages.items():
            if i in self.poisons and age == self.poisons[i].age:
                return self.poisons[i].death
        if any(enemies <= ages.keys() for enemies in self.enemies):
            return Death.CRASHED
        return None if alone else self.random_deaths.pop(self.steps, None)

    def _investigate(
        self, suspicions: Suspicions[int], death: Death, ages: dict[int, int]
    ) -> Verdict[int]:
        investigation = suspicions.died(death, ages)
        while (probe := investigation.next_probe()) is not None:
            crash = self._probe(probe)
            if crash is None:
                investigation.passed()
            else:
                self.deaths += 1
                investigation.crashed(crash)
        verdict = investigation.verdict()
        self.guilty.update(verdict.guilty)
        self.sick = verdict.sick
        return verdict

    def _probe(self, probe: Probe[int]) -> Death | None:
        ages = {probe.key: 0}
        for _ in range(min(probe.steps, self.lengths[probe.key])):
            death = self._step(ages, alone=True)
            if death is not None:
                return death
        return None


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(2, 60))
    lengths = {i: draw(st.integers(1, 40)) for i in range(count)}
    poisons = {}
    for i in draw(st.sets(st.integers(0, count - 1), max_size=3)):
        kinds = st.sampled_from([Death.CRASHED, Death.HUNG, Death.KILLED])
        poisons[i] = Poison(age=draw(st.integers(1, lengths[i])), death=draw(kinds))
    deaths = st.dictionaries(st.integers(1, 200), st.sampled_from(list(Death)), max_size=4)
    return Machine(lengths, poisons, draw(st.integers(1, 40)), draw(deaths))


@settings(max_examples=400, deadline=None)
@given(machines())
def test_the_guilty_are_convicted_and_nobody_else(machine):
    poisons, random_deaths = set(machine.poisons), len(machine.random_deaths)
    machine.run()
    assert not machine.sick
    assert machine.guilty == poisons
    assert machine.done == machine.lengths.keys() - poisons
    # Each poison: once in the batch, once alone; and once more of each if it ends by SIGKILL.
    assert machine.deaths <= 4 * len(poisons) + random_deaths


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 31), st.integers(1, 40), st.sampled_from([Death.CRASHED, Death.HUNG]))
def test_one_poison_among_32_costs_two_crashes(who, age, death):
    machine = Machine(dict.fromkeys(range(32), 40), {who: Poison(age, death)}, max_live=32)
    machine.run()
    assert machine.guilty == {who}
    assert machine.deaths == 2


def test_a_poison_that_acts_late_is_found_at_its_second_crash():
    lengths = dict.fromkeys(range(8), 3 * PROBE_STEPS)
    machine = Machine(lengths, {3: Poison(2 * PROBE_STEPS)}, max_live=8)
    machine.run()
    assert machine.guilty == {3}
    assert machine.deaths == 3


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 31), min_size=2, max_size=2), st.integers(2, 32))
def test_requests_that_crash_only_together_are_both_finished(pair, max_live):
    lengths = dict.fromkeys(range(32), 10)
    machine = Machine(lengths, {}, max_live, enemies=frozenset({frozenset(pair)}))
    machine.run()
    assert machine.guilty == set()
    assert machine.done == set(range(32))
    assert machine.deaths <= 2 + max_live.bit_length()


def test_a_first_sigkill_restarts_without_probing_and_later_ones_halve_the_batch():
    suspicions: Suspicions[int] = Suspicions(32)
    limits = []
    for _ in range(8):
        investigation = suspicions.died(Death.KILLED, {1: 5, 2: 3})
        if not limits:
            assert investigation.next_probe() is None
        while investigation.next_probe() is not None:
            investigation.passed()
        verdict = investigation.verdict()
        assert verdict.guilty == ()
        limits.append(verdict.live_limit)
    assert limits == [32, 16, 8, 4, 2, 1, 1, 1]


def test_the_batch_grows_again_when_all_goes_well():
    suspicions: Suspicions[int] = Suspicions(32)
    for _ in range(3):
        suspicions.died(Death.KILLED, {}).verdict()
    assert suspicions.live_limit == 8
    suspicions.finished(range(RECOVERY))
    assert suspicions.live_limit == 16
    suspicions.finished(range(RECOVERY))
    suspicions.finished(range(RECOVERY))
    assert suspicions.live_limit == 32


def test_a_probe_that_somebody_kills_is_run_once_more():
    suspicions: Suspicions[int] = Suspicions(32)
    investigation = suspicions.died(Death.CRASHED, {1: 5})
    investigation.crashed(Death.KILLED)
    assert investigation.next_probe() == Probe(1, 7)
    investigation.passed()
    assert investigation.verdict().guilty == ()


def test_the_youngest_is_asked_first():
    investigation = Suspicions[str](8).died(Death.CRASHED, {"old": 90, "new": 1, "mid": 4})
    asked = []
    while (probe := investigation.next_probe()) is not None:
        asked.append(probe)
        investigation.passed()
    assert asked == [Probe("new", 3), Probe("mid", 6), Probe("old", 92)]


def test_no_verdict_comes_before_the_probes():
    investigation = Suspicions[int](8).died(Death.CRASHED, {1: 1})
    with pytest.raises(RuntimeError):
        investigation.verdict()


def test_an_engine_that_crashes_on_everything_is_sick_and_the_requests_are_not_to_blame():
    lengths = dict.fromkeys(range(50), 10)
    machine = Machine(lengths, {i: Poison(1) for i in range(50)}, max_live=32)
    machine.run()
    assert machine.sick
    assert machine.guilty == set()
    assert machine.deaths == SICK + 1


def test_an_engine_that_crashes_on_everything_is_found_sick_one_by_one_too():
    machine = Machine(dict.fromkeys(range(50), 10), {i: Poison(1) for i in range(50)}, max_live=1)
    machine.run()
    assert machine.sick
    assert len(machine.guilty) < SICK


def test_requests_that_took_workers_down_are_asked_first_and_convicted_after_their_strikes():
    suspicions: Suspicions[str] = Suspicions(8)
    investigation = suspicions.inherit({"again": STRIKES, "once": 1})
    assert investigation.next_probe() == Probe("once", PROBE_STEPS)
    investigation.passed()
    assert investigation.verdict().guilty == ("again",)


def test_deaths_are_told_apart_by_how_the_process_ended():
    assert death_of(HostHung("x")) is Death.HUNG
    assert death_of(HostDied("x", exit_code=-9)) is Death.KILLED
    assert death_of(HostDied("x", exit_code=-11)) is Death.CRASHED
    assert death_of(HostDied("x", exit_code=2)) is Death.CRASHED
