"""How fast a large input file becomes shards, and in how much memory.

    python tests/perf/ingest.py [--lines 1000000] [--repeats 3] [--json]

Writes a file of about 500 bytes a line into an object store in a temporary directory, then reads it
in processes of their own, the ways taking turns:

split    only split it into lines: the floor of what reading costs
scan     look for every fault, and cut it into shards (formats/validate.py)
ingest   the real thing: a job from `validating` to `queued`, its shards in an embedded Postgres
upload   stream the gzipped file into the store, as an upload does

Prints lines and bytes a second of wall time, lines a second of CPU time, and the process's peak
resident memory.
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from batchgen.dispatch import NoBells
from batchgen.domain.ids import JobId, Project, new_file_id
from batchgen.domain.states import JobState
from batchgen.formats.cutting import Limits
from batchgen.formats.decompress import decompressed
from batchgen.formats.jsonl import Block, blocks
from batchgen.formats.validate import Scan
from batchgen.local.postgres import EmbeddedPostgres
from batchgen.services import ingest, models, submit
from batchgen.settings import Settings
from batchgen.storage import files
from batchgen.storage.migrate import upgrade
from batchgen.storage.objects import ObjectStore
from batchgen.storage.session import Database

ENDPOINT = "/v1/chat/completions"
WORDS = (
    "order",
    "three",
    "boxes",
    "of",
    "green",
    "tea",
    "for",
    "Ada",
    "in",
    "Oslo",
    "by",
    "Friday",
)
KEY = "uploads/input"
PACKED = "uploads/input.gz"
ROOM = 1 << 62
WAYS = ("split", "scan", "ingest", "upload")
WANTED_LINES_S, WANTED_RSS_MB = 150_000, 200


def input_chunks(n_lines: int) -> Iterator[bytes]:
    """JSONL of about 500 bytes a line, in chunks of a thousand lines."""
    for start in range(0, n_lines, 1000):
        rows = []
        for i in range(start, min(start + 1000, n_lines)):
            text = " ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(70))
            body = {
                "model": "sim",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 64,
            }
            row = {"custom_id": f"request-{i}", "method": "POST", "url": ENDPOINT, "body": body}
            rows.append(json.dumps(row).encode() + b"\n")
        yield b"".join(rows)


def gzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield gzip.compress(chunk, 1)


def peak_rss_mb() -> float:
    """This process's own high-water mark; getrusage would count its parent's before the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else float("nan")


def split(store: ObjectStore) -> int:
    pieces = blocks(store.stream(KEY), max_line_bytes=Limits().max_line_bytes)
    return sum(len(piece.lines()) for piece in pieces if isinstance(piece, Block))


def scan(store: ObjectStore) -> int:
    found = Scan(lambda: store.stream(KEY), endpoint=ENDPOINT, model=None, limits=Limits())
    n = sum(plan.n_requests for plan in found)
    if found.faults:
        raise SystemExit(f"the input has faults: {found.faults[:3]}")
    return n


def ingest_job(store: ObjectStore, settings: Settings, job_id: JobId) -> int:
    database = Database(settings.database_url)
    done = ingest.run_once(database, store, NoBells(), settings, job_id)
    database.close()
    if done is None or done.state is not JobState.QUEUED:
        raise SystemExit(f"the job was not ingested: {done}")
    return done.n_requests


def upload(store: ObjectStore) -> int:
    store.put_stream(
        f"uploads/{new_file_id()}", decompressed(store.stream(PACKED, chunk=65_536), max_bytes=ROOM)
    )
    return 0


def measure(way: str, settings: Settings, job_id: str) -> dict[str, float]:
    """Runs in a process of its own."""
    store = ObjectStore.from_url(settings.store)
    ways: dict[str, Callable[[], int]] = {
        "split": lambda: split(store),
        "scan": lambda: scan(store),
        "ingest": lambda: ingest_job(store, settings, JobId(job_id)),
        "upload": lambda: upload(store),
    }
    wall, cpu = time.perf_counter(), time.process_time()
    n = ways[way]()
    return {
        "n": n,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "rss_mb": peak_rss_mb(),
    }


