"""rocprofv3 from end to end: the real trace, every format of the sample, folders as launchers leave them, secrets."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sqlite3
import sys
from collections import Counter, defaultdict

import pytest

from tests import oracle
from tests.conftest import ROOT, SHARED
from tests.engine.test_timeline import rows_of, values
from tests.rocprofv3gen import call, dispatch, gpu_events, process, text_of
from tests.tracegen import document, ingest_files, kernel

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocpd, rocprofv3

TRUTH = json.loads((ROOT / "sample_traces/truth.json").read_text())["collectors"]["rocprofv3"]
REAL = "rocprofv3-mi350x-train"


# -- the real trace ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """Return (the process as json reads it, the store made of the file)."""
    folder = tmp_path_factory.mktemp("real")
    path = folder / "host" / "908_results.json.gz"
    path.parent.mkdir()
    shutil.copy(shared / "traces" / REAL / "trace.json.gz", path)
    [tool] = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    return tool, ingest_files([folder], folder / "store")


def test_every_dispatch_of_the_real_trace_is_stored(real):
    tool, ingested = real
    trace = ingested.outcomes[0].trace.manifest
    assert trace.rows["gpu_events"] == len(tool["buffer_records"]["kernel_dispatch"]) == 43_915
    assert trace.trace["events_read"] == trace.trace["events_stored"] == 43_915 + 1 + len(tool["agents"])
    assert (trace.trace["pid"], trace.trace["device_name"]) == (908, "AMD Instinct MI350X")
    assert (trace.identity.rank, trace.trace["rank_source"]) == (0, "guess: index of the only GPU it used")


def test_the_real_timeline_equals_the_oracle(real):
    tool, ingested = real
    assert rows_of(ingested) == values(oracle.timeline(gpu_events(tool)))


def test_the_real_kernel_summary_equals_the_oracle(real):
    tool, ingested = real
    expected = oracle.kernel_summary(gpu_events(tool))
    got = ingested.named("kernel_summary")
    assert [(r["name"], r["class"], r["events"], r["total_ns"]) for r in got] == [
        (e.name, e.cls, e.events, e.total_ns) for e in expected
    ]


def test_kernel_totals_equal_tracelens_after_its_unit_fault(real, shared):
    """TraceLens calls microseconds milliseconds there, and groups by the truncated name."""
    _, ingested = real
    with (shared / "traces" / REAL / "tracelens/kernel_summary.csv").open(newline="") as file:
        expected = {
            row["name"]: (int(row["Count"]), round(float(row["Total Kernel Time (ms)"]) * 1_000))
            for row in csv.DictReader(file)
        }
    got = ingested.sql(
        "SELECT args ->> 'truncated_kernel_name' AS name, count(*) AS n, sum(dur_ns)::BIGINT AS total_ns"
        " FROM kernels GROUP BY 1"
    )
    assert {row["name"]: (row["n"], row["total_ns"]) for row in got} == expected


def test_dispatches_equal_tracelens_details(real, shared):
    """Grids there are in work-items, durations in nanoseconds whatever their heading says."""
    _, ingested = real
    with (shared / "traces" / REAL / "tracelens/kernel_details.csv").open(newline="") as file:
        expected = Counter(
            (row["name"], int(float(row["Kernel duration (µs)"])), *(int(row[c]) for c in COLUMNS))
            for row in csv.DictReader(file)
        )
    got = ingested.sql(
        "SELECT args ->> 'truncated_kernel_name' AS name, dur_ns, stream,"
        " (args ->> '$.dispatch_info.dispatch_id')::BIGINT AS dispatch_id, grid_x, grid_y, grid_z, block_x, block_y,"
        " block_z, args -> '$.dispatch_info.grid_size' AS items FROM kernels"
    )
    found = Counter()
    for row in got:
        items = json.loads(row["items"])
        blocks = [row[f"grid_{a}"] for a in "xyz"]
        threads = [row[f"block_{a}"] for a in "xyz"]
        assert blocks == [-(-items[a] // t) for a, t in zip("xyz", threads, strict=True)]
        key = (row["name"], row["dur_ns"], row["stream"], row["dispatch_id"], *items.values(), *threads)
        found[key] += 1
    assert found == expected


COLUMNS = ("stream", "dispatch_id", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


# -- one run in every format -------------------------------------------------------------------------------------

WRITERS = {
    "JSON 1.0": lambda folder, rank: rocprofv3.write(folder, rank, 2),
    "JSON 0.5": lambda folder, rank: rocprofv3.write(folder, rank, 2, rocprofv3.VERSION_0_5),
    "CSV": lambda folder, rank: rocpd.write_csv(folder, rank, 2),
    "rocpd": lambda folder, rank: rocpd.write_database(folder, rank, 2),
}


@pytest.fixture(scope="module", params=WRITERS)
def form(request, tmp_path_factory):
    """Return the store made of ranks 0 and 5 in one of the formats."""
    folder = tmp_path_factory.mktemp("form")
    for rank in (0, 5):
        WRITERS[request.param](folder / "traces", rank)
    return ingest_files([folder / "traces"], folder / "store", run="r")


def test_every_format_gives_the_truth(form):
    [row] = [r for r in form.named("timeline") if r["rank"] == 0]
    assert {name: row[name] for name in TRUTH["timeline"]} == TRUTH["timeline"]
    [totals] = form.sql("SELECT count(*) AS n, sum(dur_ns)::BIGINT AS total_ns FROM gpu_events WHERE rank = 0")
    assert totals == {"n": TRUTH["work"], "total_ns": TRUTH["total_ns"]}
    [copies] = form.sql("SELECT count(*) AS n FROM gpu_events WHERE rank = 0 AND class = 'memcpy'")
    assert copies == {"n": TRUTH["copies"]}


@pytest.fixture(scope="module")
def model():
    """Return what rank 5's work is by the generator's own list, as the collector names it."""
    from proxy.collectors import ROCPROFV3, recorded

    offset = rocprofv3.BOOT_NS + rocprofv3.clock_offset_ns(5)
    found = []
    for work in recorded(5, ROCPROFV3, 2):
        name = work.name.replace("Pinned", "Host") if rocprofv3.is_copy(work) else rocprofv3.kernel_name(work)
        found.append((name, work.start_ns + offset, work.dur_ns))
    return sorted(found)


def test_every_format_gives_the_same_work(form, model):
    got = form.sql("SELECT name, start_ns, dur_ns FROM gpu_events WHERE rank = 5")
    assert sorted((r["name"], r["start_ns"], r["dur_ns"]) for r in got) == model


def test_every_format_links_calls_to_their_work(form):
    [row] = form.sql(
        "SELECT count(*) AS n, count(DISTINCT (c.trace_id, c.event_id)) AS calls, count(*) FILTER (c.start_ns > e.start_ns) AS late"
        " FROM gpu_events AS e JOIN runtime_calls AS c USING (run, trace_id, correlation_id)"
    )
    assert row == {"n": 2 * TRUTH["work"], "calls": 2 * TRUTH["work"], "late": 0}


def test_checks_hold_in_every_format(form):
    from traceanalyzer.engine import library

    for check in library.load("checks").values():
        assert form.session().violations(check) == []


def test_ingesting_again_changes_nothing(form, tmp_path):
    before = form.sql("SELECT trace_id, rank, part FROM traces ORDER BY ALL")
    again = ingest_files([form.root.parent / "traces"], form.root, run="r")
    assert [o.state for o in again.outcomes] == ["already stored"] * 2
    assert again.sql("SELECT trace_id, rank, part FROM traces ORDER BY ALL") == before


# -- folders -----------------------------------------------------------------------------------------------------


def small(folder, pid, gpu=0, host="node-0", records=None, **more):
    """Write the JSON of a small process."""
    records = {"kernel_dispatch": [dispatch(1, pid, pid + 5, gpu=gpu)]} if records is None else records
    tool = process(records, **more)
    tool["metadata"]["pid"] = pid
    tool["metadata"]["node"]["hostname"] = host
    path = folder / host / f"{pid}_results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(tool))
    return path


def ranks(ingested):
    rows = ingested.sql("SELECT run, pid, rank, part, rank_source FROM traces ORDER BY run, pid")
    return [tuple(row.values()) for row in rows]


def test_a_folder_as_it_is_found(cli, tmp_path):
    out = tmp_path / "rocprof_output"
    first, _ = small(out, 11), small(out, 12, gpu=1)
    small(out, 90, records={})
    small(out, 91, records={"hip_api": [call(1, 2)]})
    shutil.copytree(out, tmp_path / "run_directory" / "rocprof_output")
    (out / "gone_results.json").symlink_to("nowhere.json")
    (out / "lfs_results.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    (out / "link_results.json").write_text("../../outputs/rank0/908_results.json")
    (out / "part_results.json.tmp").write_text(first.read_text()[:1000])
    (out / "big.pftrace").write_bytes(b"\x0a\x12\x08")
    (out / "x.otf2").write_bytes(b"OTF2")
    (out / "x.xplane.pb").write_bytes(b"\x0a\x12")
    (out / "x.nsys-rep").write_bytes(b"\x00\x01")
    ran = cli("ingest", "rocprof_output", "run_directory", "--store", "s", "--run", "r")
    rows = [line.split()[:6] for line in ran.out.splitlines()[2:]]
    assert [(state, rank) for _, state, *_, rank, _ in (r for r in rows if "already" not in r)] == [
        ("stored", "0"),
        ("stored", "1"),
    ]
    assert sum("already" in row for row in rows) == 2
    for reason in (
        "90_results.json: a process without any records: a helper",
        "91_results.json: a process without GPU records (1 others); name the file itself to store it",
        "gone_results.json: a broken symbolic link",
        "lfs_results.json: not a trace but a Git LFS pointer",
        "link_results.json: not a trace but a symbolic link stored as text",
        "part_results.json.tmp: left by a profiler that ended while it wrote",
        "big.pftrace: a Perfetto trace",
        "x.otf2: an OTF2 archive",
        "x.xplane.pb: a JAX/XLA profile",
        "x.nsys-rep: a report of NVIDIA's Nsight Systems",
    ):
        assert reason in ran.err, reason


def test_an_unfinished_file_can_be_named(cli, tmp_path):
    text = small(tmp_path, 11, records={"kernel_dispatch": [dispatch(1, 1, 2), dispatch(1, 3, 4)]}).read_text()
    (tmp_path / "x.json.tmp").write_text(text[: text.index('"start_timestamp":3')])
    ran = cli("ingest", "x.json.tmp", "--store", "s")
    assert "the file ends early" in ran.err and " 1 " in ran.out


def test_ranks_are_guessed_by_the_gpu_and_marked(tmp_path):
    for pid, gpu in ((30, 1), (20, 0)):
        small(tmp_path / "t", pid, gpu=gpu)
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    source = "guess: index of the only GPU it used"
    assert ranks(found) == [("t", 20, 0, 0, source), ("t", 30, 1, 0, source)]
    assert "the rank is a guess" in " ".join(found.outcomes[0].notes)


def test_ranks_of_several_hosts_are_not_guessed(tmp_path):
    for host in ("node-0", "node-1"):
        for gpu in (0, 1):
            small(tmp_path / "t", 20 + gpu + (host == "node-1"), gpu=gpu, host=host)
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    assert {(run, rank, source) for run, _, rank, _, source in ranks(found)} == {("t", None, "unknown")}
    assert len(ranks(found)) == 4


def test_processes_that_see_one_gpu_each_are_ordered_by_its_place(tmp_path):
    for pid, place in ((50, 900), (60, 300), (70, 600)):
        agents = [{"size": 1, "id": {"handle": 9000}, "type": 2, "logical_node_type_id": 0, "location_id": place}]
        small(tmp_path / "t", pid, agents=agents)
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    assert [(pid, rank) for _, pid, rank, _, _ in ranks(found)] == [(50, 2), (60, 0), (70, 1)]


def test_ranks_of_the_command_line_and_of_names(tmp_path):
    metadata = process({})["metadata"]
    small(tmp_path / "t", 20, metadata={**metadata, "command": ["python", "t.py", "--rank", "6", "--token=x"]})
    named = small(tmp_path / "t", 21)
    named.rename(named.with_name("rank3_results.json"))
    several = {"kernel_dispatch": [dispatch(1, 1, 2, gpu=0), dispatch(1, 1, 2, gpu=1)]}
    small(tmp_path / "t", 22, records=several)
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    assert ranks(found) == [
        ("t", 20, 6, 0, "command line"),
        ("t", 21, 3, 0, "file name"),
        ("t", 22, None, 0, "unknown"),
    ]


def test_runs_below_a_folder_and_hosts_below_a_run(tmp_path):
    for pid, run in enumerate(("a", "b"), 20):
        small(tmp_path / "t" / run, pid)
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    assert [(run, pid) for run, pid, *_ in ranks(found)] == [("a", 20), ("b", 21)]


def test_collectors_beside_each_other_are_one_run(tmp_path):
    small(tmp_path / "t" / "rocprof_output", 20)
    (tmp_path / "t" / "pytorch").mkdir()
    trace = document([kernel("k", 0, 1)], distributedInfo={"rank": 0})
    (tmp_path / "t" / "pytorch" / "x.json").write_text(json.dumps(trace))
    found = ingest_files([tmp_path / "t"], tmp_path / "store")
    rows = found.sql("SELECT run, collector, rank FROM traces ORDER BY collector")
    assert [tuple(r.values()) for r in rows] == [("t", "pytorch", 0), ("t", "rocprofv3", 0)]


def test_a_file_of_several_processes_is_stored_as_a_whole(tmp_path, cli):
    tools = [process({"kernel_dispatch": [dispatch(1, n, n + 5, gpu=n)]}) for n in (0, 1)]
    idle = process({})
    for pid, tool in enumerate((*tools, idle), 70):
        tool["metadata"]["pid"] = pid
    path = tmp_path / "all_results.json"
    path.write_text(text_of(*tools, idle))
    found = ingest_files([path], tmp_path / "store", run="r")
    assert [(run, pid, rank) for run, pid, rank, *_ in ranks(found)] == [("r", 70, 0), ("r", 71, 1)]
    again = ingest_files([path], tmp_path / "store", run="r")
    assert [o.state for o in again.outcomes] == ["already stored"] * 2
    replaced = ingest_files([path], tmp_path / "store", run="r", replace=True)
    assert [o.state for o in replaced.outcomes] == ["already stored"] * 2
    assert len(ranks(replaced)) == 2


# -- secrets -----------------------------------------------------------------------------------------------------

TOKEN = "hf_s3cretS3cretS3cretS3cret"


def planted(folder):
    """Write traces of every format with a token wherever secrets are found in practice."""
    tool = process({"kernel_dispatch": [dispatch(1, 1, 2)]})
    tool["metadata"]["command"] = ["python", "train.py", f"--hub-token={TOKEN}", "--rank", "0"]
    tool["metadata"]["config"] = {"output_path": f"/home/{TOKEN}"}
    tool["metadata"]["environment"] = {"HF_TOKEN": TOKEN}
    tool["environment"] = {"HF_TOKEN": TOKEN}
    tool["agents"][1]["owner"] = TOKEN
    text = text_of(tool, process({"kernel_dispatch": [dispatch(1, 1, 2, gpu=1)]}))
    folder.mkdir()
    (folder / "1_results.json").write_text(text[:-1] + f',"env":"{TOKEN}"}}')
    at = text.index('"start_timestamp"')
    damaged = text[:at] + f'"api_key":"{TOKEN}",::' + text[at:]
    (folder / "2_results.json").write_text(damaged.replace("4242", "4244"))
    keys = {"metadata": {"env": {"HF_TOKEN": TOKEN}}, "HF_TOKEN": TOKEN, "distributedInfo": {"rank": 3, "token": TOKEN}}
    (folder / "3.json").write_text(json.dumps(document([kernel("k", 0, 1)], **keys)))
    database = rocpd.write_database(folder, 4, 1)
    with sqlite3.connect(database) as connection:
        [name] = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_info_process_%'").fetchone()
        environment = json.dumps({"RANK": "4", "HF_TOKEN": TOKEN})
        connection.execute(
            f"""UPDATE "{name}" SET environment = ?, extdata = ?, command = ?""", (environment, environment, TOKEN)
        )
    connection.close()
    with (folder / "5_agent_info.csv").open("w") as file:
        file.write(f'"Node_Id","Agent_Type","Product_Name","Owner"\n"2","GPU","MI350X","{TOKEN}"\n')
    shutil.copy(rocpd.write_csv(folder / "csv", 5, 1)[0], folder / "5_kernel_trace.csv")


def test_no_secret_is_stored_or_printed(cli, tmp_path):
    planted(tmp_path / "t")
    said = []
    for command in (
        ("ingest", "t", "--store", "s", "--dry-run"),
        ("ingest", "t", "--store", "s", "--run", "r"),
        ("query", "s", "FROM traces", "--format", "json"),
        ("query", "s", "FROM threads", "--format", "json"),
        ("query", "s", "FROM rejects", "--format", "json"),
        ("query", "s", "health"),
        ("runs", "s"),
        ("doctor", "s"),
    ):
        ran = cli(*command, code=None)
        said.append(ran.out + ran.err)
    assert "rocprofv3" in said[1] and '"environment (RANK)"' in said[2] and "api_key" in said[4]
    assert not [text for text in said if TOKEN in text]
    stored = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert len(stored) > 50
    assert not [path for path in stored if TOKEN.encode() in path.read_bytes()]
    # Parquet is compressed: look at what is in it as well.
    import duckdb

    for path in stored:
        if path.suffix == ".parquet":
            rows = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall()
            assert TOKEN not in repr(rows), path


def test_formats_agree_on_what_their_columns_are(tmp_path):
    """The same kernels have the same device, stream, geometry, thread and process in each format."""
    found = defaultdict(set)
    for name, write in WRITERS.items():
        if name != "JSON 0.5":  # which has no streams
            write(tmp_path / name, 2)
            made = ingest_files([tmp_path / name], tmp_path / f"store {name}", run="r")
            query = (
                "SELECT start_ns, device, stream, grid_x, grid_y, block_x, correlation_id, class, category FROM kernels"
                " ORDER BY start_ns, correlation_id"
            )
            found["kernels"].add(json.dumps(made.sql(query)))
            query = "SELECT api, name, pid, tid, start_ns, dur_ns, correlation_id FROM runtime_calls ORDER BY ALL"
            found["calls"].add(json.dumps(made.sql(query)))
    assert {name: len(rows) for name, rows in found.items()} == {"kernels": 1, "calls": 1}


def test_the_shared_folder_is_used(shared):
    assert (SHARED / "traces" / REAL / "tracelens").is_dir() and shared == SHARED


# -- what hostile inputs found -----------------------------------------------------------------------------------


def test_replacing_a_file_of_several_processes_by_itself_keeps_them_all(tmp_path):
    tools = [process({"kernel_dispatch": [dispatch(1, n, n + 5)]}) for n in (1, 2)]
    path = tmp_path / "x_results.json"
    path.write_text(text_of(*tools))
    ingest_files([path], tmp_path / "store", run="r", rank=3)
    for _ in range(2):
        found = ingest_files([path], tmp_path / "store", run="r", rank=3, replace=True)
        assert [o.state for o in found.outcomes] == ["already stored"] * 2
        assert found.sql("SELECT part FROM traces ORDER BY part") == [{"part": 0}, {"part": 1}]


@pytest.mark.parametrize("kept", [0.9, 0])
def test_a_cut_file_gives_way_to_the_whole_database_of_its_process(tmp_path, kept):
    folder = rocpd.write_database(tmp_path, 0, 1).parent
    text = gzip.decompress(rocprofv3.write(tmp_path / "json", 0, 1).read_bytes())
    (folder / "52000_results.json").write_bytes(
        text[: int(len(text) * kept)] if kept else text_of(process({})).encode()
    )
    found = ingest_files([tmp_path / "mi350x-node-0"], tmp_path / "store", run="r")
    stored = [o for o in found.outcomes if o.trace]
    assert [(o.planned.path.name, o.gpu_events) for o in stored] == [("52000_results.db", 3_215)]
    assert any("read instead of 52000_results.json" in note for note in stored[0].notes)


def test_a_fault_with_one_file_does_not_keep_the_others_from_the_store(tmp_path, cli, monkeypatch):
    from traceanalyzer.readers import rocprofv3_parser

    def fail(*_):
        raise ZeroDivisionError("by design")

    small(tmp_path / "t", 20)
    (tmp_path / "t" / "x.json").write_text(json.dumps(document([kernel("k", 0, 1)])))
    monkeypatch.setattr(rocprofv3_parser, "_rows", fail)
    found = ingest_files([tmp_path / "t"], tmp_path / "store", run="r")
    assert sorted(o.state for o in found.outcomes) == ["failed", "stored"]
    [failed] = [o for o in found.outcomes if o.error]
    assert "20_results.json: internal error: ZeroDivisionError: by design" in str(failed.error)


def test_processes_of_several_hosts_in_one_file_have_no_guessed_rank(tmp_path):
    tools = [process({"kernel_dispatch": [dispatch(1, n, n + 5)]}) for n in (1, 2)]
    tools[1]["metadata"]["node"]["hostname"] = "node-1"
    path = tmp_path / "x_results.json"
    path.write_text(text_of(*tools))
    found = ingest_files([path], tmp_path / "store", run="r")
    assert found.sql("SELECT DISTINCT rank FROM traces") == [{"rank": None}]


def test_what_is_lost_between_processes_is_said(tmp_path):
    first, second = (process({"kernel_dispatch": [dispatch(1, n, n + 5)]}) for n in (1, 2))
    text = text_of(first, second)
    at = text.index('{"metadata"', 60)
    for number, damaged in enumerate((text[: at + 20], text[:at] + "null," + text[at:], text[:-2])):
        path = tmp_path / f"{number}_results.json"
        path.write_text(damaged)
        found = ingest_files([path], tmp_path / f"store{number}")
        assert not all(o.trace.manifest.trace["complete"] for o in found.outcomes if o.trace), number
        [strict] = ingest_files([path], tmp_path / f"strict{number}", strict=True).outcomes
        assert strict.state == "failed", number
