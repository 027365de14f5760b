"""rocpd databases: merged, locked, cut, with a log beside them, and without columns they should have."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rocprofv3gen import merged_database
from tests.tracegen import ingest_files

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocpd

GPU_EVENTS = 6_430 // 2


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    """Return the databases of ranks 0 and 3, one step each."""
    folder = tmp_path_factory.mktemp("rocpd")
    return [rocpd.write_database(folder, rank, 1) for rank in (0, 3)]


@pytest.fixture
def database(databases, tmp_path):
    """Return a database of its own to change."""
    return Path(shutil.copy(databases[0], tmp_path / "52000_results.db"))


def change(path, *statements):
    """Change a database as its collector would have written it."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def suffixed(path, table):
    with sqlite3.connect(path) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return next(name for name in names if name.startswith(f"{table}_0198a"))


def counts(ingested):
    return [(o.state, o.gpu_events) for o in ingested.outcomes]


def test_a_merged_database_is_a_trace_per_process(databases, tmp_path):
    merged = merged_database(tmp_path / "merged.db", databases)
    both = ingest_files([merged], tmp_path / "merged", run="r")
    alone = ingest_files(databases, tmp_path / "alone", run="r")
    assert counts(both) == [("stored", GPU_EVENTS)] * 2
    query = "SELECT rank, pid, host FROM traces ORDER BY rank"
    assert (
        both.sql(query)
        == alone.sql(query)
        == [{"rank": rank, "pid": 52_000 + rank, "host": "mi350x-node-0"} for rank in (0, 3)]
    )
    assert both.named("timeline") == alone.named("timeline")
    query = "SELECT rank, name, start_ns, dur_ns, correlation_id, stream FROM gpu_events ORDER BY rank, start_ns"
    assert both.sql(query) == alone.sql(query)
    assert [o.state for o in ingest_files([merged], tmp_path / "merged", run="r").outcomes] == ["already stored"] * 2


def test_views_alone_are_enough(databases, tmp_path):
    """Other tools keep one table per kind, and tell the processes by their guid."""
    merged = merged_database(tmp_path / "views.db", databases)
    with sqlite3.connect(merged) as connection:
        views = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
        for view in views:
            connection.execute(f"CREATE TABLE plain_{view} AS SELECT * FROM {view}")
            connection.execute(f"DROP VIEW {view}")
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '%\\_0198a%' ESCAPE '\\'"
        ).fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        for view in views:
            connection.execute(f"ALTER TABLE plain_{view} RENAME TO {view}")
    connection.close()
    found = ingest_files([merged], tmp_path / "store", run="r")
    assert counts(found) == [("stored", GPU_EVENTS)] * 2
    assert {row["rank"] for row in found.sql("SELECT DISTINCT rank FROM gpu_events")} == {0, 3}


def test_rank_and_size_come_from_the_environment_and_nothing_else(database, tmp_path):
    secret = "hf_abcdefghijklmnopqrstuv"
    environment = json.dumps({"RANK": "11", "WORLD_SIZE": "16", "HF_TOKEN": secret, "SLURM_PROCID": "4"})
    table = suffixed(database, "rocpd_info_process")
    change(database, f"""UPDATE "{table}" SET environment = '{environment}', command = 'train --api-key={secret}'""")
    found = ingest_files([database], tmp_path / "store")
    assert found.sql("SELECT rank, world_size, rank_source FROM traces") == [
        {"rank": 11, "world_size": 16, "rank_source": "environment (RANK)"}
    ]
    for path in (tmp_path / "store").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


def test_markers_have_their_texts(database, tmp_path):
    events, regions, strings = (suffixed(database, f"rocpd_{t}") for t in ("event", "region", "string"))
    guid = "0198a000-0000-7000-8000-000000000000"
    change(
        database,
        f"""INSERT INTO "{strings}" VALUES (9001, '{guid}', 'MARKER_CORE_RANGE_API'), (9002, '{guid}', 'roctxThreadRangeA')""",
        f"""INSERT INTO "{events}" VALUES (900001, '{guid}', 9001, 77, 0, 0, '', '', '{{"message": "forward"}}')""",
        f"""INSERT INTO "{regions}" VALUES (900001, '{guid}', 1, 52000, 52000, 5, 9, 9002, 900001)""",
    )
    found = ingest_files([database], tmp_path / "store")
    assert found.sql("SELECT name, side, start_ns, dur_ns FROM annotations") == [
        {"name": "forward", "side": "cpu", "start_ns": 5, "dur_ns": 4}
    ]


def test_a_missing_column_is_named(database, tmp_path):
    table = suffixed(database, "rocpd_kernel_dispatch")
    change(database, "DROP VIEW rocpd_kernel_dispatch", f'ALTER TABLE "{table}" DROP COLUMN kernel_id')
    [outcome] = ingest_files([database], tmp_path / "store").outcomes
    assert outcome.state == "failed" and f"column {table}.kernel_id is missing" in str(outcome.error)


def test_a_column_of_later_versions_may_be_missing_or_there(database, tmp_path):
    table = suffixed(database, "rocpd_kernel_dispatch")
    change(
        database,
        "DROP VIEW rocpd_kernel_dispatch",
        f'ALTER TABLE "{table}" DROP COLUMN stream_id',
        f'ALTER TABLE "{table}" ADD COLUMN graph_node_id INTEGER DEFAULT 12',
    )
    found = ingest_files([database], tmp_path / "store")
    assert counts(found) == [("stored", GPU_EVENTS)]
    query = "SELECT DISTINCT stream >= 16 AS is_queue, args ->> 'graph_node_id' AS node FROM kernels"
    assert found.sql(query) == [{"is_queue": True, "node": "12"}]


