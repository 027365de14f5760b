"""Defects in time, health and doctor, each on the smallest trace that shows it (user reports among them)."""

from __future__ import annotations

import json

import pytest

from tests.engine.test_timeline import rows_of
from tests.tracegen import cpu_op, document, kernel


def call(name, ts, dur, correlation):
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def work(name, ts, dur, stream=7, correlation=1):
    return kernel(name, ts, dur, stream=stream, args={"correlation": correlation})


STEP = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "ProfilerStep#1",
    "pid": 1,
    "tid": 1,
    "ts": 0,
    "dur": 1,
    "args": {},
}
SOUND = [call("hipLaunchKernel", 0, 1, 1), work("k", 2, 5), STEP]


def checks(ingested):
    return {row["check"]: (row["severity"], row["count"]) for row in ingested.named("health")}


def test_a_sound_trace_has_nothing_but_what_it_was_recorded_with(store_of):
    assert checks(store_of(SOUND)) == {"profiler": ("info", 1)}


def test_a_zero_beside_unix_times_stays_out_of_the_window(store_of):
    ingested = store_of([work("k", 1_700_000_000_000_000, 5), work("z", 0, 0, correlation=2)])
    assert rows_of(ingested)[0][0] == 5000
    assert ingested.sql("SELECT name FROM gpu_events WHERE defect = 'impossible_timestamp'") == [{"name": "z"}]
    assert checks(ingested)["defect impossible_timestamp"] == ("warning", 1)


def test_negative_durations_are_left_out_of_sums(store_of):
    ingested = store_of([work("a", 10, 5), work("b", 20, -3, correlation=2)])
    assert [r["total_ns"] for r in ingested.named("kernel_summary")] == [5000]
    assert checks(ingested)["defect negative_duration"] == ("warning", 1)


def test_display_unit_does_not_change_the_unit_of_times(store_of):
    ingested = store_of([work("k", 1236, 13837451)], keys={"displayTimeUnit": "ns"})
    assert ingested.sql("SELECT dur_ns FROM kernels") == [{"dur_ns": 13_837_451_000}]


def test_an_overrun_is_found_and_can_be_clipped(store_of):
    # stream 7: a kernel of 1.6 s over three later ones, of which it covers two whole
    events = [
        work("before", 0, 100),
        work("long", 1_000, 1_600_000),
        work("n1", 2_000, 500),
        work("n2", 3_000, 500),
        work("n3", 1_600_500, 5_000),
    ]
    ingested = store_of(events)
    assert ingested.sql("SELECT name, dur_ns, clipped_dur_ns FROM kernels WHERE defect = 'overrun'") == [
        {"name": "long", "dur_ns": 1_600_000_000, "clipped_dur_ns": 1_000_000}
    ]
    rows = ingested.named("timeline", clip_overruns="true")
    assert [(r["durations"], r["computation_ns"]) for r in rows] == [
        ("recorded", 1_604_600_000),
        ("clipped", 7_100_000),
    ]
    assert [r["durations"] for r in ingested.named("timeline")] == ["recorded"]
    assert checks(ingested)["defect overrun"] == ("error", 1)


@pytest.mark.parametrize(
    "events",
    [
        [work("long", 0, 1_600_000), work("n1", 10, 5, stream=8), work("n2", 20, 5, stream=8)],  # another stream
        [work("long", 0, 90_000), work("n1", 10, 5), work("n2", 20, 5)],  # below the floor
        [work("long", 0, 1_600_000), work("n1", 1_500_000, 200_000), work("n2", 1_700_000, 5)],  # covers none whole
    ],
)
def test_what_is_no_overrun(store_of, events):
    assert store_of(events).sql("SELECT name FROM kernels WHERE defect IS NOT NULL") == []


def test_small_overlaps_on_one_stream_are_kept_and_shown(store_of):
    ingested = store_of([work("A", 3, 3.776), work("B", 5, 2)])
    assert checks(ingested)["overlap on a stream"] == ("info", 1)
    assert [r["total_ns"] for r in ingested.named("kernel_summary")] == [3776, 2000]


def test_work_before_its_launch_is_counted(store_of):
    ingested = store_of([call("hipLaunchKernel", 100, 8, 1), work("k", 97, 3)])
    assert checks(ingested)["starts before its launch"] == ("warning", 1)


