"""A DuckDB session over a store: the public views, limited to what the user selected, and nothing else."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from traceanalyzer import __version__, schema
from traceanalyzer.engine import library
from traceanalyzer.errors import InputError, MachineError, NothingToAnalyse, QueryError, UsageError, did_you_mean
from traceanalyzer.store.store import Store, StoredTrace

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_WORD: Final = re.compile(r"[A-Za-z_]+")
_WRITING: Final = {
    *("COPY", "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "DROP", "ALTER"),
    *("ATTACH", "DETACH", "EXPORT", "IMPORT", "INSTALL", "LOAD"),
}
"""Words of statements that write, which DuckDB also takes inside of WITH and EXPLAIN ANALYZE."""
_ARROW_ROWS: Final = 65_536
_RAW: Final = re.compile(r"\braw\.(\w+)")
_NAME: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


@dataclass(frozen=True)
class Filters:
    """Which traces and devices a query sees; empty means all. Ranks are numbers or 'unknown'."""

    runs: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    collectors: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    def select(self, traces: list[StoredTrace]) -> list[StoredTrace]:
        """Return the traces that pass. Raises UsageError for a run, rank or collector that no trace has."""
        of = [t.identity for t in traces]
        _known("run", self.runs, {i.run for i in of})
        _known("rank", self.ranks, {_rank_text(i.rank) for i in of})
        _known("collector", self.collectors, {i.collector for i in of})
        return [
            t
            for t in traces
            if (not self.runs or t.identity.run in self.runs)
            and (not self.ranks or _rank_text(t.identity.rank) in self.ranks)
            and (not self.collectors or t.identity.collector in self.collectors)
        ]


def _rank_text(rank: int | None) -> str:
    return "unknown" if rank is None else str(rank)


def _known(what: str, wanted: Iterable[str], known: set[str], where: str = "the store has") -> None:
    for name in wanted:
        if name not in known:
            raise UsageError(f"{where} no {what} '{name}'{did_you_mean(name, known)}")


@dataclass
class Result:
    """Rows of a query, read as they are needed: column names, and batches of Python tuples."""

    columns: list[str]
    cursor: duckdb.DuckDBPyConnection
    notes: list[str] = field(default_factory=list)

    def batches(self, size: int = 10_000) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows in batches. Raises QueryError when the query fails on the way."""
        import duckdb

        try:
            while rows := _interruptible(self.cursor, lambda: self.cursor.fetchmany(size)):
                yield rows
        except duckdb.Error as error:
            raise _query_error(error) from error

    def arrow(self) -> pa.RecordBatchReader:
        """Return the rows as Arrow batches with the types of the query, instead of `batches`."""
        return self.cursor.to_arrow_reader(_ARROW_ROWS)


