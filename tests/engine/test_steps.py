"""Steps: the ways in which they are found, on drawn traces, the samples and a real training."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest

from tests.conftest import ROOT
from tests.tracegen import annotation, ingest_files, kernel, launch, layers, training
from traceanalyzer.store.store import Store

SAMPLES = ROOT / "sample_traces"
TRUTH = json.loads((SAMPLES / "truth.json").read_text())


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


# -- kernels that mark steps ------------------------------------------------------------------------------------------


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


def test_steps_of_chosen_devices(store_of):
    events = training([0, 200]) + [event | {"args": event["args"] | {"device": 1}} for event in training([50, 250])]
    result = store_of(events).session(devices=(1,)).sql("SELECT DISTINCT device FROM steps")
    assert [row for batch in result.batches() for row in batch] == [(1,)]


# -- the samples and a real training ----------------------------------------------------------------------------------


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
