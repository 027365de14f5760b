"""Tables for people: units that fit, sums, columns without values, names cut in their middle."""

from __future__ import annotations

import io
from decimal import Decimal

import pytest

from traceanalyzer.tables import Unit, shorten, write_markdown, write_table

UNITS = {
    "name": Unit("text"),
    "start_ns": Unit("ns"),
    "total_ns": Unit("ns", is_summed=True),
    "mean_ns": Unit("ns"),
    "max_ns": Unit("ns"),
    "size_bytes": Unit("bytes"),
    "events": Unit("count", is_summed=True),
    "share": Unit("0 to 1"),
    "nothing": Unit("text"),
}
COLUMNS = list(UNITS)


def table(rows, columns=COLUMNS, units=UNITS, write=write_table):
    out = io.StringIO()
    write(columns, [rows], out, units)
    return out.getvalue().splitlines()


def test_units_fit_and_statistics_of_one_event_have_their_own():
    rows = [
        ("a", 5, 12_345_678, 1_500.5, 20_000, 20 << 20, 1234, 0.25, None),
        ("b", 6, 500, 500.0, None, 512, 1, 0.75, None),
    ]
    assert table(rows) == [
        "name   start_ns  total_ms  mean_us  max_us  size_MiB  events   share",
        "-----  --------  --------  -------  ------  --------  ------  ------",
        "a             5    12.346    1.500  20.000    20.000   1,234  25.00%",
        "b             6     0.001    0.500             0.000       1  75.00%",
        "total              12.346" + " " * 30 + "1,235",
    ]


@pytest.mark.parametrize(
    ("value", "head", "text"),
    [
        (9_999, "t_ns", "9,999"),
        (10_000, "t_us", "10.000"),
        (-10_000_000, "t_ms", "-10.000"),
        (10_000_000_000, "t_s", "10.000"),
        (0, "t_ns", "0"),
    ],
)
def test_one_unit_is_chosen_by_the_largest_value(value, head, text):
    assert [line.strip() for line in table([(value,)], ["t_ns"], {"t_ns": Unit("ns")})] == [
        head.rjust(len(text)).strip(),
        "-" * max(len(head), len(text)),
        text,
    ]


def test_a_column_named_by_its_unit_alone():
    assert table([(10 << 30,)], ["bytes"], {"bytes": Unit("bytes")})[0].strip() == "GiB"


def test_nothing_is_scaled_or_left_out_where_units_are_not_known():
    rows = [("a", 12_345_678, None, True), ("b", 1, None, False)]
    assert table(rows, ["name", "total_ns", "nothing", "flag"], {}) == [
        "name  total_ns  nothing  flag",
        "----  --------  -------  -----",
        "a     12345678           true",
        "b            1           false",
    ]


def test_sums_count_rows_beyond_those_that_decide_the_widths():
    columns, units = ["name", "events"], {"name": Unit("text"), "events": Unit("count", is_summed=True)}
    lines = table([("a", 1)] * 2500, columns, units)
    assert len(lines) == 2503
    assert lines[-1].split() == ["total", "2,500"]
    assert table([("a", 1)] * 2500, columns, units, write_markdown)[-1] == "| total | 2,500 |"


def test_one_row_has_no_sum_and_no_row_no_columns_left_out():
    assert len(table([("a", 5, 1, 1.0, 1, 1, 1, 1.0, None)])) == 3
    assert table([])[0].split() == COLUMNS


def test_markdown_has_the_same_cells():
    lines = table([("a|b", 5, 1, 1.0, 1, 1, 7, 1.0, None)] * 2, write=write_markdown)
    assert lines[0] == "| name | start_ns | total_ns | mean_ns | max_ns | size_bytes | events | share |"
    assert lines[2] == "| a\\|b | 5 | 1 | 1 | 1 | 1 | 7 | 100.00% |"
    assert lines[4] == "| total |  | 2 |  |  |  | 14 |  |"


def test_names_are_cut_in_their_middle():
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abcde", 5) == "abcde"


def test_texts_beyond_the_rows_that_decide_the_widths_are_whole():
    rows = [("a", None)] * 1000 + [("a long name, indeed", 123456789012)]
    assert table(rows, ["name", "x"], {})[-1] == "a long name, indeed  123456789012"


@pytest.mark.parametrize("values", [("x", "y"), (Decimal("20000.5"), Decimal("1.5")), (True, False)])
def test_a_column_that_does_not_keep_its_unit_is_shown_as_it_is(values):
    lines = table([(value,) for value in values], ["half_ns"], {"half_ns": Unit("ns", is_summed=True)})
    assert lines[0].strip() == ("half_us" if isinstance(values[0], Decimal) else "half_ns")
    assert len(lines) == (5 if isinstance(values[0], Decimal) else 4)
