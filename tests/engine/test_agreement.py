"""What several collectors saw of one workload: the samples, whose differences are known, and planted ones."""

from __future__ import annotations

import json
import sqlite3

import pytest

from proxy import rocm_trace_lite  # of sample_traces, which pytest has on its path
from proxy.collectors import RTL_FULL, RTL_LITE
from tests import oracle
from tests.conftest import ROOT
from tests.readers.test_rtl import database, marker, op
from tests.tracegen import cpu_op, document, ingest_files, kernel

SAMPLES = ROOT / "sample_traces"
TRUTH = json.loads((SAMPLES / "truth.json").read_text())
LITE = "rocm_trace_lite sees no collectives in its lite mode"
DMA = "rocm_trace_lite sees no copies by the DMA engines"
BLIT = "copies or fills as blit kernels"
EXPLAINED = {
    "ncclDevKernel_Generic_1": LITE,
    "Memcpy HtoD (Host -> Device)": DMA,
    "Memcpy DtoH (Device -> Host)": DMA,
    "copy within a GPU": BLIT,
}
SUBSET = [
    next((SAMPLES / "pytorch").glob("*rank?0?*")),
    SAMPLES / "rocprof_output",
]


def agreement(found, **parameters):
    return found.named("collector_agreement", **parameters)


def by_verdict(rows):
    """Return kernel -> reason of each verdict but 'agree'."""
    found = {"explained": {}, "differ": {}}
    for row in rows:
        if row["verdict"] != "agree":
            found[row["verdict"]][row["kernel_key"]] = row["reason"]
    return found


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return ingest_files([SAMPLES], tmp_path_factory.mktemp("agreement") / "store", run="proxy")


def test_the_samples_differ_where_their_collectors_must_and_nowhere_else(samples):
    rows = agreement(samples)
    found = by_verdict(rows)
    assert found["differ"] == {}
    assert {
        key: reason.removesuffix("; within a clock tick of 40 ns") for key, reason in found["explained"].items()
    } == (EXPLAINED)


def test_counts_are_those_of_the_model(samples):
    """A name of the model and its key are different texts, so that names are compared by how often they come."""
    expected = sorted(TRUTH["per_step"]["events_by_name"].values())
    rows = agreement(samples)
    assert sorted(row["pytorch_per_step"] for row in rows) == expected
    assert sorted(row["rocprofv3_per_step"] for row in rows) == expected
    unseen = {"ncclDevKernel_Generic_1", "Memcpy HtoD (Host -> Device)", "Memcpy DtoH (Device -> Host)"}
    assert {row["kernel_key"] for row in rows if row["rocm_trace_lite_per_step"] is None} == unseen
    seen = [row for row in rows if row["kernel_key"] not in unseen]
    assert all(row["rocm_trace_lite_per_step"] == row["pytorch_per_step"] for row in seen)


def test_categories_add_up_and_a_run_is_one_sentence(samples):
    kernels, categories = agreement(samples), agreement(samples, by="category")
    for name in ("pytorch_per_step", "rocprofv3_per_step", "rocm_trace_lite_per_step"):
        assert sum(row[name] or 0 for row in categories) == sum(row[name] or 0 for row in kernels)
    assert sum(row["kernels"] for row in categories) == len(kernels) == len(TRUTH["per_step"]["events_by_name"])
    assert {row["category"]: row["verdict"] for row in categories if row["verdict"] != "agree"} == {
        "comm_collective": "explained",
        "memcpy": "explained",
    }
    [run] = agreement(samples, by="run")
    assert run["verdict"] == "explained"
    times = {True: 0, False: 0}
    for event in oracle.gpu_events(oracle.load(SUBSET[0])[0]):  # of rank 0, which all recorded
        times[event.name.startswith(("nccl", "Memcpy"))] += event.dur_ns
    share = round(100 * times[False] / sum(times.values()), 1)
    assert run["reason"] == (
        f"pytorch, rocm_trace_lite, rocprofv3 agree on 71 of 75 kernels, {share} % of the GPU time; 4 must differ, none"
        " differs without a reason"
    )


def test_collectives_of_full_mode_are_compared_in_counts_only(tmp_path):
    rocm_trace_lite.write(tmp_path, 0, RTL_FULL, 2)
    found = ingest_files([*SUBSET, tmp_path / "trace_41000.db"], tmp_path / "store", run="proxy")
    [row] = [row for row in agreement(found) if row["kernel_key"] == "ncclDevKernel_Generic_1"]
    assert (row["verdict"], row["difference_ns"], row["rocm_trace_lite_per_step"]) == ("agree", None, 41)
    assert row["rocm_trace_lite_ns"] is not None


