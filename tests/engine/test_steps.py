"""Steps: the ways in which they are found, and the timeline by step against a slow union per step."""

from __future__ import annotations

import bisect
import json
import shutil
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.oracle import GpuEvent, timeline
from tests.tracegen import cpu_op, ingest_events, ingest_files, kernel
from traceanalyzer.engine import library
from traceanalyzer.engine.session import Session
from traceanalyzer.engine.views import Views
from traceanalyzer.store.store import Store

SAMPLES = ROOT / "sample_traces"
TRUTH = json.loads((SAMPLES / "truth.json").read_text())
PARTS = ["window_ns", "computation_ns", "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns", "idle_ns"]


def annotation(name, ts, dur):
    return cpu_op(name, ts, dur) | {"cat": "user_annotation"}


def launch(ts, correlation):
    return cpu_op("hipLaunchKernel", ts, 1, correlation=correlation) | {"cat": "cuda_runtime"}


def steps_of(ingested, where="true"):
    return [
        (row["step"], row["start_ns"], row["end_ns"], row["source"])
        for row in ingested.sql(f"SELECT step, start_ns, end_ns, source FROM steps WHERE {where} ORDER BY ALL")
    ]


# -- ranges on the host ---------------------------------------------------------------------------------------------

GEMM = kernel("gemm", 0, 100)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [(7, "ProfilerStep"), (8, "ProfilerStep")]),
        (["step 3", "step 4"], [(3, "annotation"), (4, "annotation")]),
        (["Training step: 3", "Training step: 4"], [(3, "annotation"), (4, "annotation")]),
        (["train_step", "train_step"], [(0, "annotation"), (1, "annotation")]),
        (["Step#1", "Step#1"], [(0, "annotation"), (1, "annotation")]),
        (["iter_1", "batch 9", "iter_2"], [(1, "annotation"), (2, "annotation")]),
        (["step_1", "ProfilerStep#5"], [(5, "ProfilerStep")]),
        (["stepwise", "optimizer.step", "Optimizer.step#Adam.step", "batch_norm", "aten::step"], [(0, "whole trace")]),
        (["timestep embedding 4", "iterator", "DataLoader batch fetch"], [(0, "whole trace")]),
    ],
)
def test_names_of_ranges(store_of, names, expected):
    found = store_of([GEMM, *(annotation(name, 10 * n, 5) for n, name in enumerate(names))])
    assert [(step, source) for step, *_, source in steps_of(found)] == expected


def test_the_whole_trace_is_one_step_from_first_start_to_last_end(store_of):
    found = store_of([kernel("a", 5, 2), kernel("b", 9, 3)])
    assert steps_of(found) == [(0, 5000, 12000, "whole trace")]


# -- kernels that mark steps ----------------------------------------------------------------------------------------


def layers(start_us, count=6, spacing=3.0):
    names = ["gemm", "norm", "attention", "gemm", "swiglu"]
    return [kernel(name, start_us + spacing * n, 2) for n, name in enumerate(names * count)]


def training(starts_us, micro_batches=1, optimizer=1):
    """Return the kernels of steps: per micro batch an embedding, layers and a loss, then the optimizer."""
    made = []
    for start in starts_us:
        for micro in range(micro_batches):
            at = start + 120 * micro
            made += [kernel("copy_batch", at, 1), kernel("embedding", at + 2, 1), *layers(at + 5)]
            made += [kernel("loss", at + 100, 1)]
        at = start + 120 * micro_batches
        made += [kernel("adam", at + 2 * n, 1) for n in range(optimizer)]
    return made


def found_starts(found, device=0):
    return [start for _, start, _, source in steps_of(found) if source == "marker kernel"]


@pytest.mark.parametrize(
    "starts_us",
    [
        [0, 200],
        [0, 200, 400, 600],
        [0, 200, 400, 5000, 5200, 5400, 5600, 5800],  # a pause
        [0, 9000, 9200, 9400, 9600, 9800, 10000, 10200],  # the first step compiles
        [0, 180, 395, 610, 790, 1010],
    ],
)
@pytest.mark.parametrize("optimizer", [1, 24])
def test_steps_begin_with_the_first_kernel_that_all_have(store_of, starts_us, optimizer):
    found = store_of(training(starts_us, optimizer=optimizer))
    assert found_starts(found) == [1000 * start for start in starts_us]


