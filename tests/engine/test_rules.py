"""Kernel rules: the catalogue of known names, the names that naive rules get wrong, and rules of the user's own."""

from __future__ import annotations

import csv
import re

import duckdb
import pytest

from tests.conftest import ROOT
from tests.tracegen import kernel
from traceanalyzer.engine import library, rules
from traceanalyzer.engine.rules import CLASSES, Rules

ANONYMOUS = {"kern_0", "kern_1", "pack_kern_0"}  # a name alone cannot tell
# The catalogue has this one under quantisation, where its pattern put it; it is a GEMM, as its source and its name say.
MISLABELLED = "void primus_turbo::turbo_gemm_mxfp8_256x256x128_16x16x128_4wave_kernel<…>(…)"


def classified(names: list[str], own: Rules | None = None) -> list[tuple[str | None, str, str]]:
    """Return (rule, category, subcategory) for each name, as DuckDB evaluates the rules."""
    with duckdb.connect() as connection:
        for statement in (own or rules.built_in()).statements():
            connection.execute(statement)
        connection.execute(
            "CREATE TABLE names AS SELECT unnest($names) AS name, generate_subscripts($names, 1) AS n", {"names": names}
        )
        return connection.execute(
            "SELECT rule_id, COALESCE(category, 'other'), COALESCE(subcategory, 'unclassified')"
            " FROM (SELECT n, first_rule(name) AS rule_id FROM names) LEFT JOIN kernel_rules USING (rule_id) ORDER BY n"
        ).fetchall()


def test_every_known_name_gets_its_category(shared):
    with (shared / "reference/kernels/kernel_catalogue.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name_example"] not in ANONYMOUS]
    assert len(rows) > 900
    for row in rows:
        if row["name_example"] == MISLABELLED:
            row["category"] = "gemm_dense"
    got = classified([row["name_example"] for row in rows])
    wrong = [
        (row["name_example"], row["category"], category)
        for row, (_, category, _) in zip(rows, got, strict=True)
        if category != row["category"]
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("name", "category", "subcategory"),
    [
        ("tensorTransformGeneric<float, 4>", "convolution", "conv"),
        ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, cudnn::reduced_divisor)", "fft", "fft"),
        (
            "void at::native::upsample_nearest2d_out_frame<float, &nearest_neighbor_compute_source_index>",
            "pooling",
            "pooling",
        ),
        ("void fbgemm_gpu::permute_2D_data_kernel<int>", "copy_cast", "cat_transpose"),
        ("void fbgemm_gpu::_float_to_fused8bitrowwise_quantized_cuda_kernel<float>", "quantisation", "quant_or_cast"),
        ("void fbgemm_gpu::bounds_check_indices_kernel<int>", "embedding_index", "embedding"),
        ("void cudnn::cnn::implicit_gemm_kernel<float>", "convolution", "conv"),
        ("kernel_grouped_conv_fwd_xdlops_bwd_weight<1>", "convolution", "conv"),
        ("kernel_gemm_xdlops_bwd_weight_v2", "convolution", "conv"),
        ("void ck::kernel_grouped_conv_fwd_multiple_d_xdl_cshuffle<GridwiseGemm>", "convolution", "conv"),
        ("GridwiseGemm_convolution_fwd", "convolution", "conv"),
        ("ImplicitGemmConvolution", "convolution", "conv"),
        ("void at::native::elementwise_kernel<128, 4, bfloat16tofloat32_copy_kernel_cuda>", "copy_cast", "aten_copy"),
        ("convertDispatchOutputKernel", "moe_comm", "mori_ep"),
        ("MIOpenBatchNormFwdTrainSpatial", "norm", "norm"),
        (
            "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>",
            "dropout_rng",
            "aten",
        ),
        (
            "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
            "embedding_index",
            "gather_scatter_index",
        ),
        ("void at::native::index_elementwise_kernel<128, 4>", "embedding_index", "gather_scatter_index"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "comm_collective", "symmetric_memory"),
        ("ReduceScatterRingKernel", "comm_collective", "mori_ccl"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "comm_collective", "named"),
        ("dispatch_grouped_gemm_kernel_1", "mega_moe", "dispatch_gemm"),
        ("void deep_ep::intranode::notify_dispatch<8>", "moe_comm", "sync_or_layout"),
        ("void deep_ep::intranode::cached_notify_combine<8>", "moe_comm", "sync_or_layout"),
        ("online_softmax_kernel", "loss", "cross_entropy"),
        ("element_mul_kernel", "loss", "cross_entropy"),
        ("turbo_gemm_mxfp8_nt_4wave_kernel", "gemm_dense", "ck_aiter_triton_flydsl"),
        ("triton_poi_fused_addmm_native_layer_norm_3", "inductor", "by_prefix"),
        ("swiglu_bwd_kernel", "activation", "gated"),
        ("swiglu_bwd_kernel_0", "mega_moe", "swiglu"),
        ("split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel", "optimizer", "update"),
        ("sage_quant_kernel", "attention", "kv_cache_or_aux"),
        ("bmm_MxE4m3_MxE2m1_cga1x1_sm100", "gemm_grouped", "gemm"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >", "optimizer", "update"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float> >", "optimizer", "grad_norm"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, ScaleFunctor<float> >", "optimizer", "clip_or_unscale"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2>", "sort_topk", "sort_topk"),
        ("Cijk_Ailk_Bljk_BBS_BH_GG_MT256x256x64", "gemm_dense", "hipblaslt_tensile"),
        ("searchsorted_cuda_kernel<float>", "embedding_index", "index"),
        ("void at::native::bitonicSortKVInPlace<2>", "sort_topk", "sort_topk"),
        ("__amd_rocclr_copyBuffer.kd", "memcpy", "rocclr_blit"),
        ("sm100_fp8_fp4_mega_moe_impl", "mega_moe", "whole_layer"),
        ("someNewRcclThing", "comm_collective", "unnamed"),
        ("resolve_future_token_ids_kernel", "other", "unclassified"),
    ],
)
def test_names_that_naive_rules_get_wrong(name, category, subcategory):
    assert classified([name])[0][1:] == (category, subcategory)


