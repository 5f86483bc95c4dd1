"""The host process and its client: life, death, and what is known after it."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from batchgen.domain.errors import HostDied, HostHung, LoadFailed
from batchgen.domain.requests import SamplingParams
from batchgen.engines.client import EngineClient, Event
from batchgen.engines.protocol import Cancelled, EngineRequest, Finished, Outputs, Progress
from batchgen.engines.spec import Rule, SimulatedSpec


@pytest.fixture
def start(tmp_path: Path):
    made: list[EngineClient] = []

    def make(**options) -> EngineClient:
        client = EngineClient(log_path=tmp_path / "host.log", **options)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def request(id_: int, text: str = "hello", **sampling) -> EngineRequest:
    return EngineRequest(
        id=id_, prompt_ids=list(text.encode()), sampling=SamplingParams(**sampling)
    )


def finished(events: list[Event]) -> list[Finished]:
    return [f for event in events if isinstance(event, Outputs) for f in event.finished]


def collect(client: EngineClient, count: int) -> dict[int, Finished]:
    got: dict[int, Finished] = {}
    while len(got) < count:
        got |= {f.id: f for f in finished(client.poll(10.0))}
    return got


def until_it_ends(client: EngineClient) -> tuple[dict[int, Finished], HostDied | HostHung]:
    got: dict[int, Finished] = {}
    while True:
        try:
            got |= {f.id: f for f in finished(client.poll(10.0))}
        except (HostDied, HostHung) as error:
            return got, error


def crash(**rule) -> SimulatedSpec:
    return SimulatedSpec(rules=[Rule(contains="poison", action="crash", **rule)], step_s=0.001)


def test_requests_go_in_and_results_come_out(start):
    client = start()
    applied = client.load(SimulatedSpec(), timeout_s=10)
    assert applied.simulated
    client.submit([request(i, max_tokens=3) for i in range(500)])
    assert client.in_flight == 500
    results = collect(client, 500)
    assert {f.generation.n_out for f in results.values()} == {3}
    assert client.in_flight == 0
    assert client.breadcrumbs().live == {}
    client.close()
    assert not psutil.pid_exists(client.pid)


def test_a_load_that_fails_says_why_in_the_engines_words(start):
    client = start()
    with pytest.raises(LoadFailed, match="max_num_seqs must be at least 1"):
        client.load(SimulatedSpec(max_num_seqs=0), timeout_s=10)


def test_a_load_that_takes_too_long_is_ended(start):
    client = start()
    with pytest.raises(HostHung, match=r"not loaded within 0\.5 s"):
        client.load(SimulatedSpec(load_s=60), timeout_s=0.5)
    assert not client.alive


def test_the_caller_is_heard_while_a_load_lasts(start):
    client = start()
    calls = []
    client.load(SimulatedSpec(load_s=1.2), timeout_s=30, while_waiting=lambda: calls.append(1))
    assert len(calls) >= 2


def test_the_caller_can_leave_a_load(start):
    client = start()

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.load(SimulatedSpec(load_s=60), timeout_s=30, while_waiting=leave)


def test_a_host_that_cannot_be_started_is_a_host_that_died(start):
    with pytest.raises(HostDied, match="cannot be started"):
        start(command=["/nonexistent/python"])


def test_a_host_that_is_no_host_is_a_host_that_died(start):
    client = start(command=[sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(HostDied) as caught:
        client.load(SimulatedSpec(), timeout_s=10)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_keeps_what_was_finished_and_names_what_was_live(start, signal_):
    client = start()
    client.load(crash(signal=int(signal_), after_tokens=10), timeout_s=10)
    client.submit([request(1, max_tokens=4), request(2, max_tokens=50), request(3, "poison")])
    got, error = until_it_ends(client)
    assert isinstance(error, HostDied)
    assert error.exit_code == -signal_
    assert set(got) == {1}
    crumbs = client.breadcrumbs()
    assert set(crumbs.live) == {2, 3}
    assert crumbs.age(3) == 11
    assert not client.alive


def test_a_request_that_kills_in_its_first_step_is_in_the_breadcrumbs(start):
    client = start()
    client.load(crash(), timeout_s=10)
    client.submit([request(1, max_tokens=4000)])
    client.submit([request(2, "poison")])
    _, error = until_it_ends(client)
    assert isinstance(error, HostDied)
    assert client.breadcrumbs().age(2) == 1


def test_requests_that_merely_waited_are_not_in_the_breadcrumbs(start):
    client = start()
    rules = [Rule(contains="poison", action="crash", after_tokens=5)]
    client.load(SimulatedSpec(rules=rules, max_num_seqs=2), timeout_s=10)
    client.submit([request(1, "poison"), *(request(i, max_tokens=100) for i in range(2, 9))])
    until_it_ends(client)
    assert set(client.breadcrumbs().live) == {1, 2}


def test_what_an_engine_raises_is_told_and_ends_the_host(start):
    client = start()
    rules = [Rule(contains="poison", action="raise", message="kernel launch failed")]
    client.load(SimulatedSpec(rules=rules), timeout_s=10)
    client.submit([request(1, "poison")])
    _, error = until_it_ends(client)
    assert isinstance(error, HostDied)
    assert error.exit_code == 2
    assert "kernel launch failed" in str(error)
    assert set(client.breadcrumbs().live) == {1}


def test_a_step_that_never_returns_is_ended_and_keeps_what_was_finished(start):
    client = start(step_timeout_s=0.5)
    rules = [Rule(contains="poison", action="hang", after_tokens=50)]
    client.load(SimulatedSpec(rules=rules, step_s=0.001), timeout_s=10)
    client.submit([request(1, max_tokens=5), request(2, "poison", max_tokens=100)])
    got, error = until_it_ends(client)
    assert isinstance(error, HostHung)
    assert set(got) == {1}
    assert set(client.breadcrumbs().live) == {2}
    assert not client.alive


def test_a_stopped_host_is_ended(start):
    client = start(step_timeout_s=0.5)
    client.load(SimulatedSpec(step_s=0.001), timeout_s=10)
    client.submit([request(1, max_tokens=4000)])
    client.poll(5.0)
    os.kill(client.pid, signal.SIGSTOP)
    _, error = until_it_ends(client)
    assert isinstance(error, HostHung)


def test_long_steps_are_no_hang_while_steps_are_made(start):
    client = start(step_timeout_s=0.6)
    client.load(SimulatedSpec(step_s=0.25), timeout_s=10)
    client.submit([request(1, max_tokens=6)])
    assert set(collect(client, 1)) == {1}


def test_an_idle_host_is_not_taken_for_a_hung_one(start):
    client = start(step_timeout_s=0.2)
    client.load(SimulatedSpec(), timeout_s=10)
    assert client.poll(0.5) == []
    client.submit([request(1, max_tokens=3)])
    assert set(collect(client, 1)) == {1}


def test_cancelled_requests_are_answered_and_yield_no_results(start):
    client = start()
    client.load(SimulatedSpec(step_s=0.001, max_num_seqs=4), timeout_s=10)
    client.submit([request(i, max_tokens=4000) for i in range(8)])
    client.cancel([0, 7, 99])
    events = client.poll(10.0)
    while not any(isinstance(event, Cancelled) for event in events):
        events += client.poll(10.0)
    (answer,) = [event for event in events if isinstance(event, Cancelled)]
    assert sorted(answer.ids) == [0, 7]
    assert client.in_flight == 6
    client.cancel(range(8))
    while client.in_flight:
        events += client.poll(10.0)
    assert finished(events) == []


def test_progress_is_reported_while_steps_are_made_and_on_request(start):
    client = start()
    client.load(SimulatedSpec(), timeout_s=10)
    client.ask_stats()
    events = client.poll(10.0)
    assert [type(event) for event in events] == [Progress]
    assert events[0].stats.steps == 0
    client.submit([request(1, max_tokens=3)])
    while not any(isinstance(e, Progress) and e.stats.steps == 3 for e in events):
        events += client.poll(10.0)


def test_more_than_a_pipe_holds_goes_through_while_nobody_reads(start):
    client = start()
    client.load(SimulatedSpec(max_model_len=100_000, max_num_seqs=8), timeout_s=10)
    client.submit([request(i, "x" * 50_000, max_tokens=4000) for i in range(300)])
    assert len(collect(client, 300)) == 300


def test_the_host_ends_with_its_parent(tmp_path):
    script = (
        "import sys, pathlib, time\n"
        "from batchgen.engines.client import EngineClient\n"
        "from batchgen.engines.spec import SimulatedSpec\n"
        "client = EngineClient(log_path=pathlib.Path(sys.argv[1]))\n"
        "client.load(SimulatedSpec(), timeout_s=10)\n"
        "print(client.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with psutil.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")], stdout=-1, text=True
    ) as parent:
        host = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        host.wait(timeout=5)


def test_the_host_outlives_the_thread_that_asked_for_it(start):
    made: list[EngineClient] = []
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    thread.join()
    (client,) = made
    client.load(SimulatedSpec(), timeout_s=10)
    client.submit([request(1, max_tokens=3)])
    assert set(collect(client, 1)) == {1}


def test_the_host_goes_before_its_supervisor_when_memory_runs_out(start):
    client = start()
    client.load(SimulatedSpec(), timeout_s=10)
    score = int(Path(f"/proc/{client.pid}/oom_score_adj").read_text())
    assert score > int(Path("/proc/self/oom_score_adj").read_text())


def test_closing_a_host_that_does_not_listen_ends_it(start):
    client = start()
    client.load(SimulatedSpec(), timeout_s=10)
    os.kill(client.pid, signal.SIGSTOP)
    started = time.monotonic()
    client.close(timeout_s=0.2)
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(client.pid)


# A host whose engine loads its model anew in its third step, for as long as its prompt says.
_REBUILDING_HOST = """
import threading
from batchgen.engines import host
from batchgen.engines.protocol import Rebuilding
from batchgen.engines.simulated.engine import SimulatedEngine

