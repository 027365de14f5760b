"""`traceanalyzer ingest` as a person runs it: what it prints, where, and the exit codes."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.tracegen import cpu_op, document, kernel
from traceanalyzer.store.store import writing


@pytest.fixture
def trace(tmp_path):
    """Return a small trace in the folder that commands run in."""
    path = tmp_path / "runs" / "rank2.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document([kernel("k", 0, 5), cpu_op("aten::mm", 0, 1)])))
    return path


def test_a_row_per_trace_on_stdout_and_notes_on_stderr(cli, trace):
    ran = cli("ingest", "runs", "--store", "s")
    header, _, row = ran.out.splitlines()
    ledger = ["events_read", "stored", "rejected", "repairs", "gpu_events", "seconds"]
    assert header.split() == ["file", "state", "run", "collector", "rank", "part", *ledger]
    assert row.split()[:-1] == ["runs/rank2.json", "stored", "runs", "pytorch", "2", "0", "2", "2", "0", "0", "1"]
    assert (
        ran.err == "traceanalyzer: runs/rank2.json: the rank was taken from the file name, the trace does not say it\n"
    )


def test_quiet_prints_no_notes(cli, trace):
    assert cli("ingest", "runs", "--store", "s", "--quiet").err == ""


def test_standard_input(cli, trace):
    ran = cli("ingest", "-", "--store", "s", "--rank", "4", stdin=gzip.compress(trace.read_bytes()))
    assert "stdin" in ran.out
    assert json.loads(cli("query", "s", "timeline", "--format", "json").out)[0]["rank"] == 4


def test_dry_run_says_what_would_happen_and_does_nothing(cli, trace, tmp_path):
    (trace.parent / "config.json").write_text("{}")
    ran = cli("ingest", "runs", "--store", "s", "--dry-run")
    actions = {line.split()[0]: line for line in ran.out.splitlines()[2:]}
    assert "skip" in actions["runs/config.json"]
    assert "store" in actions["runs/rank2.json"]
    assert not (tmp_path / "s").exists()


def test_patterns_and_names_with_brackets(cli, tmp_path):
    for rank in (0, 1):
        (tmp_path / f"exp-rank[{rank}].json").write_text(json.dumps(document([kernel("k", rank, 5)])))
    cli("ingest", "exp-rank[[]0].json", "--store", "a")
    cli("ingest", "exp-rank[1].json", "--store", "a", "--run", tmp_path.name)
    ranks = json.loads(cli("query", "a", "traces", "--format", "json").out)
    assert [row["rank"] for row in ranks] == [0, 1]


def test_rank_map(cli, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(document([kernel(name, 0, 5)])))
    (tmp_path / "ranks.csv").write_text("a.json,3\nb.json, 1\n")
    cli("ingest", "a.json", "b.json", "--store", "s", "--rank-map", "ranks.csv")
    rows = json.loads(cli("query", "s", "traces", "--format", "json").out)
    assert [(row["rank"], row["rank_source"]) for row in rows] == [(1, "--rank-map"), (3, "--rank-map")]


def test_runs_in_sub_folders_are_told_apart_when_ranks_clash(cli, tmp_path):
    for run in ("base", "fused"):
        for rank in (0, 1):
            path = tmp_path / "study" / run / f"rank{rank}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document([kernel(f"{run}{rank}", 0, 5)])))
    cli("ingest", "study", "--store", "s")
    rows = json.loads(cli("query", "s", "traces", "--format", "json").out)
    assert [(row["run"], row["rank"], row["part"]) for row in rows] == [
        ("base", 0, 0),
        ("base", 1, 0),
        ("fused", 0, 0),
        ("fused", 1, 0),
    ]


def test_hosts_of_one_run_stay_one_run(cli, tmp_path):
    for rank in (0, 1):
        path = tmp_path / "job" / f"host{rank}" / f"rank{rank}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document([kernel("k", rank, 5)])))
    cli("ingest", "job", "--store", "s")
    rows = json.loads(cli("query", "s", "traces", "--format", "json").out)
    assert [(row["run"], row["rank"]) for row in rows] == [("job", 0), ("job", 1)]


def sqlite_file(path):
    sqlite3.connect(path).execute("CREATE TABLE t (a)").connection.commit()


BAD = {
    "missing file": (None, 2, "no such file"),
    "empty file": (lambda p: p.write_bytes(b""), 3, "the file is empty"),
    "folder without traces": (lambda p: p.mkdir(), 4, "no traces"),
    "PNG": (lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n"), 3, "a PNG image"),
    "SQLite": (sqlite_file, 3, "a SQLite database"),
    "Git LFS pointer": (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), 3, "git lfs pull"),
    "text": (lambda p: p.write_text("hello"), 3, "no JSON"),
    "JSON without events": (lambda p: p.write_text('{"a": [1]}'), 4, "without 'traceEvents'"),
    "no events": (lambda p: p.write_text('{"traceEvents": []}'), 4, "no events"),
    "cut gzip": (
        lambda p: p.write_bytes(gzip.compress(json.dumps(document([kernel("k", 0, 1)])).encode())[:40]),
        3,
        "ends early",
    ),
    "nothing but damage": (lambda p: p.write_text('{"traceEvents": [{"ph": "X", "name"}]}'), 3, "none of its 1 events"),
    "cut in the first event": (lambda p: p.write_text('{"traceEvents": [{"ph": "X", "na'), 3, "none of its 1 events"),
    "two documents": (lambda p: p.write_text('{"traceEvents": [{"ph": "M"}]} {"a": 1}'), 3, "several documents"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_its_code(cli, tmp_path, case):
    make, code, says = BAD[case]
    path = tmp_path / "input.json"
    if make:
        make(path)
    ran = cli("ingest", "input.json", "--store", "s", code=code)
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("traceanalyzer: error: ")
    assert "input.json" in ran.err
    assert says in ran.err
    assert not (tmp_path / "s").exists()


def test_a_trace_without_gpu_events_says_what_was_there(cli, tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps(document([cpu_op("aten::mm", n, 1) for n in range(1500)])))
    ran = cli("ingest", "rank0.json", "--store", "s", code=4)
    assert "no GPU events; the trace holds 1,500 cpu_ops" in ran.err
    ran = cli("query", "s", "timeline", code=4)
    assert "no GPU events in the selected traces: they hold 1,500 cpu_ops" in ran.err


def test_helpers_and_stray_files_do_not_count_beside_good_traces(cli, trace):
    (trace.parent / "helper-rank0.json").write_text(json.dumps(document([cpu_op("aten::mm", 0, 1)])))
    (trace.parent / "config.json").write_text("{}")
    ran = cli("ingest", "runs", "--store", "s")
    assert "config.json: JSON without 'traceEvents'" in ran.err


def test_the_highest_code_met_is_returned_and_the_good_ones_stored(cli, trace):
    (trace.parent / "broken-rank1.json").write_text('{"traceEvents": [{"ph": ')
    ran = cli("ingest", "runs", "--store", "s", code=3)
    assert "rank2.json" in ran.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rank", "1", "--rank-map", "x"], "exclude each other"),
        (["--rank", "-1"], "0 or more"),
        (["--rank-map", "none.csv"], "none.csv: No such file"),
        (["--memory", "lots"], "not a size"),
        (["--memory", "1MB"], "at least 256MB"),
        (["--jobs", "0"], "jobs"),
        (["--collector", "pytorh"], "did you mean 'pytorch'"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_wrong_options_are_usage_errors(cli, trace, arguments, says):
    ran = cli("ingest", "runs", "--store", "s", *arguments, code=2)
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path, trace):
    big = trace.parent / "big.json"
    big.write_text(json.dumps(document([kernel(os.urandom(300).hex(), n, 1) for n in range(2000)])))
    done = subprocess.run(
        [sys.executable, "-m", "traceanalyzer", "ingest", str(big), "--store", str(tmp_path / "s")],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        ),
    )
    assert done.returncode == 6, done
    assert b"the disk is full" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_locked_store_is_said(cli, trace, tmp_path):
    cli("ingest", "runs", "--store", "s")
    with writing(tmp_path / "s"):
        ran = cli("ingest", "runs", "--store", "s", code=6)
    assert "another process is writing to this store" in ran.err


def test_ctrl_c_leaves_the_store_clean(cli, tmp_path, trace):
    cli("ingest", "runs", "--store", "s")
    big = tmp_path / "big.json"
    big.write_text(json.dumps(document([kernel("k" * 900, n, 1) for n in range(60_000)])))
    process = subprocess.Popen(
        [sys.executable, "-m", "traceanalyzer", "ingest", str(big), "--store", str(tmp_path / "s")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not list((tmp_path / "s").glob(".staging/*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == b"traceanalyzer: error: interrupted; what was finished is stored, nothing half-done is left behind\n"
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == [".lock", "run=runs", "store.json"]


def test_secrets_in_foreign_keys_are_neither_stored_nor_printed(cli, tmp_path):
    token = "hunter2-token-0451"
    keys = {"environment": {"AWS_SECRET": token}, "metadata": [token], "after": {"x": {"y": token}}}
    text = json.dumps({**keys, **document([kernel("k", 0, 1)]), "tail": token})
    (tmp_path / "t.json").write_text(text)
    ran = cli("ingest", "t.json", "--store", "s")
    assert token not in ran.out + ran.err
    for path in (tmp_path / "s").rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


DAMAGED = '{{"traceEvents": [{}, {{"ph":"X","cat":"kernel","name":"b","ts":9,"dur":1,"args":{{"v":NaN}}}}, {{"ph" "X"}}, {}]}}'.format(
    json.dumps(kernel("a", 0, 5)),
    json.dumps(kernel("c", 20, 5)),
)


def test_the_ledger_is_printed_and_kept(cli, tmp_path):
    (tmp_path / "rank0.json").write_text(DAMAGED)
    ran = cli("ingest", "rank0.json", "--store", "s")
    assert "1 events could not be stored (1 expecting ':' delimiter); the view rejects has them" in ran.err
    assert "repaired: 1 number that is not finite; first at byte " in ran.err
    row = json.loads(cli("query", "s", "traces", "--format", "json").out)[0]
    assert (row["events_read"], row["events_stored"], row["events_rejected"], row["repairs"]) == (4, 3, 1, 1)
    reject = json.loads(cli("query", "s", "SELECT * FROM rejects", "--format", "json").out)[0]
    assert (reject["event_id"], reject["byte_offset"]) == (2, DAMAGED.index('{"ph" "X"}'))
    assert reject["sample"] == '{"ph" "X"}'
    assert "lacks 1 damaged events" in cli("query", "s", "timeline").err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            DAMAGED,
            f"1 repairs and 1 rejected events, the first at byte {DAMAGED.index(chr(123) + chr(34) + 'ph' + chr(34) + ':' + chr(34))}",
        ),
        (json.dumps(document([kernel("a", 0, 5)]))[:-2], "the file ends early"),
    ],
)
def test_strict_fails_and_names_the_first_place(cli, tmp_path, text, says):
    (tmp_path / "t.json").write_text(text)
    ran = cli("ingest", "t.json", "--store", "s", "--strict", code=3)
    assert "--strict" in ran.err
    assert says in ran.err
    assert not (tmp_path / "s").exists()


def test_a_cut_trace_is_kept_and_every_answer_says_so(cli, tmp_path):
    text = json.dumps(document([kernel("a", 0, 5), kernel("b", 10, 5)], distributedInfo={"rank": 1}))
    (tmp_path / "t.json").write_text(text[:-60])
    assert "the file ends early, at byte" in cli("ingest", "t.json", "--store", "s").err
    for question in ("timeline", "kernel_summary", "SELECT count(*) FROM kernels"):
        ran = cli("query", "s", question)
        assert "rank 1, part 0 is incomplete: the file ends early" in ran.err
    assert json.loads(cli("query", "s", "traces", "--format", "json").out)[0]["complete"] is False


def test_secrets_in_damaged_events_are_masked(cli, tmp_path):
    bad = '{"ph":"X","args":{"AUTH_TOKEN":"hunter2hunter2","x":oops}}'
    (tmp_path / "t.json").write_text('{{"traceEvents": [{}, {}]}}'.format(json.dumps(kernel("a", 0, 5)), bad))
    cli("ingest", "t.json", "--store", "s")
    out = cli("query", "s", "SELECT * FROM rejects", "--format", "json").out
    assert "AUTH_TOKEN" in out
    assert "hunter2" not in out
    assert not [p for p in (tmp_path / "s").rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]


def test_rank_maps_that_are_wrong_are_said(cli, trace, tmp_path):
    (tmp_path / "a.csv").write_text("# ranks\nrank2.json, x\n")
    assert "line 2, 'rank2.json, x'" in cli("ingest", "runs", "--store", "s", "--rank-map", "a.csv", code=2).err
    (tmp_path / "b.json").write_text('{"rank2.json": "one"}')
    assert "'one', not a number" in cli("ingest", "runs", "--store", "s", "--rank-map", "b.json", code=2).err
    (tmp_path / "c.json").write_text('{"rank2.json": 1, "rnak3.json": 2}')
    assert "no file is named rnak3.json" in cli("ingest", "runs", "--store", "s", "--rank-map", "c.json").err


def test_standard_input_is_shown_as_such(cli, trace):
    cli("ingest", "-", "--store", "s", stdin=trace.read_bytes())
    assert json.loads(cli("query", "s", "traces", "--format", "json").out)[0]["path"] == "-"


def test_several_files_of_a_rank_with_replace_are_all_kept(cli, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document([kernel(name, 0, 5)])))
    for _ in range(2):
        cli("ingest", "a.json", "b.json", "--store", "s", "--rank", "0", "--replace")
        rows = json.loads(cli("query", "s", "SELECT name, part FROM kernels ORDER BY name", "--format", "json").out)
        assert rows == [{"name": "a", "part": 0}, {"name": "b", "part": 1}]


def test_dry_run_counts_what_would_be_replaced(cli, trace):
    cli("ingest", "runs", "--store", "s")
    line = cli("ingest", "runs", "--store", "s", "--replace", "--dry-run").out.splitlines()[-1]
    assert line.split()[-2] == "1"


def test_dry_run_knows_what_is_stored_already(cli, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(document([kernel("k", 0, 1)])))
    plan = ["ingest", "t.json", "--store", "s", "--run", "r", "--dry-run"]
    assert "  store  " in cli(*plan).out
    cli(*plan[:-1], "--rank", "1")
    assert "already stored" in cli(*plan).out
    assert "already stored" in cli(*plan, "--rank", "1").out
    assert "rank 1 -> 4" in cli(*plan, "--rank", "4").out
    assert "  store  " in cli(*plan[:5], "other", "--dry-run").out


def test_a_rank_is_set_right_by_ingesting_again(cli, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(document([kernel("a", 0, 5)])))
    cli("ingest", "t.json", "--store", "s")
    ran = cli("ingest", "t.json", "--store", "s", "--rank", "3")
    assert "rank changed" in ran.out
    rows = json.loads(cli("query", "s", "traces", "--format", "json").out)
    assert [(row["rank"], row["rank_source"]) for row in rows] == [(3, "--rank")]
    assert json.loads(cli("query", "s", "SELECT DISTINCT rank FROM kernels", "--format", "json").out) == [{"rank": 3}]
    assert "already stored" in cli("ingest", "t.json", "--store", "s", "--rank", "3").out


def test_python_calls_can_be_left_out_and_are_counted(cli, tmp_path):
    call = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    (tmp_path / "rank0.json").write_text(json.dumps(document([kernel("a", 0, 5), call, call])))
    assert "2 python_calls were left out, as asked" in cli("ingest", "rank0.json", "--store", "s", "--no-python").err
    row = json.loads(cli("query", "s", "traces", "--format", "json").out)[0]
    assert (row["events_read"], row["events_stored"], row["events_left_out"]) == (3, 1, 2)
    assert cli("query", "s", "SELECT count(*) AS n FROM python_calls", "--format", "csv").out == "n\n0\n"


def test_a_cut_trace_with_another_behind_it_is_refused(cli, tmp_path):
    text = json.dumps(document([kernel(f"k{n}", n, 1) for n in range(200)]))
    for cut in (len(text) // 2, len(text) // 3, len(text) - 10):
        (tmp_path / "two.json").write_text(text[:cut] + text)
        err = cli("ingest", "two.json", "--store", "s", code=3).err
        assert "another trace begins inside of this one" in err or "something follows the end" in err
    assert not (tmp_path / "s").exists()


def test_a_number_of_thousands_of_digits_costs_its_event(cli, tmp_path):
    events = [json.dumps(kernel(f"k{n}", n, 1)) for n in range(50)]
    events[20] = events[20].replace('"dur": 1', '"dur": 1' + "0" * 5000)
    (tmp_path / "big.json").write_text('{"traceEvents": [' + ", ".join(events) + "]}")
    cli("ingest", "big.json", "--store", "s")
    got = cli(
        "query",
        "s",
        "SELECT events_stored + events_rejected AS n, events_stored >= 49 AS ok FROM traces",
        "--format",
        "csv",
    )
    assert got.out == "n,ok\n50,true\n"


def test_bytes_behind_a_compressed_stream_are_no_loss(cli, tmp_path):
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document([kernel("k", 0, 1)])).encode()) + b"garbage")
    cli("ingest", "t.json.gz", "--store", "s")
    assert cli("query", "s", "SELECT complete FROM traces", "--format", "csv").out == "complete\ntrue\n"


def test_a_corrected_rank_takes_the_first_part(cli, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(document([kernel("k", 0, 1)])))
    cli("ingest", "t.json", "--store", "s", "--run", "r", "--rank", "0")
    cli("ingest", "t.json", "--store", "s", "--run", "r", "--rank", "1")
    assert cli("query", "s", "SELECT rank, part FROM traces", "--format", "csv").out == "rank,part\n1,0\n"


def test_a_run_name_that_no_folder_can_have_is_refused_at_once(cli, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(document([kernel("k", 0, 1)])))
    assert "too long" in cli("ingest", "t.json", "--store", "s", "--run", "x" * 400, code=2).err
