"""Tables for people: aligned, in units that can be read, long names cut in their middle, sums at the end.

Where the units of the columns are known (named queries), times, sizes, counts and shares are shown in a unit that fits
the whole column, which the head names: total_ns becomes total_ms. Nothing is scaled where they are not (free SQL).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import IO, Any, Final

Rows = Iterable[list[tuple[Any, ...]]]
"""Batches of rows."""

_SAMPLE: Final = 1_000
"""Rows that decide the widths and units of a table's columns; later rows may be wider."""
_LEAST_WIDTH: Final = 12
"""Characters that a column keeps when a terminal is too narrow for all; elsewhere texts are shown whole."""
_NS: Final = ((1e10, 1e9, "s"), (1e7, 1e6, "ms"), (1e4, 1e3, "us"))
_BYTES: Final = ((10 << 30, 1 << 30, "GiB"), (10 << 20, 1 << 20, "MiB"), (10 << 10, 1 << 10, "KiB"))
"""From this value on, one unit is so many, and is called so."""
_NUMERIC: Final = ("ns", "bytes", "count", "0 to 1")
_OF_ONE_EVENT: Final = ("mean_", "median_", "min_", "max_")
_IDENTITY: Final = ("run", "collector", "rank", "part", "statistic", "durations")
_MOMENTS: Final = ("start_ns", "end_ns")


@dataclass(frozen=True)
class Unit:
    """What a column holds: 'ns', 'bytes', 'count', '0 to 1' or anything else, and whether a last row shows its sum."""

    name: str
    is_summed: bool = False


@dataclass(frozen=True)
class _Shown:
    """A column as it is shown: its place in the rows, its head, and how a value becomes text."""

    place: int
    head: str
    text: Callable[[Any], str]
    is_right: bool
    is_summed: bool


def write_table(columns: list[str], batches: Rows, out: IO[str], units: Mapping[str, Unit]) -> None:
    """Write an aligned table; on a terminal, in its width and with a bold head."""
    first, rest = _sampled(batches)
    following = next(rest, None)
    shown = _shown(columns, first, units, is_whole=following is None)
    if following is None and units and sys.stdout.isatty():
        shown = _without_constants(shown, first)
    cells = [[_printable(column.text(row[column.place])) for column in shown] for row in first]
    sums = _Sums(shown, first)
    heads = [column.head for column in shown]
    lines = [heads, *cells, sums.cells()]
    right = [column.is_right for column in shown]
    full = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths = _fitted(full, right)
    is_narrowed = [width < whole for width, whole in zip(widths, full, strict=True)]
    bold, plain = ("\x1b[1m", "\x1b[0m") if _is_coloured() else ("", "")

    def line(cells: Iterable[str]) -> str:
        cut = (shorten(c, w) if narrow else c for c, w, narrow in zip(cells, widths, is_narrowed, strict=True))
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cut, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    out.write(f"{bold}{line(heads)}{plain}\n")
    out.write(line("-" * width for width in widths) + "\n")
    out.writelines(line(row) + "\n" for row in cells)
    for row in chain([] if following is None else [following], rest):
        sums.add(row)
        out.write(line(_printable(column.text(row[column.place])) for column in shown) + "\n")
    if sums.is_shown:
        out.write(f"{bold}{line(sums.cells())}{plain}\n")


