"""The only writer of data to stdout: tables in every format, streamed; `-o FILE` gets the same bytes."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from traceanalyzer.errors import MachineError, UsageError
from traceanalyzer.tables import Rows, Unit, cell, plain, unique, write_markdown, write_table

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("table", "csv", "json", "jsonl", "markdown", "parquet")


def write(
    columns: list[str],
    batches: Rows,
    form: str,
    target: Path | None,
    arrow: Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]] | None = None,
    units: Mapping[str, Unit] | None = None,
) -> int:
    """Write rows to stdout, or to the file `target` (complete or not at all); return how many there were.

    Of columns with the same name the later ones get a number. `arrow` gives the rows with their types, for Parquet;
    with `units` (column -> unit) tables for people are scaled, and have sums.
    Raises UsageError for Parquet on a terminal, MachineError when writing fails.
    """
    if form == "parquet" and target is None and sys.stdout.isatty():
        raise UsageError("Parquet is binary: give -o FILE, or send it into a pipe")
    counted = _Counted(batches)
    columns = unique(columns)
    with _guarded(), _opened(target) as stream:
        if form == "parquet":
            counted.rows = _write_parquet(columns, *(arrow() if arrow else _as_arrow(columns, counted)), stream)
        else:
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=False)
            if form in _FOR_PEOPLE:
                _FOR_PEOPLE[form](columns, counted, text, units or {})
            else:
                _WRITERS[form](columns, counted, text)
            text.flush()
            text.detach()
    return counted.rows


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn what goes wrong with standard output into MachineError; that its reader had enough is no error."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise MachineError(f"standard output cannot be written: {error.strerror or error}") from error


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
        if sys.stdout is None:
            raise MachineError("standard output is closed; give -o FILE")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if target.is_dir():
        raise UsageError(f"-o {target}: a folder; name a file in it")
    if target.exists() and not target.is_file():  # a device or pipe: written to, never replaced
        try:
            with target.open("wb") as stream:
                yield stream
        except OSError as error:
            raise MachineError(f"{target}: cannot be written: {error.strerror or error}") from error
        return
    target = target.resolve()  # a link stays one
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
        os.replace(temporary, target)
    except OSError as error:
        raise MachineError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _json(row: dict[str, Any]) -> str:
    import orjson

    try:
        return orjson.dumps(row, default=plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # integers beyond 64 bits
        return json.dumps(row, default=plain, ensure_ascii=False)


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


def _write_parquet(columns: list[str], schema: pa.Schema, batches: Iterator[pa.RecordBatch], out: IO[bytes]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = pa.schema([field.with_name(name) for name, field in zip(columns, schema, strict=True)])
    rows = 0
    with pq.ParquetWriter(out, target, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.rename_columns(columns))
            rows += batch.num_rows
    return rows


def _as_arrow(columns: list[str], batches: Rows) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return plain rows (of lists, which are short) as Arrow."""
    import pyarrow as pa

    rows = list(chain.from_iterable(batches))
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)})
    return table.schema, iter(table.to_batches())


_FOR_PEOPLE: Final = {"table": write_table, "markdown": write_markdown}
_WRITERS: Final = {
    "csv": _write_csv,
    "json": _write_json,
    "jsonl": _write_jsonl,
}


def write_text(text: str) -> None:
    """Write a text that is for people only. Raises MachineError when writing fails."""
    with _guarded(), _opened(None) as stream:
        stream.write((text + "\n").encode())
