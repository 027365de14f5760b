"""The timeline by step, by execution and by launch, against slow unions per step."""

from __future__ import annotations

import bisect

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import GpuEvent, timeline
from tests.tracegen import annotation, ingest_events, kernel, launch

PARTS = ["window_ns", "computation_ns", "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns", "idle_ns"]

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


def test_steps_that_begin_together_are_told_apart_alike_everywhere(store_of):
    events = [annotation("ProfilerStep#0", 0, 100), annotation("ProfilerStep#1", 0, 50)]
    for number, (ts, launched) in enumerate([(110, 5), (120, 70)], 1):
        events += [kernel("gemm", ts, 5, args={"correlation": number}), launch(launched, number)]
    found = store_of(events)
    rows = found.sql("SELECT launch_step AS step, count(*) AS n FROM gpu_events GROUP BY ALL ORDER BY ALL")
    by_query = {row["step"]: row["busy_ns"] // 5000 for row in found.named("timeline", by="step", step_rule="launch")}
    assert {row["step"]: row["n"] for row in rows} == {step: n for step, n in by_query.items() if n}