def test_text_where_a_number_should_be_is_a_defect_of_one_row(database, tmp_path):
    table = suffixed(database, "rocpd_kernel_dispatch")
    change(database, f"""UPDATE "{table}" SET start = 'soon' WHERE id = (SELECT min(id) FROM "{table}")""")
    found = ingest_files([database], tmp_path / "store")
    assert found.sql("SELECT defect, count(*) AS n FROM gpu_events GROUP BY defect ORDER BY n") == [
        {"defect": "incomplete", "n": 1},
        {"defect": None, "n": GPU_EVENTS - 1},
    ]


def test_what_is_only_in_the_log_beside_is_read(database, tmp_path):
    """A collector that was killed leaves its last rows in the write-ahead log."""
    table = suffixed(database, "rocpd_kernel_dispatch")
    writer = sqlite3.connect(database)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(f'DELETE FROM "{table}" WHERE dispatch_id > 100')
    writer.commit()
    there = tmp_path / "copied"
    there.mkdir()
    for name in ("52000_results.db", "52000_results.db-wal"):
        shutil.copy(tmp_path / name, there / name)
    writer.close()
    before = sorted(path.name for path in there.iterdir())
    found = ingest_files([there / "52000_results.db"], tmp_path / "store")
    assert found.sql("SELECT count(*) AS n FROM kernels WHERE (args ->> 'dispatch_id')::INT > 100") == [{"n": 0}]
    assert sorted(path.name for path in there.iterdir()) == before


def test_a_database_that_was_closed_is_read_without_leaving_anything(database, tmp_path):
    change(database, "PRAGMA journal_mode = WAL")
    names = {path.name for path in tmp_path.iterdir()}
    assert counts(ingest_files([database], tmp_path / "store")) == [("stored", GPU_EVENTS)]
    assert {path.name for path in tmp_path.iterdir()} == names | {"store"}


def test_a_locked_database_is_said_to_be(database, tmp_path):
    writer = sqlite3.connect(database)
    writer.execute("BEGIN EXCLUSIVE")
    [outcome] = ingest_files([database], tmp_path / "store").outcomes
    writer.close()
    assert outcome.state == "failed" and "the database is locked: a process is still writing" in str(outcome.error)


@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_cut_database_gives_what_can_be_read(database, tmp_path, kept):
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.truncate(int(size * kept))
    [outcome] = ingest_files([database], tmp_path / "store").outcomes
    if outcome.state == "failed":
        assert "damaged" in str(outcome.error) or "cannot be read" in str(outcome.error)
    else:
        assert not outcome.trace.manifest.trace["complete"]
        assert any("cannot be read on" in note for note in outcome.notes)


def test_another_database_is_named(cli, tmp_path):
    for name, table in (("a.db", "CUPTI_ACTIVITY_KIND_KERNEL"), ("b.rpd", "rocpd_barrierop"), ("c.db", "people")):
        change(tmp_path / name, f"CREATE TABLE {table} (id INTEGER)")
    assert "Nsight Systems" in cli("ingest", "a.db", "--store", "s", code=3).err
    assert "rocmProfileData" in cli("ingest", "b.rpd", "--store", "s", code=3).err
    assert "a SQLite database without a trace" in cli("ingest", "c.db", "--store", "s", code=3).err


def test_a_damaged_page_costs_its_rows_only(databases, tmp_path):
    path = Path(shutil.copy(databases[0], tmp_path / "52000_results.db"))
    data = bytearray(path.read_bytes())
    leaf = next(
        n for n in range(len(data) // 4096 // 2, len(data) // 4096) if data[n * 4096] == 0x0D
    )  # rows of a table
    page = leaf * 4096
    data[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    [outcome] = ingest_files([path], tmp_path / "store").outcomes
    assert outcome.trace and not outcome.trace.manifest.trace["complete"]
    rows = outcome.trace.manifest.rows
    assert rows["gpu_events"] > 2_500 and rows["runtime_calls"] > 2_500
    assert any("the database is damaged, and rows of" in note for note in outcome.notes)


def test_rows_without_a_process_are_kept(database, tmp_path):
    table = suffixed(database, "rocpd_kernel_dispatch")
    change(database, f"""UPDATE "{table}" SET pid = NULL WHERE dispatch_id < 100""")
    assert counts(ingest_files([database], tmp_path / "store")) == [("stored", GPU_EVENTS)]


def test_odd_values_in_small_tables(database, tmp_path):
    strings, threads, streams = (suffixed(database, f"rocpd_{t}") for t in ("string", "info_thread", "info_stream"))
    change(
        database,
        f"""UPDATE "{strings}" SET string = x'61ff' WHERE string = 'hipLaunchKernel'""",
        f"""UPDATE "{threads}" SET tid = 'main'""",
        f"""UPDATE "{streams}" SET name = 'Stream 18446744073709551615'""",
    )
    found = ingest_files([database], tmp_path / "store")
    assert counts(found) == [("stored", GPU_EVENTS)]
    assert found.sql("SELECT count(*) > 0 AS has FROM runtime_calls WHERE name LIKE 'a%'") == [{"has": True}]
