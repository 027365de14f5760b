"""`runs`: what is in a store, renamed and removed; and answers that span several runs."""

from __future__ import annotations

import json

import pytest

from tests.tracegen import ingest_events, kernel

A = [kernel("gemm", 0, 10)]
B = [kernel("gemm", 0, 20), kernel("softmax", 30, 5)]


@pytest.fixture
def store(tmp_path):
    """Return the name of a store with the runs a (ranks 0, 1 and 3) and b (rank unknown)."""
    for rank in (0, 1, 3):
        ingest_events(
            [*A, kernel(f"own {rank}", 20, 1)], tmp_path / "s", tmp_path / f"a{rank}.json", run="a", rank=rank
        )
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="b")
    return "s"


def listed(cli, store, *arguments):
    rows = json.loads(cli("runs", store, *arguments, "--format", "json").out)
    return [(row["run"], row["traces"], row["ranks"], row["gpu_events"]) for row in rows]


def test_runs_are_listed(cli, store, tmp_path):
    assert listed(cli, store) == [("a", 3, "0-1, 3", 6), ("b", 1, "unknown", 2)]
    row = json.loads(cli("runs", store, "--format", "json").out)[0]
    assert row["source_bytes"] == sum((tmp_path / f"a{rank}.json").stat().st_size for rank in (0, 1, 3))
    files = [file for file in (tmp_path / "s/run=a").rglob("*") if file.is_file()]
    assert row["stored_bytes"] == sum(file.stat().st_size for file in files)


def test_a_run_is_renamed_in_every_file(cli, store, tmp_path):
    before = cli("query", store, "kernel_summary", "--run", "a", "--format", "csv").out
    assert listed(cli, store, "--rename", "a=base line/1") == [("b", 1, "unknown", 2), ("base line/1", 3, "0-1, 3", 6)]
    after = cli("query", store, "kernel_summary", "--run", "base line/1", "--format", "csv").out
    assert after == before.replace("\na,", "\nbase line/1,")
    assert cli("query", store, "SELECT DISTINCT run FROM kernels ORDER BY run").out.split("\n")[2:] == [
        "b",
        "base line/1",
        "",
    ]
    assert sorted(path.name for path in (tmp_path / "s").glob("run=*")) == ["run=b", "run=base%20line%2F1"]
    cli("doctor", store)


def test_a_run_renamed_to_another_joins_it(cli, store, tmp_path):
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="a", rank=0)  # the content of run b
    assert listed(cli, store, "--rename", "a=c", "--rename", "b=c") == [("c", 4, "0-1, 3", 8)]


def test_a_run_is_removed(cli, store, tmp_path):
    ran = cli("runs", store, "--remove", "a")
    assert "removed run a with 3 trace(s)" in ran.err
    assert listed(cli, store) == [("b", 1, "unknown", 2)]
    assert [path.name for path in (tmp_path / "s").glob("run=*")] == ["run=b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rename", "aa=c"], "no run 'aa'; did you mean 'a'"),
        (["--rename", "a"], "write it as OLD=NEW"),
        (["--rename", "a="], "write it as OLD=NEW"),
        (["--rename", "a=a"], "must be another one"),
        (["--remove", "c"], "no run 'c'"),
        (["--rename", "a=c", "--rename", "nope=d"], "no run 'nope'"),
        (["--rename", "a=c", "--remove", "nope"], "no run 'nope'"),
        (["--rename", f"a={'x' * 300}"], "too long"),
    ],
)
def test_names_that_do_not_fit_change_nothing(cli, store, arguments, says):
    assert says in cli("runs", store, *arguments, code=2).err
    assert listed(cli, store) == [("a", 3, "0-1, 3", 6), ("b", 1, "unknown", 2)]


def test_no_store_is_made(cli, tmp_path):
    cli("runs", "none", "--remove", "a", code=2)
    assert not (tmp_path / "none").exists()


def test_an_answer_over_several_runs_says_so(cli, store):
    assert "the answer spans 2 runs (a, b); --run chooses" in cli("query", store, "timeline").err
    assert cli("query", store, "timeline", "--run", "a").err == ""


def test_what_the_other_run_holds_is_dropped_and_said(cli, store, tmp_path):
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="a", rank=7)
    ran = cli("runs", store, "--rename", "b=a")
    assert "0 trace(s) of run b are now of run a; 1 were dropped, run a holds their content already" in ran.err
    assert listed(cli, store) == [("a", 4, "0-1, 3, 7", 8)]


def test_traces_with_the_same_fingerprint_keep_apart(cli, tmp_path):
    """The trace id is made of pieces of the file; two files can differ elsewhere only."""
    events = [kernel(f"k{n:06}", n, 0.5) for n in range(60_000)]
    for name, dur in (("a", 0.25), ("b", 0.75)):
        changed = [{**event, "dur": dur} if 29_000 < n < 29_010 else event for n, event in enumerate(events)]
        ingest_events(changed, tmp_path / "s", tmp_path / f"{name}.json", run=name, rank=0)
    cli("runs", "s", "--rename", "b=a")
    cli("doctor", "s")
    got = json.loads(
        cli(
            "query", "s", "SELECT part, sum(dur_ns) AS ns FROM kernels GROUP BY ALL ORDER BY ALL", "--format", "json"
        ).out
    )
    assert [row["ns"] for row in got] == [30_000_000 - 9 * 250, 30_000_000 + 9 * 250]


def test_a_trace_that_lacks_a_file_is_named(cli, store, tmp_path):
    next((tmp_path / "s/run=b").rglob("cpu_ops.parquet")).unlink()
    err = cli("runs", store, "--rename", "b=c", code=3).err
    assert "cpu_ops is missing" in err and "run=b" in err
