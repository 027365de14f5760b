"""Measures the ingest of rocm_trace_lite's databases, and the comparison of three collectors; prints Markdown tables.

usage: python benchmarks/run_rocm_trace_lite.py [--runs 3]

The inputs are made once and kept in benchmarks/data: a database merged from eight processes with 5 million rows, and
the samples at full scale: eight ranks of three collectors. See benchmarks/run.py for how figures are taken.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

from run import DATA, HERE, TOOL, Command, first_number, ingest, machine

SAMPLES = HERE.parent / "sample_traces"
RANKS = 8
STEPS = 195


def merged() -> Path:
    """Return the merged database, written by the generator's own functions."""
    path = DATA / "rtl-5M.db"
    if not path.exists():
        print(f"making {path.name} ...", file=sys.stderr)
        code = (
            f"import sys, pathlib; sys.path.insert(0, {str(SAMPLES)!r})\n"
            f"from proxy import rocm_trace_lite as r; from proxy.collectors import RTL_FULL\n"
            f"r._database(pathlib.Path({str(path)!r}), {{n: r._rows(n, RTL_FULL, {STEPS}) for n in range({RANKS})}})"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
    return path


def three_collectors() -> Path:
    """Return a store of the samples at full scale."""
    folder, store = DATA / "collectors", DATA / "collectors-store"
    if not folder.exists():
        print(f"making {folder.name} ...", file=sys.stderr)
        subprocess.run([sys.executable, str(SAMPLES / "generate.py"), str(folder), "--scale", "full"], check=True)
    shutil.rmtree(store, ignore_errors=True)
    databases = map(str, (folder / "rocm_trace_lite_output").glob("trace_*.db"))
    sources = [str(folder / "pytorch"), str(folder / "rocprof_output"), *databases]
    subprocess.run(
        [*TOOL, "ingest", *sources, "--store", str(store), "--run", "proxy"], check=True, capture_output=True
    )
    return store


def agreement(store: Path, runs: int, name: str) -> list[Command]:
    """Measure the first comparison, which makes the derived tables, and later ones."""
    question = [*TOOL, "query", str(store), "collector_agreement", "-p", "by=run", "--format", "jsonl"]
    first, later = Command(f"{name}, first use", question), Command(name, question)
    for _ in range(runs):
        for folder in store.rglob("derived"):
            shutil.rmtree(folder)
        first.run()
        later.run()
    return [first, later]


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    DATA.mkdir(exist_ok=True)
    database = merged()
    with sqlite3.connect(database) as connection:
        [(rows,)] = connection.execute("SELECT count(*) FROM rocpd_op")
    baseline = [sys.executable, str(HERE / "baselines.py"), "sqlite", str(database)]
    commands = [Command("sqlite3, all rows as Python tuples", baseline, first_number), ingest("ingest", database)]
    for _ in range(runs):
        for command in commands:
            command.run()
    small = DATA / "samples-store"
    shutil.rmtree(small, ignore_errors=True)
    subprocess.run([*TOOL, "ingest", str(SAMPLES), "--store", str(small)], check=True, capture_output=True)
    compared = agreement(small, max(runs, 5), "collector_agreement, 11 traces of 2 steps")
    compared += agreement(three_collectors(), runs, "collector_agreement, 24 traces of 8 to 70 steps")

    print(f"{rows:,} rows, {database.stat().st_size / 1e6:,.0f} MB; {machine()}; medians of {runs}\n")
    print("| what | work s | rows/s | wall s | peak RSS MB |")
    print("|---|---:|---:|---:|---:|")
    for command in commands:
        work, wall, peak = command.medians()
        print(f"| {command.name} | {work:.2f} | {rows / work:,.0f} | {wall:.2f} | {peak:,.0f} |")
    for command in compared:
        _, wall, peak = command.medians()
        print(f"| {command.name} | | | {wall:.2f} | {peak:,.0f} |")


if __name__ == "__main__":
    main()
