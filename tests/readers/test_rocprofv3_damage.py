"""rocprofv3's JSON cut anywhere and damaged in every way: what is sound is stored, and nothing is made up."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.test_rocprofv3 import EVERY_KIND, one
from tests.rocprofv3gen import KINDS, call, copy, dispatch, marker, process, symbol, text_of
from traceanalyzer.errors import InputError

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


def test_kernel_symbols_among_the_records_are_other_events(trace):
    _, tables, rejects = one(
        trace, text_of(process({"kernel_symbols": [symbol(1, "f")], "kernel_dispatch": [dispatch(1, 1, 2)]}))
    )
    assert not rejects and [row["category"] for row in tables["other_events"]] == ["kernel_symbols"]
