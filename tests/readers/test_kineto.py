"""The Kineto reader: every kind of event in its table, old and new spellings, exact times, odd values."""

from __future__ import annotations

import json

import pytest

from tests.readers.test_document import read
from tests.tracegen import cpu_op, document, kernel, memcpy


def tables_of(tmp_path, events, **keys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(events, **keys)))
    return read(path, 1 << 20)[0]


@pytest.mark.parametrize(
    ("ph", "cat", "table"),
    [
        ("X", "kernel", "gpu_events"),
        ("X", "Kernel", "gpu_events"),
        ("X", "gpu_memcpy", "gpu_events"),
        ("X", "Memset", "gpu_events"),
        ("X", "cpu_op", "cpu_ops"),
        ("X", "Operator", "cpu_ops"),
        ("X", "cuda_driver", "runtime_calls"),
        ("X", "Runtime", "runtime_calls"),
        ("X", "user_annotation", "annotations"),
        ("X", "gpu_user_annotation", "annotations"),
        ("X", "python_function", "python_calls"),
        ("X", "Trace", "other_events"),
        ("X", "cuda_sync", "other_events"),
        ("X", None, "other_events"),
        ("B", "cpu_op", "other_events"),
        ("i", "cpu_instant_event", "instants"),
        ("i", None, "instants"),
        ("C", None, "counters"),
        ("s", "ac2g", "flows"),
        ("f", "fwdbwd", "flows"),
        ("M", None, "threads"),
        (None, None, "other_events"),
    ],
)
def test_each_event_goes_to_its_table(tmp_path, ph, cat, table):
    event = {"name": "n", "pid": 1, "tid": 2, "ts": 5, "dur": 3, "args": {"x": 1}}
    event |= {key: value for key, value in (("ph", ph), ("cat", cat)) if value}
    assert list(tables_of(tmp_path, [event])) == [table]


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1712345678901234.567", 1712345678901234567),  # no double holds it
        ("7516230579530.853", 7516230579530853),
        ("8796093022207.999", 8796093022207999),  # just below what a double holds to the nanosecond
        ("8796093022208.001", 8796093022208001),
        ("1614800000000220", 1614800000000220000),
        ('"213757592882.5"', 213757592882500),
        ("0", 0),
        ("-12.5", -12500),
        ("1e3", 1_000_000),
    ],
)
def test_times_are_exact_nanoseconds(tmp_path, ts, ns):
    path = tmp_path / "t.json"
    path.write_text(
        f'{{"traceEvents": [{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 1, "ts": {ts}, "dur": 1.001}}]}}'
    )
    assert [(row["start_ns"], row["dur_ns"]) for row in read(path, 100)[0]["gpu_events"]] == [(ns, 1001)]


def test_epoch_and_relative_times_in_one_file_are_both_exact(tmp_path):
    events = [kernel("a", 5.001, 1), kernel("b", 1712345678901234, 1.5), kernel("c", 7.003, 1)]
    got = tables_of(tmp_path, events)["gpu_events"]
    assert [row["start_ns"] for row in got] == [5001, 1712345678901234000, 7003]


@pytest.mark.parametrize(
    ("changes", "defect", "start", "dur"),
    [
        ({"ts": None}, "incomplete", None, 5000),
        ({"dur": None}, "incomplete", 1000, None),
        ({"dur": -3}, "negative_duration", 1000, -3000),
        ({"dur": 0}, None, 1000, 0),
        ({"ts": 9.9e15}, "impossible_timestamp", None, 5000),
        ({"ts": 1712345678901244.5, "dur": 8e15}, "impossible_timestamp", 1712345678901244500, None),
    ],
)
def test_a_time_that_cannot_be_used_is_marked(tmp_path, changes, defect, start, dur):
    event = {key: value for key, value in (kernel("k", 1, 5) | changes).items() if value is not None}
    row = tables_of(tmp_path, [event])["gpu_events"][0]
    assert (row["defect"], row["start_ns"], row["dur_ns"]) == (defect, start, dur)


