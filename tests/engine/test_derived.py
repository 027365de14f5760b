"""Derived tables: made once, made anew when what made them changes, and safe for several processes at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.conftest import ROOT
from tests.tracegen import kernel
from traceanalyzer.engine import library, rules
from traceanalyzer.engine.derived import DerivedTables
from traceanalyzer.engine.session import Session
from traceanalyzer.store.store import Store

EVENTS = [kernel("gemm", 0, 10), kernel("softmax", 10, 5)]
HEAD = "order,id,pattern,unless,class,category,subcategory,why\n"


def made(root):
    return sorted(root.rglob("derived/kernel_names*"))


def own_rules(tmp_path, subcategory):
    path = tmp_path / f"{subcategory}.csv"
    path.write_text(f"{HEAD}1,mine,gemm,,computation,attention,{subcategory},\n")
    return rules.load(path)


def categories(store, own=None):
    return [
        row[0]
        for row in Session(store, rules=own).sql("SELECT subcategory FROM kernels ORDER BY name").batches().__next__()
    ]


def test_a_table_is_made_once(store_of):
    ingested = store_of(EVENTS)
    assert not made(ingested.root)
    ingested.named("timeline")
    [path] = made(ingested.root)
    before = path.stat()
    ingested.named("kernel_categories")
    assert made(ingested.root) == [path]
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_query_that_needs_none_makes_none(store_of):
    ingested = store_of(EVENTS)
    ingested.named("traces")
    ingested.sql("SELECT count(*) FROM cpu_ops")
    assert not made(ingested.root)


def test_other_rules_make_another_table_and_old_ones_go_after_a_day(store_of, tmp_path):
    ingested = store_of(EVENTS)
    store = Store(ingested.root)
    assert categories(store) == ["ck_aiter_triton_flydsl", "softmax"]
    [first] = made(ingested.root)
    assert categories(store, own_rules(tmp_path, "one")) == ["one", "softmax"]
    assert len(made(ingested.root)) == 2
    os.utime(first, (time.time() - 2 * 86400,) * 2)
    assert categories(store, own_rules(tmp_path, "two")) == ["two", "softmax"]
    assert first not in made(ingested.root)
    assert len(made(ingested.root)) == 2
    assert categories(store) == ["ck_aiter_triton_flydsl", "softmax"]


def test_other_sql_makes_another_table(store_of, monkeypatch):
    ingested = store_of(EVENTS)
    traces = Store(ingested.root).traces()
    [first] = DerivedTables.of(traces, rules.built_in()).files("kernel_names", traces)
    before = library.load("derived")["kernel_names"]
    changed = replace(before, body=before.body.replace("'unclassified'", "'nobody knows'"))
    monkeypatch.setitem(library.load("derived"), "kernel_names", changed)
    [second] = DerivedTables.of(traces, rules.built_in()).files("kernel_names", traces)
    assert first != second and first.exists() and second.exists()


def test_processes_at_the_same_time_agree(store_of, tmp_path):
    root = store_of([kernel(f"gemm {n}", n * 10, 5) for n in range(2000)]).root
    command = [sys.executable, "-m", "traceanalyzer", "query", str(root), "kernel_categories", "--format", "csv"]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        for _ in range(4)
    ]
    answers = {(*process.communicate(), process.returncode) for process in running}
    assert len(answers) == 1
    assert answers.pop()[1:] == (b"", 0)
    assert [path.suffix for path in made(root)] == [".parquet"]


def test_a_store_that_cannot_be_written_still_answers(store_of, monkeypatch):
    ingested = store_of(EVENTS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever runs the tests may well be root
    session = ingested.session()
    assert session.sql("SELECT category FROM kernels ORDER BY name").batches().__next__() == [
        ("gemm_dense",),
        ("softmax",),
    ]
    assert not made(ingested.root)


def test_a_trace_that_moves_leaves_its_derived_tables_behind(store_of, cli):
    ingested = store_of(EVENTS, run="a")
    ingested.named("timeline")
    assert made(ingested.root)
    cli("runs", ingested.root, "--rename", "a=b")
    assert not made(ingested.root)
    assert [row["run"] for row in ingested.sql("SELECT DISTINCT run FROM kernel_names")] == ["b"]


@pytest.mark.parametrize("content", [b"", b"PAR1 rubbish"])
def test_a_damaged_file_is_made_anew(store_of, content):
    ingested = store_of(EVENTS)
    expected = ingested.named("kernel_categories")
    for path in ingested.root.rglob("derived/*.parquet"):
        path.write_bytes(content)
    assert ingested.named("kernel_categories") == expected


def test_a_folder_that_cannot_be_made_is_the_machines_fault(store_of, cli):
    root = store_of(EVENTS).root
    next(root.rglob("traces.parquet")).with_name("derived").write_text("no folder")
    err = cli("query", root, "timeline", code=6).err
    assert "the table kernel_names cannot be written" in err or "the table gpu_corrections cannot be written" in err
    assert err.count("\n") == 1


def test_what_a_killed_process_left_is_swept_by_the_next_ingest(store_of):
    ingested = store_of(EVENTS)
    ingested.named("timeline")
    old, new = (made(ingested.root)[0].with_name(f"x-{age}.parquet.1.tmp") for age in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 3600,) * 2)
    store_of([*EVENTS, kernel("more", 40, 1)])
    assert not old.exists() and new.exists()
