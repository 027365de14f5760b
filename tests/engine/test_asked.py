"""Derived tables that only some answers need: they are made for who asks for a column of theirs, and for nobody else."""

from __future__ import annotations

import pytest

from tests.tracegen import annotation, kernel, launch, training
from traceanalyzer.engine import library
from traceanalyzer.engine.session import Session
from traceanalyzer.engine.views import Views
from traceanalyzer.store.store import Store


def test_what_no_answer_needs_is_not_made(store_of):
    found = store_of(training([0, 200]))
    session = found.session()

    def made():
        return {path.name.split("-")[0] for path in found.root.rglob("derived/*.parquet")}

    session.named(library.named_query("timeline"), {})
    session.sql("SELECT count(*), sum(dur_ns * 2) FROM gpu_events").batches()
    assert made() == {"kernel_names", "gpu_corrections"}
    found.session().sql("SELECT launch_step FROM kernels")
    assert made() == {"kernel_names", "gpu_corrections", "steps", "gpu_launches", "gpu_steps"}


def test_a_session_gets_what_it_did_not_need_before(store_of):
    session = store_of(training([0, 200])).session()
    for parameters, rows in (({}, 1), ({"by": "step"}, 2), ({}, 1)):
        result = session.named(library.named_query("timeline"), parameters)
        assert sum(len(batch) for batch in result.batches()) == rows
    assert [
        row
        for batch in session.sql("SELECT DISTINCT execution_step FROM gpu_events ORDER BY 1").batches()
        for row in batch
    ] == [
        (0,),
        (1,),
    ]


ASKING = [
    "SELECT DISTINCT ON (stream) * FROM gpu_events",
    "WITH a AS (SELECT 1 AS x) FROM gpu_events LIMIT 1",
    "SELECT NULL AS x WHERE false UNION ALL BY NAME FROM gpu_events",
    "SELECT e FROM gpu_events e",
    "SELECT unnest(e) FROM kernels e",
    "SELECT COLUMNS('.*_step') FROM gpu_events",
    'SELECT "Launch_Step" FROM gpu_events',
    "SELECT max(e'\\''), count(launch_step) AS n, max('') FROM gpu_events",
    "SELECT count(launch_step), (SELECT count(*) FROM queries.timeline) FROM gpu_events",
    "SELECT count(runtime_event_id), (SELECT count(*) FROM queries.timeline) FROM kernels",
    "SELECT (SELECT count(*) FROM steps), count(*) FROM queries.timeline",
]


@pytest.mark.parametrize("text", ASKING)
def test_sql_of_users_gets_every_column_it_asks_for(store_of, text, monkeypatch):
    events = training([0, 200])
    for number, event in enumerate(events, 1):
        event["args"]["correlation"] = number
    found = store_of(events + [launch(event["ts"] - 5, event["args"]["correlation"]) for event in events])
    got = found.sql(text)
    monkeypatch.setattr(Views, "_is_read", lambda *_, **__: True)
    monkeypatch.setattr(library.SqlFile, "unused", lambda *_: set())
    assert got == found.sql(text)
    assert any(value not in (None, 0) for row in got for value in row.values())


def test_a_users_query_as_a_view(store_of, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "last_step.sql").write_text(
        "-- last_step: the last step.\n--\n-- One row.\n--\n-- Example: x\n-- Columns:\n--   m (number): it\n"
        "SELECT max(COLUMNS('execution.*')) AS m FROM gpu_events\n"
    )
    found = store_of(training([0, 200]))
    session = Session(Store(found.root), queries=tmp_path / "mine")
    for text in (
        "SELECT m FROM queries.last_step",
        "SELECT m, (SELECT count(*) FROM queries.timeline) FROM queries.last_step",
    ):
        [rows] = session.sql(text).batches()
        assert rows[0][0] == 1


@pytest.mark.parametrize("name", sorted(library.load("queries")))
def test_no_answer_depends_on_what_was_not_made(store_of, name, monkeypatch):
    events = [*training([0, 200]), launch(0, 1), annotation("x", 0, 1), kernel("ncclDevKernel", 50, 10)]
    found = store_of(events)
    expected = found.named(name)
    monkeypatch.setattr(Views, "_is_read", lambda *_, **__: True)
    monkeypatch.setattr(library.SqlFile, "unused", lambda *_: set())
    assert found.named(name) == expected