def test_the_rules_are_the_reference_with_its_look_arounds_written_otherwise(shared):
    """The reference's patterns, with look-arounds, in Python's engine; on every known name the same rule must fire."""
    with (shared / "reference/kernels/category_rules.csv").open(newline="") as file:
        reference = [(row["rule"], re.compile(row["regex_on_lowercased_name"])) for row in csv.DictReader(file)]
    with (shared / "reference/kernels/kernel_catalogue.csv").open(newline="") as file:
        names = sorted({row["name_example"] for row in csv.DictReader(file)} - {MISLABELLED})
    split = {"Q2": "Q1", "S6": "S1"}
    expected = [next((r for r, p in reference if p.search(re.sub(r"\.kd$", "", n.lower()))), None) for n in names]
    assert [split.get(rule, rule) for rule, _, _ in classified(names)] == expected


def test_built_in_rules_are_sound():
    with (ROOT / "sql/rules/kernel_rules.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["id"] for row in rows}) == len(rows)
    orders = [int(row["order"]) for row in rows]
    assert orders == sorted(set(orders))
    for row in rows:
        assert row["class"] in CLASSES and row["category"] and row["subcategory"] and row["why"], row
        assert row["pattern"] == row["pattern"].lower(), row  # names are matched in lower case
    classes: dict[str, set[str]] = {}
    for row in rows:
        classes.setdefault(row["category"], set()).add(row["class"])
    assert all(len(found) == 1 for found in classes.values())


HEAD = "order,id,pattern,unless,class,category,subcategory,why\n"
RULE = "5,mine,^gemm_,,communication,comm_collective,mine,We know better.\n"


def test_own_rules_come_first_and_make_their_own_tables(store_of, tmp_path, cli):
    path = tmp_path / "rules.csv"
    path.write_text(HEAD + "9,second,^gemm,_b$,computation,attention,b,\n" + RULE)
    store = store_of([kernel("gemm_a", 0, 10), kernel("gemmb", 10, 10), kernel("gemm__b", 20, 10)]).root
    sql = "SELECT name, class, category, rule_id FROM kernels ORDER BY name"
    before = "name,class,category,rule_id\n" + "".join(
        f"{name},computation,gemm_dense,D4\n" for name in ("gemm__b", "gemm_a", "gemmb")
    )
    assert cli("query", store, sql, "--format", "csv").out == before
    own = "gemm__b,communication,comm_collective,mine\ngemm_a,communication,comm_collective,mine\ngemmb,computation,attention,second\n"
    assert cli("query", store, sql, "--format", "csv", "--rules", path).out.split("\n", 1)[1] == own
    assert cli("query", store, sql, "--format", "csv").out == before
    path.write_text(HEAD + RULE.replace("^gemm_", "^gemm__"))
    assert cli("query", store, sql, "--format", "csv", "--rules", path).out.count("mine") == 1
    cli("doctor", store, "--rules", path)


def test_own_patterns_mind_no_case(store_of, tmp_path, cli):
    store = store_of([kernel("Cijk_Ailk", 0, 10)]).root
    (tmp_path / "rules.csv").write_text(HEAD + RULE.replace("^gemm_", "^Cijk_A"))
    sql = "SELECT rule_id FROM kernels"
    assert cli("query", store, sql, "--format", "csv", "--rules", "rules.csv").out == "rule_id\nmine\n"


def test_the_categories_of_kernel_summary_are_those_of_the_rules():
    parameter = next(p for p in library.load("queries")["kernel_summary"].parameters if p.name == "category")
    assert parameter.allowed.split("|") == ["all", *sorted({r.category for r in rules.built_in().rules} | {"other"})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RULE.replace("^gemm_", "gemm(?!x)"), "line 2: DuckDB does not take the pattern 'gemm(?!x)'"),
        (RULE.replace("^gemm_,", "^gemm_,("), "line 2: DuckDB does not take the pattern '('"),
        (RULE.replace("^gemm_", ""), "line 2: the pattern is empty"),
        (RULE.replace(",communication,", ",comunication,"), "line 2: unknown class 'comunication'; did you mean 'communication'"),
        (RULE.replace("comm_collective", "comm_colective"), "line 2: unknown category 'comm_colective'; did you mean 'comm_collective'"),
        (RULE + RULE, "line 3: the id 'mine' is used in line 2 already"),
        (RULE.replace("mine,^", "D1,^"), "line 2: the id 'D1' is built in"),
        (RULE.replace("mine,^", ",^"), "line 2: the id '' is empty"),
        (RULE.replace("5,mine", "first,mine"), "line 2: the order 'first' is no number"),
        (RULE.replace("5,mine", "nan,mine"), "line 2: the order 'nan' is no number"),
        (RULE.replace("We know", "x" * 200_000), "rules.csv: cannot be read: field larger than field limit"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_named_by_its_line(tmp_path, cli, store_of, text, says):
    store = store_of([kernel("gemm_a", 0, 10)]).root
    (tmp_path / "rules.csv").write_text(HEAD + text)
    err = cli("query", store, "timeline", "--rules", "rules.csv", code=2).err
    assert says in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_rules_file(tmp_path, cli, store_of):
    store = store_of([kernel("gemm_a", 0, 10)]).root
    (tmp_path / "rules.csv").write_text("name,category\n")
    assert (
        "line 1: the columns order, id, pattern" in cli("query", store, "timeline", "--rules", "rules.csv", code=2).err
    )
    (tmp_path / "rules.csv").write_bytes(HEAD.encode("utf-16"))
    err = cli("query", store, "timeline", "--rules", "rules.csv", code=2).err
    assert "not UTF-8 text; save it as CSV in UTF-8, with commas" in err
    (tmp_path / "rules.csv").write_bytes(("\ufeff" + HEAD + RULE).replace("\n", "\r\n").encode())  # as Excel writes it
    cli("query", store, "timeline", "--rules", "rules.csv")
    assert "no.csv: cannot be read: No such file" in cli("query", store, "timeline", "--rules", "no.csv", code=2).err