def write_markdown(columns: list[str], batches: Rows, out: IO[str], units: Mapping[str, Unit]) -> None:
    """Write a Markdown table."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for c in cells) + " |\n"

    first, rest = _sampled(batches)
    following = next(rest, None)
    shown = _shown(columns, first, units, is_whole=following is None)
    sums = _Sums(shown, first)
    out.write(line(column.head for column in shown))
    out.write("|" + "|".join("---:" if column.is_right else "---" for column in shown) + "|\n")
    out.writelines(line(column.text(row[column.place]) for column in shown) for row in first)
    for row in chain([] if following is None else [following], rest):
        sums.add(row)
        out.write(line(column.text(row[column.place]) for column in shown))
    if sums.is_shown:
        out.write(line(sums.cells()))


class _Sums:
    """The sums of the columns that have one."""

    def __init__(self, shown: list[_Shown], rows: list[tuple[Any, ...]]) -> None:
        self._shown = shown
        self._sums = {column.place: 0 for column in shown if column.is_summed}
        self._rows = 0
        for row in rows:
            self.add(row)

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows += 1
        for place in self._sums:
            self._sums[place] += row[place] or 0

    @property
    def is_shown(self) -> bool:
        return bool(self._sums) and self._rows > 1

    def cells(self) -> list[str]:
        """Return the texts of the last row, empty when there is none to show."""
        if not self.is_shown:
            return ["" for _ in self._shown]
        texts = [column.text(self._sums[column.place]) if column.is_summed else "" for column in self._shown]
        return ["total", *texts[1:]] if not texts[0] else texts


# -- columns ----------------------------------------------------------------------------------------------------


def _shown(
    columns: list[str], rows: list[tuple[Any, ...]], units: Mapping[str, Unit], *, is_whole: bool
) -> list[_Shown]:
    """Return how each column is shown; where units are known, columns without any value are left out."""
    scales = _scales(columns, rows, units)
    found = []
    for place, name in enumerate(columns):
        unit = units.get(name, Unit(""))
        if units and is_whole and rows and all(row[place] is None for row in rows):
            continue
        if unit.name in _NUMERIC and not _are_numbers(rows, place):
            unit = Unit("")  # the header promises what the SQL does not keep
        is_right = any(isinstance(row[place], int | float | Decimal) and row[place] is not True for row in rows)
        found.append(_column(place, name, unit, scales.get(name), is_right and not _has_booleans(rows, place)))
    return found


def _are_numbers(rows: list[tuple[Any, ...]], place: int) -> bool:
    return all(row[place] is None or isinstance(row[place], int | float | Decimal) for row in rows) and not (
        _has_booleans(rows, place)
    )


def _has_booleans(rows: list[tuple[Any, ...]], place: int) -> bool:
    return any(isinstance(row[place], bool) for row in rows)


def _column(place: int, name: str, unit: Unit, scale: tuple[float, str] | None, is_right: bool) -> _Shown:
    head, text = name, rounded
    if scale:
        divisor, symbol = scale
        stem = name.removesuffix(unit.name).removesuffix("_")
        head = f"{stem}_{symbol}" if stem else symbol
        digits = 0 if divisor == 1 else 3

        def text(value: Any) -> str:
            return "" if value is None else f"{float(value) / divisor:,.{digits}f}"

    elif unit.name == "count":

        def text(value: Any) -> str:
            return "" if value is None else f"{value:,}"

    elif unit.name == "0 to 1":

        def text(value: Any) -> str:
            return "" if value is None else f"{value:.2%}"

    return _Shown(place, head, text, is_right, unit.is_summed)


def _scales(columns: list[str], rows: list[tuple[Any, ...]], units: Mapping[str, Unit]) -> dict[str, tuple[float, str]]:
    """Return (divisor, symbol) for each column of times or sizes: the same for columns that are to be compared.

    These are the statistics of single events on the one hand, everything else on the other.
    """
    groups: dict[tuple[str, bool], list[str]] = {}
    for name in columns:
        unit = units.get(name, Unit("")).name
        is_wanted = unit in ("ns", "bytes") and name not in _MOMENTS
        if is_wanted and _are_numbers(rows, columns.index(name)):
            groups.setdefault((unit, name.startswith(_OF_ONE_EVENT)), []).append(name)
    scales: dict[str, tuple[float, str]] = {}
    for (unit, _), names in groups.items():
        places = [columns.index(name) for name in names]
        largest = max((abs(float(row[place])) for row in rows for place in places if row[place] is not None), default=0)
        scale = next(((d, symbol) for least, d, symbol in (_NS if unit == "ns" else _BYTES) if largest >= least), None)
        scales |= dict.fromkeys(names, scale or (1, unit))
    return scales


def unique(columns: list[str]) -> list[str]:
    """Return the names with a number behind those that were there before: name, name_1."""
    names: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


# -- values -----------------------------------------------------------------------------------------------------


def cell(value: object) -> str:
    """Return a value as the text that tables, CSV and Markdown show: NULL is empty, nested values are JSON."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case list() | dict() | tuple():
            return json.dumps(value, default=plain, ensure_ascii=False)
        case bytes():
            return value.hex()
    return str(value)


def plain(value: object) -> object:
    """Return a value that JSON has a form for."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.hex()
        case tuple():
            return list(value)
    return str(value)


def rounded(value: object) -> str:
    """Return a value as `cell` does, but a float as a person reads it: six digits, cents from a hundred on."""
    if isinstance(value, float) and math.isfinite(value):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:.0f}"
        return f"{value:.2f}" if abs(value) >= 100 else f"{value:.6g}"
    return cell(value)


def shorten(text: str, longest: int) -> str:
    """Return the text with its middle cut out when it is too long: kernel names differ at both ends.

    >>> shorten("abcdefghij", 5)
    'ab…ij'
    """
    if len(text) <= longest:
        return text
    left = (longest - 1) // 2
    return text[:left] + "…" + text[-(longest - 1 - left) :]


def _printable(text: str) -> str:
    """Return the text without control characters, which could play with the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


# -- the terminal -----------------------------------------------------------------------------------------------


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _fitted(widths: list[int], right: list[bool]) -> list[int]:
    """Return the widths of the columns, the widest texts narrowed to fit into the terminal, if there is one."""
    if not sys.stdout.isatty():
        return widths
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    widths = list(widths)
    texts = [n for n, is_number in enumerate(right) if not is_number]
    while sum(widths) > room and texts:
        widest = max(texts, key=lambda n: widths[n])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _without_constants(shown: list[_Shown], rows: list[tuple[Any, ...]]) -> list[_Shown]:
    """Return the columns; where the terminal is too narrow, without those that say of every row the same trace."""
    widths = [max(len(c.head), *(len(c.text(row[c.place])) for row in rows)) if rows else len(c.head) for c in shown]
    if sum(widths) + 2 * (len(widths) - 1) <= shutil.get_terminal_size().columns:
        return shown
    return [c for c in shown if c.head not in _IDENTITY or len({row[c.place] for row in rows}) > 1]


def _sampled(batches: Rows) -> tuple[list[tuple[Any, ...]], Iterator[tuple[Any, ...]]]:
    rows = chain.from_iterable(batches)
    first = [row for _, row in zip(range(_SAMPLE), rows, strict=False)]
    return first, rows
