"""Context rules: every rule on a launch that it is for, and on one that it is not for."""

from __future__ import annotations

import csv
from dataclasses import dataclass

import pytest

from tests.conftest import ROOT
from tests.tracegen import cpu_op, kernel

NODE = "autograd::engine::evaluate_function: "
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>>(int)"
NORM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>(int)"
DISPATCH, COMBINE = "dispatch_grouped_gemm_kernel", "grouped_gemm_combine_kernel"
ACCUMULATE = "torch::autograd::AccumulateGrad"
STAGE1, STAGE2 = "FusedMegaMoEStage1Function", "FusedMegaMoEStage2Function"


@dataclass
class Launch:
    """A kernel and the names of what is around its launch, outermost first."""

    kernel: str
    around: tuple[str, ...] = ()
    annotation: str = ""


def backward(function):
    return (f"{NODE}{function}Backward", f"{function}Backward")


FITTING = {
    "K1": Launch(ADD, (NODE + ACCUMULATE, "aten::add_")),
    "K2": Launch(ADD, (NODE + ACCUMULATE, ACCUMULATE, "aten::add_")),
    "K3": Launch(ADD, (NODE + "MulBackward0", "aten::add")),
    "K4": Launch(NORM, (NODE + ACCUMULATE, "aten::linalg_vector_norm")),
    "K5": Launch(ADD, ("aten::add_",), "Optimizer.step#Adam.step"),
    "K25": Launch("multi_tensor_apply_kernel<AdamFunctor<float>>"),
    "K7": Launch(DISPATCH, (STAGE1,)),
    "K8": Launch(COMBINE, (STAGE2,)),
    "K9a": Launch(DISPATCH, backward(STAGE2)),
    "K9b": Launch("swiglu_bwd_kernel_0", backward(STAGE2)),
    "K9c": Launch("kernel_grouped_variable_k", backward(STAGE2)),
    "K9d": Launch("epoch_bump_kernel", backward(STAGE2)),
    "K10a": Launch(COMBINE, backward(STAGE1)),
    "K10b": Launch(DISPATCH, backward(STAGE1)),
    "K10c": Launch("epoch_bump_kernel", backward(STAGE1)),
    "K7n": Launch(DISPATCH, (), "fused_mega_moe_stage1_forward"),
    "K8n": Launch(COMBINE, (), "fused_mega_moe_stage2_forward"),
    "K9n": Launch(DISPATCH, (), "fused_mega_moe_stage2_backward"),
    "K10n": Launch(COMBINE, (), "fused_mega_moe_stage1_backward"),
    "K12": Launch("primus_turbo::grouped_gemm_kernel", ("primus_turbo::grouped_gemm_variable_k",)),
    "K13": Launch("k_fn_0", ("_V4SparseMLACSAFn",)),
    "K13b": Launch("k_fn_0", backward("_V4SparseMLACSAFn")),
    "K14": Launch("k_fn_0", ("_V4SparseMLAAttnFn",)),
    "K14b": Launch("k_fn_0", backward("_V4SparseMLAAttnFn")),
    "K16a": Launch("primus_turbo::deep_ep::intranode::dispatch<8, 1024>(int)", ("MoEDispatch",)),
    "K16b": Launch("primus_turbo::deep_ep::intranode::combine<8, 1024>(int)", ("MoECombine",)),
    "K16c": Launch("primus_turbo::deep_ep::intranode::dispatch<8, 1024>(int)", backward("MoECombine")),
    "K16d": Launch("primus_turbo::deep_ep::intranode::combine<8, 1024>(int)", backward("MoEDispatch")),
}
NOT_FITTING = {
    "an add of the forward pass": Launch(ADD, ("aten::add",)),
    "an add inside of another node": Launch(ADD, (NODE + "MulBackward0", "MulBackward0", "aten::add")),
    "a dispatch that nothing is around": Launch(DISPATCH),
    "attention of another function": Launch("k_fn_0", ("MyAttention",)),
    "an optimizer's kernel with an operator": Launch("multi_tensor_apply_kernel<AdamFunctor<float>>", ("aten::_foo",)),
}


def events_of(launches):
    """Return a trace in which each launch has 1000 us for itself."""
    events = []
    for number, launch in enumerate(launches, 1):
        at = 1000.0 * number
        if launch.annotation:
            events.append(cpu_op(launch.annotation, at, 400) | {"cat": "user_annotation"})
        for depth, name in enumerate(launch.around, 1):
            events.append(cpu_op(name, at + depth, 300 - 2 * depth))
        events.append(cpu_op("hipLaunchKernel", at + 20, 1, correlation=number) | {"cat": "cuda_runtime"})
        events.append(kernel(launch.kernel, at + 500, 10, args={"correlation": number}))
    return events


@pytest.fixture(scope="module")
def rules():
    with (ROOT / "sql/rules/context_rules.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_every_rule_fires_where_it_should(store_of, rules):
    assert FITTING.keys() == rules.keys()
    found = store_of(events_of(FITTING.values())).sql(
        "SELECT context_rule_id AS id, stage, phase, stage_confidence AS confidence FROM kernel_owners ORDER BY start_ns"
    )
    assert [row["id"] for row in found] == list(FITTING)
    for row in found:
        rule = rules[row["id"]]
        assert (row["stage"], row["confidence"]) == (rule["stage"], rule["confidence"])
        assert row["phase"] == rule["phase"], row["id"]


@pytest.mark.parametrize("case", NOT_FITTING)
def test_no_rule_fires_elsewhere(store_of, case):
    assert store_of(events_of([NOT_FITTING[case]])).sql("SELECT context_rule_id AS id FROM kernel_owners") == [
        {"id": None}
    ]


def test_one_kernel_has_three_layouts_in_the_sample(tmp_path_factory):
    """Forward, data gradient and weight gradient run under one name; the model says how long each takes."""
    from proxy.model import one_step  # of sample_traces
    from tests.tracegen import ingest_files

    path = next((ROOT / "sample_traces/pytorch").glob("*rank?0?*"))
    store = ingest_files([path], tmp_path_factory.mktemp("layouts") / "store", run="proxy")
    rows = store.sql(
        "SELECT stage, sum(dur_ns)::BIGINT AS ns FROM kernel_owners WHERE subcategory = 'dispatch_gemm' GROUP BY stage"
    )
    works = [work for work in one_step() if work.name.startswith("dispatch_grouped_gemm")]
    expected = {
        "stage 1 forward": [w for w in works if w.ops[-1] == STAGE1],
        "stage 2 data gradient": [w for w in works if w.ops[-1] == f"{STAGE2}Backward"],
        "stage 1 weight gradient": [w for w in works if w.ops[-1] == f"{STAGE1}Backward"],
    }
    assert sum(map(len, expected.values())) == len(works)
    assert {row["stage"]: row["ns"] for row in rows} == {
        stage: 2 * sum(work.dur_ns for work in found) for stage, found in expected.items()
    }
