"""What launched the GPU's work: the sample, whose truth is known, and real traces beside TraceLens' sheets."""

from __future__ import annotations

import csv
import json
import math

import pytest

from tests import oracle
from tests.conftest import ROOT
from tests.tracegen import cpu_op, ingest_files, kernel, launch
from traceanalyzer.engine import library

SAMPLES = ROOT / "sample_traces"
PER_STEP = json.loads((SAMPLES / "truth.json").read_text())["per_step"]
STEPS = 2


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Return a store of rank 0 with its host side."""
    path = next((SAMPLES / "pytorch").glob("*rank?0?*"))
    return ingest_files([path], tmp_path_factory.mktemp("owners") / "store", run="proxy")


def test_every_launch_has_the_operator_of_the_model(sample):
    rows = sample.sql("SELECT op, count(*) AS n FROM kernel_owners WHERE op IS NOT NULL GROUP BY op")
    launched = {row["op"]: row["n"] for row in rows}
    assert launched == {op: STEPS * n for op, n in PER_STEP["launches_by_operator"].items()}


def test_gradients_of_the_experts_are_most_of_the_adds(sample):
    rows = [row for row in sample.named("accumulate_grad") if row["op"] == "aten::add_"]
    assert sum(row["total_ns"] for row in rows) == STEPS * PER_STEP["add_in_accumulate_grad_ns"]
    experts = [row for row in rows if json.loads(row["input_dims"])[0][0] == 32]
    assert len(experts) == 2  # the grouped weights, two shapes
    assert sum(row["total_ns"] for row in experts) == STEPS * PER_STEP["add_in_accumulate_grad_of_experts_ns"]
    assert round(sum(row["share"] for row in experts), 2) == 0.71
    nodes = sample.named("autograd_nodes", op="aten::add_")
    assert sum(row["total_ns"] for row in nodes) == STEPS * PER_STEP["add_ns"]


def test_direct_time_of_operators(sample):
    rows = {row["op"]: row for row in sample.named("op_summary")}
    direct = sum(row["direct_ns"] for row in rows.values())
    moe = sum(row["direct_ns"] for op, row in rows.items() if op.startswith("FusedMegaMoE"))
    assert moe == STEPS * sum(PER_STEP["mega_moe_ns"].values())
    assert (round(moe / 1e6, 1), round(100 * moe / direct, 1)) == (96.3, 22.6)  # as published
    assert abs(sum(row["share"] for row in rows.values()) - 1) < 1e-12


PUBLISHED_FAMILIES = {
    "mega_moe": 96.3,
    "launch_without_operator": 72.9,
    "elementwise": 71.0,
    "gemm": 60.2,
    "other": 55.5,
    "attention": 30.1,
    "rmsnorm": 21.8,
    "reduce_loss": 17.5,
}


def test_the_published_families(sample):
    rows = {row["family"]: row for row in sample.named("op_families")}
    assert {family: round(row["direct_ns"] / 1e6, 1) for family, row in rows.items()} == PUBLISHED_FAMILIES
    assert sum(row["direct_ns"] for row in rows.values()) == sum(row["direct_ns"] for row in sample.named("op_summary"))


def test_shapes_add_up_to_their_operator(sample):
    shapes = sample.named("op_shapes", op="aten::mm")
    [whole] = [row for row in sample.named("op_summary") if row["op"] == "aten::mm"]
    assert len(shapes) > 3
    for column in ("calls", "events", "direct_ns", "subtree_ns"):
        assert sum(row[column] for row in shapes) == whole[column]


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("hipLaunchKernel", "launch_without_operator"),
        ("cuLaunchKernelEx", "launch_without_operator"),
        ("aten::mm", "gemm"),
        ("aten::mm.out", "gemm"),
        ("aten::mul", "elementwise"),
        ("aten::multinomial", "other"),
        ("aten::add_", "elementwise"),
        ("aten::_foreach_add_", "foreach"),
        ("aten::convolution_backward", "convolution"),
        ("aten::embedding_dense_backward", "other"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::native_batch_norm_backward", "norm"),
        ("FusedRMSNormFnBackward", "rmsnorm"),
        ("primus_turbo::grouped_gemm_variable_k", "grouped_gemm"),
        ("MoEDispatchBackward", "moe_exchange"),
        ("aten::gelu_backward", "elementwise"),
        ("triton_poi_fused_add_0", "triton"),
        ("cupy_thing", "other"),
    ],
)
def test_families_of_operators(sample, op, family):
    assert sample.sql(f"SELECT op_family('{op}') AS family") == [{"family": family}]


def test_the_optimizer_apart(sample):
    rows = sample.named("optimizer_steps")
    parts = PER_STEP["optimizer"]
    assert [row["step"] for row in rows] == [12, 13]
    for row in rows:
        assert row["grad_norm_ns"] == parts["grad_norm"]["span_ns"]
        assert row["clip_ns"] == parts["clip"]["span_ns"]
        assert row["update_ns"] == parts["update"]["span_ns"]
        assert row["kernels"] == sum(part["kernels"] for part in parts.values())
        assert row["busy_ns"] == sum(part["busy_ns"] for part in parts.values())


# -- real traces ------------------------------------------------------------------------------------------------------

WITH_OPERATORS = [
    "kineto-cuda-ns-resolution",
    "kineto-mi300-bert-small",
    "kineto-mi300-ddp-resnet18",
    "kineto-mi300-owlv2",
    "kineto-mi300-qwen",
    "kineto-mi300-resnet-ddp",
    "kineto-mi300-xdit-sd35",
    "kineto-mi350x-sdk-backend",
    "kineto-triton-compile",
]
TIMELINE = {
    "computation_time": "computation_ns",
    "exposed_comm_time": "exposed_communication_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "window_ns",
    "total_comm_time": "communication_ns",
    "total_memcpy_time": "memcpy_ns",
}


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """Return a function that ingests a public trace once: (store, folder of TraceLens' sheets, rounding in us).

    TraceLens computes in doubles of microseconds, so the rounding is how far apart these are at the trace's times.
    """
    made = {}

    def of(name):
        if name not in made:
            path = shared / "traces" / name / "trace.json.gz"
            store = ingest_files([path], tmp_path_factory.mktemp(name) / "store")
            latest_ns = store.sql("SELECT max(start_ns) AS latest FROM gpu_events")[0]["latest"]
            made[name] = (store, path.parent / "tracelens", math.ulp(latest_ns / 1000))
        return made[name]

    return of


@pytest.mark.parametrize("name", WITH_OPERATORS)
def test_operators_as_tracelens_sums_them(real, name):
    """Every row of ops_summary.csv, up to what TraceLens loses by adding doubles: an ulp per end of an event.

    In the one trace whose times are so large that an ulp is a quarter of a microsecond, that also makes one operator seem
    to end behind the one around it, so that TraceLens takes it out of its tree.
    """
    store, sheets, rounding = real(name)
    got = {row["op"]: row for row in store.named("op_summary", link_rule="tracelens")}
    with (sheets / "ops_summary.csv").open(newline="") as file:
        expected = {row["name"]: row for row in csv.DictReader(file)}
    lost = {"aten::mul", "torch::distributed::reducer::mul_out"} if name == "kineto-cuda-ns-resolution" else set()
    assert got.keys() | lost == expected.keys() | lost
    for op in expected.keys() - lost:
        row, ours = expected[op], got[op]
        assert int(row["Count"]) == ours["calls"], op
        allowed = max(2 * rounding * ours["events"], 1e-6 * ours["direct_ns"] / 1000)
        assert abs(float(row["total_direct_kernel_time_sum"]) - ours["direct_ns"] / 1000) <= allowed, op
        subtree = float(row["total_subtree_kernel_time_sum"])
        assert abs(subtree - ours["subtree_ns"] / 1000) <= 10 * allowed, op


@pytest.mark.parametrize("name", [*WITH_OPERATORS, "kineto-mi210-gpu-only"])
def test_the_timeline_of_linked_work_is_that_of_tracelens(real, name):
    store, sheets, rounding = real(name)
    [row] = store.named("timeline", linked_only="true", comm_rule="tracelens") or [{}]
    with (sheets / "gpu_timeline.csv").open(newline="") as file:
        expected = {found["type"]: float(found["time ms"]) for found in csv.DictReader(file)}
    events = store.sql("SELECT count(*) AS n FROM gpu_events")[0]["n"]
    for theirs, ours in TIMELINE.items():
        allowed = max(rounding * events / 1000, 1e-6 * expected["total_time"])
        assert abs(expected[theirs] - row[ours] / 1e6) <= allowed, theirs


def test_hooks_and_recomputed_layers_of_a_real_training(real, shared, tmp_path):
    """Every hook is found in the engine's span, none in the node; recomputation shows also without Python frames."""
    store, _, _ = real("kineto-mi300-resnet-ddp")
    hooks = store.sql(
        "SELECT is_in_node, count(DISTINCT op_event_id) AS n FROM kernel_owners"
        " WHERE node = 'torch::autograd::AccumulateGrad' AND op = 'aten::mul' GROUP BY ALL"
    )
    assert hooks == [{"is_in_node": False, "n": 186}]
    query = (
        "SELECT recompute_signal AS signal, count(DISTINCT op_event_id) AS n FROM kernel_owners"
        " WHERE op = 'aten::miopen_convolution' AND recompute_signal IS NOT NULL GROUP BY ALL"
    )
    assert store.sql(query) == [{"signal": "frame", "n": 57}]
    path = tmp_path / "trace.json"
    events, keys = oracle.load(shared / "traces/kineto-mi300-resnet-ddp/trace.json.gz")
    kept = [event for event in events if event.get("cat") != "python_function"]
    path.write_text(json.dumps({**keys, "traceEvents": kept}, default=float))
    assert ingest_files([path], tmp_path / "store").sql(query) == [{"signal": "forward in backward", "n": 57}]


# -- links ------------------------------------------------------------------------------------------------------------


def linked(number, ts):
    return kernel(f"k{number}", ts, 1, args={"correlation": number})


def test_the_launch_may_be_on_another_thread_or_missing(store_of):
    events = [
        cpu_op("aten::mm", 0, 10),
        launch(1, 1),
        launch(2, 2) | {"tid": 999},
        *(linked(n, 20 + n) for n in (1, 2, 3, 0, -1)),
    ]
    rows = store_of(events).sql("SELECT name, is_linked, op_event_id FROM gpu_events ORDER BY name")
    assert [(row["name"], row["is_linked"], row["op_event_id"]) for row in rows] == [
        ("k-1", False, None),
        ("k0", False, None),
        ("k1", True, 0),
        ("k2", True, None),
        ("k3", False, None),
    ]


def test_the_annotation_of_the_optimizer_and_a_checkpoint_give_the_phase(store_of):
    node = "autograd::engine::evaluate_function: "
    events = [
        cpu_op("Optimizer.step#Adam.step", 0, 10) | {"cat": "user_annotation"},
        cpu_op("aten::mul_", 1, 3),
        launch(2, 1),
        cpu_op(f"{node}CheckpointFunctionBackward", 20, 40),
        cpu_op("CheckpointFunctionBackward", 21, 38),
        cpu_op("aten::mm", 22, 5),
        launch(23, 2),
        cpu_op(f"{node}MmBackward0", 40, 10),
        cpu_op("aten::mm", 41, 5),
        launch(42, 3),
        cpu_op("aten::mm", 70, 5),
        launch(71, 4),
        launch(80, 5),
        *(linked(n, 100 + 2 * n) for n in (1, 2, 3, 4, 5)),
    ]
    rows = store_of(events).sql("SELECT name, phase, recompute_signal AS signal FROM kernel_owners ORDER BY name")
    assert [(row["name"], row["phase"], row["signal"]) for row in rows] == [
        ("k1", "optimizer", None),
        ("k2", "recompute", "checkpoint node"),
        ("k3", "backward", None),
        ("k4", "forward", None),
        ("k5", None, None),
    ]


def test_what_is_around_costs_nothing_where_nobody_asks(store_of):
    found = store_of([cpu_op("aten::mm", 0, 4), launch(1, 1), linked(1, 20)])
    found.named("timeline")
    found.named("kernel_summary")
    assert not list(found.root.rglob("derived/host_tree*"))
    result = found.session().named(library.named_query("op_summary"), {})
    assert [row[4] for batch in result.batches() for row in batch] == ["aten::mm"]
    assert list(found.root.rglob("derived/host_tree*"))
