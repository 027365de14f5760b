"""The sample traces: the generator writes what is committed, and the numbers follow from its model by hand."""

from __future__ import annotations

import sys

from tests import oracle
from tests.conftest import ROOT
from tests.engine.test_timeline import rows_of, values
from tests.tracegen import ingest_files

sys.path.insert(0, str(ROOT / "sample_traces"))
import generate


def test_the_generator_writes_the_committed_bytes(tmp_path):
    for path in generate.write(tmp_path):
        assert path.read_bytes() == (ROOT / "sample_traces" / path.name).read_bytes()


def test_the_numbers_follow_from_the_model(tmp_path):
    for rank, path in enumerate(sorted((ROOT / "sample_traces").glob("*.json.gz"))):
        ingested = ingest_files([path], tmp_path / f"s{rank}")
        slow = 100 + 2 * rank
        per_step = 3 * (183_411 * slow // 100 + 23_947 * slow // 100 + 371_083 * slow // 100) + 118_509
        row = ingested.named("timeline")[0]
        assert row["computation_ns"] == 2 * per_step
        assert row["communication_ns"] == 2 * 3 * (402_660 - 7_400 * rank)
        assert row["memcpy_ns"] == row["exposed_memcpy_ns"] == 2 * 41_207
        assert rows_of(ingested) == values(oracle.timeline(oracle.gpu_events(oracle.load(path)[0])))
