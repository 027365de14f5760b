"""A DuckDB session over a store: the public views, limited to what the user selected, and nothing else."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from traceanalyzer import __version__, schema
from traceanalyzer.engine import library
from traceanalyzer.engine.derived import DerivedTables
from traceanalyzer.engine.rules import Rules, built_in, quoted
from traceanalyzer.engine.views import Views
from traceanalyzer.errors import MachineError, NothingToAnalyse, QueryError, UsageError, did_you_mean
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
_PLACE: Final = re.compile(r"LINE (?P<line>\d+): (?P<shown>.*)\n(?P<margin> *)\^")
_SHOWN: Final = 40
"""Characters of the SQL shown at the place of an error."""
_SPILL: Final = "traceanalyzer-duckdb"
"""Folder among the temporary ones for what does not fit into memory; DuckDB makes it when it needs it."""


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
        with warnings.catch_warnings():  # of a copy, which answers are small enough for
            warnings.simplefilter("ignore", UserWarning)
            return self.cursor.to_arrow_reader(_ARROW_ROWS)


class Session:
    """Answers queries over a store; see `sql/views` for what can be asked."""

    def __init__(
        self,
        store: Store,
        filters: Filters = Filters(),
        *,
        rules: Rules | None = None,
        queries: Path | None = None,
        allow_external: bool = False,
    ) -> None:
        """Open the views over the traces of `store` that pass `filters`.

        Kernels are classified by `rules`, else by the built-in ones; `queries` is a folder with the user's own queries.
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
        rules = rules or built_in()
        self._rules = rules
        derived = DerivedTables.of(self.traces, rules)
        self._connection = duckdb.connect(config={"temp_directory": str(Path(tempfile.gettempdir()) / _SPILL)})
        self._views = Views(self._connection, self.traces, filters.devices, derived, library.queries(queries))
        if filters.devices:
            self._check_devices(filters.devices)
        if not allow_external:
            self._lock([store.root, *([derived.folder] if derived.folder else [])])

    def _check_devices(self, devices: tuple[int, ...]) -> None:
        """Raise UsageError for a device that none of the selected traces has."""
        files = [str(trace.file("gpu_events")) for trace in self.traces]
        rows = self._connection.execute("SELECT DISTINCT device FROM read_parquet($files)", {"files": files}).fetchall()
        _known("device", map(str, devices), {str(device) for (device,) in rows}, "the selected traces have")

    def _lock(self, roots: list[Path]) -> None:
        folders = {folder for root in roots for folder in (root, root.resolve())}
        allowed = ", ".join(quoted(f"{folder}/") for folder in sorted(folders))
        self._connection.execute(f"SET allowed_directories = [{allowed}]")
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
        self._views.make(query.body)
        result = self._execute(query.body, values, query)
        if values:
            result.notes.append(f"{query.name} with " + ", ".join(f"{name}={value}" for name, value in values.items()))
        return result

    def violations(self, check: library.SqlFile) -> list[dict[str, object]]:
        """Return the rows of a check (`sql/checks`), which are what contradicts it; none when it holds."""
        self._views.make(check.body)
        result = self._execute(check.body, {})
        return [dict(zip(result.columns, row, strict=True)) for batch in result.batches() for row in batch]

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
        checked = text if allow_external else self._checked(text)
        self._views.make(checked)
        return self._execute(checked, {})

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

    def _execute(self, text: str, values: Mapping[str, object], query: library.SqlFile | None = None) -> Result:
        import duckdb

        try:
            cursor = _interruptible(
                self._connection,
                lambda: self._connection.execute(text, dict(values)) if values else self._connection.execute(text),
            )
        except duckdb.Error as error:
            raise _query_error(error, query) from error
        return Result([column[0] for column in cursor.description or ()], cursor)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def caveats(self) -> list[str]:
        """Return what whoever reads an answer must know about the selected traces: what is missing from them."""
        lines = []
        for what, names in (
            ("run", sorted({trace.identity.run for trace in self.traces})),
            ("collector", sorted({trace.identity.collector for trace in self.traces})),
        ):
            if len(names) > 1:
                lines.append(f"the answer spans {len(names)} {what}s ({', '.join(names)}); --{what} chooses")
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
        lines = [f"traceanalyzer {__version__}, schema version {schema.VERSION}, rules {self._rules.digest[:12]}"]
        for trace in self.traces:
            of, row = trace.identity, trace.manifest.trace
            lines.append(
                f"run {of.run}, {of.collector}, rank {_rank_text(of.rank)}, part {of.part}: {row['path']}"
                f" ({trace.manifest.rows['gpu_events']:,} GPU events, ingested by {trace.manifest.tool_version})"
            )
        return lines

    def columns(self, view: str) -> dict[str, str]:
        """Return column -> SQL type of a view."""
        self._views.make(view)
        rows = self._connection.execute(f"DESCRIBE {view}").fetchall()
        return {name: kind for name, kind, *_ in rows}


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


def _query_error(error: duckdb.Error, query: library.SqlFile | None = None) -> QueryError | UsageError | MachineError:
    """Return DuckDB's message as one of ours: unknown names are usage errors, the rest failed queries."""
    import duckdb

    text = _with_place(str(error), query)
    if table := re.search(r"Table with name (\w+) does not exist", text):
        return _no_such_view(table.group(1))
    if isinstance(error, duckdb.PermissionException):
        text += " (--allow-external lets SQL read other files)"
    if isinstance(error, duckdb.OutOfMemoryException):
        return MachineError(f"the query needs more memory than there is: {text}")
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
        return UsageError(text)
    return QueryError(text)
