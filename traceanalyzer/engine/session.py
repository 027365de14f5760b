"""A DuckDB session over a store: the public views, limited to what the user selected, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from traceanalyzer import __version__, schema
from traceanalyzer.engine import library
from traceanalyzer.engine.derived import DerivedTables, spill_folder
from traceanalyzer.engine.result import Result, interruptible, query_error
from traceanalyzer.engine.rules import Rules, built_in
from traceanalyzer.engine.sandbox import checked, shut
from traceanalyzer.engine.views import Views
from traceanalyzer.errors import NothingToAnalyse, UsageError, did_you_mean
from traceanalyzer.store.store import Store, StoredTrace


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
        self._allow_external = allow_external
        derived = DerivedTables.of(self.traces, rules)
        self._connection = duckdb.connect(config={"temp_directory": str(spill_folder())})
        self._views = Views(
            self._connection, self.traces, filters.devices, derived, library.queries(queries), self._check_query
        )
        if filters.devices:
            self._check_devices(filters.devices)
        if not allow_external:
            shut(self._connection, [store.root, *([derived.folder] if derived.folder else [])])

    def _check_query(self, query: library.SqlFile) -> None:
        """Raise QueryError for a query of the user's that does more than read."""
        if not self._allow_external and not query.is_built_in:
            checked(self._connection, query.body, query)

    def _check_devices(self, devices: tuple[int, ...]) -> None:
        """Raise UsageError for a device that none of the selected traces has."""
        files = [str(trace.file("gpu_events")) for trace in self.traces]
        rows = self._connection.execute("SELECT DISTINCT device FROM read_parquet($files)", {"files": files}).fetchall()
        _known("device", map(str, devices), {str(device) for (device,) in rows}, "the selected traces have")

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
        self._check_query(query)
        self._views.make(query.body, query.unused(values), is_reviewed=query.is_built_in)
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

    def sql(self, text: str, path: Path | None = None) -> Result:
        """Run one SELECT (or EXPLAIN, DESCRIBE) written by the user, in the file at `path` if that is given.

        Raises QueryError when it is anything else or fails, UsageError when it names what does not exist.
        """
        query = library.unnamed(text, path) if path else None
        if not self._allow_external:
            checked(self._connection, text, query)
        self._views.make(text)
        return self._execute(text, {}, query)

    def _execute(self, text: str, values: Mapping[str, object], query: library.SqlFile | None = None) -> Result:
        import duckdb

        try:
            cursor = interruptible(
                self._connection,
                lambda: self._connection.execute(text, dict(values)) if values else self._connection.execute(text),
            )
        except duckdb.Error as error:
            raise query_error(error, query) from error
        return Result([column[0] for column in cursor.description or ()], cursor, query)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def caveats(self, query: library.SqlFile | None = None) -> list[str]:
        """Return what whoever reads an answer must know about the selected traces: what is missing from them."""
        lines = []
        for what, names in (
            ("run", sorted({trace.identity.run for trace in self.traces})),
            ("collector", sorted({trace.identity.collector for trace in self.traces})),
        ):
            if len(names) > 1 and not (what == "collector" and query and query.compares_collectors):
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
