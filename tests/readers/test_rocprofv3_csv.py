"""rocprofv3's CSV files: the files of a process are one trace, also where some are missing or damaged."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from tests.conftest import ROOT
from tests.tracegen import ingest_files

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocpd

KERNELS = [
    "Kind",
    "Agent_Id",
    "Queue_Id",
    "Stream_Id",
    "Thread_Id",
    "Dispatch_Id",
    "Kernel_Id",
    "Kernel_Name",
    "Correlation_Id",
    "Start_Timestamp",
    "End_Timestamp",
    "Workgroup_Size_X",
    "Workgroup_Size_Y",
    "Workgroup_Size_Z",
    "Grid_Size_X",
    "Grid_Size_Y",
    "Grid_Size_Z",
]
OLD = [c for c in KERNELS if c != "Stream_Id"]


def row(name, start, end, **more):
    values = {"Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 4", "Queue_Id": 16, "Stream_Id": 2, "Thread_Id": 7}
    values |= {"Dispatch_Id": 1, "Kernel_Id": 3, "Kernel_Name": name, "Correlation_Id": 9}
    values |= {"Start_Timestamp": start, "End_Timestamp": end}
    values |= {f"Workgroup_Size_{a}": 256 if a == "X" else 1 for a in "XYZ"}
    return values | {f"Grid_Size_{a}": 1000 if a == "X" else 1 for a in "XYZ"} | more


def table(rows, columns=KERNELS):
    """Return the rows as rocprofv3 writes them, every field quoted."""
    lines = [",".join(f'"{c}"' for c in columns)]
    lines += [",".join('"' + str(r[c]).replace('"', '""') + '"' for c in columns) for r in rows]
    return "\n".join(lines) + "\n"


def ingested(tmp_path, text, name="77_kernel_trace.csv", **files):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for other, content in files.items():
        (tmp_path / f"77_{other}.csv").write_text(content)
    return ingest_files([path], tmp_path / "store", run="r")


def test_the_files_of_a_process_are_one_trace(tmp_path):
    paths = rocpd.write_csv(tmp_path / "csv", 3, 1)
    found = ingest_files([tmp_path / "csv"], tmp_path / "store")
    [outcome] = found.outcomes
    assert outcome.trace.manifest.rows["runtime_calls"] == outcome.gpu_events == 3_215
    assert found.sql("SELECT rank, pid, profiler FROM traces") == [
        {"rank": 3, "pid": 52_003, "profiler": "rocprofv3 CSV"}
    ]
    named = ingest_files([paths[1]], tmp_path / "store")  # any of its files stands for all
    assert [o.state for o in named.outcomes] == ["already stored"] or named.outcomes[0].trace.identity.run != "csv"


def test_one_row(tmp_path):
    agents = '"Node_Id","Agent_Type","Product_Name"\n"0","CPU","EPYC"\n"3","GPU","MI350X"\n"4","GPU","MI350X"\n'
    found = ingested(
        tmp_path,
        table([row("void f<int>(int) [clone .kd]", 100, 250, Extra="x")], [*KERNELS, "Extra"]),
        agent_info=agents,
    )
    [event] = found.sql("SELECT * FROM gpu_events")
    assert (event["name"], event["device"], event["stream"]) == ("void f<int>(int)", 1, 2)
    assert (event["start_ns"], event["dur_ns"], event["correlation_id"]) == (100, 150, 9)
    assert (event["grid_x"], event["block_x"]) == (4, 256)
    assert json.loads(event["args"]) == {"Kind": "KERNEL_DISPATCH", "Dispatch_Id": "1", "Extra": "x"}


def test_files_of_older_versions(tmp_path):
    found = ingested(tmp_path, table([row("f", 1, 2, Agent_Id=3)], OLD))
    assert found.sql("SELECT device, stream FROM gpu_events") == [{"device": 3, "stream": 16}]
    assert any("no agent_info.csv" in note for note in found.outcomes[0].notes)


def test_compressed_files(tmp_path):
    found = ingested(tmp_path, gzip.compress(table([row("f", 1, 2)]).encode()), "77_kernel_trace.csv.gz")
    assert [o.gpu_events for o in found.outcomes] == [1]


def test_names_with_quotes_newlines_and_bytes_that_are_not_utf8(tmp_path):
    text = table([row('say "hi",\nyou', 1, 2), row("mark", 3, 4)]).encode().replace(b"mark", b"a\xff")
    found = ingested(tmp_path, text)
    assert [r["name"] for r in found.sql("SELECT name FROM gpu_events ORDER BY start_ns")] == [
        'say "hi",\nyou',
        "a\ufffd",
    ]


def test_a_row_of_another_length_is_rejected(tmp_path):
    text = table([row("a", 1, 2), row("b", 3, 4), row("c", 5, 6)]).replace('"b",', "")
    found = ingested(tmp_path, text)
    trace = found.outcomes[0].trace.manifest.trace
    assert (trace["events_read"], trace["events_stored"], trace["events_rejected"]) == (4, 3, 1)
    [reject] = found.sql("SELECT reason, byte_offset FROM rejects")
    assert reject == {"reason": "a row of 16 columns where 17 should be", "byte_offset": None}


@pytest.mark.parametrize("cut", [2, 3, 20, 60])
def test_a_cut_row_is_rejected_and_the_trace_incomplete(tmp_path, cut):
    text = table([row("a", 1, 2), row("b", 3, 4)])
    found = ingested(tmp_path, text[:-cut])
    trace = found.outcomes[0].trace.manifest.trace
    assert [r["name"] for r in found.sql("SELECT name FROM gpu_events")] == ["a"]
    assert not trace["complete"] and trace["events_rejected"] == 1


def test_numbers_that_are_none(tmp_path):
    found = ingested(tmp_path, table([row("a", "soon", 2), row("b", 9, 4), row("c", 1, 2)]))
    assert found.sql("SELECT name, defect FROM gpu_events ORDER BY name") == [
        {"name": "a", "defect": "incomplete"},
        {"name": "b", "defect": "negative_duration"},
        {"name": "c", "defect": None},
    ]


def test_a_missing_column_makes_it_another_file(cli, tmp_path):
    (tmp_path / "77_kernel_trace.csv").write_text(table([row("a", 1, 2)], [c for c in KERNELS if c != "End_Timestamp"]))
    ran = cli("ingest", "77_kernel_trace.csv", "--store", "s", code=3)
    assert "77_kernel_trace.csv: rocprofv3 CSV without the column End_Timestamp" in ran.err


def test_only_calls_are_a_helper_in_a_folder(cli, tmp_path):
    columns = ("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
    text = ",".join(f'"{c}"' for c in columns) + '\n"HIP_RUNTIME_API_EXT","hipGetDevice","5","6","1","10","20"\n'
    (tmp_path / "d").mkdir()
    (tmp_path / "d/5_hip_api_trace.csv").write_text(text)
    assert "a process without GPU records (1 others)" in cli("ingest", "d", "--store", "s", code=4).err
    ran = cli("ingest", "d/5_hip_api_trace.csv", "--store", "s", code=4)
    assert "no GPU events" in ran.err
    assert cli("query", "s", "SELECT api, name, pid, tid FROM runtime_calls", "--format", "csv").out.splitlines()[
        1:
    ] == ["hip_runtime_api_ext,hipGetDevice,5,6"]


def test_a_whole_last_row_without_its_line_end(tmp_path):
    found = ingested(tmp_path, table([row("a", 1, 2), row("b", 3, 4)])[:-1])
    assert [o.gpu_events for o in found.outcomes] == [2]
    assert found.sql("SELECT complete FROM traces") == [{"complete": True}]


def test_a_damaged_row_with_bytes_that_are_not_utf8(tmp_path):
    text = table([row("a", 1, 2), row("mark", 3, 4)]).encode().replace(b'"mark",', b'a\xff"",,')
    found = ingested(tmp_path, text)
    assert [o.gpu_events for o in found.outcomes] == [1]


def test_a_neighbour_that_is_no_table_is_left_alone(tmp_path):
    found = ingested(tmp_path, table([row("a", 1, 2)]), hip_api_trace="version https://git-lfs.github.com/spec/v1\n")
    assert [o.gpu_events for o in found.outcomes] == [1]


def test_columns_of_the_same_name(tmp_path):
    extra = row("a", 1, 2) | {"kind": "x", "": "y"}
    found = ingested(tmp_path, table([extra], [*KERNELS, "kind", ""]))
    [args] = found.sql("SELECT args FROM gpu_events")
    assert json.loads(args["args"]) == {"Kind": "KERNEL_DISPATCH", "Dispatch_Id": "1", "kind": "x", "": "y"}
