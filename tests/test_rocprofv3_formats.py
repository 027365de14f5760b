"""rocprofv3 from end to end: the real trace, every format of the sample, folders as launchers leave them, secrets."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sys
from collections import Counter, defaultdict

import pytest

from tests import oracle
from tests.conftest import ROOT, SHARED
from tests.engine.test_timeline import rows_of, values
from tests.rocprofv3gen import gpu_events
from tests.tracegen import ingest_files

sys.path.insert(0, str(ROOT / "sample_traces"))

from proxy import rocpd, rocprofv3

TRUTH = json.loads((ROOT / "sample_traces/truth.json").read_text())["collectors"]["rocprofv3"]
REAL = "rocprofv3-mi350x-train"


# -- the real trace ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """Return (the process as json reads it, the store made of the file)."""
    folder = tmp_path_factory.mktemp("real")
    path = folder / "host" / "908_results.json.gz"
    path.parent.mkdir()
    shutil.copy(shared / "traces" / REAL / "trace.json.gz", path)
    [tool] = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    return tool, ingest_files([folder], folder / "store")


def test_every_dispatch_of_the_real_trace_is_stored(real):
    tool, ingested = real
    trace = ingested.outcomes[0].trace.manifest
    assert trace.rows["gpu_events"] == len(tool["buffer_records"]["kernel_dispatch"]) == 43_915
    assert trace.trace["events_read"] == trace.trace["events_stored"] == 43_915 + 1 + len(tool["agents"])
    assert (trace.trace["pid"], trace.trace["device_name"]) == (908, "AMD Instinct MI350X")
    assert (trace.identity.rank, trace.trace["rank_source"]) == (0, "guess: index of the only GPU it used")


def test_the_real_timeline_equals_the_oracle(real):
    tool, ingested = real
    assert rows_of(ingested) == values(oracle.timeline(gpu_events(tool)))


def test_the_real_kernel_summary_equals_the_oracle(real):
    tool, ingested = real
    expected = oracle.kernel_summary(gpu_events(tool))
    got = ingested.named("kernel_summary")
    assert [(r["name"], r["class"], r["events"], r["total_ns"]) for r in got] == [
        (e.name, e.cls, e.events, e.total_ns) for e in expected
    ]


def test_kernel_totals_equal_tracelens_after_its_unit_fault(real, shared):
    """TraceLens calls microseconds milliseconds there, and groups by the truncated name."""
    _, ingested = real
    with (shared / "traces" / REAL / "tracelens/kernel_summary.csv").open(newline="") as file:
        expected = {
            row["name"]: (int(row["Count"]), round(float(row["Total Kernel Time (ms)"]) * 1_000))
            for row in csv.DictReader(file)
        }
    got = ingested.sql(
        "SELECT args ->> 'truncated_kernel_name' AS name, count(*) AS n, sum(dur_ns)::BIGINT AS total_ns"
        " FROM kernels GROUP BY 1"
    )
    assert {row["name"]: (row["n"], row["total_ns"]) for row in got} == expected


def test_dispatches_equal_tracelens_details(real, shared):
    """Grids there are in work-items, durations in nanoseconds whatever their heading says."""
    _, ingested = real
    with (shared / "traces" / REAL / "tracelens/kernel_details.csv").open(newline="") as file:
        expected = Counter(
            (row["name"], int(float(row["Kernel duration (µs)"])), *(int(row[c]) for c in COLUMNS))
            for row in csv.DictReader(file)
        )
    got = ingested.sql(
        "SELECT args ->> 'truncated_kernel_name' AS name, dur_ns, stream,"
        " (args ->> '$.dispatch_info.dispatch_id')::BIGINT AS dispatch_id, grid_x, grid_y, grid_z, block_x, block_y,"
        " block_z, args -> '$.dispatch_info.grid_size' AS items FROM kernels"
    )
    found = Counter()
    for row in got:
        items = json.loads(row["items"])
        blocks = [row[f"grid_{a}"] for a in "xyz"]
        threads = [row[f"block_{a}"] for a in "xyz"]
        assert blocks == [-(-items[a] // t) for a, t in zip("xyz", threads, strict=True)]
        key = (row["name"], row["dur_ns"], row["stream"], row["dispatch_id"], *items.values(), *threads)
        found[key] += 1
    assert found == expected


COLUMNS = ("stream", "dispatch_id", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


# -- one run in every format -------------------------------------------------------------------------------------

WRITERS = {
    "JSON 1.0": lambda folder, rank: rocprofv3.write(folder, rank, 2),
    "JSON 0.5": lambda folder, rank: rocprofv3.write(folder, rank, 2, rocprofv3.VERSION_0_5),
    "CSV": lambda folder, rank: rocpd.write_csv(folder, rank, 2),
    "rocpd": lambda folder, rank: rocpd.write_database(folder, rank, 2),
}


@pytest.fixture(scope="module", params=WRITERS)
def form(request, tmp_path_factory):
    """Return the store made of ranks 0 and 5 in one of the formats."""
    folder = tmp_path_factory.mktemp("form")
    for rank in (0, 5):
        WRITERS[request.param](folder / "traces", rank)
    return ingest_files([folder / "traces"], folder / "store", run="r")


def test_every_format_gives_the_truth(form):
    [row] = [r for r in form.named("timeline") if r["rank"] == 0]
    assert {name: row[name] for name in TRUTH["timeline"]} == TRUTH["timeline"]
    [totals] = form.sql("SELECT count(*) AS n, sum(dur_ns)::BIGINT AS total_ns FROM gpu_events WHERE rank = 0")
    assert totals == {"n": TRUTH["work"], "total_ns": TRUTH["total_ns"]}
    [copies] = form.sql("SELECT count(*) AS n FROM gpu_events WHERE rank = 0 AND class = 'memcpy'")
    assert copies == {"n": TRUTH["copies"]}


@pytest.fixture(scope="module")
def model():
    """Return what rank 5's work is by the generator's own list, as the collector names it."""
    from proxy.collectors import ROCPROFV3, recorded

    offset = rocprofv3.BOOT_NS + rocprofv3.clock_offset_ns(5)
    found = []
    for work in recorded(5, ROCPROFV3, 2):
        name = work.name.replace("Pinned", "Host") if rocprofv3.is_copy(work) else rocprofv3.kernel_name(work)
        found.append((name, work.start_ns + offset, work.dur_ns))
    return sorted(found)


def test_every_format_gives_the_same_work(form, model):
    got = form.sql("SELECT name, start_ns, dur_ns FROM gpu_events WHERE rank = 5")
    assert sorted((r["name"], r["start_ns"], r["dur_ns"]) for r in got) == model


def test_every_format_links_calls_to_their_work(form):
    [row] = form.sql(
        "SELECT count(*) AS n, count(DISTINCT (c.trace_id, c.event_id)) AS calls, count(*) FILTER (c.start_ns > e.start_ns) AS late"
        " FROM gpu_events AS e JOIN runtime_calls AS c USING (run, trace_id, correlation_id)"
    )
    assert row == {"n": 2 * TRUTH["work"], "calls": 2 * TRUTH["work"], "late": 0}


def test_checks_hold_in_every_format(form):
    from traceanalyzer.engine import library

    for check in library.load("checks").values():
        assert form.session().violations(check) == []


def test_ingesting_again_changes_nothing(form, tmp_path):
    before = form.sql("SELECT trace_id, rank, part FROM traces ORDER BY ALL")
    again = ingest_files([form.root.parent / "traces"], form.root, run="r")
    assert [o.state for o in again.outcomes] == ["already stored"] * 2
    assert again.sql("SELECT trace_id, rank, part FROM traces ORDER BY ALL") == before


def test_formats_agree_on_what_their_columns_are(tmp_path):
    """The same kernels have the same device, stream, geometry, thread and process in each format."""
    found = defaultdict(set)
    for name, write in WRITERS.items():
        if name != "JSON 0.5":  # which has no streams
            write(tmp_path / name, 2)
            made = ingest_files([tmp_path / name], tmp_path / f"store {name}", run="r")
            query = (
                "SELECT start_ns, device, stream, grid_x, grid_y, block_x, correlation_id, class, category FROM kernels"
                " ORDER BY start_ns, correlation_id"
            )
            found["kernels"].add(json.dumps(made.sql(query)))
            query = "SELECT api, name, pid, tid, start_ns, dur_ns, correlation_id FROM runtime_calls ORDER BY ALL"
            found["calls"].add(json.dumps(made.sql(query)))
    assert {name: len(rows) for name, rows in found.items()} == {"kernels": 1, "calls": 1}


def test_the_shared_folder_is_used(shared):
    assert (SHARED / "traces" / REAL / "tracelens").is_dir() and shared == SHARED
