"""rocprofv3's files in folders as launchers leave them: what is read, what is not and why, runs, ranks; and secrets."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import sys

import pytest

from tests.conftest import ROOT
from tests.rocprofv3gen import call, dispatch, process, text_of
from tests.tracegen import document, ingest_files, kernel

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocpd, rocprofv3


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
