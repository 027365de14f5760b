"""Measures ingest and queries on a big trace, beside baselines in the same run; prints a Markdown table.

usage: python benchmarks/run.py --source TRACE.json.gz [--bytes 1e9] [--runs 3] [--twice]

The big trace is made once (benchmarks/make_trace.py) and kept in benchmarks/data. Every figure is the median of
--runs whole processes; the order of the commands goes round, so that a machine that drifts drifts for all of them.
`work` is the time inside the process without interpreter start and imports, which is what the ratio to the bare
count(*) compares; `wall` and `peak RSS` are the whole process as the operating system accounts for it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE / "data"
STORE = DATA / "store"
TOOL = [sys.executable, "-m", "traceanalyzer"]


@dataclass(eq=False)
class Command:
    """A command and what its runs took."""

    name: str
    command: list[str]
    work: Callable[[str], float] | None = None
    """Reads the seconds of work from what the command printed."""
    fresh_store: bool = False
    walls: list[float] = field(default_factory=list)
    works: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run once and note the figures."""
        if self.fresh_store:
            shutil.rmtree(STORE, ignore_errors=True)
        started = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        self.walls.append(time.perf_counter() - started)
        if os.waitstatus_to_exitcode(status):
            sys.exit(f"{self.name} failed: {process.stderr.read() if process.stderr else ''}")
        self.peaks.append(usage.ru_maxrss / 1024 if sys.platform == "linux" else usage.ru_maxrss / 1024**2)
        if self.work:
            self.works.append(self.work(out))

    def medians(self) -> tuple[float, float, float]:
        """Return the medians of work (of the whole process where that is not told apart), wall time and peak RSS."""
        return tuple(statistics.median(values) for values in (self.works or self.walls, self.walls, self.peaks))


def first_number(out: str) -> float:
    """Return the seconds a baseline prints first."""
    return float(out.split()[0])


def ingest_seconds(out: str) -> float:
    """Return the seconds that ingest prints last in the row of the trace."""
    return float(out.splitlines()[2].split()[-1])


def ingest(name: str, path: Path) -> Command:
    """Return the command that ingests a trace into a new store."""
    return Command(name, [*TOOL, "ingest", str(path), "--store", str(STORE)], ingest_seconds, fresh_store=True)


def prepared(source: Path, size: int, ending: str, damage: float = 0.0) -> Path:
    """Return a big trace, made when it is not there yet."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{source.parent.name}-{size / 1e6:.0f}MB{'-damaged' if damage else ''}{ending}"
    if not path.exists():
        print(f"making {path.name} ...", file=sys.stderr)
        # In a process of its own: a child's peak RSS as the system counts it begins with its parent's.
        script = [sys.executable, str(HERE / "make_trace.py"), str(source), str(path)]
        subprocess.run([*script, "--bytes", str(size), "--damage", str(damage)], check=True)
    return path


def machine() -> str:
    """Return what the figures were measured on."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists() and (found := re.search(r"model name\s*: (.*)", info.read_text())):
        model = found.group(1)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("duckdb", "pyarrow", "orjson"))
    return f"{os.cpu_count()} processors ({model}), Python {platform.python_version()}, {versions}"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a real Kineto trace to repeat")
    parser.add_argument("--bytes", type=float, default=1e9, help="size of the big trace")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hta", help="Python of an environment with HTA (traceinsight, pandas below 3)")
    parser.add_argument("--twice", action="store_true", help="also ingest a trace of twice the size")
    options = parser.parse_args()
    size, workers = int(options.bytes), str(os.cpu_count() or 1)
    plain, packed = prepared(options.source, size, ".json"), prepared(options.source, size, ".json.gz")
    baseline = [sys.executable, str(HERE / "baselines.py")]
    count = Command("DuckDB count(*), same blocks and workers", [*baseline, "count", str(plain), workers], first_number)
    loads = Command("orjson.loads, collector off", [*baseline, "orjson", str(plain)], first_number)
    ours = ingest("ingest", plain)
    ours_packed = ingest("ingest, gzip", packed)
    damaged = ingest("ingest, 1 % of events damaged", prepared(options.source, size, ".json", damage=0.01))
    commands = [count, loads, damaged, ours_packed, ours]
    sizes = {command.name: size for command in commands}
    if options.hta or util.find_spec("hta"):
        script = "import sys, hta.common.trace as t; t.Trace({0: sys.argv[1]}, '.').parse_traces()"
        hta = Command("HTA parse_traces", [options.hta or sys.executable, "-c", script, str(plain)])
        commands.insert(2, hta)
        sizes[hta.name] = size
    if options.twice:
        twice = ingest("ingest, twice the size", prepared(options.source, 2 * size, ".json"))
        commands.insert(3, twice)
        sizes[twice.name] = 2 * size
    for number in range(options.runs):
        for command in commands:
            print(f"run {number + 1}: {command.name}", file=sys.stderr)
            command.run()
    events = int(subprocess.check_output([*baseline, "count", str(plain), workers], text=True).split()[1])
    store_bytes = sum(path.stat().st_size for path in STORE.rglob("*") if path.is_file())
    first = Command("query kernel_categories, first use", [*TOOL, "query", str(STORE), "kernel_categories"])
    queries = [
        Command(f"query {name}", [*TOOL, "query", str(STORE), *name.split()])
        for name in ("timeline", "timeline -p by=run", "kernel_categories", "kernel_summary", "traces")
    ]
    queries.append(Command("--help", [*TOOL, "--help"]))
    for _ in range(max(5, options.runs)):
        for folder in STORE.rglob("derived"):
            shutil.rmtree(folder)
        for command in (first, *queries):
            command.run()
    queries.insert(0, first)

    print(f"{plain.name}: {size / 1e6:,.0f} MB, {events:,} events; {machine()}; medians of {options.runs}\n")
    print("| what | work s | MB/s of JSON | events/s | of count(*) | wall s | peak RSS MB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    base_rate = size / statistics.median(count.works)
    for command in commands:
        work, wall, peak = command.medians()
        rate = sizes[command.name] / work
        per_second = events * sizes[command.name] / size / work
        print(
            f"| {command.name} | {work:.2f} | {rate / 1e6:,.0f} | {per_second:,.0f} | {rate / base_rate:.2f}"
            f" | {wall:.2f} | {peak:,.0f} |"
        )
    for command in queries:
        _, wall, peak = command.medians()
        print(f"| {command.name} | | | | | {wall:.2f} | {peak:,.0f} |")
    print(f"\nstore: {store_bytes / 1e6:.1f} MB, {100 * store_bytes / size:.1f} % of the JSON")


if __name__ == "__main__":
    main()
