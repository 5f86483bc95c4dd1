"""How long the end of a large job takes, and in how much memory.

    python tests/perf/finalize.py [--lines 1000000] [--json]

Writes a job of so many lines into a directory and an embedded Postgres, as workers would have left
it, all shards done, then finalizes it in a process of its own. Prints wall seconds, lines a second
and that process's peak resident memory, and beside it the peak for a job of a tenth of the lines.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from batchgen.dispatch import NoBells
from batchgen.domain.ids import JobId, Project, new_file_id
from batchgen.domain.jobs import ShardPlan, Usage
from batchgen.domain.outcomes import Choice, FinishReason, Generation, Timings
from batchgen.domain.requests import Endpoint, GenerationRequest, SamplingParams, TextPrompt
from batchgen.domain.states import JobEvent, JobState
from batchgen.formats.openai import timing_line
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.services import finalize, models, records, submit
from batchgen.services.records import Record
from batchgen.settings import Settings
from batchgen.storage import files, jobs, shards
from batchgen.storage.migrate import upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

WANTED_RSS_MB = 150
PROJECT = Project("default")
SHARD_LINES = 500
RUNNING = 256


def finished_job(database: Database, store: ObjectStore, settings: Settings, n: int) -> JobId:
    """A job of `n` lines whose shards are all done."""
    file_id = new_file_id()
    stored = store.put(f"uploads/{file_id}", b"{}\n")
    with database.unit_of_work() as tx:
        files.insert_uploaded(
            tx,
            file_id=file_id,
            project=PROJECT,
            purpose="batch",
            filename="input.jsonl",
            size=stored.size,
            sha256=stored.sha256,
            object_key=stored.key,
        )
    asked = submit.Submission(project=PROJECT, input_file_id=file_id, model="sim")
    job_id = submit.submit(database, NoBells(), settings, asked).id
    plans = [
        ShardPlan(seq, seq, seq + 1, first + 1, first, min(SHARD_LINES, n - first), 10)
        for seq, first in enumerate(range(0, n, SHARD_LINES))
    ]
    with database.unit_of_work() as tx:
        found = models.resolve(tx, "sim", {})
        jobs.pin(
            tx,
            job_id,
            model="sim",
            model_id=found.model.id,
            spec=found.model.spec,
            fingerprint=found.fingerprint,
            pool="default",
            device=None,
            n_total=n,
        )
        shards.insert(tx, job_id, plans)
        jobs.advance(tx, job_id, JobEvent.SHARDED)
    made = lines()
    for _ in plans:
        with database.unit_of_work() as tx:
            held = shards.claim(tx, pool="default", device="CPU", holder="w", lease_s=600)
            if held is None:
                raise SystemExit("no shard is left to claim")
            first, size = held.plan.first_index, held.plan.n_requests
            whole = [next(made) for _ in range(first, first + size)]
            key = records.object_key(job_id, held.plan.seq, held.token, 0)
            shards.finish(tx, held, records.write(store, key, whole, Usage()))
    return job_id


def lines() -> Iterator[Record]:
    """Records as of a running batch that is always full."""
    chance = random.Random(0)
    places = [0] * RUNNING
    index = 0
    while True:
        place = index % RUNNING
        n_out = chance.randint(8, 120)
        begun = places[place]
        first = begun + chance.randint(20, 60) * 1_000_000
        places[place] = last = first + n_out * chance.randint(9, 11) * 1_000_000
        request = GenerationRequest(
            f"request-{index}",
            index,
            index + 1,
            Endpoint.CHAT_COMPLETIONS,
            TextPrompt(""),
            SamplingParams(),
        )
        generation = Generation(
            (Choice((), FinishReason.STOP, ""),),
            n_in=200,
            n_cached=64,
            n_out=n_out,
            timings=Timings(t_enq=begun, t_adm=begun, t_first=first, t_last=last),
        )
        line = json.dumps({"custom_id": f"request-{index}", "response": "x" * 300}).encode()
        yield Record(index, line + b"\n", timing_line(request, generation))
        index += 1


def child(settings: Settings, job_id: str) -> dict[str, float]:
    database = Database(settings.database_url)
    store = ObjectStore.from_url(settings.store)
    begun = time.perf_counter()
    done = finalize.run_once(database, store, settings, JobId(job_id))
    wall_s = time.perf_counter() - begun
    database.close()
    if done is None or done.state is not JobState.COMPLETED:
        raise SystemExit(f"the job did not end: {done}")
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return {"wall_s": wall_s, "peak_rss_mb": int(peak[1]) / 1024 if peak else float("nan")}


def run(sizes: list[int], home: Path) -> dict[int, dict[str, float]]:
    results = {}
    with EmbeddedPostgres(home / "pg", log_path=home / "pg.log", durable=False) as postgres:
        upgrade(postgres.url)
        settings = Settings(data_dir=home, database_url=postgres.url)
        database, store = Database(postgres.url), ObjectStore.from_url(settings.store)
        models.register(database, settings, name="sim", spec={"engine": "simulated"})
        for n in sizes:
            job_id = finished_job(database, store, settings, n)
            command = [sys.executable, __file__, "--child", job_id, "--data-dir", str(home)]
            done = subprocess.run(
                [*command, "--database", postgres.url],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            results[n] = json.loads(done.stdout)
        database.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print rows as JSON, judge nothing")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--data-dir", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--database", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        settings = Settings(data_dir=asked.data_dir, database_url=asked.database)
        print(json.dumps(child(settings, asked.child)))
        return
    with tempfile.TemporaryDirectory(prefix="finalize-") as home:
        results = run([max(asked.lines // 10, 1), asked.lines], Path(home))
    if asked.json:
        print(json.dumps([{"lines": n, **row} for n, row in results.items()]))
        return
    print(f"{'lines':>12}{'seconds':>10}{'lines/s':>10}{'peak RSS MB':>13}")
    for n, row in results.items():
        speed = n / row["wall_s"]
        print(f"{n:>12,}{row['wall_s']:>10.1f}{speed:>10,.0f}{row['peak_rss_mb']:>13,.0f}")
    met = results[asked.lines]["peak_rss_mb"] < WANTED_RSS_MB
    print(f"wanted: under {WANTED_RSS_MB} MB: {'met' if met else 'NOT met'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