def test_a_step_is_not_a_micro_batch(store_of):
    found = store_of(training([0, 700, 1400, 2100], micro_batches=4))
    assert found_starts(found) == [0, 700_000, 1_400_000, 2_100_000]


def test_work_before_the_first_step_is_no_step(store_of):
    warm_up = [kernel("fill", n, 1) for n in range(0, 90, 3)] + layers(100, count=2)
    found = store_of(warm_up + training([300, 500, 700, 900, 1100]))
    assert found_starts(found) == [300_000, 500_000, 700_000, 900_000, 1_100_000]
    by_step = found.named("timeline", by="step")
    assert [row["step"] for row in by_step] == [None, 0, 1, 2, 3, 4]


def test_a_trace_that_begins_within_a_step(store_of):
    events = [e for e in training([0, 200, 400, 600, 800]) if e["ts"] >= 60]
    first, *starts = found_starts(store_of(events))
    assert 60_000 <= first <= 70_000  # what is left of a step is one
    assert [start - 200_000 for start in starts] == [5_000, 205_000, 405_000, 605_000]


def hidden(name, every, starts_us, at=50, times=1):
    """Return kernels that come in some steps only."""
    return [kernel(name, start + at + 0.1 * n, 0.1) for start in starts_us[::every] for n in range(times)]


MANY = [f"kernel_{n}" for n in range(60)]


def wide(starts_us):
    """Return steps of sixty different kernels and an optimizer's."""
    made = []
    for start in starts_us:
        made += [kernel(name, start + 2 * n, 1) for n, name in enumerate(MANY)]
        made.append(kernel("multi_tensor_apply_kernel<AdamFunctor>", start + 150, 5))
    return made


@pytest.mark.parametrize("every", [2, 4, 5])
def test_what_comes_every_few_steps_makes_no_longer_steps(store_of, every):
    starts = [200 * n for n in range(20)]
    found = store_of([*wide(starts), *hidden("log", every, starts, at=160), *hidden("save", every, starts, at=161)])
    assert found_starts(found) == [1000 * start for start in starts]


