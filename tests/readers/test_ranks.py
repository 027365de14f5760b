"""Ranks said only by names."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceanalyzer.readers.ranks import rank_from_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rank3.json", (3, "file name")),
        ("primus-megatron-exp[m]-rank[0].17.pt.trace.json.gz", (0, "file name")),
        ("rank-12.Apr_03_18_51_38.1102.pt.trace.json.gz", (12, "file name")),
        ("dp0_pp0_tp3_dcp0_ep0_rank3.1.pt.trace.json", (3, "file name")),
        ("1700000000-TP-2.trace.json.gz", (2, "file name")),
        ("tp1_pp2.json", (None, None)),
        ("frank3.json", (None, None)),
        ("host_1234.567.pt.trace.json.gz", (None, None)),
        ("rank5/trace.json", (5, "folder name")),
        ("rank5/rank6.json", (6, "file name")),
        ("rank5/deeper/trace.json", (None, None)),
    ],
)
def test_rank_from_path(path, expected):
    assert rank_from_path(Path(path)) == expected