def in_child(way: str, settings: Settings, job_id: str = "") -> dict[str, float]:
    child = [sys.executable, __file__, "--child", way, "--job", job_id]
    child += ["--data-dir", str(settings.data_dir), "--database", settings.database_url]
    done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def new_job(database: Database, settings: Settings, size: int) -> str:
    file_id = new_file_id()
    with database.unit_of_work() as tx:
        files.insert_uploaded(
            tx,
            file_id=file_id,
            project=Project("default"),
            purpose="batch",
            filename="input.jsonl",
            size=size,
            sha256="",
            object_key=KEY,
        )
    asked = submit.Submission(project=Project("default"), input_file_id=file_id)
    return submit.submit(database, NoBells(), settings, asked).id


def run(n_lines: int, repeats: int, home: Path) -> dict[str, list[dict[str, float]]]:
    """All ways in turn, `repeats` times over."""
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with EmbeddedPostgres(home / "pg", log_path=home / "pg.log") as postgres:
        upgrade(postgres.url)
        settings = Settings(data_dir=home, database_url=postgres.url)
        store = ObjectStore.from_url(settings.store)
        stored = store.put_stream(KEY, input_chunks(n_lines))
        store.put_stream(PACKED, gzipped(store.stream(KEY)))
        database = Database(postgres.url)
        models.register(database, settings, name="sim", spec={"engine": "simulated"})
        for _ in range(repeats):
            for way in WAYS:
                job_id = new_job(database, settings, stored.size) if way == "ingest" else ""
                found = in_child(way, settings, job_id)
                if way != "upload" and found["n"] != n_lines:
                    raise SystemExit(f"{way} saw {found['n']} lines of {n_lines}")
                results[way].append(found | {"bytes": stored.size})
            for key in list(store.list("uploads")):
                if key not in (KEY, PACKED):
                    store.delete(key)
        database.close()
    return results


def summary(results: dict[str, list[dict[str, float]]], n_lines: int) -> list[dict[str, Any]]:
    rows = []
    for way, runs in results.items():
        wall = statistics.median(r["wall_s"] for r in runs)
        cpu = statistics.median(r["cpu_s"] for r in runs)
        rows.append(
            {
                "way": way,
                "lines_s": n_lines / wall,
                "mb_s": runs[0]["bytes"] / wall / 1e6,
                "lines_cpu_s": n_lines / cpu,
                "peak_rss_mb": max(r["rss_mb"] for r in runs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print rows as JSON, judge nothing")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--job", default="", help=argparse.SUPPRESS)
    parser.add_argument("--data-dir", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--database", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        settings = Settings(data_dir=asked.data_dir, database_url=asked.database)
        print(json.dumps(measure(asked.child, settings, asked.job)))
        return
    with tempfile.TemporaryDirectory(prefix="ingest-") as home:
        results = run(asked.lines, asked.repeats, Path(home))
    if asked.json:
        print(json.dumps(summary(results, asked.lines)))
        return
    size = results["scan"][0]["bytes"]
    print(f"{asked.lines:,} lines, {size / 1e6:,.0f} MB, median of {asked.repeats} runs each")
    print(f"{'':8}{'lines/s':>12}{'MB/s':>9}{'lines/CPU-s':>14}{'peak RSS MB':>13}")
    rows = {row["way"]: row for row in summary(results, asked.lines)}
    for way, row in rows.items():
        print(
            f"{way:8}{row['lines_s']:>12,.0f}{row['mb_s']:>9,.0f}{row['lines_cpu_s']:>14,.0f}"
            f"{row['peak_rss_mb']:>13,.0f}"
        )
    met = rows["ingest"]["lines_s"] >= WANTED_LINES_S and all(
        row["peak_rss_mb"] < WANTED_RSS_MB for row in rows.values()
    )
    print(
        f"wanted: ingest {WANTED_LINES_S:,} lines/s or more, every process under {WANTED_RSS_MB} "
        f"MB: {'met' if met else 'NOT met'}"
    )
    sys.exit(not met)


if __name__ == "__main__":
    main()