PLANTED = {
    "a kernel lost in one step": (
        "DELETE FROM rocpd_op WHERE id = (SELECT max(id) FROM rocpd_op WHERE description_id = :n)",
        "_rope_gen_fwd_kernel",
        "rocm_trace_lite {less} to {count}",
    ),
    "a kernel that takes longer": (
        "UPDATE rocpd_op SET end = end + (end - start) / 4 WHERE description_id = :n",
        "_rmsnorm_fwd_kernel",
        "rocm_trace_lite takes 2",
    ),
    "a kernel lost in all steps": (
        "DELETE FROM rocpd_op WHERE description_id = :n",
        "_hc_compute_tail_fwd_kernel",
        "rocm_trace_lite 0",
    ),
    "a kernel recorded twice": (
        "INSERT INTO rocpd_op SELECT id + 1000000, gpuId, queueId, sequenceId, completionSignal, start, end,"
        " description_id, opType_id, roctxId FROM rocpd_op WHERE description_id = :n",
        "_apply_rope_fwd_kernel",
        "rocm_trace_lite {twice}",
    ),
}


def test_planted_differences_are_found_and_nothing_else(tmp_path):
    """Five more: four kernels are changed, and the name of a fifth, which makes two that only one side saw."""
    rocm_trace_lite.write(tmp_path, 0, RTL_LITE, 2)
    path = tmp_path / "trace_41000.db"
    counts = TRUTH["per_step"]["events_by_name"]
    expected = {}
    with sqlite3.connect(path) as connection:
        ids = dict(connection.execute("SELECT string, id FROM rocpd_string"))
        for statement, name, words in PLANTED.values():
            connection.execute(statement, {"n": ids[name]})
            n = counts[name]
            expected[name] = words.format(count=n, less=n - 1, twice=2 * n)
        connection.execute("UPDATE rocpd_string SET string = 'renamed' WHERE string = '_clamped_swiglu_bwd_kernel'")
    connection.close()
    expected |= {"renamed": "pytorch 0, rocm_trace_lite 8, rocprofv3 0"}
    expected |= {"_clamped_swiglu_bwd_kernel": "pytorch 8, rocm_trace_lite 0, rocprofv3 8"}
    found = ingest_files([*SUBSET, path], tmp_path / "store", run="proxy")
    verdicts = by_verdict(agreement(found))
    assert verdicts["explained"].keys() == EXPLAINED.keys()
    assert verdicts["differ"].keys() == expected.keys()
    for name, words in expected.items():
        assert words in verdicts["differ"][name], name
    [run] = agreement(found, by="run")
    assert run["verdict"] == "differ"
    assert "6 differ without a reason" in run["reason"]


def test_a_known_noise_is_no_difference(tmp_path):
    rocm_trace_lite.write(tmp_path, 0, RTL_LITE, 2)
    path = tmp_path / "trace_41000.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rocpd_op SET end = start + (end - start) * 103 / 100")
    connection.close()
    found = ingest_files([*SUBSET, path], tmp_path / "store", run="proxy")
    assert by_verdict(agreement(found))["differ"] == {}
    differ = by_verdict(agreement(found, noise_percent="1", tiny_noise_percent="1"))["differ"]
    assert len(differ) > 60
    assert all("rocm_trace_lite takes" in reason for reason in differ.values())


# -- drawn: one step is [kernel, ns] in turn -------------------------------------------------------------------------


def pytorch(path, step, steps, several=False):
    """Write a trace of the PyTorch profiler, with launches; with `several`, `step` is a list of different steps."""
    events, at = [], 0
    for number, kernels in enumerate(step if several else [step] * steps):
        begin = at
        for name, dur in kernels:
            n = len(events) + 1
            events.append(kernel(name, at / 1000, dur / 1000, args={"correlation": n}))
            events.append(cpu_op("hipLaunchKernel", at / 1000, 0.01, correlation=n) | {"cat": "cuda_runtime"})
            at += dur + 100
        events.append(cpu_op(f"ProfilerStep#{number}", begin / 1000, (at - begin) / 1000) | {"cat": "user_annotation"})
    path.write_text(json.dumps(document(events)))
    return path


def lite(path, step, steps, before=(), marks=0):
    """Write a database of rocm_trace_lite; with `marks`, roctx ranges begin at the first kernel of so many steps."""
    ops, at, begun = [], 10_000, []
    for name, dur in [*before, *(list(step) * steps)]:
        if name == STEP[0][0]:
            begun.append(at)
        ops.append(op(name, at, at + dur))
        at += dur + 100
    if marks:
        assert len(begun) == marks
        ends = [*begun[1:], at]
        ops += [marker(f"step {n}", low, high) for n, (low, high) in enumerate(zip(begun, ends, strict=True))]
    return database(path, ops)


STEP = [(f"kernel_{letter}", 10_000 + 1000 * n) for n, letter in enumerate("abcdefghij")]


def ingested(tmp_path, one, other):
    return ingest_files([one, other], tmp_path / "store", run="r", rank=0)