class Rebuilt(SimulatedEngine):
    steps = 0

    def submit(self, requests):
        self.long_s = float(bytes(requests[0].prompt_ids).decode())
        return super().submit(requests)

    def step(self):
        self.steps += 1
        if self.steps != 3:
            return super().step()
        raise Rebuilding([], self.rebuild)

    def rebuild(self):
        threading.Event().wait(self.long_s)
        return super().step()

class RebuildingHost(host.Host):
    def __init__(self, pipe, trail, *_):
        super().__init__(pipe, trail, lambda spec: Rebuilt())

host.Host = RebuildingHost
raise SystemExit(host.main())
"""


@pytest.fixture
def start_rebuilding(start, tmp_path):
    script = tmp_path / "rebuilding.py"
    script.write_text(_REBUILDING_HOST)
    return lambda **options: start(command=[sys.executable, str(script)], **options)


def test_an_engine_that_says_that_it_loads_anew_is_not_taken_for_a_hung_one(start_rebuilding):
    client = start_rebuilding(step_timeout_s=0.4)
    client.load(SimulatedSpec(step_s=0.001), timeout_s=30.0)
    client.submit([request(1, "1.2", max_tokens=8)])
    assert collect(client, 1)[1].generation is not None


def test_an_engine_that_loads_anew_for_longer_than_a_load_may_take_is_ended(start_rebuilding):
    client = start_rebuilding(step_timeout_s=0.1)
    client.load(SimulatedSpec(step_s=0.001), timeout_s=5.0)
    client.submit([request(1, "600", max_tokens=8)])
    _, error = until_it_ends(client)
    assert isinstance(error, HostHung)
    assert "5 s" in str(error)
