"""The only writer of data to stdout: tables in every format, streamed; `-o FILE` gets the same bytes."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from traceanalyzer.errors import MachineError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("table", "csv", "json", "jsonl", "markdown", "parquet")

Rows = Iterable[list[tuple[Any, ...]]]
"""Batches of rows."""

_SAMPLE: Final = 1_000
"""Rows that decide the widths of a table's columns; later rows may be wider."""
_LEAST_WIDTH: Final = 24
"""Characters that a column of a table keeps when a terminal is too narrow for all; elsewhere texts are shown whole."""


def write(
    columns: list[str],
    batches: Rows,
    form: str,
    target: Path | None,
    arrow: Callable[[], pa.RecordBatchReader] | None = None,
) -> int:
    """Write rows to stdout, or to the file `target` (complete or not at all); return how many there were.

    Of columns with the same name the later ones get a number. `arrow` gives the rows with their types, for Parquet.
    Raises UsageError for Parquet on a terminal, MachineError when writing fails.
    """
    if form == "parquet" and target is None and sys.stdout.isatty():
        raise UsageError("Parquet is binary: give -o FILE, or send it into a pipe")
    counted = _Counted(batches)
    columns = _unique(columns)
    try:
        with _opened(target) as stream:
            if form == "parquet":
                _write_parquet(columns, arrow() if arrow else _as_arrow(columns, counted), stream)
            else:
                text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=False)
                _WRITERS[form](columns, counted, text)
                text.flush()
                text.detach()
    except BrokenPipeError:  # the reader of our output had enough, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise MachineError(f"standard output cannot be written: {error.strerror or error}") from error
    return counted.rows


def _unique(columns: list[str]) -> list[str]:
    """Return the names with a number behind those that were there before: name, name_1."""
    names: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


class _Counted:
    """Passes batches on and counts their rows."""

    def __init__(self, batches: Rows) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[list[tuple[Any, ...]]]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch


@contextmanager
def _opened(target: Path | None) -> Iterator[IO[bytes]]:
    if target is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
        os.replace(temporary, target)
    except OSError as error:
        raise MachineError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


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
            return json.dumps(value, default=_plain, ensure_ascii=False)
        case bytes():
            return value.hex()
    return str(value)


def rounded(value: object) -> str:
    """Return a value as `cell` does, but a float as a person reads it: six digits, cents from a hundred on."""
    if isinstance(value, float) and math.isfinite(value):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:.0f}"
        return f"{value:.2f}" if abs(value) >= 100 else f"{value:.6g}"
    return cell(value)


def _plain(value: object) -> object:
    """Return a value that JSON has a form for."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.hex()
        case tuple():
            return list(value)
    return str(value)


def _json(row: dict[str, Any]) -> str:
    import orjson

    try:
        return orjson.dumps(row, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # integers beyond 64 bits
        return json.dumps(row, default=_plain, ensure_ascii=False)


# -- formats ----------------------------------------------------------------------------------------------------


def _write_csv(columns: list[str], batches: Rows, out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for batch in batches:
        writer.writerows([cell(value) for value in row] for row in batch)


def _write_jsonl(columns: list[str], batches: Rows, out: IO[str]) -> None:
    for batch in batches:
        out.writelines(_json(dict(zip(columns, row, strict=True))) + "\n" for row in batch)


def _write_json(columns: list[str], batches: Rows, out: IO[str]) -> None:
    separator = "[\n"
    for batch in batches:
        for row in batch:
            out.write(separator + _json(dict(zip(columns, row, strict=True))))
            separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _write_markdown(columns: list[str], batches: Rows, out: IO[str]) -> None:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for c in cells) + " |\n"

    first, rest = _sampled(batches)
    out.write(line(columns))
    out.write("|" + "|".join("---:" if right else "---" for right in _right_aligned(columns, first)) + "|\n")
    for row in chain(first, rest):
        out.write(line(rounded(value) for value in row))


def _write_table(columns: list[str], batches: Rows, out: IO[str]) -> None:
    first, rest = _sampled(batches)
    shown = [[_printable(rounded(value)) for value in row] for row in first]
    right = _right_aligned(columns, first)
    widths = _fitted([max(map(len, column)) for column in zip(columns, *shown, strict=True)], right)

    def line(cells: Iterable[str]) -> str:
        cut = (shorten(c, w) if not r else c for c, w, r in zip(cells, widths, right, strict=True))
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cut, widths, right, strict=True))
        return "  ".join(padded).rstrip() + "\n"

    out.write(line(columns))
    out.write(line("-" * width for width in widths))
    out.writelines(line(cells) for cells in shown)
    out.writelines(line([_printable(rounded(value)) for value in row]) for row in rest)


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


def _sampled(batches: Rows) -> tuple[list[tuple[Any, ...]], Iterator[tuple[Any, ...]]]:
    rows = chain.from_iterable(batches)
    first = [row for _, row in zip(range(_SAMPLE), rows, strict=False)]
    return first, rows


def _right_aligned(columns: list[str], rows: list[tuple[Any, ...]]) -> list[bool]:
    """Numbers are aligned on the right."""
    return [
        any(isinstance(row[i], int | float | Decimal) and not isinstance(row[i], bool) for row in rows)
        for i in range(len(columns))
    ]


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


def _write_parquet(columns: list[str], batches: pa.RecordBatchReader, out: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = pa.schema([field.with_name(name) for name, field in zip(columns, batches.schema, strict=True)])
    with pq.ParquetWriter(out, target, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.rename_columns(columns))


def _as_arrow(columns: list[str], batches: Rows) -> pa.RecordBatchReader:
    """Return plain rows (of lists, which are short) as Arrow."""
    import pyarrow as pa

    rows = list(chain.from_iterable(batches))
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)})
    return table.to_reader()


_WRITERS: Final = {
    "csv": _write_csv,
    "json": _write_json,
    "jsonl": _write_jsonl,
    "markdown": _write_markdown,
    "table": _write_table,
}


def write_text(text: str) -> None:
    """Write a text that is for people only."""
    sys.stdout.write(text + "\n")
