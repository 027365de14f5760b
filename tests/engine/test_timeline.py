"""The timeline's SQL against a painter that colours every nanosecond, and small drawn cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import gpu_events, paint, timeline
from tests.tracegen import ingest_events, kernel, memcpy

COLUMNS = [
    "window_ns",
    "computation_ns",
    "communication_ns",
    "exposed_communication_ns",
    "memcpy_ns",
    "exposed_memcpy_ns",
    "busy_ns",
    "idle_ns",
]
NAMES = ["gemm", "ncclDevKernel_Generic(x)", "__amd_rocclr_copyBuffer.kd", "__amd_rocclr_fillBufferAligned"]

spans = st.builds(
    lambda name, start, length, device: kernel(name, start / 1000, length / 1000, device=device),
    st.sampled_from(NAMES),
    st.integers(0, 300),
    st.integers(0, 60),
    st.integers(0, 1),
)


def rows_of(ingested):
    return {row["device"]: [row[c] for c in COLUMNS] for row in ingested.named("timeline")}


def values(timelines):
    return {device: [getattr(t, c) for c in COLUMNS] for device, t in timelines.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(spans, min_size=1, max_size=25))
def test_timeline_equals_a_painter(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("paint")
    got = rows_of(ingest_events(events, folder / "store", folder / "t.json"))
    expected = gpu_events(events)
    assert got == values(paint(expected))
    assert got == values(timeline(expected))
    for window, computation, _, exposed_communication, _, exposed_memcpy, busy, idle in got.values():
        assert computation + exposed_communication + exposed_memcpy == busy
        assert busy + idle == window


# us 0    10    20    30    40    50    60
#    gemm 0-20        gemm 40-50
#         nccl 10-30
#                  copy 25-45
#                                    copy 55-60
DRAWN = [
    kernel("gemm", 0, 20),
    kernel("gemm", 40, 10),
    kernel("ncclDevKernel_Generic", 10, 20, stream=20),
    memcpy(25, 20, stream=3),
    memcpy(55, 5, stream=3),
]


def test_timeline_of_a_drawn_case(store_of):
    assert rows_of(store_of(DRAWN)) == {0: [60000, 30000, 20000, 10000, 25000, 15000, 55000, 5000]}


def test_shuffled_and_shifted_events_give_the_same(store_of):
    moved = [event | {"ts": event["ts"] + 1_700_000_000_000_000} for event in reversed(DRAWN)]
    assert rows_of(store_of(moved)) == {0: [60000, 30000, 20000, 10000, 25000, 15000, 55000, 5000]}


def test_annotations_and_host_rows_are_no_gpu_work(store_of):
    around = [
        kernel("ProfilerStep#3", -50, 500) | {"cat": "gpu_user_annotation"},
        {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7, "ts": -9, "dur": 90, "args": {}},
    ]
    assert rows_of(store_of(DRAWN + around)) == {0: [60000, 30000, 20000, 10000, 25000, 15000, 55000, 5000]}


def test_events_without_a_sound_time_stay_out_of_the_window(store_of):
    broken = [kernel("neg", 500, -3), {k: v for k, v in kernel("late", 900, 1).items() if k != "dur"}]
    ingested = store_of(DRAWN + broken)
    assert rows_of(ingested)[0][0] == 60000
    assert ingested.sql("SELECT name, defect FROM gpu_events WHERE defect IS NOT NULL ORDER BY name") == [
        {"name": "late", "defect": "incomplete"},
        {"name": "neg", "defect": "negative_duration"},
    ]


def test_parts_and_ranks_are_rows_of_their_own(tmp_path):
    for rank, name in ((0, "a"), (0, "b"), (1, "c")):
        result = ingest_events(
            [*DRAWN, kernel(name, 3, 1)], tmp_path / "s", tmp_path / f"{name}.json", run="r", rank=rank
        )
    assert [(row["rank"], row["part"]) for row in result.named("timeline")] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("name", "kind", "tracelens"),
    [
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "kernel", "communication"),
        ("void aiter::cross_device_reduce_2stage<__half, 8>(x)", "kernel", "communication"),
        ("RcclKernel", "kernel", "communication"),
        ("__amd_rocclr_copyBuffer", "kernel", "memcpy"),
        ("__amd_rocclr_copyBufferRectAligned.kd", "kernel", "memcpy"),
        ("my__amd_rocclr_copyBuffer", "kernel", "computation"),
        ("__amd_rocclr_fillBufferAligned.kd", "kernel", "computation"),
        ("Memset (Device)", "memset", "computation"),
        ("Memcpy DtoH nccl", "memcpy", "memcpy"),
        ("MEMORY_COPY_HOST_TO_DEVICE", "kernel", "memcpy"),
        ("gemm", "kernel", "computation"),
    ],
)
def test_tracelens_class_follows_its_name_rule(store_of, name, kind, tracelens):
    category = {"kernel": "kernel", "memset": "gpu_memset", "memcpy": "gpu_memcpy"}[kind]
    ingested = store_of([kernel(name, 0, 1) | {"cat": category}])
    assert ingested.sql("SELECT kind, tracelens_class FROM gpu_events") == [
        {"kind": kind, "tracelens_class": tracelens}
    ]