def test_names_that_were_cut_are_matched_with_all_that_begin_so(tmp_path):
    whole = [("void at::f<4, g(int)::{lambda()#1}>(int)", 5000), ("void at::f<4, g(int)::{lambda()#2}>(int)", 5000)]
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", [*STEP, *whole], 3),
        lite(tmp_path / "trace_77.db", [*STEP, ("at::f<4, g", 5000), ("at::f<4, g", 5000)], 3),
    )
    rows = {row["kernel_key"]: row for row in agreement(found)}
    assert by_verdict(rows.values()) == {"explained": {}, "differ": {}}
    assert (rows["at::f<4,g"]["pytorch_per_step"], rows["at::f<4,g"]["rocm_trace_lite_per_step"]) == (2, 2)


def test_whole_names_stay_apart(tmp_path):
    names = [("void at::f<4>(int)", 5000), ("void at::f<8>(int)", 7000)]
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", [*STEP, *names], 3),
        lite(tmp_path / "trace_77.db", [*STEP, ("at::f<4>", 5000), ("at::f<8>", 7000)], 3),
    )
    rows = {row["kernel_key"]: row for row in agreement(found)}
    assert rows["at::f<4>"]["pytorch_ns"] == rows["at::f<4>"]["rocm_trace_lite_ns"] == 5000
    assert rows["at::f<8>"]["pytorch_ns"] == 7000


def test_warm_up_that_one_collector_recorded(tmp_path):
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", STEP, 3),
        lite(tmp_path / "trace_77.db", STEP, 4, before=[("autotune", 9000), *STEP[:3]]),
    )
    assert by_verdict(agreement(found)) == {
        "explained": {"autotune": "only outside of steps: warm-up that not all collectors recorded"},
        "differ": {},
    }


def test_a_kernel_without_a_name(tmp_path):
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", STEP, 3),
        lite(tmp_path / "trace_77.db", [*STEP, ("kernel_0x7f12", 900)], 3),
    )
    assert by_verdict(agreement(found))["explained"] == {
        "kernel_0x7f12": "its name is not in the trace: pytorch 0, rocm_trace_lite 1"
    }


def test_what_depends_on_the_data_in_all_is_no_difference(tmp_path):
    def steps(*counts):
        return [[*STEP, *[("expert", 5000)] * count] for count in counts]

    events = pytorch(tmp_path / "p.json", steps(2, 5, 3), 1, several=True)
    kernels = [kernel for step in steps(4, 2, 3) for kernel in step]
    found = ingested(tmp_path, events, lite(tmp_path / "trace_77.db", kernels, 1, marks=3))
    assert by_verdict(agreement(found)) == {
        "explained": {"expert": "differs from step to step in all: pytorch 2 to 5, rocm_trace_lite 2 to 4"},
        "differ": {},
    }


def test_a_kernel_of_one_rank_is_compared_with_that_rank(tmp_path):
    for rank, step in enumerate(([*STEP, ("log", 900)], STEP)):
        ingest_files([pytorch(tmp_path / f"p{rank}.json", step, 3)], tmp_path / "store", run="r", rank=rank)
    path = lite(tmp_path / "trace_77.db", [*STEP, ("log", 900)], 3)
    assert by_verdict(agreement(ingest_files([path], tmp_path / "store", run="r", rank=0))) == {
        "explained": {},
        "differ": {},
    }


def test_a_lost_copy_is_a_difference(tmp_path):
    copy = ("__amd_rocclr_copyBuffer", 2000)
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", [*STEP, copy, copy], 3),
        lite(tmp_path / "trace_77.db", [*STEP, copy], 3),
    )
    assert by_verdict(agreement(found))["differ"] == {
        "copy within a GPU": "events per step: pytorch 2, rocm_trace_lite 1"
    }


def test_steps_that_are_not_the_same_are_suspected(tmp_path):
    found = ingested(
        tmp_path,
        pytorch(tmp_path / "p.json", STEP * 2, 3),
        lite(tmp_path / "trace_77.db", STEP, 6),
    )
    [run] = agreement(found, by="run")
    assert "are the steps the same? pytorch 3 by ProfilerStep, rocm_trace_lite 6 by marker kernel" in run["reason"]


def test_runs_are_not_compared_with_each_other(tmp_path):
    ingest_files([pytorch(tmp_path / "p.json", STEP, 3)], tmp_path / "store", run="a")
    found = ingest_files([lite(tmp_path / "trace_77.db", STEP, 3)], tmp_path / "store", run="b")
    assert agreement(found) == []


def test_the_command_line_says_why_there_is_nothing_to_compare(cli, tmp_path):
    found = ingest_files([pytorch(tmp_path / "p.json", STEP, 3)], tmp_path / "store", run="a")
    ran = cli("query", found.root, "collector_agreement")
    assert "no run has traces of several collectors" in ran.err
    ingest_files([lite(tmp_path / "trace_77.db", STEP, 3)], tmp_path / "store", run="a")
    ran = cli("query", found.root, "collector_agreement")
    assert "spans" not in ran.err