class Session:
    """Answers queries over a store; see `sql/views` for what can be asked."""

    def __init__(self, store: Store, filters: Filters = Filters(), *, allow_external: bool = False) -> None:
        """Open the views over the traces of `store` that pass `filters`.

        Unless `allow_external`, queries can read nothing but the store's files, and no setting can change that.
        Raises UsageError for an unknown run, rank, collector or device, NothingToAnalyse for an empty store.
        """
        import duckdb

        every = store.traces()
        if not every:
            raise NothingToAnalyse(f"{store.root}: the store holds no traces yet; add some with 'traceanalyzer ingest'")
        self.traces = filters.select(every)
        if not self.traces:
            raise UsageError(f"{store.root}: no trace has that run, rank and collector together")
        self._filters = filters
        self._connection = duckdb.connect()
        self._connection.execute("CREATE SCHEMA raw")
        self._made: set[str] = set()
        self._make_macros()
        if filters.devices:
            self._check_devices(filters.devices)
        if not allow_external:
            self._lock(store.root)

    def _make_macros(self) -> None:
        for macro in library.load("macros").values():
            self._connection.execute(macro.body)

    def _make_views(self, text: str | None = None) -> None:
        """Make the views that an SQL text uses, directly or through others, as far as they are not there; or all."""
        import duckdb

        views = library.load("views")
        uses = {name: _used_views(view.body, views) - {name} for name, view in views.items()}
        wanted = list(views) if text is None else list(_used_views(text, views))
        for name in wanted:  # grows
            wanted.extend(uses[name] - set(wanted))
        tables = {table for name in wanted for table in _RAW.findall(views[name].body)}
        try:
            for table in sorted(tables - self._made):
                self._connection.execute(f"CREATE VIEW raw.{table} AS {self._raw_select(table, self._filters)}")
        except duckdb.Error as error:
            raise InputError(f"the store is damaged: {' '.join(str(error).split())}; ingest the trace again") from error
        for name in graphlib.TopologicalSorter(uses).static_order():
            if name in wanted and f"view {name}" not in self._made:
                self._connection.execute(f"CREATE VIEW {name} AS {views[name].body}")
        self._made |= tables | {f"view {name}" for name in wanted}

    def _raw_select(self, table: str, filters: Filters) -> str:
        files = ", ".join("'" + str(trace.file(table)).replace("'", "''") + "'" for trace in self.traces)
        where = ""
        if table == "gpu_events" and filters.devices:
            where = f" WHERE device IN ({', '.join(map(str, filters.devices))})"
        return f"SELECT * FROM read_parquet([{files}], hive_partitioning = false){where}"

    def _check_devices(self, devices: tuple[int, ...]) -> None:
        """Raise UsageError for a device that none of the selected traces has."""
        files = [str(trace.file("gpu_events")) for trace in self.traces]
        rows = self._connection.execute("SELECT DISTINCT device FROM read_parquet($files)", {"files": files}).fetchall()
        _known("device", map(str, devices), {str(device) for (device,) in rows}, "the selected traces have")

    def _lock(self, root: Path) -> None:
        folder = str(root.resolve()).replace("'", "''")
        given = str(root).replace("'", "''")
        self._connection.execute(f"SET allowed_directories = ['{folder}/', '{given}/']")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    # -- asking --------------------------------------------------------------------------------------------------

    def named(self, query: library.SqlFile, parameters: dict[str, str]) -> Result:
        """Run a named query with parameters as text.

        Raises UsageError for an unknown parameter or a value of another type, NothingToAnalyse when there is no
        GPU work to answer it from.
        """
        known = {p.name: p for p in query.parameters}
        for name in parameters:
            if name not in known:
                raise UsageError(f"query {query.name} has no parameter '{name}'{did_you_mean(name, known)}")
        values = {name: p.parse(parameters.get(name, p.default)) for name, p in known.items()}
        if not query.works_without_gpu and not any(trace.manifest.rows["gpu_events"] for trace in self.traces):
            raise NothingToAnalyse(f"no GPU events in the selected traces: {self._what_is_there()}")
        self._make_views(query.body)
        return self._execute(query.body, values)

    def _what_is_there(self) -> str:
        total: dict[str, int] = {}
        for trace in self.traces:
            for table, rows in trace.manifest.rows.items():
                total[table] = total.get(table, 0) + rows
        seen = sorted(((rows, table) for table, rows in total.items() if rows), reverse=True)
        return "they hold " + ", ".join(f"{rows:,} {table}" for rows, table in seen)

    def sql(self, text: str, *, allow_external: bool = False) -> Result:
        """Run one SELECT (or EXPLAIN, DESCRIBE) written by the user.

        Raises QueryError when it is anything else or fails, UsageError when it names what does not exist.
        """
        self._make_views()
        return self._execute(text if allow_external else self._checked(text), {})

    def _checked(self, text: str) -> str:
        """Return the text when it is a single statement that only reads.

        The settings forbid other files, but not writing into the allowed folder, so the statement counts too.
        """
        import duckdb

        try:
            statements = self._connection.extract_statements(text)
        except duckdb.Error as error:
            raise _query_error(error) from error
        if len(statements) != 1:
            raise QueryError(f"one statement at a time, please: there are {len(statements)} in the query")
        kind = statements[0].type.name
        if kind not in ("SELECT", "EXPLAIN"):
            what = "several statements in one (PIVOT without IN does that)" if kind == "MULTI" else kind
            raise QueryError(f"a query must be one SELECT (or EXPLAIN, DESCRIBE), not {what}: the store is only read")
        if writing := sorted(_words(text) & _WRITING):  # in EXPLAIN ANALYZE, or in a WITH clause
            raise QueryError(
                f"the store is only read, and the query says {', '.join(writing)}; a column of that name goes in quotes"
            )
        return text

    def _execute(self, text: str, values: Mapping[str, object]) -> Result:
        import duckdb

        try:
            cursor = _interruptible(
                self._connection,
                lambda: self._connection.execute(text, dict(values)) if values else self._connection.execute(text),
            )
        except duckdb.Error as error:
            raise _query_error(error) from error
        return Result([column[0] for column in cursor.description or ()], cursor)

    def caveats(self) -> list[str]:
        """Return what whoever reads an answer must know about the selected traces: what is missing from them."""
        lines = []
        for trace in self.traces:
            of, row = trace.identity, trace.manifest.trace
            where = f"run {of.run}, rank {_rank_text(of.rank)}, part {of.part}"
            if not row["complete"]:
                lines.append(f"{where} is incomplete: {row['warnings'][0]}")
            if row["events_rejected"]:
                lines.append(f"{where} lacks {row['events_rejected']:,} damaged events; the view rejects has them")
        return lines

    def provenance(self) -> list[str]:
        """Return what an answer rests on: versions, and the traces that were selected."""
        lines = [f"traceanalyzer {__version__}, schema version {schema.VERSION}"]
        for trace in self.traces:
            of, row = trace.identity, trace.manifest.trace
            lines.append(
                f"run {of.run}, {of.collector}, rank {_rank_text(of.rank)}, part {of.part}: {row['path']}"
                f" ({trace.manifest.rows['gpu_events']:,} GPU events, ingested by {trace.manifest.tool_version})"
            )
        return lines

    def columns(self, view: str) -> dict[str, str]:
        """Return column -> SQL type of a view."""
        self._make_views(view)
        rows = self._connection.execute(f"DESCRIBE {view}").fetchall()
        return {name: kind for name, kind, *_ in rows}


