"""The Python interface, with the examples of its page run as they stand."""

from __future__ import annotations

import re
import shutil

import pandas
import polars
import pyarrow
import pytest

import traceanalyzer as ta
from tests.conftest import ROOT
from tests.tracegen import ingest_files, kernel
from traceanalyzer.errors import NothingToAnalyse, QueryError, UsageError

EVENTS = [kernel("gemm", 0, 10), kernel("gemm", 20, 5), kernel("softmax", 10, 5)]


@pytest.fixture
def root(store_of):
    return store_of(EVENTS, EVENTS[:1], rank=3).root


def test_an_answer_comes_as_every_kind_of_table(root):
    answer = ta.open(root).query("kernel_summary", category="gemm_dense")
    assert answer.columns[:4] == ["run", "collector", "rank", "part"]
    totals = [15000, 10000]
    assert [row["total_ns"] for row in answer.rows()] == totals
    assert isinstance(answer.arrow(), pyarrow.Table) and answer.arrow()["total_ns"].to_pylist() == totals
    assert isinstance(answer.pl(), polars.DataFrame) and answer.pl()["total_ns"].to_list() == totals
    assert answer.pl().schema["total_ns"] == polars.Int64
    assert isinstance(answer.df(), pandas.DataFrame) and answer.df()["total_ns"].tolist() == totals
    assert answer.relation().aggregate("sum(total_ns)").fetchall() == [(25000,)]


def test_parameters_filters_and_sql(root):
    with ta.open(str(root), runs=["r"], ranks=[3]) as traces:
        assert "timeline" in traces.queries()
        assert (
            traces.query("timeline", clip_overruns=True, micro_idle_us=3).pl()["durations"].to_list().count("clipped")
            == 2
        )
        assert traces.query("SELECT max(end_ns) AS e FROM kernels").rows() == [{"e": 25000}]
        assert any("by=device" in note for note in traces.query("timeline").notes)


def test_one_run_or_rank_needs_no_list(root):
    assert ta.open(root, runs="r", ranks=3).query("traces").pl()["rank"].to_list() == [3, 3]


def test_sums_are_integers_where_they_fit(root):
    answer = ta.open(root).query("SELECT sum(dur_ns) AS ns, sum(9223372036854775807) AS large FROM kernels")
    assert answer.pl().schema["ns"] == polars.Int64
    assert answer.rows() == [{"ns": 30_000, "large": 4 * 9223372036854775807}]


def test_columns_of_the_same_name_get_a_number(root):
    assert ta.open(root).query("SELECT 1 AS a, 2 AS a").rows() == [{"a": 1, "a_1": 2}]


def test_an_empty_answer_says_what_that_means(root):
    answer = ta.open(root).query("memory_timeline")
    assert answer.rows() == []
    assert any(note.startswith("not recorded: PyTorch records") for note in answer.notes)


def test_errors_are_the_command_lines(root, tmp_path):
    traces = ta.open(root)
    for ask, error in (
        (lambda: traces.query("timelin"), UsageError),
        (lambda: traces.query("timeline", bye=1), UsageError),
        (lambda: traces.query("SELECT 1", by=1), UsageError),
        (lambda: traces.query("SELECT CAST('x' AS INT)"), QueryError),
        (
            lambda: traces.query("SELECT CASE WHEN i = 200000 THEN error('boom') ELSE 1 END FROM range(300000) t(i)"),
            QueryError,
        ),
        (lambda: traces.query("COPY kernels TO 'x'"), QueryError),
        (lambda: ta.open(tmp_path / "none"), UsageError),
        (lambda: ta.open(root, ranks=[4]), UsageError),
    ):
        with pytest.raises(error):
            ask()


def test_nothing_to_analyse(store_of):
    root = store_of([{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]).root
    with pytest.raises(NothingToAnalyse):
        ta.open(root).query("timeline")


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 3
    ingest_files([ROOT / "sample_traces/pytorch"], tmp_path / "demo-store", run="proxy")
    shutil.copytree(ROOT / "sql", tmp_path / "sql")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
