"""One key for the spellings of a kernel: drawn hostile names, a catalogue of real ones, three collectors' traces."""

from __future__ import annotations

import csv
import gzip
import itertools
import json

import pytest

from proxy.rocm_trace_lite import short_name  # of sample_traces: how that collector shortens names
from traceanalyzer.engine.kernel_key import cut_key, kernel_key

HOSTILE = {
    "void f<4, g<float> >(int, g<float>)": "f<4,g<float>>",
    "f<4, g<float>>(int, g<float>) [clone .kd]": "f<4,g<float>>",
    "void (anonymous namespace)::k<3>(int)": "(anonymous namespace)::k<3>",
    "void at::(anonymous namespace)::k<at::(anonymous namespace)::T<16u> >(int)": (
        "at::(anonymous namespace)::k<at::(anonymous namespace)::T<16>>"
    ),
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::Half>::exists, void>::type vllm::norm<c10::Half, 8>(long)": (
        "vllm::norm<c10::Half,8>"
    ),
    "std::enable_if<!(false), void>::type a::kernel<(1 < 2), (3 > 2)>(T<float const>)": "a::kernel<(1<2),(3>2)>",
    "decltype(auto) f<int>(int)": "f<int>",
    "unsigned int foo<int>(int)": "foo<int>",
    "int* f(int)": "f",
    "f(void (*)(int))": "f",
    "f(int)::g(float) const": "f(int)::g",
    "foo::operator()(int) const": "foo::operator()",
    "void foo::operator<< <int>(int)": "foo::operator<<<int>",
    "foo::operator bool() const": "foo::operator bool",
    "cooperator<operator_kernel>(int)": "cooperator<operator_kernel>",
    "main::{lambda(int)#1}::operator()(int) const::{lambda()#2}::operator()() const": (
        "main::{lambda(int)#1}::operator()(int)::{lambda()#2}::operator()"
    ),
    "void e<128, void h<F>(at::It&, F const&)::{lambda(int, bool)#2}>(int)": "e<128,h<F>(at::It&,F const&)::{lambda(int,bool)#2}>",
    "f<&(op_add(float, float)), unsigned  int>(x)": "f<&(op_add(float,float)),unsigned int>",
    "k<(unsigned int)16, (bool)1, 3ul, -2l, 0x1f>": "k<16,true,3,-2,0x1f>",
    "k.isra.0.kd": "k",
    "_attn_fwd.kd": "_attn_fwd",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_Generic_1",
    "Cijk_Ailk_Bjlk_BBS_BH_MT256x256x64": "Cijk_Ailk_Bjlk_BBS_BH_MT256x256x64",
    "Memcpy DtoD (Device -> Device)": "Memcpy DtoD (Device -> Device)",
    "at::native::f<4, g": "at::native::f<4,g",
    "f<": "f<",
    "(x)": "(x)",
    ">>>((": ">>>",
    " ": "",
    "": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name):
    assert kernel_key(name) == HOSTILE[name]


def test_mangled_names_get_the_key_of_what_they_stand_for():
    pytest.importorskip("cpp_demangle", reason="no demangler on this platform: mangled names stay as they are")
    mangled = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELb0EEEvPT0_PT_i.kd"
    assert kernel_key(mangled) == "aiter::add_rmsnorm_quant_kernel<__bf16,__bf16,64,false>"
    assert kernel_key("void aiter::add_rmsnorm_quant_kernel<__bf16, __bf16, 64, false>(__bf16*, __bf16*, int)") == (
        kernel_key(mangled)
    )
    assert cut_key(mangled) == kernel_key(mangled)
    assert kernel_key("_Znonsense") == "_Znonsense"


@pytest.fixture(scope="module")
def catalogue(shared):
    with (shared / "reference/kernels/kernel_catalogue.csv").open(newline="", encoding="utf-8") as file:
        names = sorted({row["name_example"] for row in csv.DictReader(file)})
    assert len(names) > 850
    return names


def test_the_spellings_of_all_catalogued_kernels_have_one_key(catalogue):
    for name in catalogue:
        key = kernel_key(name)
        assert key
        assert kernel_key(key) == key
        assert kernel_key(name.replace("> >", ">>") + " [clone .kd]") == key
        assert kernel_key(name + ".kd") == key


def test_cut_names_have_the_cut_key_of_the_whole_name(catalogue):
    cut = 0
    for name in catalogue:
        if not name.startswith(("_Z", "Mem")):
            assert kernel_key(short_name(name)) == cut_key(name), name
            cut += cut_key(name) != kernel_key(name)
    assert cut > 50


def beginning(names):
    """Return what all names begin with."""
    return "".join(chars[0] for chars in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*names, strict=False)))


def test_different_catalogued_kernels_have_different_keys(catalogue):
    """Only names that the catalogue abbreviates, or has with a loader's suffix too, share a key."""
    by_key: dict[str, list[str]] = {}
    for name in catalogue:
        by_key.setdefault(kernel_key(name), []).append(name)
    assert all(kernel_key(beginning(names)) == key for key, names in by_key.items())
    assert len(by_key) == len(catalogue) - 14


def test_the_keys_of_symbols_and_of_their_demangled_forms_agree_in_a_real_trace(shared):
    pytest.importorskip("cpp_demangle", reason="no demangler on this platform: mangled names stay as they are")
    with gzip.open(shared / "traces/rocprofv3-mi350x-train/trace.json.gz") as file:
        (process,) = json.load(file)["rocprofiler-sdk-tool"]
    symbols = process["kernel_symbols"]
    agree = sum(kernel_key(s["kernel_name"]) == kernel_key(s["formatted_kernel_name"]) for s in symbols)
    # the rest are lambdas with const parameters, which the two demanglers spell differently
    assert (agree, len(symbols)) == (9640, 9889)