def test_graph_launches_without_kernels_make_idle_unreliable(store_of):
    launches = [call("hipGraphLaunch", n, 1, n + 1) for n in range(40)]
    kernels = [work(f"k{n}", 50 + n, 1, correlation=1 + n % 2) for n in range(6)]
    assert checks(store_of(launches + kernels))["graph launches without kernels"] == ("error", 38)


def test_kernels_of_one_graph_launch_are_no_duplicates(store_of):
    ingested = store_of([call("hipGraphLaunch", 0, 1, 9), work("a", 5, 3, 3, 9), work("b", 6, 4, 5, 9)])
    assert "shared correlation" not in checks(ingested)
    assert ingested.sql("SELECT stream FROM kernels ORDER BY stream") == [{"stream": 3}, {"stream": 5}]
    ingested = store_of([call("hipLaunchKernel", 0, 1, 9), work("a", 5, 3, 3, 9), work("b", 6, 4, 5, 9)], run="other")
    assert {r["run"]: r["count"] for r in ingested.named("health") if r["check"] == "shared correlation"} == {
        "other": 2
    }


def test_unlinked_work_is_reported_with_its_share(store_of):
    ingested = store_of([*SOUND, work("early", 50, 15, correlation=77)])
    row = next(r for r in ingested.named("health") if r["check"] == "unlinked")
    assert (row["severity"], row["count"]) == ("warning", 1)
    assert "75.0 %" in row["detail"]


def test_ranks_that_are_missing_or_lack_streams(store_of):
    def keys(rank):
        return {"distributedInfo": {"rank": rank, "world_size": 3}}

    store_of([work("a", 0, 1, stream=7), work("b", 0, 1, stream=20)], keys=keys(0))
    ingested = store_of([work("c", 0, 1, stream=20)], keys=keys(1))
    found = checks(ingested)
    assert found["missing ranks"] == ("warning", 1)
    assert found["ranks differ in their streams"] == ("warning", 2)


def test_no_gpu_events_is_an_error_that_health_can_answer(store_of):
    assert checks(store_of([cpu_op("aten::mm", 0, 1)]))["no GPU events"] == ("error", 1)


def test_the_last_of_a_key_that_comes_twice_counts(tmp_path, cli):
    text = json.dumps(document([work("k", 0, 1)])).replace('"stream": 7,', '"stream": 7, "stream": 9,')
    (tmp_path / "t.json").write_text(text)
    assert "repaired: 1 duplicate key" in cli("ingest", "t.json", "--store", "s").err
    assert (
        cli("query", "s", "SELECT stream, args->>'stream' AS a FROM kernels", "--format", "csv").out
        == "stream,a\n9,9\n"
    )


def test_doctor_gives_a_verdict_and_a_code(cli, tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(document(SOUND)))
    (tmp_path / "bad.json").write_text(json.dumps(document([work("a", 0, 5), work("b", 9, 5)]))[:-70])
    cli("ingest", "good.json", "--store", "g")
    ran = cli("doctor", "g")
    assert "the numbers can be trusted" in ran.err
    assert "profiler" in ran.out
    cli("ingest", "bad.json", "--store", "b")
    ran = cli("doctor", "b", code=1)
    assert "the numbers cannot be trusted: incomplete" in ran.err
    assert ran.out.splitlines()[2].split()[3:5] == ["incomplete", "error"] or "incomplete" in ran.out.splitlines()[2]


def test_a_store_that_lacks_a_file_says_so(cli, tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(document(SOUND)))
    cli("ingest", "good.json", "--store", "g")
    next((tmp_path / "g").rglob("cpu_ops.parquet")).unlink()
    assert "the store is damaged" in cli("query", "g", "SELECT 1 FROM cpu_ops", code=3).err
    cli("query", "g", "timeline")  # which needs no operators


def test_ranks_merged_into_one_file_are_suspected_and_not_joined(store_of):
    merged = [kernel("a", 0, 1, device=0), kernel("b", 0, 1, device=1)]
    ingested = store_of([*merged, call("hipLaunchKernel", 0, 1, 1)])
    assert checks(ingested)["correlations on several devices"] == ("warning", 1)
    assert ingested.sql("SELECT count(*) AS n FROM gpu_events") == [{"n": 2}]


def test_unfinished_operators_are_counted(store_of):
    ingested = store_of([*SOUND, cpu_op("aten::mm", 0, 0, finished=False)])
    assert checks(ingested)["unfinished operators"] == ("info", 1)
