"""The other named queries and views, on small drawn cases."""

from __future__ import annotations

import pytest

from tests.tracegen import cpu_op, kernel, memcpy, rows
from traceanalyzer.engine import library

EVENTS = [
    kernel("a", 0, 4),
    kernel("a", 10, 8),
    kernel("a", 20, 30),
    kernel("b", 60, 12),
    memcpy(80, 6),
    kernel("broken", 90, -1),
]


def test_kernel_summary_counts_every_sound_event(store_of):
    got = store_of(EVENTS).named("kernel_summary")
    assert [(r["name"], r["class"], r["events"], r["total_ns"], r["min_ns"], r["max_ns"]) for r in got] == [
        ("a", "computation", 3, 42000, 4000, 30000),
        ("b", "computation", 1, 12000, 12000, 12000),
        ("Memcpy HtoD (Host -> Device)", "memcpy", 1, 6000, 6000, 6000),
    ]
    assert [(r["mean_ns"], r["median_ns"], r["share"]) for r in got] == [
        (14000.0, 8000.0, 0.7),
        (12000.0, 12000.0, 0.2),
        (6000.0, 6000.0, 0.1),
    ]


def test_kernel_summary_of_one_kind(store_of):
    got = store_of(EVENTS).named("kernel_summary", kind="memcpy")
    assert [(r["name"], r["share"]) for r in got] == [("Memcpy HtoD (Host -> Device)", 1.0)]


def test_short_kernels_are_strictly_shorter_and_no_copies(store_of):
    got = store_of(EVENTS).named("short_kernels", threshold_us="8")
    assert [(r["name"], r["events"], r["total_ns"], r["all_events"], r["share"]) for r in got] == [
        ("a", 1, 4000, 3, 4 / 54)
    ]
    assert [r["name"] for r in store_of(EVENTS).named("short_kernels")] == ["a"]


def test_traces_says_what_was_read(store_of):
    row = store_of(EVENTS, keys={"distributedInfo": {"rank": 2, "world_size": 8}}).named("traces")[0]
    assert (row["rank"], row["rank_source"], row["world_size"], row["complete"]) == (2, "distributedInfo", 8, True)
    assert (row["events_read"], row["events_stored"], row["events_rejected"]) == (6, 6, 0)


def test_grids_recorded_in_work_items_are_given_in_blocks(store_of):
    def launch(name, correlation):
        args = {"correlation": correlation}
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 1, "args": args}

    shape = {"grid": [501760, 1, 1], "block": [256, 1, 1]}
    events = [
        launch("hipExtModuleLaunchKernel", 5),
        launch("hipLaunchKernel", 6),
        kernel("work items", 1, 1, args={"correlation": 5, **shape}),
        kernel("blocks", 2, 1, args={"correlation": 6, **shape}),
    ]
    got = store_of(events).sql("SELECT name, grid_x, block_x FROM kernels ORDER BY start_ns")
    assert got == [
        {"name": "work items", "grid_x": 1960, "block_x": 256},
        {"name": "blocks", "grid_x": 501760, "block_x": 256},
    ]


def test_grid_and_block_in_each_others_place_are_swapped_back(store_of):
    events = [kernel("k", 0, 1, args={"grid": [256, 1, 1], "block": [65536, 2, 1]})]
    assert store_of(events).sql("SELECT grid_x, grid_y, block_x FROM kernels") == [
        {"grid_x": 256, "grid_y": 2, "block_x": 256}
    ]


def test_views_give_numbers_for_pids_and_keep_texts(store_of):
    span = {"ph": "X", "cat": "Trace", "name": "t", "pid": "Spans", "tid": 4, "ts": 0, "dur": 1}
    ingested = store_of([*EVENTS, span, cpu_op("aten::mm", 0, 1)])
    assert ingested.sql("SELECT pid, tid, pid_text, tid_text FROM other_events") == [
        {"pid": None, "tid": 4, "pid_text": "Spans", "tid_text": None}
    ]
    assert ingested.sql("SELECT pid, tid, pid_text, end_ns FROM cpu_ops") == [
        {"pid": 100, "tid": 100, "pid_text": None, "end_ns": 1000}
    ]


@pytest.mark.parametrize("name", sorted(library.load("views")))
def test_the_documented_columns_of_a_view_are_its_columns(store_of, name):
    view = library.load("views")[name]
    assert list(store_of(EVENTS).session().columns(name)) == [column.name for column in view.columns]
    assert view.description


@pytest.mark.parametrize("name", sorted(library.load("queries")))
def test_the_documented_columns_of_a_query_are_its_columns(store_of, name):
    query = library.load("queries")[name]
    result = store_of(EVENTS).session().named(query, {})
    assert result.columns == [column.name for column in query.columns]
    assert query.example.startswith("traceanalyzer query")
    assert {"run", "collector", "rank", "part"} <= set(result.columns)
    assert "ORDER BY" in query.body
    for column in query.columns:
        if column.name.endswith("_ns"):
            assert column.unit == "ns", column


def test_device_filter_keeps_only_that_device(store_of):
    ingested = store_of([kernel("a", 0, 1, device=0), kernel("b", 0, 2, device=1)])
    query = library.named_query("timeline")
    got = rows(ingested.session(devices=(1,)).named(query, {}))
    assert [(row["device"], row["window_ns"]) for row in got] == [(1, 2000)]
