"""SQLite databases of collectors: opened without touching them, read in batches.

A database may lie beside a log of changes that are not in it yet (`-wal`), be written to at this moment, or be cut.
Small tables are read with the standard library, large ones through ADBC, which makes Arrow batches without a Python
object per value.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = b"SQLite format 3\x00"
_LOGS: Final = ("-wal", "-journal")
"""What may lie beside a database that was not closed: changes that are only there, or what to undo."""
ROWS: Final = 32_768
"""Rows that are read at once."""
_FEW_ROWS: Final = 64
"""So many rows are given up together where a page of a database is damaged."""
QueryOfRange = Callable[[tuple[int, int] | None, bool], str]
_SPARSE: Final = 4
"""So many times further apart than they need be, row ids are of no use to cut a table."""
_PROBES: Final = 64
_LEAST_ROW_BYTES: Final = 8
"""What a row of the tables that are read takes at least."""
ALL_ROWS: Final = (-(2**62), 2**62)
"""Row ids between which all rows are."""
_PATIENCE_S: Final = 2.0


class DamagedError(InputError):
    """A database that cannot be read on from some place."""


def is_sqlite(path: Path) -> bool:
    """Say whether a file is a SQLite database, uncompressed."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def files_of(path: Path) -> list[Path]:
    """Return the database and what lies beside it that belongs to it."""
    logs = [path.with_name(path.name + ending) for ending in _LOGS]
    return [path, *(log for log in logs if log.is_file() and log.stat().st_size)]


