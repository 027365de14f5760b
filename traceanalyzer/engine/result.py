"""The rows of a query, and what goes wrong on the way, in words for whoever asked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from traceanalyzer.engine import library
from traceanalyzer.errors import InputError, MachineError, QueryError, TraceAnalyzerError, UsageError, did_you_mean

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_ARROW_ROWS: Final = 65_536
_PLACE: Final = re.compile(r"LINE (?P<line>\d+): (?P<shown>.*)\n(?P<margin> *)\^")
_SHOWN: Final = 40
"""Characters of the SQL shown at the place of an error."""


@dataclass
class Result:
    """Rows of a query, read as they are needed: column names, and batches of Python tuples."""

    columns: list[str]
    cursor: duckdb.DuckDBPyConnection
    query: library.SqlFile | None = None
    notes: list[str] = field(default_factory=list)
    _with_null: set[str] = field(default_factory=set)
    """Columns of which the query's header says what NULL means, and in which one was read."""

    def meanings(self, rows: int) -> list[str]:
        """Return what the query's header says about the `rows` rows read: that there are none, or values missing."""
        if not self.query:
            return []
        empty = [self.query.empty] if not rows and self.query.empty else []
        return empty + [f"{column}: {text}" for column, text in self.query.missing.items() if column in self._with_null]

    def _watched(self) -> list[tuple[int, str]]:
        missing = self.query.missing if self.query else {}
        return [(n, name) for n, name in enumerate(self.columns) if name in missing and name not in self._with_null]

    def batches(self, size: int = 10_000) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows in batches. Raises QueryError when the query fails on the way."""
        import duckdb

        try:
            while rows := interruptible(self.cursor, lambda: self.cursor.fetchmany(size)):
                self._with_null |= {name for n, name in self._watched() if any(row[n] is None for row in rows)}
                yield rows
        except duckdb.Error as error:
            raise query_error(error, self.query) from error

    def arrow(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the rows as Arrow batches with the types of the query, instead of `batches`. Raises as that does."""
        import duckdb

        try:
            with warnings.catch_warnings():  # of a copy, which answers are small enough for
                warnings.simplefilter("ignore", UserWarning)
                reader: pa.RecordBatchReader = self.cursor.to_arrow_reader(_ARROW_ROWS)
        except duckdb.Error as error:
            raise query_error(error, self.query) from error
        return reader.schema, self._read(reader)

    def _read(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        import duckdb
        import pyarrow as pa

        try:
            while True:
                batch = interruptible(self.cursor, reader.read_next_batch)
                self._with_null |= {name for n, name in self._watched() if batch.column(n).null_count}
                yield batch
        except StopIteration:
            return
        except duckdb.Error as error:
            raise query_error(error, self.query) from error
        except (pa.ArrowException, OSError, RuntimeError) as error:  # as which Arrow hands DuckDB's errors on
            raise QueryError(_with_place(str(error), self.query)) from error


_T = TypeVar("_T")


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    """Return what `work` on the connection gives, run so that Ctrl-C ends it at once."""
    with ThreadPoolExecutor(1, "query") as thread:
        future = thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def query_error(error: duckdb.Error, query: library.SqlFile | None = None) -> TraceAnalyzerError:
    """Return DuckDB's message as one of ours: unknown names are usage errors, the rest failed queries."""
    import duckdb

    text = _with_place(str(error), query)
    if table := re.search(r"Table with name (\w+) does not exist", text):
        return _no_such_view(table.group(1))
    if isinstance(error, duckdb.PermissionException):
        text += " (--allow-external lets SQL read other files)"
    if re.search(r"run=\S+\.parquet", text) and isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
        return InputError(f"the store is damaged: {text}; remove the run ('runs') and ingest its traces again")
    if isinstance(error, duckdb.OutOfMemoryException):
        return MachineError(f"the query needs more memory than there is: {text}")
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
        return UsageError(text)
    return QueryError(text)


def _with_place(message: str, query: library.SqlFile | None) -> str:
    """Return DuckDB's message on one line; where it shows a place in the SQL, with the line and what stands there."""
    place = _PLACE.search(message)
    if not place:
        return " ".join(message.split())
    number, shown, margin = int(place["line"]), place["shown"], place["margin"]
    there = shown[max(len(margin) - len(f"LINE {number}: "), 0) :][:_SHOWN]
    where = f"{query.path}, line {query.first_line + number - 1}" if query else f"line {number}"
    return f"{' '.join(message[: place.start()].split())} ({where}, at '{there}')"


def _no_such_view(name: str) -> UsageError:
    views = library.load("views")
    if name in library.load("queries") and name not in views:
        how = f"ask it as 'traceanalyzer query STORE {name}', or in SQL as queries.{name}"
        return UsageError(f"{name} is a named query, no view: {how}")
    return UsageError(f"there is no view '{name}'{did_you_mean(name, views)} ('traceanalyzer schema' lists them)")
