"""`traceanalyzer query`, `queries` and `schema`: formats, filters, the sandbox, errors."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.tracegen import ingest_events, kernel

EVENTS = [kernel('a|b "c",\nd', 0, 4), kernel("ncclDevKernel", 2, 4, stream=9), kernel("x" * 100, 10, 1)]


@pytest.fixture
def store(tmp_path):
    """Return the name of a store in the folder that commands run in."""
    for rank in (0, 1):
        events = [*EVENTS, kernel(f"only{rank}", 20, 1)]
        ingest_events(events, tmp_path / "s", tmp_path / f"{rank}.json", run="base", rank=rank)
    return "s"


def test_every_format_holds_the_same_cells(cli, store, tmp_path):
    asked = ["query", store, "kernel_summary", "--rank", "0", "--format"]
    expected = json.loads(cli(*asked, "json").out)
    assert [row["events"] for row in expected] == [1, 1, 1, 1]
    assert [json.loads(line) for line in cli(*asked, "jsonl").out.splitlines()] == expected
    as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in expected]
    assert list(csv.DictReader(io.StringIO(cli(*asked, "csv").out, newline=""))) == as_text
    cli(*asked, "parquet", "-o", "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    table = cli(*asked, "table").out.splitlines()
    assert len(table) == 7  # the last one has the sums
    assert any("x" * 100 in line for line in table)  # whole names where no terminal limits them
    markdown = cli(*asked, "markdown").out.splitlines()
    assert len(markdown) == 7
    assert 'a\\|b "c", d' in markdown[2]


def test_output_file_has_the_bytes_of_stdout(cli, store, tmp_path):
    for form in ("table", "csv", "json", "jsonl", "markdown"):
        out = cli("query", store, "timeline", "--format", form).out
        cli("query", store, "timeline", "--format", form, "-o", "file")
        assert (tmp_path / "file").read_text() == out


def test_an_empty_result_is_valid_in_every_format(cli, store, tmp_path):
    sql = "SELECT name FROM kernels WHERE false"
    assert json.loads(cli("query", store, sql, "--format", "json").out) == []
    assert cli("query", store, sql, "--format", "jsonl").out == ""
    assert cli("query", store, sql, "--format", "csv").out == "name\n"
    cli("query", store, sql, "--format", "parquet", "-o", "e.parquet")
    assert pq.read_table(tmp_path / "e.parquet").column_names == ["name"]


def test_nested_and_huge_values_in_json(cli, store):
    sql = "SELECT [1, 2] AS l, {'a': 1.5} AS s, 2::HUGEINT ** 70 AS d, 170141183460469231731687303715884105727 AS h, NULL AS n"
    row = json.loads(cli("query", store, sql, "--format", "json").out)[0]
    assert (row["l"], row["s"], row["n"]) == ([1, 2], {"a": 1.5}, None)
    assert row["h"] == 2**127 - 1


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ([], [0, 1]),
        (["--rank", "1"], [1]),
        (["--run", "base"], [0, 1]),
        (["--collector", "pytorch", "--rank", "0"], [0]),
    ],
)
def test_filters(cli, store, options, ranks):
    rows = json.loads(cli("query", store, "timeline", "--format", "json", *options).out)
    assert [row["rank"] for row in rows] == ranks


def test_filters_hold_for_free_sql(cli, store):
    out = cli("query", store, "SELECT DISTINCT rank FROM raw.gpu_events", "--rank", "1", "--format", "csv").out
    assert out == "rank\n1\n"


def test_sql_from_a_file_and_from_stdin(cli, store, tmp_path):
    (tmp_path / "q.sql").write_text("-- a comment\nSELECT count(*) AS n FROM kernels")
    assert cli("query", store, "q.sql", "--format", "csv").out == "n\n8\n"
    assert cli("query", store, "-", "--format", "csv", stdin=b"SELECT count(*) AS n FROM kernels").out == "n\n8\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["timelin"], 2, "did you mean 'timeline'"),
        (["timeline", "--run", "bas"], 2, "did you mean 'base'"),
        (["timeline", "--rank", "7"], 2, "no rank '7'; there is 0, 1"),
        (["timeline", "--device", "3"], 2, "no device '3'; there is 0"),
        (["timeline", "--collector", "x"], 2, "no collector 'x'"),
        (["short_kernels", "-p", "treshold_us=3"], 2, "did you mean 'threshold_us'"),
        (["short_kernels", "-p", "threshold_us=long"], 2, "must be a number"),
        (["kernel_summary", "-p", "kind=kernl"], 2, "must be one of"),
        (["timeline", "-p", "nonsense"], 2, "name=value"),
        (["SELECT 1", "-p", "a=1"], 2, "named query"),
        (["timeline", "--format", "jsn"], 2, "did you mean 'json'"),
        (["missing.sql"], 2, "no such file"),
        (["SELECT nam FROM kernels"], 2, '"name"'),
        (["SELECT * FROM kernel"], 2, "did you mean 'kernels'"),
        (["short_kernels", "-p", "threshold_us=-1"], 2, "at least 0"),
        (["short_kernels", "-p", "threshold_us=nan"], 2, "at least 0"),
        (["memory_timeline", "-p", "points=1000001"], 2, "from 0 to 1000000"),
        (["memory_timeline", "-p", "points=1.5"], 2, "must be an integer"),
        (["SELECT 1 +"], 1, "Parser Error"),
        (["SELECT CAST('x' AS INT)"], 1, "x"),
    ],
)
def test_errors_are_one_line_with_the_nearest_name(cli, store, arguments, code, says):
    ran = cli("query", store, *arguments, code=code)
    assert ran.out == ""
    assert ran.err.startswith("traceanalyzer: error: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err


WRITES = [
    "COPY (SELECT 1) TO 's/x.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 's/x.csv'",
    "explain /* */ analyze copy (select 1) to 's/x.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO 's/x.csv'",
    "CREATE TABLE t AS SELECT 1",
    "ATTACH 's/x.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "PRAGMA version",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO 's/x.csv'",
    "WITH c AS (COPY (SELECT 1 AS x) TO 's/x.csv') SELECT * FROM c",
    "EXPLAIN ANALYZE WITH c AS (COPY (SELECT 1 AS x) TO 's/x.csv') SELECT * FROM c",
    "WITH c AS (cOpY/**/(SELECT 'é' AS x) TO 's/x.csv') SELECT 'éé', * FROM c",
    "EXPLAIN (FORMAT /*)SELECT 1 -- */ JSON, ANALYZE) COPY (SELECT 1) TO 's/x.csv'",
    "SELECT * FROM enable_profiling(save_location = 's/p.json')",
    "SELECT * FROM enable_logging(storage = 'file', storage_config = {'path': 's/log'})",
    "EXPORT DATABASE 's/db'",
    "DROP VIEW kernels",
    "",
    "-- nothing",
]
READS_ELSEWHERE = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('../outside.txt')",
    "SELECT * FROM read_text('s/../outside.txt')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('https://example.invalid/x.parquet')",
]


@pytest.mark.parametrize("sql", WRITES + READS_ELSEWHERE)
def test_free_sql_only_reads_the_store(cli, store, tmp_path, sql):
    (tmp_path / "outside.txt").write_text("hunter2")
    before = sorted(path for path in tmp_path.rglob("*"))
    ran = cli("query", store, sql if sql else " ", code=None)
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert "hunter2" not in ran.err
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "DESCRIBE kernels",
        "FROM kernels SELECT 1",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "SHOW TABLES",
        "EXPLAIN ANALYZE (SELECT 1)",
        "SELECT 'COPY' AS \"copy\" -- COPY",
        "SUMMARIZE kernels",
    ],
)
def test_free_sql_may_explain_and_describe(cli, store, sql):
    assert cli("query", store, sql).out


def test_external_access_is_there_when_asked_for(cli, store, tmp_path):
    (tmp_path / "names.csv").write_text("name\nncclDevKernel\n")
    sql = "SELECT count(*) AS n FROM kernels JOIN 'names.csv' USING (name)"
    assert cli("query", store, sql, "--allow-external", "--format", "csv").out == "n\n2\n"


def test_no_store_and_no_traces(cli, tmp_path):
    assert "there is no store" in cli("query", "none", "timeline", code=2).err
    (tmp_path / "folder").mkdir()
    assert "not a store" in cli("query", "folder", "timeline", code=2).err


def test_notes_say_versions_and_traces(cli, store):
    err = cli("query", store, "timeline", "--notes", "--rank", "1").err
    assert "schema version" in err
    assert err.count("rank ") == 1


def test_queries_and_schema_list_and_explain(cli):
    names = {row["query"] for row in json.loads(cli("queries", "--format", "json").out)}
    assert names >= {"traces", "timeline", "kernel_summary", "short_kernels"}
    explained = cli("queries", "short_kernels").out
    assert "-p threshold_us=10" in explained
    assert "SELECT" in explained
    columns = json.loads(cli("schema", "gpu_events", "--format", "json").out)
    start = {"name": "start_ns", "kind": "column", "unit": "ns", "default": ""}
    assert {**start, "meaning": "start on the trace's own clock"} in columns
    parameters = json.loads(cli("queries", "short_kernels", "--format", "json").out)
    assert parameters[0]["name"] == "threshold_us" and parameters[0]["kind"] == "parameter"
    assert (parameters[0]["unit"], parameters[0]["default"]) == ("number 0..", "10")
    assert "did you mean 'kernels'" in cli("schema", "kernel", code=2).err
    assert "did you mean 'timeline'" in cli("queries", "timelin", code=2).err


def test_a_reader_that_closes_early_is_no_error(cli, store, tmp_path):
    command = f'{sys.executable} -m traceanalyzer query {tmp_path / "s"} "SELECT range FROM range(1000000)" --format csv | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout == b"range\n"
    assert done.stderr == b""


def test_a_table_fits_into_a_terminal(store, tmp_path):
    command = [sys.executable, "-m", "traceanalyzer", "query", str(tmp_path / "s"), "SELECT name, dur_ns FROM kernels"]
    parent, child = pty.openpty()

    process = subprocess.Popen(command, stdout=child, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60"})
    os.close(child)
    text = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    assert process.wait() == 0
    assert text.startswith(b"\x1b[1mname")  # bold
    lines = re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("x…x" in line for line in lines)


def test_the_format_follows_the_ending_of_the_file(cli, store, tmp_path):
    cli("query", store, "SELECT 1 AS a", "-o", "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == [{"a": 1}]
    assert "there is no folder" in cli("query", store, "timeline", "-o", "none/a.csv", code=2).err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["SELECT * FROM timeline"], "timeline is a named query"),
        (["SELECT * FROM read_csv('/etc/passwd')"], "--allow-external"),
        (["PIVOT kernels ON class USING sum(dur_ns)"], "PIVOT without IN"),
    ],
)
def test_errors_say_what_to_do(cli, store, arguments, says):
    assert says in cli("query", store, *arguments, code=None).err


def test_swapped_arguments_are_noticed(cli, store):
    assert "the store comes first" in cli("query", "timeline", store, code=2).err


def test_ctrl_c_ends_a_query_at_once(store, tmp_path):
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
    process = subprocess.Popen(
        [sys.executable, "-m", "traceanalyzer", "query", str(tmp_path / "s"), endless],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b"traceanalyzer: error: interrupted; what was finished is stored, nothing half-done is left behind\n"


def test_columns_of_one_name_are_told_apart(cli, store, tmp_path):
    sql = "SELECT 1 AS a, 2 AS a, 3 AS b"
    for form in ("json", "jsonl"):
        assert '{"a":1,"a_1":2,"b":3}' in cli("query", store, sql, "--format", form).out
    cli("query", store, sql, "-o", "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").column_names == ["a", "a_1", "b"]


def test_parquet_keeps_the_types_of_the_query(cli, store, tmp_path):
    sql = (
        "SELECT CASE WHEN range > 15000 THEN range END AS a, 1.5::DECIMAL(18, 3) AS d FROM range(30000) ORDER BY range"
    )
    cli("query", store, sql, "-o", "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert (str(table.schema.field("a").type), str(table.schema.field("d").type)) == ("int64", "decimal128(18, 3)")
    assert table.num_rows == 30_000
    cli("query", store, "SELECT name, start_ns FROM kernels WHERE false", "-o", "e.parquet")
    assert [str(f.type) for f in pq.read_schema(tmp_path / "e.parquet")] == ["string", "int64"]


def test_answers_are_not_written_into_the_store(cli, store, tmp_path):
    before = (tmp_path / "s" / "store.json").read_bytes()
    assert "not written into the store" in cli("query", store, "timeline", "-o", "s/store.json", code=2).err
    assert (tmp_path / "s" / "store.json").read_bytes() == before


def test_hyphens_and_bytes_that_are_no_text(cli, store, tmp_path):
    assert "did you mean 'kernel_summary'" in cli("query", store, "kernel-summary", code=2).err
    (tmp_path / "q.sql").write_bytes(b"SELECT '\xff'")
    assert "not UTF-8" in cli("query", store, "q.sql", code=2).err


def test_a_full_standard_output_is_the_machines_fault(store, tmp_path):
    command = f"{sys.executable} -m traceanalyzer query {tmp_path / 's'} timeline > /dev/full"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, capture_output=True, env=environment)
    assert done.returncode == 6
    assert b"standard output cannot be written" in done.stderr


@pytest.mark.parametrize(
    "table",
    [
        "kernels",
        "KERNELS",
        '"kernels"',
        "main.kernels",
        "memory.main.kernels",
        'raw."gpu_events"',
        '"raw"."gpu_events"',
        "RAW.GPU_EVENTS",
        "queries.timeline",
        'QUERIES . "timeline"',
        "derived.kernel_names",
    ],
)
def test_views_are_found_under_every_spelling(cli, store, table):
    assert (
        cli("query", store, f"SELECT count(*) > 0 AS found FROM {table} -- kernels '", "--format", "csv").out
        == "found\ntrue\n"
    )


def test_names_in_texts_and_ctes_are_not_views(cli, store):
    sql = "WITH kernels AS (SELECT 'gpu_events' AS name) SELECT name FROM kernels"
    assert cli("query", store, sql, "--format", "csv").out == "name\ngpu_events\n"


def test_an_error_in_a_file_names_it(cli, store, tmp_path):
    (tmp_path / "mine.sql").write_text("SELECT 1,\n  FORM kernels")
    assert "(mine.sql, line 2, at" in cli("query", store, "mine.sql", code=2).err


def test_errors_on_the_way_are_one_line_in_every_format(cli, store):
    sql = "SELECT CASE WHEN i = 200000 THEN error('boom') ELSE 1 END AS x FROM range(300000) t(i)"
    for form in ("csv", "parquet"):
        err = cli("query", store, sql, "--format", form, "-o", "out", code=1).err
        assert "boom" in err and "internal" not in err


def test_an_unknown_category_is_named_and_an_empty_answer_explained(cli, store):
    assert "it must be one of" in cli("query", store, "kernel_summary", "-p", "category=gemm_dens", code=2).err
    assert "not recorded: no kernel" in cli("query", store, "moe_stages").err
    assert "not recorded: no kernel" in cli("query", store, "moe_stages", "--format", "parquet", "-o", "x.parquet").err


def test_what_is_no_regular_file_is_written_to_and_never_replaced(cli, store, tmp_path):
    expected = cli("query", store, "timeline", "--format", "csv").out
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    cli("query", store, "timeline", "-o", "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real.csv").read_text() == expected
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        cli("query", store, "timeline", "--format", "csv", "-o", "pipe")
        assert reader.stdout.read().decode() == expected
    assert (tmp_path / "pipe").is_fifo()
    assert "a folder" in cli("query", store, "timeline", "-o", ".", code=2).err
    null = Path(os.devnull).stat()
    cli("query", store, "timeline", "--format", "csv", "-o", os.devnull)
    assert Path(os.devnull).stat().st_ino == null.st_ino


@pytest.mark.parametrize("command", [["query", "s", "timeline"], ["queries", "timeline"], ["queries"], ["runs", "s"]])
def test_standard_output_that_cannot_be_written(store, tmp_path, command):
    tool = f"{sys.executable} -m traceanalyzer {' '.join(command)}"
    for redirection, code in ((">/dev/full", 6), (">&-", 6), ("| true; exit ${PIPESTATUS[0]}", 0)):
        done = subprocess.run(
            ["bash", "-c", f"{tool} {redirection}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == code, (redirection, done)
        assert "internal" not in done.stderr and done.stderr.count("\n") == (1 if code else 0)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(path.read_bytes()[:100]), lambda path: path.unlink()])
def test_a_damaged_store_is_said_to_be(cli, store, tmp_path, change):
    change(next((tmp_path / "s").rglob("rank=1/*/gpu_events.parquet")))
    for command in (["query", store, "timeline"], ["query", store, "SELECT count(*) FROM kernels"], ["doctor", store]):
        err = cli(*command, code=3).err
        assert "the store is damaged" in err and "rank=1" in err
        assert err.count("\n") == 1
