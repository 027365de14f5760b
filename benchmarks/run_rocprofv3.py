"""Measures the ingest of rocprofv3's formats beside baselines in the same run; prints a Markdown table.

usage: python benchmarks/run_rocprofv3.py --source REAL.json.gz [--bytes 1e9] [--runs 3]

The inputs are made once and kept in benchmarks/data: the real trace repeated to --bytes, whose records are kernel
dispatches only; the generated sample at full scale repeated to --bytes, and to twice that, with a HIP call for every
kernel; and the sample as a rocpd database. See benchmarks/run.py for how figures are taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

from run import DATA, HERE, Command, first_number, ingest, machine

SAMPLES = HERE.parent / "sample_traces"
STEPS = 70
DATABASE_STEPS = 160


def made(name: str, *script: str) -> Path:
    """Return an input, made by a script (with the path as its last argument) when it is not there yet."""
    DATA.mkdir(exist_ok=True)
    path = DATA / name
    if not path.exists():
        print(f"making {name} ...", file=sys.stderr)
        subprocess.run([sys.executable, *script], check=True)
    return path


def generated(what: str, name: str) -> Path:
    """Return rank 0 of the sample, written by the generator's own functions."""
    code = (
        f"import sys, shutil, pathlib; sys.path.insert(0, {str(SAMPLES)!r})\n"
        f"from proxy import rocpd, rocprofv3\n"
        f"folder = pathlib.Path({str(DATA / 'generated')!r})\n"
        f"shutil.move({what}, {str(DATA / name)!r})"
    )
    return made(name, "-c", code)


def repeated(source: Path, name: str, size: int) -> Path:
    """Return a rocprofv3 JSON repeated to a size."""
    script = str(HERE / "make_rocprofv3.py")
    return made(name, script, str(source), str(DATA / name), "--bytes", str(size))


def rows_of(database: Path) -> int:
    """Return the number of records in a rocpd database."""
    with sqlite3.connect(database) as connection:
        tables = ("rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region")
        return sum(connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a real rocprofv3 JSON to repeat")
    parser.add_argument("--bytes", type=float, default=1e9, help="size of the big traces")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    size, workers, label = int(options.bytes), str(os.cpu_count() or 1), f"{options.bytes / 1e6:.0f}MB"
    sample = generated(f"rocprofv3.write(folder, 0, {STEPS}, ending='.json')", "rocprofv3-sample.json")
    calls = repeated(sample, f"rocprofv3-sample-{label}_results.json", size)
    packed = repeated(sample, f"rocprofv3-sample-{label}_results.json.gz", size)
    twice = repeated(sample, f"rocprofv3-sample-twice-{label}_results.json", 2 * size)
    kernels = repeated(options.source, f"rocprofv3-real-{label}_results.json", size)
    database = generated(f"rocpd.write_database(folder, 0, {DATABASE_STEPS})", "rocpd-sample_results.db")
    baseline = [sys.executable, str(HERE / "baselines.py")]
    units = {path: path.stat().st_size for path in (calls, twice, kernels, database)}
    units[packed] = units[calls]
    commands = {
        Command("count(*), kernels and HIP calls", [*baseline, "count", str(calls), workers], first_number): calls,
        Command("count(*), kernels only", [*baseline, "count", str(kernels), workers], first_number): kernels,
        ingest("JSON, kernels and HIP calls", calls): calls,
        ingest("the same, gzip", packed): packed,
        ingest("the same, twice the size", twice): twice,
        ingest("JSON, kernels only (real records)", kernels): kernels,
        ingest("rocpd database", database): database,
    }
    for number in range(options.runs):
        for command in commands:
            print(f"run {number + 1}: {command.name}", file=sys.stderr)
            command.run()
    shutil.rmtree(DATA / "store", ignore_errors=True)
    print(f"{label} of JSON; {machine()}; medians of {options.runs}\n")
    print("| what | size MB | work s | MB/s | wall s | peak RSS MB |")
    print("|---|---:|---:|---:|---:|---:|")
    for command, path in commands.items():
        (work, wall, peak), megabytes = command.medians(), units[path] / 1e6
        print(
            f"| {command.name} | {megabytes:,.0f} | {work:.2f} | {megabytes / work:,.0f} | {wall:.2f} | {peak:,.0f} |"
        )
        if path is database:
            rows = rows_of(database)
            print(f"\nrocpd: {rows:,} records, {rows / work:,.0f} records/s")


if __name__ == "__main__":
    main()