def test_an_evaluation_is_no_step(store_of):
    """Between some steps the forward pass runs alone, five times."""
    starts = [200 * n + 700 * (n // 3) for n in range(12)]
    evaluations = [
        kernel(name, start + 200 + 130 * batch + 2 * n, 1)
        for start in starts[2::3]
        for batch in range(5)
        for n, name in enumerate(MANY)
    ]
    assert len(found_starts(store_of([*wide(starts), *evaluations]))) == 12


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_a_cut_last_step_does_not_make_micro_batches_steps(store_of, micro_batches):
    events, at = [], 0
    for _ in range(6):
        for _ in range(micro_batches):
            events += [kernel(name, at + 2 * n, 1) for n, name in enumerate(MANY)]
            at += 130
        events.append(kernel("multi_tensor_apply_kernel<AdamFunctor>", at, 5))
        at += 20
    assert len(found_starts(store_of(events[: -len(MANY) // 2]))) in (5, 6)


def test_idle_time_between_steps_does_not_matter(store_of):
    starts = [0, 200, 2200, 2400, 2600, 9600, 9800, 12000]
    assert found_starts(store_of(wide(starts))) == [1000 * start for start in starts]


def test_many_steps_behind_a_long_warm_up_take_no_time_that_grows_with_both(store_of):
    """Thousands of kernels before the first of hundreds of steps: what comes before marks is compared within a step."""
    warm_up = [kernel(f"warm_{n % 50}", n, 0.5) for n in range(6000)]
    starts = [10_000 + 200 * n for n in range(100)]
    assert len(found_starts(store_of([*warm_up, *wide(starts)]))) == 100


def test_steps_that_begin_together_are_told_apart_alike_everywhere(store_of):
    events = [annotation("ProfilerStep#0", 0, 100), annotation("ProfilerStep#1", 0, 50)]
    for number, (ts, launched) in enumerate([(110, 5), (120, 70)], 1):
        events += [kernel("gemm", ts, 5, args={"correlation": number}), launch(launched, number)]
    found = store_of(events)
    rows = found.sql("SELECT launch_step AS step, count(*) AS n FROM gpu_events GROUP BY ALL ORDER BY ALL")
    by_query = {row["step"]: row["busy_ns"] // 5000 for row in found.named("timeline", by="step", step_rule="launch")}
    assert {row["step"]: row["n"] for row in rows} == {step: n for step, n in by_query.items() if n}


def test_work_without_a_period_has_no_steps(store_of):
    names = ["a", "b", "a", "c", "c", "a", "d", "b", "b", "b", "e", "a", "f", "a", "c", "d", "d", "g", "a", "b", "h"]
    times = [n * n for n in range(len(names))]
    found = store_of([kernel(name, ts, 1) for name, ts in zip(names, times, strict=True)])
    assert [source for *_, source in steps_of(found)] == ["whole trace"]


def test_every_device_has_steps_of_its_own(store_of):
    events = training([0, 200, 400]) + [
        event | {"args": event["args"] | {"device": 1}} for event in training([50, 250, 450, 650])
    ]
    rows = store_of(events).sql(
        "SELECT device, count(*) AS n, min(start_ns) AS first FROM steps GROUP BY ALL ORDER BY 1"
    )
    assert [(r["device"], r["n"], r["first"]) for r in rows] == [(0, 3, 0), (1, 4, 50_000)]


def test_the_launch_of_a_marker_kernel_begins_a_step_on_the_host(store_of):
    events = training([0, 200, 400])
    for number, event in enumerate(events, 1):
        event["args"]["correlation"] = number
    calls = [launch(event["ts"] - 30, event["args"]["correlation"]) for event in events]
    found = store_of(events + calls)
    rows = found.sql("SELECT launch_start_ns FROM steps ORDER BY step")
    assert [row["launch_start_ns"] for row in rows] == [-30_000, 170_000, 370_000]
    launched = found.named("timeline", by="step", step_rule="launch")
    assert [(row["step"], row["busy_ns"]) for row in launched] == [
        (row["step"], row["busy_ns"]) for row in found.named("timeline", by="step")
    ]


# -- a pattern of the user's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "starts_us"),
    [
        ("^embedding$", [2, 202, 402]),
        ("ADAM", [120, 320, 520]),  # a burst of 24
        ("swiglu|loss", [17, 217, 417]),
        ("nothing", []),
    ],
)
def test_steps_by_a_pattern(store_of, pattern, starts_us):
    found = store_of(training([0, 200, 400], optimizer=24))
    rows = found.sql(f"SELECT start_ns, source FROM steps_by('{pattern}') ORDER BY start_ns")
    assert [row["start_ns"] for row in rows] == [1000 * start for start in starts_us]
    assert {row["source"] for row in rows} <= {"marker kernel"}
    steps = [row["step"] for row in found.named("timeline", by="step", step_kernel=pattern)]
    assert steps == [None, *range(len(starts_us))]


def test_a_pattern_with_a_pause(store_of):
    starts = [0, 200, 9000, 9200, 9400, 9600]
    rows = store_of(training(starts)).sql("SELECT start_ns FROM steps_by('embedding') ORDER BY start_ns")
    assert [row["start_ns"] for row in rows] == [1000 * (start + 2) for start in starts]


def test_a_pattern_that_is_no_regular_expression(cli, tmp_path, store_of):
    found = store_of(training([0, 200]))
    ran = cli("query", found.root, "timeline", "-p", "by=step", "-p", "step_kernel=(", code=1)
    assert "missing )" in ran.err


# -- the timeline by step -------------------------------------------------------------------------------------------

works = st.tuples(
    st.sampled_from(["gemm", "ncclDevKernel_Generic(x)", "__amd_rocclr_copyBuffer"]),
    st.integers(0, 300),
    st.integers(0, 60),
    st.integers(0, 1),
    st.integers(0, 320),
)


def kernels(drawn):
    return [
        kernel(name, start / 1000, dur / 1000, device=device, args={"correlation": n})
        for n, (name, start, dur, device, _) in enumerate(drawn, 1)
    ]


def as_events(drawn):
    classes = {"gemm": "computation", "ncclDevKernel_Generic(x)": "communication"}
    return [
        (GpuEvent(0, "kernel", name, device, 0, start, dur, None, classes.get(name, "memcpy")), launched)
        for name, start, dur, device, launched in drawn
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(works, min_size=1, max_size=20), st.lists(st.integers(-20, 340), min_size=1, max_size=5, unique=True))
def test_execution_steps_add_up_and_equal_a_union_of_clipped_events(tmp_path_factory, drawn, cuts):
    folder = tmp_path_factory.mktemp("steps")
    marks = [annotation(f"ProfilerStep#{n}", cut / 1000, 0.001) for n, cut in enumerate(sorted(cuts))]
    found = ingest_events(kernels(drawn) + marks, folder / "store", folder / "t.json")
    rows = found.named("timeline", by="step")
    for whole in found.named("timeline"):
        own = [row for row in rows if row["device"] == whole["device"]]
        assert {name: sum(row[name] for row in own) for name in PARTS} == {name: whole[name] for name in PARTS}
        assert [row["step"] for row in own if row["step"] is not None] == list(range(len(cuts)))
    edges = [-(10**6), *sorted(cuts), 10**6]
    for row in rows:
        number = 0 if row["step"] is None else row["step"] + 1
        low, high = edges[number], edges[number + 1]
        pieces = [
            (max(e.start_ns, low), min(e.start_ns + e.dur_ns, high), e.cls)
            for e, _ in as_events(drawn)
            if e.device == row["device"] and e.start_ns < high and e.start_ns + e.dur_ns > low
        ]
        assert row["computation_ns"] == union(pieces, "computation")
        assert row["communication_ns"] == union(pieces, "communication")
        assert row["busy_ns"] == union(pieces)


@settings(max_examples=40, deadline=None)
@given(st.lists(works, min_size=1, max_size=20), st.lists(st.integers(0, 300), min_size=1, max_size=4, unique=True))
def test_launch_steps_equal_the_timeline_of_their_events(tmp_path_factory, drawn, cuts):
    folder = tmp_path_factory.mktemp("steps")
    starts = sorted(cuts)
    marks = [
        annotation(f"ProfilerStep#{n}", start / 1000, (end - start) / 1000)
        for n, (start, end) in enumerate(zip(starts, [*starts[1:], 310], strict=True))
    ]
    calls = [launch(launched / 1000, n) for n, (*_, launched) in enumerate(drawn, 1)]
    found = ingest_events(kernels(drawn) + marks + calls, folder / "store", folder / "t.json")
    groups: dict[tuple[int, int | None], list[GpuEvent]] = {}
    for event, launched in as_events(drawn):
        step = bisect.bisect_right(starts, launched) - 1
        groups.setdefault((event.device, step if step >= 0 and launched < 310 else None), []).append(event)
    rows = {(row["device"], row["step"]): row for row in found.named("timeline", by="step", step_rule="launch")}
    assert groups.keys() <= rows.keys()
    for key, row in rows.items():
        expected = timeline(groups[key])[key[0]] if key in groups else None
        assert [row[name] for name in PARTS] == [getattr(expected, name, 0) for name in PARTS]


def union(pieces, kind=None):
    covered = set()
    for low, high, of in pieces:
        if kind in (None, of):
            covered |= set(range(low, high))
    return len(covered)


def test_two_ways_of_counting_are_not_mixed(shared, store_of):
    """What the public example asks for: 4 steps, one without work, and kernels that run two steps late."""
    found = store_of(shared / "examples/18-step-collapse-late-kernels.json")
    busy = {
        rule: [row["busy_ns"] for row in found.named("timeline", by="step", step_rule=rule) if row["step"] is not None]
        for rule in ("launch", "execution")
    }
    assert busy == {"launch": [20_000, 0, 40_000, 30_000], "execution": [20_000, 0, 0, 70_000]}


def test_a_real_training_run_of_fifty_steps(shared, tmp_path):
    target = tmp_path / "host/908_results.json.gz"
    target.parent.mkdir()
    target.symlink_to(shared / "traces/rocprofv3-mi350x-train/trace.json.gz")
    found = ingest_files([target], tmp_path / "store")
    rows = found.sql("SELECT step, dur_ns, source FROM steps ORDER BY step")
    assert [row["step"] for row in rows] == list(range(50))
    assert {row["source"] for row in rows} == {"marker kernel"}
    # each step has the same kernels: of those that come at least once per step, all but a few as often in every step
    counts = found.sql(
        "SELECT kernel_key, count(DISTINCT n) AS different, sum(n) AS events"
        " FROM (SELECT kernel_key, execution_step, count(*) AS n FROM kernels WHERE execution_step IS NOT NULL"
        "       GROUP BY ALL) GROUP BY ALL HAVING count(*) = 50"
    )
    alike = sum(row["events"] for row in counts if row["different"] == 1)
    assert alike > 0.75 * sum(row["events"] for row in counts)
    assert found.sql("SELECT median(dur_ns) AS usual FROM steps")[0]["usual"] < 45_000_000


# -- derived tables that only some answers need --------------------------------------------------------------------


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


def test_steps_of_chosen_devices(store_of):
    events = training([0, 200]) + [event | {"args": event["args"] | {"device": 1}} for event in training([50, 250])]
    result = store_of(events).session(devices=(1,)).sql("SELECT DISTINCT device FROM steps")
    assert [row for batch in result.batches() for row in batch] == [(1,)]


@pytest.mark.parametrize("name", sorted(library.load("queries")))
def test_no_answer_depends_on_what_was_not_made(store_of, name, monkeypatch):
    events = [*training([0, 200]), launch(0, 1), annotation("x", 0, 1), kernel("ncclDevKernel", 50, 10)]
    found = store_of(events)
    expected = found.named(name)
    monkeypatch.setattr(Views, "_is_read", lambda *_, **__: True)
    monkeypatch.setattr(library.SqlFile, "unused", lambda *_: set())
    assert found.named(name) == expected


def test_every_trace_of_the_samples_has_the_steps_of_the_truth(tmp_path):
    """ProfilerStep on rank 0, ranges in the merged database, kernels where neither is."""
    found = ingest_files([SAMPLES], tmp_path / "store", run="proxy")
    length = {"pytorch": TRUTH["step_ns"]}
    for collector, name in (("rocprofv3", "rocprofv3"), ("rocm_trace_lite", "rocm_trace_lite, lite")):
        length[collector] = TRUTH["collectors"][name]["step_ns"]
    for trace in Store(found.root).traces():
        of = trace.identity
        rows = found.sql(
            "SELECT step, s.start_ns, source, min(e.start_ns) AS first_ns, any_value(s.end_ns) AS end_ns,"
            f" max(e.end_ns) AS last_ns FROM steps AS s JOIN gpu_events AS e USING (run, trace_id)"
            f" WHERE trace_id = '{of.trace_id}' AND execution_step = step GROUP BY ALL ORDER BY step"
        )
        assert len(rows) == 2
        assert abs(rows[1]["start_ns"] - rows[0]["start_ns"] - length[of.collector]) < 10_000
        if rows[0]["source"] == "marker kernel":
            assert rows[1]["start_ns"] - rows[0]["start_ns"] == length[of.collector]
            assert all(row["first_ns"] == row["start_ns"] for row in rows)
            assert rows[1]["end_ns"] == rows[1]["last_ns"]


def test_rocm_trace_lite_without_its_markers(tmp_path):
    """The merged database of two ranks, as it would be had nobody called roctx."""
    path = tmp_path / "trace.db"
    shutil.copy(SAMPLES / "rocm_trace_lite_output/trace.db", path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM rocpd_op WHERE gpuId < 0")
    connection.close()
    found = ingest_files([path], tmp_path / "store")
    truth = TRUTH["collectors"]["rocm_trace_lite, lite"]
    rows = found.sql("SELECT rank, step, start_ns, dur_ns, source FROM steps ORDER BY ALL")
    assert [(row["rank"], row["step"], row["source"]) for row in rows] == [
        (rank, step, "marker kernel") for rank in (0, 5) for step in (0, 1)
    ]
    for first, second in (rows[:2], rows[2:]):
        assert first["dur_ns"] == second["start_ns"] - first["start_ns"] == truth["step_ns"]
    assert rows[0]["dur_ns"] + rows[1]["dur_ns"] == truth["timeline"]["window_ns"]
