"""Named queries on timelines small enough to draw: every file tests/sql/<query>/<case>.toml is one.

A case lists events as [kind, name, start_us, dur_us, {args}], the parameters, and the expected rows as CSV. Only the
columns that the CSV names are compared. `nameless = true` leaves the key of an empty name out.
"""

from __future__ import annotations

import csv
import io
import tomllib
from pathlib import Path

import pytest

from tests.tracegen import Event, cpu_op, kernel
from traceanalyzer.engine import library
from traceanalyzer.tables import cell

CASES = sorted(Path(__file__).parent.glob("*/*.toml"))
CATEGORIES = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def drawn(kind: str, name: str, start_us: float, dur_us: float | None = None, args: dict | None = None) -> Event:
    """Return an event of a case as the profiler writes it."""
    args = dict(args or {})
    match kind:
        case "kernel" | "memcpy" | "memset":
            place = {"stream": args.pop("stream", 7), "device": args.pop("device", 0)}
            return kernel(name, start_us, dur_us, **place, args=args) | {"cat": CATEGORIES[kind]}
        case "cpu_op":
            return cpu_op(name, start_us, dur_us, **args)
        case "annotation":
            return cpu_op(name, start_us, dur_us, **args) | {"cat": "user_annotation"}
        case "python":
            return cpu_op(name, start_us, dur_us, **args) | {"cat": "python_function"}
        case "launch":
            return cpu_op(name, start_us, dur_us, **args) | {"cat": "cuda_runtime"}
        case "instant":
            return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": name, "pid": 1, "tid": 1} | {
                "ts": start_us,
                "args": args,
            }
    raise AssertionError(f"unknown kind of event: {kind}")


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_drawn_timeline_gives_the_expected_rows(store_of, path):
    case = tomllib.loads(path.read_text())
    ranks = case.get("ranks", {"": case.get("events")})
    for rank, events in ranks.items():
        made = [drawn(*event) for event in events]
        if case.get("nameless"):
            made = [{key: value for key, value in event.items() if (key, value) != ("name", "")} for event in made]
        ingested = store_of(made, rank=int(rank) if rank else None)
    got = ingested.named(path.parent.name, **{k: str(v).lower() for k, v in case.get("parameters", {}).items()})
    expected = list(csv.DictReader(io.StringIO(case["expected"].strip()), skipinitialspace=True))
    assert expected or not got
    columns = expected[0].keys() if expected else ()
    assert [{name: cell(row[name]) for name in columns} for row in got] == expected


def test_every_query_has_a_drawn_timeline():
    assert {path.parent.name for path in CASES} == set(library.load("queries"))