def test_gpu_columns_come_from_args_or_from_the_track(tmp_path):
    full = {"device": 2, "stream": 9, "correlation": 77, "External id": 5, "grid": [8, 2, 1], "block": [256, 1, 1]}
    events = [
        kernel("a", 0, 1, stream=1, args=full),
        {"ph": "X", "cat": "kernel", "name": "b", "pid": 3, "tid": 4, "ts": 1, "dur": 1},
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "c",
            "pid": 0,
            "tid": "stream 7",
            "ts": 2,
            "dur": 1,
            "args": {"external id": 6},
        },
        kernel("d", 3, 1, args={"grid": "[128, 1, 1]", "block": "[64, 1, 1]"}),
        memcpy(4, 1, args={"bytes": 4096}),
    ]
    got = tables_of(tmp_path, events)["gpu_events"]
    assert [(r["device"], r["stream"], r["correlation_id"], r["external_id"]) for r in got] == [
        (2, 9, 77, 5),
        (3, 4, None, None),
        (0, 7, None, 6),
        (0, 7, 1, None),
        (0, 7, 1, None),
    ]
    assert [(r["grid_x"], r["grid_y"], r["block_x"]) for r in got] == [
        (8, 2, 256),
        (None, None, None),
        (None, None, None),
        (128, 1, 64),
        (None, None, None),
    ]
    assert [(r["kind"], r["bytes"]) for r in got][-1] == ("memcpy", 4096)


def test_operator_columns_keep_shapes_as_json(tmp_path):
    dims = [[2, 3], [], [[1], [2]]]
    args = {"Input Dims": dims, "Input type": ["float", "", "TensorList"], "Sequence number": 12, "Fwd thread id": 1}
    row = tables_of(tmp_path, [cpu_op("aten::mm", 0, 1, **args)])["cpu_ops"][0]
    assert json.loads(row["input_dims"]) == dims
    assert json.loads(row["input_types"]) == args["Input type"]
    assert (row["sequence_number"], row["forward_tid"], row["input_strides"]) == (12, 1, None)
    assert json.loads(row["args"]) == args


def test_unsigned_ids_beyond_63_bits_stay_exact_in_args(tmp_path):
    ids = {"Comms Id": 10159970886766084423, "Addr": 18446744073709551615}
    row = tables_of(tmp_path, [kernel("k", 0, 1, args=ids)])["gpu_events"][0]
    assert json.loads(row["args"]).items() >= ids.items()


def test_string_pids_stay_apart(tmp_path):
    span = {"ph": "X", "cat": "Trace", "name": "t", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0, "dur": 1}
    row = tables_of(tmp_path, [span])["other_events"][0]
    assert (row["pid"], row["tid"]) == ("Spans", "PyTorch Profiler")


def test_flows_keep_id_phase_and_binding(tmp_path):
    flow = {"ph": "f", "bp": "e", "cat": "ac2g", "name": "ac2g", "id": 7, "pid": 0, "tid": 1, "ts": 2}
    row = tables_of(tmp_path, [flow])["flows"][0]
    assert (row["phase"], row["binding"], row["id"], row["start_ns"]) == ("f", "e", "7", 2000)


def test_keys_and_categories_in_any_script_do_not_break_the_sql(tmp_path):
    odd = {"ph": "X", "cat": "it's; DROP TABLE", "name": "'); --", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    assert tables_of(tmp_path, [odd])["other_events"][0]["category"] == "it's; DROP TABLE"


@pytest.mark.parametrize("keys", [{"rank": 3_000_000_000}, {"rank": -1}, {"rank": "x"}, {"rank": 1.5}])
def test_a_rank_that_is_none_is_not_taken(tmp_path, keys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document([kernel("k", 0, 1)], distributedInfo=keys, baseTimeNanoseconds=2**63)))
    assert read(path, 1000)[1] == {"rank": None, "base": 0}
