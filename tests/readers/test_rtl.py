"""rocm_trace_lite: databases of a process and merged ones, their exports, and what they cannot say."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rocprofv3gen import dispatch, process, text_of
from tests.tracegen import ingest_files
from traceanalyzer.readers.rtl import geometry

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocm_trace_lite
from proxy.collectors import RTL_FULL, RTL_LITE, recorded

SAMPLES = ROOT / "sample_traces"
TRUTH = json.loads((SAMPLES / "truth.json").read_text())["collectors"]
TIMELINE = ("window_ns", "computation_ns", "memcpy_ns", "exposed_memcpy_ns", "busy_ns", "idle_ns")


def database(path, ops, *, metadata=(("pid", "77"),), api=(), columns="", **more):
    """Write a database with operations (gpu, queue, signal, start, end, name, kind)."""
    with sqlite3.connect(path) as connection:
        connection.executescript(rocm_trace_lite._TABLES.replace(", roctxId INTEGER DEFAULT 0", columns))
        strings: dict[str, int] = {}

        def key(text):
            if text not in strings:
                strings[text] = len(strings) + 1
                connection.execute("INSERT INTO rocpd_string VALUES (?, ?)", (strings[text], text))
            return strings[text]

        for gpu, queue, signal, start, end, name, kind in ops:
            connection.execute(
                "INSERT INTO rocpd_op (gpuId, queueId, completionSignal, start, end, description_id, opType_id)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (gpu, queue, signal, start, end, key(name), key(kind)),
            )
        for pid, tid, start, end, name, args in api:
            row = (pid, tid, start, end, key(name), key(args))
            connection.execute(
                "INSERT INTO rocpd_api (pid, tid, start, end, apiName_id, args_id) VALUES (?,?,?,?,?,?)", row
            )
        connection.executemany("INSERT INTO rocpd_metadata (tag, value) VALUES (?, ?)", metadata)
    connection.close()
    return path


def op(name, start, end, gpu=0, queue=4096, signal="hwq=0x7f wg=256,1,1 grid=1000,2,1", kind="KernelExecution"):
    return (gpu, queue, signal, start, end, name, kind)


def marker(name, start, end):
    return (-1, 0, None, start, end, name, "UserMarker")


@pytest.mark.parametrize("ending", ["db", "json"])
def test_the_example_gives_its_values(shared, tmp_path, ending):
    found = ingest_files([shared / f"examples/19-rtl-markers-and-busy.{ending}"], tmp_path / "store")
    rows = {row["device"]: row for row in found.named("timeline")}
    assert (rows[0]["busy_ns"], rows[0]["window_ns"], rows[0]["idle_ns"]) == (1_500, 1_500, 0)
    assert (rows[1]["communication_ns"], rows[1]["exposed_communication_ns"]) == (3_000, 3_000)
    [totals] = found.sql("SELECT count(*) AS n, sum(dur_ns)::BIGINT AS ns FROM kernels WHERE device = 0")
    assert totals == {"n": 2, "ns": 2_000}
    assert found.sql("SELECT name, side, dur_ns FROM annotations") == [
        {"name": "forward", "side": "cpu", "dur_ns": 4_100}
    ]
    names = [row["name"] for row in found.sql("SELECT name FROM kernels ORDER BY name")]
    assert names == ["Cijk_Ailk_Bljk_HHS_BH_MT128x128x128", "ncclDevKernel_Generic", "rms_norm_kernel"]
    sizes = found.sql("SELECT grid_x, block_x FROM kernels ORDER BY name")
    assert [(row["grid_x"], row["block_x"]) for row in sizes] == [(256, 256), (8, 512), (4, 256)]
    assert found.sql("SELECT rank FROM traces") == [{"rank": None}]


# -- the sample --------------------------------------------------------------------------------------------------


def of_rank(found, rank):
    [row] = [row for row in found.named("timeline") if row["rank"] == rank]
    return {name: row[name] for name in TIMELINE}


def test_the_merged_sample_gives_the_truth(tmp_path):
    found = ingest_files([SAMPLES / "rocm_trace_lite_output/trace.db"], tmp_path / "store")
    truth = TRUTH["rocm_trace_lite, lite"]
    assert found.sql("SELECT rank, pid, rank_source FROM traces ORDER BY rank") == [
        {"rank": rank, "pid": 41_000 + rank, "rank_source": "guess: index of the only GPU it used"} for rank in (0, 5)
    ]
    assert of_rank(found, 0) == {name: truth["timeline"][name] for name in TIMELINE}
    assert found.sql("SELECT count(*) AS n, sum(dur_ns)::BIGINT AS ns FROM kernels WHERE rank = 0") == [
        {"n": truth["work"], "ns": truth["total_ns"]}
    ]
    markers = found.sql("SELECT rank, name FROM annotations ORDER BY rank, start_ns")
    assert [(row["rank"], row["name"]) for row in markers] == [
        (rank, f"iteration {step}") for rank in (0, 5) for step in (0, 1)
    ]
    assert [
        o.state for o in ingest_files([SAMPLES / "rocm_trace_lite_output/trace.db"], tmp_path / "store").outcomes
    ] == ["already stored"] * 2


@pytest.mark.parametrize(("collector", "name"), [(RTL_LITE, "lite"), (RTL_FULL, "full")])
def test_databases_of_each_process_agree_with_the_merged_one(tmp_path, collector, name):
    for rank in (0, 1, 2):
        rocm_trace_lite.write(tmp_path / "each", rank, collector, 2)
    rocm_trace_lite.write_merged(tmp_path / "all", [0, 1, 2], collector, 2)
    each, merged = (ingest_files([tmp_path / n], tmp_path / f"store {n}", run="r") for n in ("each", "all"))
    query = "SELECT rank, name, device, start_ns, dur_ns, grid_x, block_x FROM kernels ORDER BY ALL"
    assert each.sql(query) == merged.sql(query)
    expected = sorted((rocm_trace_lite.short_name(w.name), w.dur_ns) for w in recorded(1, collector, 2))
    got = each.sql("SELECT name, dur_ns FROM kernels WHERE rank = 1")
    assert sorted((row["name"], row["dur_ns"]) for row in got) == expected
    truth = TRUTH[f"rocm_trace_lite, {name}"]["timeline"]
    assert of_rank(each, 0) == of_rank(merged, 0) == {name: truth[name] for name in TIMELINE}


def test_the_export_agrees_with_its_database(tmp_path):
    """It holds all ranks as one, and its time starts anew."""
    base = rocm_trace_lite.write_merged(tmp_path / "all", [0, 1], RTL_FULL, 1)
    (tmp_path / "alone").mkdir()
    shutil.copy(base[1], tmp_path / "alone")
    export = ingest_files([tmp_path / "alone"], tmp_path / "store alone")
    whole = ingest_files([tmp_path / "all"], tmp_path / "store all")
    assert sorted(o.state for o in whole.outcomes) == ["skipped", "stored", "stored"]
    query = (
        "SELECT device, name, start_ns - (SELECT min(start_ns) FROM {all}) AS at_ns, dur_ns, grid_x, block_x, class"
        " FROM kernels ORDER BY ALL"
    )
    operations = "(SELECT start_ns FROM gpu_events UNION ALL SELECT start_ns FROM annotations)"
    assert export.sql(query.replace("{all}", operations)) == whole.sql(query.replace("{all}", operations))
    assert export.sql("SELECT clock_domain, rank FROM traces") == [{"clock_domain": "relative", "rank": None}]
    assert export.sql("SELECT count(*) AS n FROM other_events") == [{"n": 0}]


# -- what is in a database ---------------------------------------------------------------------------------------


def test_operations_calls_and_markers(tmp_path):
    rows = [
        op("f<int>.kd", 100, 150),
        op("kernel_0x7f12", 200, 190, queue=8192, signal=None),
        marker("step 1", 90, 300),
        (0, 4096, None, 310, 320, "CopyDeviceToDevice:64", "CopyDeviceToDevice"),
    ]
    path = database(tmp_path / "trace_77.db", rows, api=[(77, 78, 5, 9, "hipMalloc", "size=64")])
    found = ingest_files([path], tmp_path / "store")
    kernels = found.sql("SELECT * FROM kernels ORDER BY start_ns")
    assert [(k["name"], k["stream"], k["dur_ns"], k["defect"]) for k in kernels] == [
        ("f<int>", 0, 50, None),
        ("kernel_0x7f12", 1, -10, "negative_duration"),
    ]
    assert [kernels[0][f"{what}_{axis}"] for what in ("block", "grid") for axis in "xyz"] == [256, 1, 1, 4, 2, 1]
    assert json.loads(kernels[0]["args"]) == {
        **{"queueId": 4096, "completionSignal": "hwq=0x7f wg=256,1,1 grid=1000,2,1", "sequenceId": 0, "roctxId": 0}
    }
    [trace] = found.sql("SELECT pid, rank, events_read, events_stored, warnings FROM traces")
    assert (trace["pid"], trace["rank"], trace["events_read"], trace["events_stored"]) == (77, 0, 5, 5)
    assert any("1 kernels whose name the file does not hold" in warning for warning in trace["warnings"])
    assert found.sql("SELECT name, pid, tid, dur_ns, args FROM runtime_calls") == [
        {"name": "hipMalloc", "pid": 77, "tid": 78, "dur_ns": 4, "args": '{"args": "size=64"}'}
    ]
    assert found.sql("SELECT category, name FROM other_events") == [
        {"category": "CopyDeviceToDevice", "name": "CopyDeviceToDevice:64"}
    ]


def test_a_database_of_before_roctx_ids(tmp_path):
    path = database(tmp_path / "trace.db", [op("f", 1, 2, signal=None)], metadata=(), columns="")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP VIEW top")
        connection.execute("DROP VIEW busy")
        connection.execute("ALTER TABLE rocpd_op DROP COLUMN sequenceId")
        connection.execute("ALTER TABLE rocpd_op DROP COLUMN completionSignal")
    connection.close()
    found = ingest_files([path], tmp_path / "store")
    assert found.sql("SELECT name, block_x FROM kernels") == [{"name": "f", "block_x": None}]


def test_only_markers_is_the_known_failure(cli, tmp_path):
    database(tmp_path / "trace.db", [marker(f"step {n}", n, n + 1) for n in range(5)])
    ran = cli("ingest", "trace.db", "--store", "s", code=4)
    assert "no kernels but 5 roctx markers" in ran.err and "HSA_TOOLS_DISABLE_REGISTER=1" in ran.err


def test_merged_processes_that_all_call_their_gpu_0(tmp_path):
    """Where the clock jumps back, the next process begins; which rank it is, nobody knows."""
    rows = [op(f"of_{pid}", pid + 10 * n, pid + 10 * n + 5) for pid in (1, 2, 3) for n in range(20)]
    path = database(tmp_path / "trace.db", rows, metadata=[("pid", str(pid)) for pid in (1, 2, 3)])
    found = ingest_files([path], tmp_path / "store")
    got = found.sql(
        "SELECT t.pid, t.rank, any_value(name) AS name, count(*) AS n FROM kernels JOIN traces AS t USING (run, trace_id) GROUP BY ALL ORDER BY ALL"
    )
    assert [(row["pid"], row["name"], row["n"]) for row in got] == [(pid, f"of_{pid}", 20) for pid in (1, 2, 3)]
    assert [row["rank"] for row in got] == [None] * 3


def test_merged_processes_that_cannot_be_told_apart(tmp_path):
    rows = [op("f", 10 * n, 10 * n + 5) for n in range(20)]
    path = database(tmp_path / "trace.db", rows, metadata=[("pid", "1"), ("pid", "2")])
    found = ingest_files([path], tmp_path / "store")
    [trace] = found.sql("SELECT rank, warnings FROM traces")
    assert trace["rank"] is None
    assert "2 processes were merged into this database, and their rows cannot be told apart" in trace["warnings"][0]


def names(found):
    return {Path(o.planned.path).name: o.state for o in found.outcomes}


def test_a_merged_database_gives_way_to_those_it_was_merged_from(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    for pid in (41_000, 41_001):
        database(folder / f"trace_{pid}.db", [op("f", pid, pid + 5, gpu=pid - 41_000)], metadata=[("pid", str(pid))])
    rows = [op("f", 41_000, 41_005), op("f", 1, 6, gpu=1)]
    database(folder / "trace.db", rows, metadata=[("pid", "41000"), ("pid", "41001")])
    (folder / "trace.json").write_text(
        json.dumps({"traceEvents": [{"ph": "X", "cat": "KernelExecution", "name": "f"}]})
    )
    found = ingest_files([folder], tmp_path / "store")
    assert names(found) == {
        **{"trace.db": "skipped", "trace.json": "skipped"},
        **{"trace_41000.db": "stored", "trace_41001.db": "stored"},
    }
    (folder / "trace_41001.db").unlink()
    found = ingest_files([folder], tmp_path / "again")
    assert names(found) == {"trace.db": "stored", "trace.json": "skipped", "trace_41000.db": "skipped"}


def test_processes_that_all_used_gpu_0_have_no_rank(tmp_path):
    for pid in (1, 2):
        database(tmp_path / f"trace_{pid}.db", [op("f", pid, pid + 5)], metadata=())
    found = ingest_files([tmp_path / f"trace_{pid}.db" for pid in (1, 2)], tmp_path / "store")
    assert found.sql("SELECT pid, rank FROM traces ORDER BY pid") == [
        {"pid": 1, "rank": None},
        {"pid": 2, "rank": None},
    ]


def test_what_convert_makes_is_told_from_rocprofv3(tmp_path):
    agents = [{"size": 1, "id": {"handle": 9000}, "type": 2, "name": "GPU-Agent-0", "logical_node_type_id": 0}]
    metadata = {"pid": 5, "init_time": 1, "fini_time": 9}
    text = text_of(process({"kernel_dispatch": [dispatch(1, 1, 2)]}, agents=agents, metadata=metadata))
    (tmp_path / "x_results.json").write_text(text)
    found = ingest_files([tmp_path / "x_results.json"], tmp_path / "store")
    assert found.sql("SELECT collector, profiler FROM traces") == [
        {"collector": "rocm_trace_lite", "profiler": "rocm_trace_lite, converted to rocprofv3's form"}
    ]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("hwq=0x7f wg=256,1,1 grid=65536,2,1", [256, 1, 1, 65536, 2, 1]),
        ("hwq=0x7f", [None] * 6),
        ("wg=64,1 grid=9,9,9", [None, None, None, 9, 9, 9]),
        ("", [None] * 6),
        (None, [None] * 6),
    ],
)
def test_geometry(text, sizes):
    assert list(geometry(text)) == sizes


def test_bytes_that_are_not_utf8_and_values_of_other_types(tmp_path):
    path = database(tmp_path / "trace_77.db", [op(f"f{n}", 10 * n, 10 * n + 5) for n in range(4)])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rocpd_op SET completionSignal = CAST(x'687771fd' AS TEXT) WHERE start = 10")
        connection.execute("UPDATE rocpd_op SET start = 'soon' WHERE start = 20")
    connection.close()
    found = ingest_files([path], tmp_path / "store")
    rows = found.sql("SELECT name, defect, args ->> 'completionSignal' AS signal FROM kernels ORDER BY event_id")
    assert [(row["name"], row["defect"]) for row in rows] == [
        ("f0", None),
        ("f1", None),
        ("f2", "incomplete"),
        ("f3", None),
    ]
    assert rows[1]["signal"] == "hwq\ufffd"


@pytest.mark.parametrize("alike", [True, False])
def test_args_hold_what_has_no_column(tmp_path, alike):
    """Most rows are alike in it and share a text; where they are not, every row gets its own."""
    signals = ["hwq=0x7f wg=256,1,1 grid=1000,2,1", None, 'a "quoted"\none']
    rows = [
        (n if not alike else 0, 4096 + (n % 2 if alike else n), signals[n % 3], None if n % 5 == 0 else n % 2)
        for n in range(200)
    ]
    path = database(
        tmp_path / "trace_77.db",
        [op("k", 100 * n, 100 * n + 50, queue=queue, signal=signal) for n, (_, queue, signal, _) in enumerate(rows)],
        columns=", roctxId INTEGER DEFAULT 0",
    )
    with sqlite3.connect(path) as connection:
        for n, (sequence, _, _, roctx) in enumerate(rows, 1):
            connection.execute("UPDATE rocpd_op SET sequenceId = ?, roctxId = ? WHERE id = ?", (sequence, roctx, n))
    connection.close()
    found = ingest_files([path], tmp_path / "store").sql("SELECT args FROM gpu_events ORDER BY event_id")
    assert [json.loads(row["args"]) for row in found] == [
        {"queueId": queue, "completionSignal": signal or "", "sequenceId": sequence, "roctxId": roctx or 0}
        for sequence, queue, signal, roctx in rows
    ]


def test_a_damaged_page_costs_its_rows_only(tmp_path):
    path = rocm_trace_lite.write(tmp_path, 0, RTL_FULL, 2)
    data = bytearray(path.read_bytes())
    page = next(n for n in range(len(data) // 4096 // 2, len(data) // 4096) if data[n * 4096] == 0x0D) * 4096
    data[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    [outcome] = ingest_files([path], tmp_path / "store").outcomes
    assert outcome.trace and not outcome.trace.manifest.trace["complete"]
    assert 6_000 < outcome.gpu_events < 6_414
    assert any("the database is damaged, and rows of" in note for note in outcome.notes)
