"""rocprofv3's JSON: every record stored, under any cut, damage and version."""

from __future__ import annotations

import io
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rocprofv3gen import KINDS, call, copy, dispatch, marker, process, symbol, text_of
from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.base import HowToRead
from traceanalyzer.readers.rocprofv3 import Rocprofv3JsonReader
from traceanalyzer.readers.rocprofv3_document import HEAD_KEYS, Rocprofv3Document
from traceanalyzer.readers.rocprofv3_names import copy_name, kernel_name


def read(path: Path, text: str | bytes, block_size: int = 300):
    """Return (facts, rows by table, rejects) of every process in a document."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = []
    with ThreadPoolExecutor(2) as pool:
        how = HowToRead(pool, 3, block_size, lambda: None)
        with Rocprofv3JsonReader().open(path, how) as file:
            for reading in file.traces():
                tables: dict[str, list[dict]] = {}
                rejects, events = [], 0
                for batch in reading:
                    events += batch.events
                    rejects += batch.rejects
                    for name, rows in batch.tables.items():
                        tables.setdefault(name, []).extend(rows.to_pylist())
                stored = [row["event_id"] for rows in tables.values() for row in rows]
                assert sorted(stored + [r.event_id for r in rejects]) == list(range(events))
                found.append((reading.facts, tables, rejects))
    return found


def one(path: Path, text: str | bytes, block_size: int = 300):
    [found] = read(path, text, block_size)
    return found


EVERY_KIND = {
    "kernel_dispatch": [dispatch(1, 1_000, 1_500, 1), dispatch(2, 1_200, 1_900, 2, gpu=1)],
    "memory_copy": [copy(2_000, 2_100, 3)],
    "hip_api": [call(900, 950, 1), call(1_950, 1_990, 3, operation=2)],
    "marker_api": [marker(800, 3_000, 50)],
    "memory_allocation": [
        {
            "size": 1,
            "kind": 5,
            "operation": 1,
            "thread_id": 7,
            "start_timestamp": 5,
            "end_timestamp": 6,
            "agent_id": {"handle": 9000},
            "address": "0x7f",
            "allocation_size": 64,
        }
    ],
    "counter_collection": [
        {
            "thread_id": 7,
            "dispatch_data": {
                "size": 1,
                "correlation_id": {"internal": 9, "external": 0},
                "start_timestamp": 70,
                "end_timestamp": 90,
                "dispatch_info": {"kernel_id": 1},
            },
            "records": [{"counter_id": {"handle": 1}, "value": 4.5}],
        }
    ],
    "hip_graph": [{"graph": 3, "nodes": 4}],
}


def test_every_kind_of_record_goes_to_its_table(trace):
    facts, tables, rejects = one(trace, text_of(process(EVERY_KIND)))
    assert not rejects and facts.complete and not facts.repairs
    assert {name: len(rows) for name, rows in tables.items()} == {
        **{"threads": 4, "gpu_events": 3, "runtime_calls": 2, "annotations": 1, "instants": 1, "other_events": 2}
    }
    first, second, third = tables["gpu_events"]
    assert (first["kind"], first["name"], first["device"], first["stream"]) == ("kernel", "void gemm<float>(int)", 0, 5)
    assert (first["start_ns"], first["dur_ns"], first["correlation_id"], first["tid"]) == (1_000, 500, 1, "77")
    assert [first[f"grid_{axis}"] for axis in "xyz"] == [5, 1, 1]  # 1152 work-items are four and a half blocks of 256
    assert [first[f"block_{axis}"] for axis in "xyz"] == [256, 1, 1]
    args = json.loads(first["args"])
    assert args.pop("truncated_kernel_name") == "void gemm"
    assert args == EVERY_KIND["kernel_dispatch"][0]
    assert (second["name"], second["device"]) == ("ncclDevKernel_Generic(x)", 1)
    assert (third["kind"], third["name"], third["bytes"]) == ("memcpy", "Memcpy HtoD (Host -> Device)", 4096)
    assert [(c["api"], c["name"], c["pid"]) for c in tables["runtime_calls"]] == [
        ("hip_runtime_api_ext", "hipLaunchKernel", "4242"),
        ("hip_runtime_api_ext", "hipMemcpyAsync", "4242"),
    ]
    assert json.loads(tables["runtime_calls"][0]["args"]) == EVERY_KIND["hip_api"][0]
    assert [(a["name"], a["side"], a["dur_ns"]) for a in tables["annotations"]] == [("forward", "cpu", 2_200)]
    assert [(i["category"], i["name"], i["start_ns"]) for i in tables["instants"]] == [
        ("memory_allocation", "ALLOCATE", 5)
    ]
    counters, graph = sorted(tables["other_events"], key=lambda row: row["category"])
    assert (counters["category"], counters["name"], counters["start_ns"], counters["dur_ns"], counters["id"]) == (
        *("counter_collection", "void gemm<float>(int)", 70, 20),
        "9",
    )
    assert (graph["category"], json.loads(graph["args"])) == ("hip_graph", {"graph": 3, "nodes": 4})


def test_what_the_process_says_about_itself(trace):
    facts, tables, _ = one(trace, text_of(process(EVERY_KIND)))
    assert (facts.pid, facts.host, facts.clock_domain, facts.device_name) == (
        4242,
        "node-0",
        "boot",
        "AMD Instinct MI350X",
    )
    about, cpu, gpu, _ = tables["threads"]
    assert (about["name"], about["value"], about["start_ns"]) == ("process", "node-0", 1_000)
    assert json.loads(about["args"]) == {"init_time": 1_000, "fini_time": 9_000_000}
    assert (cpu["value"], gpu["name"], gpu["value"], gpu["tid"]) == ("EPYC", "agent", "AMD Instinct MI350X", "0")
    known = json.loads(gpu["args"])
    assert (known["kind"], known["location_id"], known["uuid"]) == ("GPU", 300, bytes(range(16)).hex())
    assert known["hive_id"] == 17_332_996_360_099_338_395


# -- odd values --------------------------------------------------------------------------------------------------


def test_handles_beyond_63_bits_are_none_and_exact_in_args(trace):
    nowhere = dispatch(1, 1, 2, 3, stream_id={"handle": 2**64 - 1})
    _, tables, rejects = one(trace, text_of(process({"kernel_dispatch": [nowhere, dispatch(1, 5, 6)]})))
    assert not rejects
    row = tables["gpu_events"][0]
    assert (row["stream"], row["start_ns"]) == (16, 1)  # the queue, where there is no stream
    assert json.loads(row["args"])["stream_id"]["handle"] == 2**64 - 1


def test_times_that_cannot_be(trace):
    odd = [dispatch(1, 9, 4), dispatch(1, None, 4), dispatch(1, "10", "12"), dispatch(1, 2**64 - 1, 5)]
    _, tables, rejects = one(trace, text_of(process({"kernel_dispatch": [*odd, dispatch(1, 1, 2)]})))
    assert not rejects
    assert [(row["start_ns"], row["dur_ns"], row["defect"]) for row in tables["gpu_events"]] == [
        (9, -5, "negative_duration"),
        (None, None, "incomplete"),
        (10, 2, None),
        (None, None, "incomplete"),
        (1, 1, None),
    ]


def test_what_the_file_does_not_name_is_counted(trace):
    unknown = [dispatch(1, 1, 2), dispatch(7, 1, 2), dispatch(8, 3, 4)]
    calls = [call(1, 2, operation=99), call(1, 2, kind=77), call(1, 2)]
    facts, tables, _ = one(trace, text_of(process({"kernel_dispatch": unknown, "hip_api": calls})))
    assert [row["name"] for row in tables["gpu_events"]] == ["void gemm<float>(int)", "kernel_7", "kernel_8"]
    assert [(row["api"], row["name"]) for row in tables["runtime_calls"]] == [
        ("hip_runtime_api_ext", "operation 99"),
        ("kind 77", "operation 1"),
        ("hip_runtime_api_ext", "hipLaunchKernel"),
    ]
    assert "2 kernels whose name the file does not hold" in facts.warnings
    assert "2 records of a kind or operation that the file does not name" in facts.warnings


def test_numbers_of_kinds_mean_what_the_file_says(trace):
    kinds = [KINDS[0], KINDS[4], KINDS[3], KINDS[2], KINDS[1]]
    strings = {"buffer_records": kinds, "callback_records": [], "marker_api": []}
    _, tables, _ = one(
        trace, text_of(process({"hip_api": [call(1, 2, kind=2)], "memory_copy": [copy(1, 2, kind=4)]}, strings=strings))
    )
    assert tables["runtime_calls"][0]["name"] == "hipLaunchKernel"
    assert tables["gpu_events"][0]["name"] == "Memcpy HtoD (Host -> Device)"


def test_a_copy_between_gpus(trace):
    kinds = [KINDS[0], {"kind": "MEMORY_COPY", "operations": ["NONE", "", "DEVICE_TO_DEVICE"]}]
    strings = {"buffer_records": kinds}
    there = copy(1, 2, dst_agent_id={"handle": 9001}, src_agent_id={"handle": 9000})
    within = copy(3, 4, dst_agent_id={"handle": 9001}, src_agent_id={"handle": 9001})
    _, tables, _ = one(trace, text_of(process({"memory_copy": [there, within]}, strings=strings)))
    assert [(row["name"], row["device"]) for row in tables["gpu_events"]] == [
        ("Memcpy PtoP (Device -> Device)", 1),
        ("Memcpy DtoD (Device -> Device)", 1),
    ]


def test_several_processes_are_several_traces(trace):
    first = process({"kernel_dispatch": [dispatch(1, 1, 2)]})
    second = process({"kernel_dispatch": [dispatch(2, 5, 9), dispatch(2, 10, 11)]})
    second["metadata"]["pid"] = 4243
    found = read(trace, text_of(first, second))
    assert [(facts.pid, [row["name"] for row in tables["gpu_events"]]) for facts, tables, _ in found] == [
        (4242, ["void gemm<float>(int)"]),
        (4243, ["ncclDevKernel_Generic(x)"] * 2),
    ]


def test_runs_without_kernels_are_explained(trace):
    facts, _, _ = one(trace, text_of(process({"counter_collection": EVERY_KIND["counter_collection"]})))
    assert "a run that collects counters executes kernels one by one" in facts.warnings[0] and not facts.is_helper
    facts, _, _ = one(trace, text_of(process({"hip_api": [call(1, 2)]})))
    assert facts.is_helper
    with pytest.raises(NothingToAnalyse, match="without any records"):
        one(trace, text_of(process({})))


def test_more_damaged_than_sound_is_refused(trace):
    records = [dispatch(1, n, n + 1) for n in range(30)]
    text = text_of(process({"kernel_dispatch": records})).replace('"start_timestamp":', '"start_timestamp";')
    with pytest.raises(InputError, match="30 of 30 records cannot be read"):
        one(trace, text)


def test_other_documents_are_not_claimed(tmp_path):
    (tmp_path / "a.json").write_text('{"traceEvents": []}')
    assert Rocprofv3JsonReader().recognise(tmp_path / "a.json") is None


def test_the_document_gives_what_stands_around_its_records():
    document = Rocprofv3Document(io.BytesIO(text_of(process(EVERY_KIND)).encode()), 100, HEAD_KEYS)
    assert document.next_process() and set(document.metadata) == {"metadata", "agents", "strings"}
    names = []
    while records := document.next_block():
        names.append((records.group, records.list_name))
    assert list(dict.fromkeys(names)) == [
        ("", "kernel_symbols"),
        ("callback_records", "counter_collection"),
        *(("buffer_records", name) for name in ("kernel_dispatch", "hip_api", "marker_api", "memory_copy")),
        *(("buffer_records", name) for name in ("memory_allocation", "hip_graph")),
    ]
    assert not document.next_process() and document.incomplete is None


# -- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("void f<int>(int)", "void f<int>(int) [clone .kd]", "f", "_Z1f.kd"), "void f<int>(int)"),
        (("f", "void n::f<int>(int) [clone .kd]", "f", "_Z1f.kd"), "void n::f<int>(int)"),  # --truncate-kernels
        (("_Z1fi", "f(int) [clone .kd]", "f", "_Z1fi.kd"), "f(int)"),  # --mangled-kernels
        (("Cijk_Ailk", "Cijk_Ailk.kd", "Cijk_Ailk.kd", "Cijk_Ailk.kd"), "Cijk_Ailk"),
        (("flash_0.kd", "flash_0.kd", "flash_0.kd", "flash_0.kd"), "flash_0"),
        (("", "", "", "_Z1fi.kd"), "_Z1fi"),
        (("f(int) [clone .isra.0] [clone .kd]", "", "", ""), "f(int)"),
        (("operator[](int)[]", "", "", ""), "operator[](int)[]"),
        (("0", "0", "0", ""), None),
        ((None, None, None, None), None),
    ],
)
def test_the_richest_name_counts(names, expected):
    keys = ("formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name", "kernel_name")
    assert kernel_name(dict(zip(keys, names, strict=True))) == expected


def test_names_of_copies():
    assert copy_name("MEMORY_COPY_DEVICE_TO_HOST") == copy_name("DEVICE_TO_HOST") == "Memcpy DtoH (Device -> Host)"
    assert copy_name("SOMETHING") == "SOMETHING" and copy_name(None) is None


def test_damaged_symbols_cost_only_their_names(trace):
    symbols = [symbol(n, f"kernel_of_{n}()") for n in range(1, 6)]
    text = text_of(process({"kernel_dispatch": [dispatch(n, n, n + 1) for n in range(1, 6)]}, symbols=symbols))
    facts, tables, _ = one(trace, text.replace('"kernel_id":3,"code', '"kernel_id":::3,"code'), 200)
    assert [row["name"] for row in tables["gpu_events"]] == [
        *("kernel_of_1()", "kernel_of_2()", "kernel_3", "kernel_of_4()", "kernel_of_5()")
    ]
    assert facts.repairs == Counter({"damaged kernel symbol": 1})
