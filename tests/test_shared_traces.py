"""Real public traces: every event stored, and the timeline equal to a slow independent computation."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import oracle
from tests.conftest import SHARED
from tests.engine.test_timeline import COLUMNS, rows_of, values
from tests.tracegen import ingest_files
from traceanalyzer.engine import library

TRACES = sorted(path.name for path in (SHARED / "traces").glob("kineto-*"))

if not TRACES:

    def test_public_traces_are_there(shared):
        """Skips loudly where the folder is absent; one without traces is no folder of public traces."""
        assert TRACES, f"{shared} holds no traces of the PyTorch profiler"


@pytest.fixture(scope="module", params=TRACES)
def real(request, shared: Path, tmp_path_factory):
    """Return (events of the file as json reads them, the store made of it)."""
    path = shared / "traces" / request.param / "trace.json.gz"
    events, keys = oracle.load(path)
    return events, keys, ingest_files([path], tmp_path_factory.mktemp("real") / "store")


def test_every_event_is_in_one_table(real):
    events, _, ingested = real
    expected = Counter(oracle.table_of(event) for event in events)
    stored = ingested.outcomes[0].trace.manifest.rows
    assert {table: n for table, n in stored.items() if n} == dict(expected)
    union = " UNION ALL ".join(f"SELECT event_id FROM {table}" for table in stored)
    row = ingested.sql(
        f"SELECT count(DISTINCT event_id) AS n, min(event_id) AS low, max(event_id) AS high FROM ({union})"
    )
    assert row == [{"n": len(events), "low": 0, "high": len(events) - 1}]


def test_rows_per_category_are_those_of_the_file(real):
    events, _, ingested = real
    recorded = Counter(e["cat"] for e in events if e.get("ph") == "X" and "cat" in e)
    got = Counter()
    for query in (
        "SELECT CASE kind WHEN 'kernel' THEN kind ELSE 'gpu_' || kind END AS cat, count(*) AS n FROM gpu_events GROUP BY cat",
        "SELECT api AS cat, count(*) AS n FROM runtime_calls GROUP BY cat",
        "SELECT CASE side WHEN 'gpu' THEN 'gpu_' ELSE '' END || 'user_annotation' AS cat, count(*) AS n FROM annotations GROUP BY cat",
        "SELECT 'cpu_op' AS cat, count(*) AS n FROM cpu_ops",
        "SELECT 'python_function' AS cat, count(*) AS n FROM python_calls",
        "SELECT category AS cat, count(*) AS n FROM other_events WHERE phase = 'X' GROUP BY cat",
    ):
        got.update({row["cat"]: row["n"] for row in ingested.sql(query)})
    assert +got == recorded


def test_timeline_equals_the_oracle(real):
    events, _, ingested = real
    expected = values(oracle.timeline(oracle.gpu_events(events)))
    if not expected:  # a trace without GPU events has no timeline
        assert not ingested.sql("SELECT 1 FROM gpu_events")
        return
    assert len(COLUMNS) == 8
    assert rows_of(ingested) == expected


def test_kernel_summary_equals_the_oracle(real):
    events, _, ingested = real
    expected = oracle.kernel_summary(oracle.gpu_events(events))
    if not expected:
        return
    got = ingested.named("kernel_summary")
    assert [(r["name"], r["class"], r["events"], r["total_ns"], r["min_ns"], r["max_ns"]) for r in got] == [
        (e.name, e.cls, e.events, e.total_ns, e.min_ns, e.max_ns) for e in expected
    ]
    assert [(r["mean_ns"], r["median_ns"]) for r in got] == [(float(e.mean_ns), float(e.median_ns)) for e in expected]


def test_category_totals_equal_the_reference_rules(real, shared):
    """The reference's patterns, with their look-arounds, in Python's engine, summed in plain Python."""
    events, _, ingested = real
    gpu = [e for e in oracle.gpu_events(events) if e.interval]
    if not gpu:
        return
    with (shared / "reference/kernels/category_rules.csv").open(newline="") as file:
        rules = [(re.compile(row["regex_on_lowercased_name"]), row["category"]) for row in csv.DictReader(file)]
    expected: Counter[str] = Counter()
    for event in gpu:
        name = re.sub(r"\.kd$", "", event.name.lower())
        expected[next((category for pattern, category in rules if pattern.search(name)), "other")] += event.dur_ns
    got = ingested.named("kernel_categories", by="category")
    assert {row["category"]: row["total_ns"] for row in got} == dict(expected)
    assert sum(row["share"] for row in got) == pytest.approx(1)
    is_rocm = "AMD" in (ingested.sql("SELECT device_name FROM traces")[0]["device_name"] or "")
    assert not is_rocm or expected["other"] < 0.01 * expected.total()


@pytest.mark.parametrize("check", sorted(library.load("checks")))
def test_checks_hold(real, check):
    _, _, ingested = real
    assert ingested.session().violations(library.load("checks")[check]) == []


def test_memory_timeline_equals_the_file(real):
    events, _, ingested = real
    instants = sorted(
        (
            (oracle.time_ns(e["ts"]), n, e["args"])
            for n, e in enumerate(events)
            if e.get("ph") == "i" and e["name"] == "[memory]" and e["args"]["Device Type"] != 0
        ),
        key=lambda item: item[:2],
    )
    by_device: dict[int, list] = {}
    for _, _, args in instants:
        by_device.setdefault(args["Device Id"], []).append(args)
    got = ingested.named("memory_timeline", points="1")
    assert [
        (r["device"], r["allocated_bytes"], r["peak_allocated_bytes"], r["peak_reserved_bytes"], r["allocations"])
        for r in got
    ] == [
        (
            device,
            all_args[-1]["Total Allocated"],
            max(a["Total Allocated"] for a in all_args),
            max(a["Total Reserved"] for a in all_args),
            sum(a["Bytes"] > 0 for a in all_args),
        )
        for device, all_args in sorted(by_device.items())
    ]


def test_gpu_rows_equal_the_file_field_by_field(real):
    events, _, ingested = real
    expected = [
        (e.event_id, e.kind, e.name, e.device, e.stream, e.start_ns, e.dur_ns, e.correlation_id, e.cls)
        for e in oracle.gpu_events(events)
    ]
    got = ingested.sql(
        "SELECT event_id, kind, name, device, stream, start_ns, dur_ns, correlation_id, class FROM gpu_events ORDER BY event_id"
    )
    assert [tuple(row.values()) for row in got] == expected


def test_args_are_kept_whole(real):
    events, _, ingested = real
    for table in ("gpu_events", "cpu_ops", "annotations"):
        for row in ingested.sql(f"SELECT event_id, args FROM {table} ORDER BY event_id LIMIT 500"):
            recorded = json.loads(json.dumps(events[row["event_id"]].get("args"), default=float))
            assert (json.loads(row["args"]) if row["args"] else None) == recorded


def test_facts_come_from_the_top_level_keys(real):
    _, keys, ingested = real
    row = ingested.sql("SELECT rank, world_size, clock_base_ns, device_name FROM traces")[0]
    info = keys.get("distributedInfo", {})
    assert (row["rank"], row["world_size"]) == (info.get("rank"), info.get("world_size"))
    assert row["clock_base_ns"] == keys.get("baseTimeNanoseconds", 0)
    assert row["device_name"] == next((d["name"] for d in keys.get("deviceProperties", []) if d["name"]), None)


def test_examples_give_the_values_stated_beside_them(shared, tmp_path):
    folder = shared / "examples"

    def timeline_of(stem):
        path = next(folder.glob(f"{stem}-*.json"))
        return ingest_files([path], tmp_path / stem)

    overlap = timeline_of("06")  # window, busy and computation 4.0 us, no idle; both kernels there, 5.776 us in all
    assert rows_of(overlap) == {0: [4000, 4000, 0, 0, 0, 0, 4000, 0]}
    assert [r["total_ns"] for r in overlap.named("kernel_summary")] == [3776, 2000]
    annotation = timeline_of("10")
    assert rows_of(annotation) == {0: [150_000, 100_000, 100_000, 50_000, 0, 0, 150_000, 0]}
    assert [annotation.named("timeline", comm_rule="tracelens")[0][c] for c in COLUMNS] == rows_of(annotation)[0]
    names = timeline_of("09")  # 14 of 19 kernels of 10 us communicate, one is MegaMoE, the sync row is no kernel
    us = {"window_ns": 190_000, "busy_ns": 190_000, "idle_ns": 0}
    for parameters, exposed in (
        ({}, 140_000),
        ({"fused": "communication"}, 150_000),
        ({"comm_rule": "tracelens"}, 80_000),
    ):
        row = names.named("timeline", **parameters)[0]
        assert us.items() <= row.items()
        assert (row["exposed_communication_ns"], row["computation_ns"]) == (exposed, 190_000 - exposed)
    fused = names.sql("SELECT class, category FROM kernels ORDER BY start_ns LIMIT 1 OFFSET 14")
    assert fused == [{"class": "computation", "category": "mega_moe"}]
    two = timeline_of("14")  # per device: one never idle, the other with its gap filled by a copy
    assert rows_of(two) == {
        0: [50_000_000, 50_000_000, 0, 0, 0, 0, 50_000_000, 0],
        1: [500_000, 200_000, 0, 0, 300_000, 300_000, 500_000, 0],
    }
    late = timeline_of("17")
    assert rows_of(late) == {0: [10_500, 10_500, 0, 0, 0, 0, 10_500, 0]}
    row = late.sql("SELECT rank, world_size, clock_base_ns FROM traces")[0]
    assert row == {"rank": 5, "world_size": 8, "clock_base_ns": 1735689600000000000}
    assert late.sql("SELECT count(*) AS n FROM gpu_events WHERE defect = 'incomplete'") == [{"n": 2}]


def test_block_size_does_not_show_in_the_store(shared, tmp_path):
    path = shared / "traces" / "kineto-mi300-qwen" / "trace.json.gz"
    text = "SELECT * EXCLUDE (trace_id) FROM {} ORDER BY event_id"
    small = ingest_files([path], tmp_path / "small", memory=0)  # the least that is possible: small blocks
    large = ingest_files([path], tmp_path / "large", memory=2 << 30)
    for table in small.outcomes[0].trace.manifest.rows:
        assert small.sql(text.format(table)) == large.sql(text.format(table)), table
