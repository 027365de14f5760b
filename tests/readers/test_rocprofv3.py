"""rocprofv3's JSON: every record stored, under any cut, damage and version."""

from __future__ import annotations

import io
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rocprofv3gen import KINDS, call, copy, dispatch, marker, process, symbol, text_of
from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.base import HowToRead
from traceanalyzer.readers.rocprofv3 import Rocprofv3JsonReader
from traceanalyzer.readers.rocprofv3_document import HEAD_KEYS, Rocprofv3Document
from traceanalyzer.readers.rocprofv3_names import copy_name, kernel_name

HOSTILE = [
    '}],"hsa_api":[',
    '},{"size":1',
    "}]}}",
    'say "hi" \\',
    "a\nb\x01",
    "\N{SNOWMAN}",
    "[{},{}]",
    ']}],"kernel_dispatch":[{"size":',
]


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


@pytest.fixture
def trace(tmp_path):
    """Return a path for the document."""
    return tmp_path / "4242_results.json"


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


# -- cuts and damage ---------------------------------------------------------------------------------------------

times = st.integers(0, 10**6)
hostile = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8))
arguments = st.lists(st.fixed_dictionaries({"type": hostile, "name": hostile, "value": hostile}), max_size=3)
calls = st.builds(lambda start, dur, args: call(start, start + dur, args=args), times, times, arguments)
dispatches = st.builds(lambda k, start, dur: dispatch(k, start, start + dur), st.integers(1, 2), times, times)
layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 0}, {"indent": 2}, {"indent": "\t"}])


@settings(max_examples=60, deadline=None)
@given(st.lists(dispatches, max_size=8), st.lists(calls, max_size=8), layouts, st.integers(30, 900))
def test_any_block_size_and_layout_gives_the_same_rows(tmp_path_factory, kernels, hip, layout, block_size):
    path = tmp_path_factory.mktemp("cut") / "1_results.json"
    document = process({"kernel_dispatch": kernels, "hip_api": hip, "memory_copy": [copy(1, 2)]})
    facts, tables, rejects = one(path, text_of(document, **layout), block_size)
    assert not rejects and facts.complete and not facts.repairs
    got = [json.loads(row["args"]) for row in tables["gpu_events"]]
    for args in got:
        args.pop("truncated_kernel_name", None)
    assert got == [*kernels, copy(1, 2)]
    assert [json.loads(row["args"]) for row in tables.get("runtime_calls", [])] == hip


def test_a_file_cut_at_every_byte_keeps_exactly_the_whole_records(trace):
    records = {"kernel_dispatch": [dispatch(1, n * 10, n * 10 + 5, n) for n in range(3)], "hip_api": [call(1, 2)] * 2}
    text = text_of(process(records))
    start = text.index('"buffer_records"')
    ends = []
    for name in records:
        at = text.index(f'"{name}":[') + len(name) + 4
        for record in records[name]:
            at += len(json.dumps(record, separators=(",", ":")))
            ends.append(at)
            at += 1
    for cut in range(start, len(text) - 1):
        whole = sum(end <= cut for end in ends)
        if not whole:
            continue
        facts, tables, rejects = one(trace, text[:cut])
        stored = len(tables["gpu_events"]) + len(tables.get("runtime_calls", []))
        assert stored == whole, cut
        assert len(rejects) <= 1
        assert not facts.complete and "ends early" in facts.warnings[0]


def test_bytes_that_are_not_utf8_are_replaced_and_counted(trace):
    records = [call(n, n + 1, args=[{"type": "char*", "name": "k", "value": f"mark{n}"}]) for n in range(4)]
    text = text_of(process({"kernel_dispatch": [dispatch(1, 1, 2)], "hip_api": records})).encode()
    facts, tables, rejects = one(trace, text.replace(b"mark2", b"a\xff\xfeb"))
    assert not rejects and facts.repairs == Counter({"bytes that are not UTF-8": 1})
    values = [json.loads(row["args"])["args"][0]["value"] for row in tables["runtime_calls"]]
    assert values == ["mark0", "mark1", "a\ufffd\ufffdb", "mark3"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "inf"])
def test_numbers_that_are_not_finite_become_null(trace, word):
    record = json.loads(json.dumps(EVERY_KIND["counter_collection"][0]))
    record["records"][0]["value"] = "@"
    text = text_of(process({"counter_collection": [record], "kernel_dispatch": [dispatch(1, 1, 2)]}))
    facts, tables, rejects = one(trace, text.replace('"@"', word))
    assert not rejects and facts.repairs == Counter({"number that is not finite": 1})
    assert json.loads(tables["other_events"][0]["args"])["records"][0]["value"] is None


def test_a_damaged_record_costs_one_record(trace):
    records = [dispatch(1, n * 10, n * 10 + 5, n) for n in range(9)]
    text = text_of(process({"kernel_dispatch": records, "hip_api": [call(1, 2)]}))
    at = text.index('"start_timestamp":40,')
    damaged = text[:at] + '"start_times}}tamp"::' + text[at + 20 :]
    facts, tables, rejects = one(trace, damaged)
    assert [row["start_ns"] for row in tables["gpu_events"]] == [n * 10 for n in range(9) if n != 4]
    [reject] = rejects
    record = json.dumps(records[4], separators=(",", ":"))
    assert reject.byte_offset == text.index(record) and reject.reason == "not a record"
    assert facts.complete and len(tables["runtime_calls"]) == 1