def _used_views(body: str, views: Iterable[str]) -> set[str]:
    """Return the views that an SQL text names; `raw.x` names the stored table, not the view x."""
    return set(_NAME.findall(body)) & set(views)


_T = TypeVar("_T")


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    """Return what `work` on the connection gives, run so that Ctrl-C ends it at once."""
    with ThreadPoolExecutor(1, "query") as thread:
        future = thread.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _words(text: str) -> set[str]:
    """Return the words of an SQL text outside of quotes and comments, in capitals.

    DuckDB's tokens come with their position; whether that counts bytes or characters does not matter here, since both
    are looked at.
    """
    import duckdb

    places = [at for at, kind in duckdb.tokenize(text) if kind.name in ("keyword", "identifier")]
    raw = text.encode()
    found = [_WORD.match(text, at) for at in places] + [_WORD.match(raw[at:].decode(errors="replace")) for at in places]
    return {match.group().upper() for match in found if match}


def _query_error(error: duckdb.Error) -> QueryError | UsageError | MachineError:
    """Return DuckDB's message as one of ours: unknown names are usage errors, the rest failed queries."""
    import duckdb

    text = " ".join(str(error).split())
    table = re.search(r"Table with name (\w+) does not exist", text)
    if table and table.group(1) in library.load("queries"):
        name = table.group(1)
        return UsageError(f"{name} is a named query, no view: ask it as 'traceanalyzer query STORE {name}'")
    if isinstance(error, duckdb.PermissionException):
        text += " (--allow-external lets SQL read other files)"
    if isinstance(error, duckdb.OutOfMemoryException):
        return MachineError(f"the query needs more memory than there is: {text}")
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
        return UsageError(text)
    return QueryError(text)