class SqliteFile:
    """A database opened for reading. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or a copy of it where its log must be applied first.

        Raises InputError when it is no database, damaged, or locked by a process that writes to it.
        """
        self.path = path
        self._of_thread = threading.local()
        self._opened: list[Any] = []
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        where, options = path, "mode=ro" if len(files_of(path)) == 1 else ""
        if options and self._is_in_wal_mode():
            options = "immutable=1"  # closed and complete; any other way makes files beside it
        if not options:
            self._copy = tempfile.TemporaryDirectory(prefix="traceanalyzer-")
            for file in files_of(path):
                shutil.copy(file, self._copy.name)
            where, options = Path(self._copy.name, path.name), "mode=rw"
        self._uri = f"file:{quote(str(where.absolute()))}?{options}"
        try:
            self._connection = sqlite3.connect(self._uri, uri=True, timeout=_PATIENCE_S, check_same_thread=False)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self.tables = self._read_schema()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise self._problem(error) from error

    def _is_in_wal_mode(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(20)[18:] == b"\x02\x02"

    def _read_schema(self) -> dict[str, list[str]]:
        """Return the columns of every table and view; a view that cannot be resolved is left out."""
        kinds = dict(self.rows("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        self.views = {name for name, kind in kinds.items() if kind == "view"}
        found = {}
        for name in kinds:
            try:
                found[name] = [row[1] for row in self._connection.execute(f"PRAGMA table_info({quoted(name)})")]
            except (sqlite3.OperationalError, UnicodeDecodeError):
                continue
        return found

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query on a small table. Raises InputError when the database is damaged or locked."""
        try:
            return self._connection.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._problem(error) from error

    def ranges(self, table: str, within: tuple[int, int] = ALL_ROWS) -> list[tuple[int, int]] | None:
        """Return ranges [low, high) of row ids that cut a table in pieces of `ROWS`, for several threads to read.

        Of the rows `within` two row ids, the second one not among them.
        None for a view, or where the ids are so far apart that most ranges would be empty. Raises DamagedError.
        """
        if table in self.views:
            return None
        # one by one these are looked up, together the whole table is read
        low, high = (self.rows(f"SELECT {end}(rowid) FROM {quoted(table)}")[0][0] for end in ("min", "max"))
        if not isinstance(low, int) or not isinstance(high, int):
            return []
        low, high = max(low, within[0]), min(high, within[1] - 1)
        size = sum(file.stat().st_size for file in files_of(self.path))
        if high - low > _SPARSE * size // _LEAST_ROW_BYTES:
            return None
        found = [(at, at + ROWS) for at in range(low, high + 1, ROWS)]
        # whether most of them hold rows is asked of some, since counting all rows takes as long as reading them
        probed = found[:: max(len(found) // _PROBES, 1)]
        return found if sum(self._holds(table, rowids) for rowids in probed) * _SPARSE >= len(probed) else None

    def _holds(self, table: str, rowids: tuple[int, int]) -> bool:
        """Say whether there are rows in a range of row ids; where that cannot be read, that there may be."""
        try:
            return bool(self.rows(f"SELECT 1 FROM {quoted(table)} WHERE rowid >= ? AND rowid < ? LIMIT 1", *rowids))
        except DamagedError:
            return True

    def fetch(self, query: str) -> pa.Table:
        """Return all rows of a query, which are few enough to hold; safe for threads. Raises as `batches` does."""
        connection = getattr(self._of_thread, "connection", None)
        with _readable():
            if connection is None:
                connection = self._of_thread.connection = _Connection(self._uri)
                self._opened.append(connection)
            with connection.rows(query) as reader:
                table: pa.Table = reader.read_all()
        return table

    def pieces(
        self,
        table: str,
        query: QueryOfRange,
        texts: Sequence[str],
        lost: list[str],
        within: tuple[int, int] = ALL_ROWS,
    ) -> Iterator[Callable[[], pa.Table]]:
        """Yield tasks, safe for threads, that read a large table piece by piece.

        `query` gives the SQL for a range of row ids (None: all rows), and whether to check each value's type: columns
        other than `texts` hold integers, and what is none must become NULL. To check takes as long as reading, so that
        is done only where it must be. What damage makes unreadable is left out, and `lost` says what that is.
        """
        try:
            ranges = self.ranges(table, within)
        except DamagedError:
            ranges = None
        if ranges is not None:
            for rowids in ranges:
                yield partial(self._read_range, table, rowids, query, texts, lost)
            return
        try:
            for rows in self.batches(query(None, True)):
                yield partial(_decoded, rows, texts)
        except DamagedError as error:
            lost.append(f"{table}: {error}")

    def _read_range(
        self, table: str, rowids: tuple[int, int], query: QueryOfRange, texts: Sequence[str], lost: list[str]
    ) -> pa.Table:
        import pyarrow as pa

        try:
            rows = self.fetch(query(rowids, False))
            if all(pa.types.is_int64(field.type) for field in rows.schema if field.name not in texts):
                return _decoded(rows, texts)
        except DamagedError:
            pass
        return _decoded(self._readable(table, rowids, query, lost), texts)

    def _readable(self, table: str, rowids: tuple[int, int], query: QueryOfRange, lost: list[str]) -> pa.Table:
        """Return what can be read of a range of row ids, by halving it where that fails."""
        import pyarrow as pa

        low, high = rowids
        try:
            return self.fetch(query(rowids, True))
        except DamagedError as error:
            if high - low <= _FEW_ROWS:
                lost.append(f"{table}, rows {low:,} to {high - 1:,}: {error}")
                return self.fetch(query((0, 0), True))
        middle = (low + high) // 2
        halves = [self._readable(table, part, query, lost) for part in ((low, middle), (middle, high))]
        return pa.concat_tables([rows for rows in halves if rows.num_rows] or halves[:1])

    def batches(self, query: str) -> Iterator[pa.Table]:
        """Yield the rows of a query on a large table, in tables of `ROWS` rows.

        Each column must have one type, since that is taken from the first rows. Raises DamagedError.
        """
        import pyarrow as pa

        with _readable(), closing(_Connection(self._uri)) as connection, connection.rows(query) as reader:
            yield from (pa.Table.from_batches([batch]) for batch in reader if batch.num_rows)

    def _problem(self, error: Exception) -> InputError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return InputError(
                f"{self.path}: the database is locked: a process is still writing to it; wait for its end"
            )
        return DamagedError(f"{self.path}: a damaged or foreign database ({text})")

    def close(self) -> None:
        for connection in (*self._opened, getattr(self, "_connection", None)):
            if connection:
                connection.close()
        if self._copy:
            self._copy.cleanup()

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection:
    """A connection that gives rows as Arrow.

    ADBC's low-level interface: the one after DB-API imports pandas and polars, which takes up to a second.
    """

    def __init__(self, uri: str) -> None:
        import adbc_driver_sqlite
        from adbc_driver_manager import AdbcConnection

        self._database = adbc_driver_sqlite.connect(uri)
        self._connection = AdbcConnection(self._database)

    @contextmanager
    def rows(self, query: str) -> Iterator[pa.RecordBatchReader]:
        """Yield a reader of the rows of a query, in batches of `ROWS`."""
        import pyarrow as pa
        from adbc_driver_manager import AdbcStatement
        from adbc_driver_sqlite import StatementOptions

        with closing(AdbcStatement(self._connection)) as statement:
            statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(ROWS)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            yield pa.RecordBatchReader.from_stream(stream)

    def close(self) -> None:
        self._connection.close()
        self._database.close()


@contextmanager
def _readable() -> Iterator[None]:
    """Raise DamagedError for what ADBC raises."""
    import pyarrow as pa
    from adbc_driver_manager import Error

    try:
        yield
    except (Error, pa.ArrowException, OSError) as error:
        raise DamagedError(f"the database cannot be read on: {str(error).splitlines()[0][:200]}") from error


def quoted(name: str) -> str:
    """Return a name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def _decoded(rows: pa.Table, texts: Sequence[str]) -> pa.Table:
    """Return rows with bytes that are not UTF-8 replaced in their texts."""
    for name in texts:
        column = rows.column(name).combine_chunks()
        rows = rows.set_column(rows.column_names.index(name), name, _readable_texts(column))
    return rows


def _readable_texts(texts: pa.Array) -> pa.Array:
    """Return texts with bytes that are not UTF-8 replaced."""
    import pyarrow as pa

    try:
        texts.validate(full=True)
        return texts
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
        return pa.array([None if t is None else t.decode("utf-8", "replace") for t in raw], pa.string())


def integers(columns: dict[str, str], checked: bool) -> str:
    """Return the SQL for columns, name -> expression, that hold integers; if `checked`, NULL for what is none."""
    if checked:
        columns = {name: f"CASE WHEN typeof({value}) = 'integer' THEN {value} END" for name, value in columns.items()}
    return ", ".join(f"{value} AS {name}" for name, value in columns.items())


def lost_warning(lost: list[str]) -> str:
    """Say how much of a database could not be read."""
    return f"the database is damaged, and rows of {len(lost):,} places are missing; the first: {lost[0]}"


def literal(value: object) -> str:
    """Return a number or text as SQL takes it."""
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
