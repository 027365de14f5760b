"""Turns blocks of Kineto events into typed rows, with DuckDB."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from traceanalyzer import schema
from traceanalyzer.readers.blocks import BlockFileSystem
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.kineto_tables import (
    EXACT_DOUBLE_US,
    NOT_FINITE,
    RECORDED_AS,
    fields_of,
    read_query,
    typed_query,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# DuckDB warns that Arrow from execute() copies the rows once more than from sql(); planning the query twice, as sql()
# does, costs more than that copy for results of this size (measured).
warnings.filterwarnings("ignore", message="Arrow output on a DB-API result")

_LEAST_OBJECT_SIZE: Final = 1 << 20

_of_thread = threading.local()


class BlockRefused(Exception):
    """The parser found that a block is not a valid list of events."""


class KeyTwiceRefused(BlockRefused):
    """The arguments of GPU work hold a key twice, of which DuckDB takes the first: each event must be looked at."""


@dataclass
class Parsed:
    """Consecutive blocks, typed: rows per table, with ordinals counted from their first event."""

    events: int
    tables: dict[str, pa.Table]
    latest_ns: int | None
    pid: int | None


@dataclass
class BlockParser:
    """Parses blocks with DuckDB; one per thread, since a connection serves one query at a time."""

    connection: duckdb.DuckDBPyConnection = field(init=False)
    files: BlockFileSystem = field(init=False)

    def __post_init__(self) -> None:
        import duckdb

        self.connection = duckdb.connect(config={"threads": 1})
        self.files = BlockFileSystem()
        self.connection.register_filesystem(self.files)

    def parse(self, arrays: list[bytes], exact: threading.Event, *, salvaged: bool = False) -> Parsed:
        """Return the typed rows of consecutive blocks of events, each given as a JSON array.

        `exact`, shared by the parsers of a file, is set once a time was met that a double cannot hold.
        Raises BlockRefused when one of them is not a valid array of JSON objects, or holds what DuckDB takes though
        it is no JSON: numbers that are not finite. Salvaged events are known to hold none.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self._read(arrays, exact)
        if not salvaged and _holds_not_finite(rows):
            raise BlockRefused("a number that is not finite")
        rows = rows.append_column("event_id", pa.arange(0, rows.num_rows))
        numbers = rows.column("table_number")
        present = set(pc.unique(numbers).to_pylist())
        tables = {
            table: self._typed(table, rows.select(fields_of(table)).filter(pc.equal(numbers, number)), salvaged)
            for number, table in enumerate(schema.TABLES)
            if number in present
        }
        return Parsed(rows.num_rows, tables, pc.max(rows.column("start_ns")).as_py(), _host_pid(tables))

    def _read(self, arrays: list[bytes], exact: threading.Event) -> pa.Table:
        """Return the rows of `read_query` with exact times, read as decimals when a double cannot hold one of them."""
        if not exact.is_set():
            if rows := _with_times(self._query(arrays, exact=False)):
                return rows
            exact.set()  # the next blocks hold times of the same kind
        return self._query(arrays, exact=True)

    def _query(self, arrays: list[bytes], *, exact: bool) -> pa.Table:
        import duckdb

        largest = max(max(map(len, arrays)), _LEAST_OBJECT_SIZE)
        urls = [self.files.put(f"{number}.json", array) for number, array in enumerate(arrays)]
        try:
            return self.connection.sql(read_query(urls, largest, exact=exact)).to_arrow_table()
        except duckdb.InvalidInputException as error:
            raise BlockRefused(str(error)) from error
        finally:
            self.files.clear()

    def _typed(self, table: str, rows: pa.Table, salvaged: bool) -> pa.Table:
        """Return the columns of `schema.TABLES[table]`, from the event's fields and from its args.

        Raises KeyTwiceRefused.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        made: dict[str, pa.ChunkedArray] = {}
        if query := typed_query(table):
            self.connection.register("rows", rows)
            from_args: pa.Table = self.connection.execute(query).to_arrow_table()
            self.connection.unregister("rows")
            made = {name: from_args.column(name) for name in from_args.column_names}
            if table == "gpu_events" and not salvaged and pc.any(made["has_key_twice"]).as_py():
                raise KeyTwiceRefused
        columns = {
            name: made[name] if name in made else rows.column(RECORDED_AS.get(name, name))
            for name in schema.TABLES[table]
        }
        return pa.table(columns)


def _with_times(rows: pa.Table) -> pa.Table | None:
    """Return the rows with start_ns, dur_ns and is_impossible instead of ts and dur; None when a time is too large."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for source, name in (("ts", "start_ns"), ("dur", "dur_ns")):
        microseconds = rows.column(source)
        if not pc.all(pc.less(pc.abs(microseconds), EXACT_DOUBLE_US), min_count=0).as_py():
            return None
        nanoseconds = pc.round(pc.multiply(microseconds, 1000.0)).cast(pa.int64())
        rows = rows.drop_columns(source).append_column(name, nanoseconds)
    return rows.append_column("is_impossible", pa.repeat(False, rows.num_rows))


def _holds_not_finite(rows: pa.Table) -> bool:
    """Say whether the args of an event hold NaN or an infinity as a number."""
    import pyarrow.compute as pc

    candidates = rows.column("args").filter(rows.column("may_be_not_finite"))
    return len(candidates) > 0 and bool(pc.any(pc.match_substring_regex(candidates, NOT_FINITE)).as_py())


def _host_pid(tables: dict[str, pa.Table]) -> int | None:
    """Return the process whose host side was recorded: that of the first operator or runtime call."""
    for table in ("cpu_ops", "runtime_calls"):
        if table in tables:
            return integer(tables[table].column("pid")[0].as_py())
    return None


def parser_of_thread() -> BlockParser:
    """Return this thread's parser, which serves one file after the other."""
    parser: BlockParser | None = getattr(_of_thread, "parser", None)
    if parser is None:
        parser = _of_thread.parser = BlockParser()
    return parser
