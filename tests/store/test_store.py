"""The store: idempotent, all or nothing, one writer, parts and replacement."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import zstandard

from tests.conftest import ROOT
from tests.tracegen import document, ingest_events, ingest_files, kernel, rows
from traceanalyzer import schema
from traceanalyzer.engine.session import Session
from traceanalyzer.errors import InputError, MachineError, UsageError
from traceanalyzer.store.layout import escape, trace_folder
from traceanalyzer.store.store import Store, writing

A = [kernel("a", 0, 1)]
B = [kernel("b", 0, 2)]


def identities(root):
    return [(t.identity.run, t.identity.rank, t.identity.part) for t in Store(root).traces()]


def states(ingested):
    return [outcome.state for outcome in ingested.outcomes]


def test_every_table_has_a_file_with_identity_columns(store_of):
    trace = store_of(A, rank=3).outcomes[0].trace
    assert trace.folder.parts[-4:-1] == ("run=r", "collector=pytorch", "rank=3")
    for table in [*schema.TABLES, "traces"]:
        data = pq.read_table(trace.file(table), partitioning=None)
        assert data.column_names[:5] == ["run", "collector", "rank", "part", "trace_id"]
        if data.num_rows:
            assert data.slice(0, 1).select(["run", "rank", "part"]).to_pylist() == [{"run": "r", "rank": 3, "part": 0}]


def test_the_same_content_twice_changes_nothing(tmp_path):
    text = json.dumps(document(A)).encode()
    (tmp_path / "a.json").write_bytes(text)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.json.zst").write_bytes(zstandard.compress(text))
    root = tmp_path / "store"
    assert states(ingest_files([tmp_path / "a.json"], root)) == ["stored"]
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")}
    for name in ("a.json", "a.json.gz", "a.json.zst"):
        assert states(ingest_files([tmp_path / name], root)) == ["already stored"]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")} == before


def test_copies_of_one_file_are_stored_once(tmp_path):
    for name in ("a.json", "copy.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(document(A if name != "other.json" else B)))
    result = ingest_files([tmp_path], tmp_path / "store")
    assert sorted(states(result)) == ["already stored", "stored", "stored"]
    assert len(identities(result.root)) == 2


def test_another_trace_of_a_rank_is_a_further_part_and_says_so(tmp_path):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json", run="r", rank=0)
    second = ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="r", rank=0)
    assert identities(tmp_path / "s") == [("r", 0, 0), ("r", 0, 1)]
    assert any("part 1" in note for note in second.outcomes[0].notes)


def test_replace_drops_the_old_parts(tmp_path):
    for name, events in (("a", A), ("b", B)):
        ingest_events(events, tmp_path / "s", tmp_path / f"{name}.json", run="r", rank=0)
    ingest_events([kernel("d", 0, 1)], tmp_path / "s", tmp_path / "d.json", run="r", rank=1)
    ingest_events([kernel("c", 0, 3)], tmp_path / "s", tmp_path / "c.json", run="r", rank=0, replace=True)
    assert identities(tmp_path / "s") == [("r", 0, 0), ("r", 1, 0)]
    assert len(list((tmp_path / "s").rglob("manifest.json"))) == 2


def test_replacing_by_what_is_there_removes_the_other_parts(tmp_path):
    for name, events in (("a", A), ("b", B)):
        ingest_events(events, tmp_path / "s", tmp_path / f"{name}.json", run="r", rank=0)
    again = ingest_files([tmp_path / "a.json"], tmp_path / "s", run="r", rank=0, replace=True)
    assert states(again) == ["already stored"]
    session = Session(Store(tmp_path / "s"))
    assert rows(session.sql("SELECT name FROM kernels")) == [{"name": "a"}]


def test_what_was_replaced_can_come_back(tmp_path):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json", run="r", rank=0)
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="r", rank=0, replace=True)
    ingest_files([tmp_path / "a.json"], tmp_path / "s", run="r", rank=0)
    assert identities(tmp_path / "s") == [("r", 0, 0), ("r", 0, 1)]


def test_a_replaced_trace_is_hidden_even_if_its_folder_could_not_be_removed(tmp_path, monkeypatch):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json", run="r", rank=0)
    monkeypatch.setattr("traceanalyzer.store.store._remove", lambda folder: None)
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="r", rank=0, replace=True)
    assert len(list((tmp_path / "s").rglob("manifest.json"))) == 2
    assert rows(Session(Store(tmp_path / "s")).sql("SELECT name FROM kernels")) == [{"name": "b"}]


def test_a_rank_that_is_only_known_behind_the_events_of_a_compressed_file(tmp_path):
    text = json.dumps({"traceEvents": A, "distributedInfo": {"rank": 6, "world_size": 8}})
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text.encode()))
    result = ingest_files([tmp_path / "t.json.gz"], tmp_path / "s", run="r")
    assert identities(tmp_path / "s") == [("r", 6, 0)]
    assert result.sql("SELECT DISTINCT rank, part FROM kernels") == [{"rank": 6, "part": 0}]


def test_a_failing_file_does_not_spoil_the_others(tmp_path):
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph": "X", "name": "a}')
    (tmp_path / "good.json").write_text(json.dumps(document(A)))
    result = ingest_files([tmp_path / "bad.json", tmp_path / "good.json"], tmp_path / "s")
    assert states(result) == ["failed", "stored"]
    assert isinstance(result.outcomes[0].error, InputError)
    assert not list((tmp_path / "s").glob(".staging/*"))


@pytest.mark.parametrize("name", ["8 GPUs/bf16", "..", "run=2026-01-01", "ÄÖ%", "2026-01-01", "a\nb", ".hidden"])
def test_any_run_name_is_a_folder_inside_the_store(tmp_path, name):
    result = ingest_events(A, tmp_path / "s", tmp_path / "a.json", run=name)
    folder = result.outcomes[0].trace.folder
    assert folder == trace_folder(tmp_path / "s", name, "pytorch", None, folder.name)
    assert folder.resolve().is_relative_to((tmp_path / "s").resolve())
    assert "/" not in escape(name)
    assert result.sql("SELECT run FROM kernels") == [{"run": name}]


def test_a_locked_store_is_said_and_left_alone(tmp_path):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json")
    with writing(tmp_path / "s"), pytest.raises(MachineError, match="another process"), writing(tmp_path / "s"):
        pass


def test_a_store_of_another_schema_version_is_refused_by_name(tmp_path):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json")
    for version, says in ((schema.VERSION + 1, "newer"), (0, "ingest the traces again")):
        (tmp_path / "s" / "store.json").write_text(json.dumps({"schema_version": version}))
        with pytest.raises(InputError, match=says):
            Store(tmp_path / "s")


def test_a_folder_with_other_things_in_it_is_not_made_a_store(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="other files"):
        ingest_events(A, tmp_path / "s", tmp_path / "a.json")


def test_an_ingest_that_stores_nothing_leaves_no_store_behind(tmp_path):
    ingest_events([], tmp_path / "s", tmp_path / "a.json")
    assert not (tmp_path / "s").exists()


def test_leftovers_of_a_killed_ingest_are_swept(tmp_path):
    ingest_events(A, tmp_path / "s", tmp_path / "a.json", run="r")
    half = tmp_path / "s" / "run=r" / "collector=pytorch" / "rank=unknown" / "0123456789ab"
    half.mkdir()
    (half / "gpu_events.parquet").write_bytes(b"PAR1")
    (tmp_path / "s" / ".staging" / "x").mkdir(parents=True)
    assert len(identities(tmp_path / "s")) == 1
    ingest_events(B, tmp_path / "s", tmp_path / "b.json", run="r")
    assert not half.exists()
    assert not (tmp_path / "s" / ".staging").exists()


def test_kill_at_random_moments_leaves_a_store_that_answers_as_before(tmp_path):
    root, big = tmp_path / "s", tmp_path / "big.json"
    before = ingest_events(A, root, tmp_path / "a.json", run="r", rank=0).named("timeline")
    events = [kernel(f"kernel number {n % 97}", n, 0.5, args={"filler": "x" * 200}) for n in range(60_000)]
    big.write_text(json.dumps(document(events)))
    command = [
        sys.executable,
        "-m",
        "traceanalyzer",
        "ingest",
        str(big),
        "--store",
        str(root),
        "--run",
        "r",
        "--rank",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    whole = time.monotonic() - started
    with writing(root) as writer:  # take the complete one out again
        for trace in writer.others("r", "pytorch", 1):
            (trace.folder / "manifest.json").unlink()
    moments = random.Random(7)
    finished = 0
    for _ in range(10):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, whole))
        process.send_signal(signal.SIGKILL)
        process.wait()
        session = Session(Store(root))
        ranks = {trace.identity.rank for trace in session.traces}
        finished += 1 in ranks
        rank0 = rows(Session(Store(root)).sql("SELECT count(*) AS n FROM kernels WHERE rank = 0"))
        assert rank0 == [{"n": 1}]
        if 1 in ranks:  # it had got as far as its manifest: then it is there as a whole
            assert rows(session.sql("SELECT count(*) AS n FROM kernels WHERE rank = 1")) == [{"n": 60_000}]
            with writing(root) as writer:
                for trace in writer.others("r", "pytorch", 1):
                    (trace.folder / "manifest.json").unlink()
    assert finished < 10
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = ingest_files([tmp_path / "a.json"], root, run="r", rank=0)
    assert [row for row in after.named("timeline") if row["rank"] == 0] == before
    assert identities(root) == [("r", 0, 0), ("r", 1, 0)]


@pytest.mark.parametrize("change", [('"rank": null', '"rank": "x"'), ('"part": 0', '"part": null'), ("{", "[")])
def test_a_manifest_with_other_types_is_damaged(store_of, change):
    root = store_of([kernel("k", 0, 1)]).root
    path = next(root.rglob("manifest.json"))
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(InputError, match="damaged manifest"):
        Store(root).traces()