def test_a_lost_end_of_a_list_loses_no_record(trace):
    document = process({"kernel_dispatch": [dispatch(1, 1, 2)], "memory_copy": [copy(5, 6)]})
    del document["buffer_records"]["hip_api"], document["buffer_records"]["marker_api"]
    text = text_of(document).replace('}}],"memory_copy":[{', "}},{")  # a writer was interrupted, another went on
    facts, tables, rejects = one(trace, text)
    assert not rejects and facts.complete
    assert [row["kind"] for row in tables["gpu_events"]] == ["kernel", "memcpy"]
    assert "other_events" not in tables


def test_records_with_a_list_of_records_inside(trace):
    inner = [{"id": 1, "x": 1}, {"id": 2, "x": 2}, {"id": 3}]
    records = [{"size": n, "inner": inner, "more": [{"size": 9}]} for n in range(5)]
    for size in (40, 120, 5_000):
        _, tables, rejects = one(
            trace, text_of(process({"new_list": records, "kernel_dispatch": [dispatch(1, 1, 2)]})), size
        )
        assert not rejects
        assert [json.loads(row["args"]) for row in tables["other_events"]] == records


def test_a_record_larger_than_a_block(trace):
    long = call(1, 2, args=[{"type": "char*", "name": "x", "value": "y" * 5_000}])
    _, tables, _ = one(trace, text_of(process({"hip_api": [call(1, 2), long, call(3, 4)]})), 200)
    assert [json.loads(row["args"]) for row in tables["runtime_calls"]] == [call(1, 2), long, call(3, 4)]


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


# -- what hostile inputs found -----------------------------------------------------------------------------------


def test_a_hole_does_not_make_one_record_of_two(trace):
    records = [dispatch(1, n * 10, n * 10 + 5, n) for n in range(5)]
    text = text_of(process({"kernel_dispatch": records})).encode()
    first, second = text.index(b'"end_timestamp":15'), text.index(b'"end_timestamp":25')
    damaged = text[: first + 8] + b"\0" * (second - first) + text[second + 8 :]
    _, tables, rejects = one(trace, damaged)
    assert [row["start_ns"] for row in tables["gpu_events"]] == [0, 30, 40] and len(rejects) == 1


@pytest.mark.parametrize("word", ["-nan", " nan", "-inf"])
def test_args_are_valid_json_however_a_number_is_spelt(trace, word):
    text = text_of(process({"kernel_dispatch": [dispatch(1, 1, 2), dispatch(1, 3, 4)]}))
    damaged = text.replace('"private_segment_size":0', f'"private_segment_size":{word}', 1)
    facts, tables, _ = one(trace, damaged)
    assert [json.loads(row["args"])["dispatch_info"]["private_segment_size"] for row in tables["gpu_events"]] == [
        None,
        0,
    ]
    assert facts.repairs.total() == 1


def test_records_in_the_wrong_list_are_told_by_their_kind(trace):
    lists = {"kernel_dispatch": [dispatch(1, 1, 2), call(1, 2), copy(3, 4), marker(5, 6, 50)]}
    _, tables, rejects = one(trace, text_of(process(lists)), 5_000)
    assert not rejects
    assert {name: len(rows) for name, rows in tables.items() if name != "threads"} == {
        **{"gpu_events": 2, "runtime_calls": 1, "annotations": 1}
    }


def test_sorted_keys_are_refused_by_name(trace):
    text = json.dumps(json.loads(text_of(process({"kernel_dispatch": [dispatch(1, 1, 2)]}))), sort_keys=True)
    with pytest.raises(InputError, match="its keys are in another order than rocprofv3 writes them"):
        one(trace, text)


def test_handles_and_keys_beyond_63_bits(trace):
    agents = [{"size": 1, "id": {"handle": 2**64 - 1}, "type": 2, "logical_node_type_id": 0}]
    agents += process({})["agents"]
    strings = {"buffer_records": KINDS, "marker_api": [{"key": 2**63, "value": "x"}, {"key": True, "value": "y"}]}
    _, tables, _ = one(
        trace, text_of(process({"kernel_dispatch": [dispatch(1, 1, 2)]}, agents=agents, strings=strings))
    )
    assert tables["gpu_events"][0]["device"] == 0


def test_many_counter_records_are_read_in_reasonable_time(trace):
    """Each ends in what looks like the end of a list; looking at the text before each one would take hours."""
    record = EVERY_KIND["counter_collection"][0] | {"stream_id": {"handle": 0}}
    text = text_of(process({"counter_collection": [record] * 20_000, "kernel_dispatch": [dispatch(1, 1, 2)]}))
    _, tables, _ = one(trace, text, 6_500_000)
    assert len(tables["other_events"]) == 20_000
