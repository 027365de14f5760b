"""The sample traces: what the generator writes is what is committed, sound in itself, and what the tool must find."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import generate  # of sample_traces, which pytest has on its path
from proxy import kineto, logs, rocm_trace_lite, rocpd, rocprofv3
from proxy.collectors import RTL_FULL
from tests import oracle
from tests.conftest import ROOT
from tests.engine.test_timeline import COLUMNS, rows_of, values
from tests.tracegen import ingest_files
from traceanalyzer.engine import library

SAMPLES = ROOT / "sample_traces"

PATHS = sorted((SAMPLES / "pytorch").glob("*.json.gz"))
TRUTH = json.loads((SAMPLES / "truth.json").read_text())


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    return ingest_files(PATHS, tmp_path_factory.mktemp("samples") / "store", run="proxy")


@pytest.fixture(scope="module")
def events():
    """Return the events of rank 0."""
    return oracle.load(PATHS[0])[0]


def contents(path):
    """Return the bytes of a file, decompressed: compressors differ between machines; of a database its rows."""
    if path.suffix == ".db":
        with sqlite3.connect(path) as connection:
            return list(connection.iterdump())
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_the_generator_writes_what_is_committed(tmp_path):
    for name in ("first", "second"):
        generate.write(tmp_path / name)
    first = {path.relative_to(tmp_path / "first"): path for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert len(first) > 30
    for name, path in first.items():
        assert path.read_bytes() == (tmp_path / "second" / name).read_bytes()
        assert contents(path) == contents(SAMPLES / name), name
    written = {
        *(
            path.relative_to(SAMPLES)
            for kind in ("pytorch", "rocprof_output", "rocm_trace_lite_output", "logs")
            for path in (SAMPLES / kind).rglob("*")
            if path.is_file()
        )
    }
    assert written | {Path("truth.json")} == set(first)
    assert (
        sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        < 4e6
    )


def test_the_truth_is_as_published():
    """Within a tenth of a millisecond, but for the window, which the published parts do not add up to."""
    rank_0 = TRUTH["timeline"][0]
    assert rank_0["window_ns"] / 1e6 == pytest.approx(521.8, abs=0.1)
    for name, published in TRUTH["published"].items():
        tolerance = 0.2 if name == "window_ms" else 0.1
        assert rank_0[name.replace("_ms", "_ns")] / 1e6 == pytest.approx(published, abs=tolerance), name
    step = TRUTH["per_step"]
    assert (step["kernels"], step["copies"]) == (3190, 25)
    assert step["launches_by_operator"]["aten::mm"] == 139
    assert step["launches_by_operator"]["aten::linalg_vector_norm"] == 34
    assert step["optimizer"]["update"]["kernels"] == 321
    assert step["optimizer"]["update"]["span_ns"] / 1e6 == pytest.approx(22.95, abs=0.01)
    assert step["add_in_accumulate_grad_of_experts_ns"] / step["add_ns"] == pytest.approx(0.71, abs=0.005)
    assert step["collectives"]["reduce_scatter_tensor_coalesced"]["calls"] == 18
    exposed = sum(kind["exposed_ns"] for kind in step["collectives"].values())
    assert exposed == rank_0["exposed_communication_ns"] // 2
    assert sum(step["idle_ns_by_cause"].values()) == rank_0["idle_ns"] // 2


def test_timeline_is_the_truth_to_the_nanosecond(ingested):
    got = {row["rank"]: {column: row[column] for column in COLUMNS} for row in ingested.named("timeline")}
    assert got == dict(enumerate(TRUTH["timeline"]))


def test_kernels_are_the_truth(ingested):
    step = TRUTH["per_step"]
    rows = [row for row in ingested.named("kernel_summary") if row["rank"] == 0]
    assert {row["name"]: row["total_ns"] for row in rows} == {n: 2 * t for n, t in step["total_ns_by_name"].items()}
    assert {row["name"]: row["events"] for row in rows} == {n: 2 * c for n, c in step["events_by_name"].items()}
    assert not [row for row in ingested.named("kernel_categories") if row["category"] == "other"]
    categories = {
        row["subcategory"]: row["total_ns"]
        for row in ingested.named("kernel_categories")
        if row["rank"] == 0 and row["category"] == "mega_moe"
    }
    assert categories == {stage: 2 * total for stage, total in step["mega_moe_ns"].items()}
    stages = [row for row in ingested.named("moe_stages") if row["rank"] == 0 and row["implementation"] == "mega_moe"]
    assert sum(row["total_ns"] for row in stages) / 1e6 == pytest.approx(96.3, abs=0.05)


@pytest.mark.parametrize("check", sorted(library.load("checks")))
def test_checks_hold(ingested, check):
    assert ingested.session().violations(library.load("checks")[check]) == []


def test_rank_0_equals_the_oracle(ingested, events):
    got = rows_of(ingested)
    assert got[0] == values(oracle.timeline(oracle.gpu_events(events)))[0]
    stored = {t.identity.rank: t.manifest.rows for t in ingested.session().traces}[0]
    assert {table: n for table, n in stored.items() if n} == dict(Counter(map(oracle.table_of, events)))


def test_launches_come_before_their_work(events):
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert len(calls) == len(work) == 2 * 3215
    for event in work:
        assert event["ts"] - calls[event["args"]["correlation"]]["ts"] >= 3
    starts = [call["ts"] for call in calls.values()]
    assert len(set(starts)) == len(starts)


def test_spans_of_a_thread_nest(events, tmp_path):
    """Operators, annotations, calls and Python frames: of two that share a moment, one holds the other."""
    kineto.write(tmp_path / "stacks.json.gz", 0, 1, kineto.WITH_STACKS)
    with_stacks = oracle.load(tmp_path / "stacks.json.gz")[0]
    frames = [e for e in with_stacks if e.get("cat") == "python_function"]
    assert len(frames) > 1000
    by_id = {e["args"]["Python id"]: e for e in frames}
    assert all(f["ts"] > by_id[f["args"]["Python parent id"]]["ts"] for f in frames if f["args"]["Python parent id"])
    assert any(f["name"].startswith("nn.Module: SelfAttention") for f in frames)
    check_nesting(events)
    check_nesting(with_stacks)


def check_nesting(events):
    for thread in (4000, 4187):
        spans = sorted(
            (e["ts"], -e["dur"], e["dur"], e["name"])
            for e in events
            if e.get("ph") == "X"
            and e["tid"] == thread
            and e.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "python_function")
        )
        assert len(spans) > 2000
        ends = []
        for start, _, dur, name in spans:
            assert dur > 0, name
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start + dur <= ends[-1], name
            ends.append(start + dur)


def test_launches_name_the_operator_around_them(events):
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    linked = 0
    for call in (e for e in events if e.get("cat") == "cuda_runtime" and "External id" in e["args"]):
        op = ops.get(call["args"]["External id"])
        if op is None:  # an annotation
            continue
        linked += 1
        assert op["ts"] < call["ts"] and call["ts"] + call["dur"] < op["ts"] + op["dur"]
    assert linked > 4000


def test_backward_nodes_share_the_number_of_their_forward(events):
    forward = {
        e["args"]["Sequence number"]
        for e in events
        if "Sequence number" in e.get("args", {}) and "Fwd thread id" not in e["args"]
    }
    backward = {e["args"]["Sequence number"] for e in events if "Fwd thread id" in e.get("args", {})}
    assert len(backward) > 300
    assert backward <= forward
    arrows = {phase: [e for e in events if e.get("cat") == "fwdbwd" and e["ph"] == phase] for phase in "sf"}
    assert len(arrows["s"]) == len(arrows["f"]) > 300
    assert all(s["id"] == f["id"] and s["ts"] < f["ts"] for s, f in zip(arrows["s"], arrows["f"], strict=True))


def test_operators_have_shapes(events):
    adds = [e for e in events if e.get("name") == "aten::add_" and e["cat"] == "cpu_op"]
    dims = Counter(str(e["args"]["Input Dims"][0]) for e in adds)
    assert (dims["[32, 4096, 4096]"], dims["[32, 2048, 4096]"], dims["[129408, 4096]"]) == (16, 16, 2)
    [q_up, *_] = [e for e in events if e.get("name") == "aten::mm" and [1024, 32768] in e["args"]["Input Dims"]]
    assert q_up["args"]["Input Strides"] == [[1024, 1], [32768, 1]]


def test_collectives_end_on_all_ranks_at_once():
    ends = []
    for rank, path in enumerate(PATHS):
        offset_us = oracle.Decimal(TRUTH["clock_offset_ns"][rank]) / 1000
        found = [e for e in oracle.load(path)[0] if e.get("name", "").startswith("nccl")]
        ends.append([e["ts"] + e["dur"] - offset_us for e in sorted(found, key=lambda e: e["ts"] + e["dur"])])
    assert len(ends[0]) == 2 * 41
    assert all(other == ends[0] for other in ends[1:])


def test_the_comparison_of_the_demo(tmp_path):
    ingest_files(PATHS[:1], tmp_path / "store", run="proxy")
    command = [sys.executable, SAMPLES / "compare.py", tmp_path / "store"]
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ).stdout
    window, causes = out.split("\n\n")
    lines = {line.split()[0]: line.split()[1:] for line in window.splitlines()[1:]}
    assert lines["window"] == ["522.0", "521.841", "0"]
    assert all(values[-1] == "0" for values in lines.values())
    assert len(lines) == 6
    figures = [line.split()[-2:] for line in causes.splitlines()[1:-1]]
    assert len(figures) == 5
    assert all(round(float(computed), 1) == float(published) for published, computed in figures)


# -- the other collectors, read by the standard library alone ---------------------------------------------------


def union(intervals):
    total, end = 0, None
    for start, stop in sorted(intervals):
        if end is None or start > end:
            total, end = total + stop - start, stop
        elif stop > end:
            total, end = total + stop - end, stop
    return total


def rocprofv3_json(path):
    """Return (kernels, copies, calls): name or operation, start, end."""
    tool = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"][0]
    names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]}
    kinds = tool["strings"]["buffer_records"]

    def times(record):
        return record["start_timestamp"], record["end_timestamp"]

    records = tool["buffer_records"]
    assert {kinds[r["kind"]]["kind"] for r in records["kernel_dispatch"]} <= {"KERNEL_DISPATCH"}
    kernels = [(names[r["dispatch_info"]["kernel_id"]], *times(r)) for r in records["kernel_dispatch"]]
    copies = [(kinds[r["kind"]]["operations"][r["operation"]], *times(r)) for r in records["memory_copy"]]
    calls = [(kinds[r["kind"]]["operations"][r["operation"]], *times(r)) for r in records["hip_api"]]
    return kernels, copies, calls


def test_rocprofv3_json_holds_the_truth():
    path = SAMPLES / "rocprof_output/mi350x-node-0/52000_results.json.gz"
    assert b"\n" not in gzip.decompress(path.read_bytes())
    kernels, copies, calls = rocprofv3_json(path)
    truth = TRUTH["collectors"]["rocprofv3"]
    assert len(kernels) + len(copies) == len(calls) == truth["work"]
    assert {name for name, _, _ in copies} == {"HOST_TO_DEVICE", "DEVICE_TO_HOST"}
    every = [times for _, *times in (*kernels, *copies)]
    window = max(end for _, end in every) - min(start for start, _ in every)
    assert (window, union(every)) == (truth["timeline"]["window_ns"], truth["timeline"]["busy_ns"])
    assert sum(end - start for start, end in every) == truth["total_ns"]
    assert [start for _, start, _ in kernels] != sorted(start for _, start, _ in kernels)
    assert 0.85 < statistics.mean((end - start) % 40 == 0 for _, start, end in kernels) < 0.95
    assert truth["step_ns"] / 1e6 == pytest.approx(5.06 * TRUTH["unprofiled_step_ms"], rel=1e-4)
    helper = rocprofv3_json(path.with_name("52900_results.json.gz"))
    assert helper == ([], [], [])


def test_every_form_of_rocprofv3_says_the_same(tmp_path):
    new = rocprofv3.write(tmp_path / "new", 3, 1)
    old = rocprofv3.write(tmp_path / "old", 3, 1, rocprofv3.VERSION_0_5)
    kernels, copies, calls = (sorted(rows) for rows in rocprofv3_json(new))
    assert tuple(sorted(rows) for rows in rocprofv3_json(old)) == (kernels, copies, calls)
    rows = {}
    for path in rocpd.write_csv(tmp_path / "csv", 3, 1):
        with path.open(newline="") as file:
            rows[path.stem.partition("_")[2]] = list(csv.DictReader(file))

    def of(kind, name):
        return sorted((r[name], int(r["Start_Timestamp"]), int(r["End_Timestamp"])) for r in rows[kind])

    assert of("kernel_trace", "Kernel_Name") == kernels
    assert of("hip_api_trace", "Function") == calls
    assert [
        (name.removeprefix("MEMORY_COPY_"), *times) for name, *times in of("memory_copy_trace", "Direction")
    ] == copies
    with sqlite3.connect(rocpd.write_database(tmp_path / "db", 3, 1)) as connection:
        assert (
            connection.execute(
                "SELECT display_name, k.start, k.end FROM rocpd_kernel_dispatch k JOIN rocpd_info_kernel_symbol s ON s.id = kernel_id"
                " ORDER BY 1, 2"
            ).fetchall()
            == kernels
        )
        assert (
            connection.execute(
                "SELECT string, r.start, r.end FROM rocpd_region r JOIN rocpd_string s ON s.id = r.name_id ORDER BY 1, 2"
            ).fetchall()
            == calls
        )
        linked = connection.execute(
            "SELECT count(*) FROM rocpd_kernel_dispatch k JOIN rocpd_event e ON e.id = k.event_id"
            " JOIN rocpd_event c ON c.stack_id = e.stack_id AND c.id <> e.id JOIN rocpd_region r ON r.event_id = c.id"
        ).fetchone()
        assert linked == (len(kernels),)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert all(name.endswith("_0198a000_0000_7000_8000_000000000003") for name in tables)


def test_rocm_trace_lite_holds_the_truth():
    truth = TRUTH["collectors"]["rocm_trace_lite, lite"]
    with sqlite3.connect(SAMPLES / "rocm_trace_lite_output/trace.db") as connection:
        rows = connection.execute(
            "SELECT gpuId, d.string, k.string, start, end FROM rocpd_op"
            " JOIN rocpd_string d ON d.id = description_id JOIN rocpd_string k ON k.id = opType_id"
        ).fetchall()
        pids = connection.execute("SELECT value FROM rocpd_metadata WHERE tag = 'pid'").fetchall()
        busy = dict(connection.execute("SELECT gpuId, busy_ns FROM busy").fetchall())
    assert pids == [("41000",), ("41005",)]
    kernels = [row for row in rows if row[0] == 0]
    assert len(kernels) == truth["work"] == 2 * (3215 - 41 - 8)  # neither collectives nor copies from and to the host
    assert {kind for _, _, kind, _, _ in kernels} == {"KernelExecution"}
    assert union((start, end) for *_, start, end in kernels) == truth["timeline"]["busy_ns"]
    assert busy[0] == truth["total_ns"]
    assert Counter(kind for gpu, _, kind, _, _ in rows if gpu < 0) == {"UserMarker": 4}
    assert not [
        name for _, name, *_ in kernels if "nccl" in name or name.startswith("void ") or re.search(r"\((?!anon)", name)
    ]
    assert truth["step_ns"] / 1e6 == pytest.approx(1.44 * TRUTH["unprofiled_step_ms"], rel=1e-4)
    exported = json.loads(gzip.decompress((SAMPLES / "rocm_trace_lite_output/trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    assert Counter(e["cat"] for e in exported if e["ph"] == "X") == Counter(kind for *_, kind, _, _ in rows)


def test_full_mode_also_has_the_collectives(tmp_path):
    path = rocm_trace_lite.write(tmp_path, 0, RTL_FULL, 1)
    with sqlite3.connect(path) as connection:
        found = connection.execute(
            "SELECT count(*) FROM rocpd_op JOIN rocpd_string s ON s.id = description_id WHERE string LIKE 'ncclDevKernel%'"
        ).fetchone()
    assert path.name == "trace_41000.db" and found == (41,)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::f<4, at::native::g<float> >(int, float)", "at::native::f<4, at::native::g<float> >"),
        ("void (anonymous namespace)::f<int>(int)", "(anonymous namespace)::f<int>"),
        ("void at::f<g(int)::{lambda()#1}>(int)", "at::f<g"),
        ("k_fn_0", "k_fn_0"),
        ("std::enable_if<true, void>::type vllm::f<8>(int)", "std::enable_if<true, void>::type vllm::f<8>"),
    ],
)
def test_names_as_rocm_trace_lite_cuts_them(name, short):
    assert rocm_trace_lite.short_name(name) == short


def test_logs_hold_the_ladder():
    for run in TRUTH["runs"]:
        settled = []
        for path in sorted((SAMPLES / "logs").glob(f"{run['run']}.repeat*.log")):
            text = re.sub(r"\x1b\[\d+m", "", path.read_text())
            steps = [float(ms) for ms in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)/", text)]
            assert len(steps) == logs.ITERATIONS and steps[0] > 5 * steps[-1]
            settled += steps[3:]
            assert re.search(rf"hip mem usage/\S+ {run['memory_gb']:.2f}GB/", text)
            assert f"global batch size: {run['global_batch_size']:5d} |" in text
        assert statistics.mean(settled) == pytest.approx(run["step_ms"], rel=0.003)
        assert 0.004 < statistics.stdev(settled) / run["step_ms"] < 0.008
    steps = {run["run"]: run["step_ms"] for run in TRUTH["runs"]}
    assert (steps["1-baseline"], steps["8-no-recompute"]) == (556.0, 239.8)
    assert steps["2-attention"] - steps["3-triton-fusions"] == pytest.approx(215.5)
    assert steps["3-triton-fusions"] - steps["4-grouped-gemm"] == pytest.approx(32.9)
    assert steps["5-deepep"] - steps["6-megamoe"] == pytest.approx(35.2)
    assert steps["7-attention-flydsl"] - steps["8-no-recompute"] == pytest.approx(18.4)
    with (SAMPLES / "logs/perf.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"].endswith("8-no-recompute")]
    assert len(rows) == logs.REPEATS
    assert all(float(row["performance"]) == pytest.approx(17_079, rel=0.005) for row in rows)


def test_the_profiler_on_the_sdk_keeps_suffixes(ingested):
    rows = ingested.sql("SELECT DISTINCT rank, name FROM kernels WHERE name LIKE '%.kd' OR name LIKE '%.kd]'")
    assert {row["rank"] for row in rows} == {kineto.SDK_RANK}
    assert "__amd_rocclr_copyBuffer.kd" in {row["name"] for row in rows}


def test_full_scale_writes_every_rank_of_every_collector(tmp_path):
    command = [sys.executable, SAMPLES / "generate.py", tmp_path, "--scale", "full", "--steps", "1"]
    subprocess.run(command, check=True, capture_output=True)
    found = Counter(path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file())
    assert found == {
        "pytorch": 8,
        "rocprof_output": 9,
        "rocm_trace_lite_output": 10,
        "rocprof_output_csv": 4,
        "rocprof_output_rocpd": 1,
    }
    whole = ingest_files(sorted((tmp_path / "pytorch").glob("*.gz")), tmp_path / "store")
    assert whole.sql("SELECT rank, count(*) AS n FROM runtime_calls GROUP BY rank ORDER BY rank") == [
        {"rank": rank, "n": 3215} for rank in range(8)
    ]
    with sqlite3.connect(tmp_path / "rocm_trace_lite_output/trace.db") as connection:
        assert connection.execute("SELECT count(*) FROM rocpd_metadata").fetchone() == (8,)
        assert connection.execute("SELECT count(DISTINCT gpuId) FROM rocpd_op WHERE gpuId >= 0").fetchone() == (8,)


def test_full_scale_asks_for_a_folder():
    done = subprocess.run([sys.executable, SAMPLES / "generate.py", "--scale", "full"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "name a folder" in done.stderr
