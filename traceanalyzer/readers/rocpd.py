"""Reader for rocpd, rocprofv3's SQLite database (<host>/<pid>_results.db), also merged from several processes.

Tables have the process's uuid in their names (`rocpd_string_0198a...`), and views without it unite them. What API
calls and GPU work share is `rocpd_event.stack_id`; `rocpd_event.correlation_id` is the user's own, external one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised, TraceReading
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.kineto_parser import parser_of_thread
from traceanalyzer.readers.recording import Recording, in_order
from traceanalyzer.readers.rocpd_process import (
    Tables,
    lookup_of,
    object_in,
    process_of,
    processes_of,
    schema_version,
)
from traceanalyzer.readers.rocpd_queries import SOURCES, Source, query_of
from traceanalyzer.readers.rocprofv3 import COLLECTOR, process_of_file
from traceanalyzer.readers.rocprofv3_facts import fill_facts
from traceanalyzer.readers.rocprofv3_rows import UNNAMED_KERNELS, Columns, Rows, looked_up, rows_of, texts_of
from traceanalyzer.readers.source import content_hash
from traceanalyzer.readers.sqlite_file import DamagedError, SqliteFile, files_of, is_sqlite, lost_warning, quoted

if TYPE_CHECKING:
    import pyarrow as pa

RICHNESS: Final = 2
_SUFFIXES: Final = ("_results.db",)


class _RocpdReading:
    """One process of a database; see `base.TraceReading`."""

    def __init__(self, tables: Tables, record: dict[str, Any], how: HowToRead, progress: _Progress) -> None:
        self._tables = tables
        self._key = record.get("id")
        self._how = how
        self._progress = progress
        self._recording = Recording(process_of(tables, record))
        self.facts = self._recording.facts
        version = schema_version(tables)
        self.facts.profiler = f"rocprofv3 rocpd, schema {version}" if version else "rocprofv3 rocpd"
        self._lookup = lookup_of(tables)
        self._lost: list[str] = []

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows table by table.

        Raises NothingToAnalyse when the process recorded nothing, InputError for a table that lacks a column.
        """
        recording = self._recording
        for source in SOURCES:
            for rows, count in in_order(self._how, self._tasks(source)):
                self._progress.advance(count)
                if count:
                    yield from recording.batches(rows, count, source.list_name)
        if self._lost and not recording.recorded.total():
            raise DamagedError(self._lost[0])
        if self._lost:
            self.facts.complete = False
            self.facts.warnings.append(lost_warning(self._lost))
        for table, what in (("rocpd_event", "correlation ids"), ("rocpd_string", "names")):
            if self._tables.name(table) is None:
                self.facts.warnings.append(f"the database has no table {table}: no {what}")
        recording.finish()

    def _tasks(self, source: Source) -> Iterator[Callable[[], tuple[Rows, int]]]:
        """Yield a task per piece of a table: to read it and convert its rows."""
        name = self._tables.name(source.table)
        if name is None:
            return
        query = partial(query_of, source, self._tables, self._key)
        for piece in self._tables.database.pieces(name, query, source.texts, self._lost):
            yield partial(self._convert, piece, source)

    def _convert(self, piece: Callable[[], pa.Table], source: Source) -> tuple[Rows, int]:
        import pyarrow as pa

        found = piece()
        if not found.num_rows:
            return Rows(), 0
        columns: Columns = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns["event_id"] = pa.arange(0, found.num_rows)
        columns["args"] = _args(found, source)
        self._resolve(columns)
        noticed = self._complete(source, columns)
        rows = rows_of(source.family, columns, self._recording.process.pid, source.list_name)
        rows.noticed += noticed
        return rows, found.num_rows

    def _resolve(self, columns: Columns) -> None:
        """Put texts and the collector's own numbers in the place of the database's."""
        look = self._lookup
        for name in ("name", "category"):
            if f"{name}_id" in columns:
                columns[name] = texts_of(columns[f"{name}_id"], look.strings)
        for name, known in (("tid", look.threads), ("stream", look.streams), ("queue", look.queues)):
            if name in columns:
                columns[name] = looked_up(columns[name], known, otherwise=True)

    def _complete(self, source: Source, columns: Columns) -> Counter[str]:
        import pyarrow as pa
        import pyarrow.compute as pc

        noticed: Counter[str] = Counter()
        devices = self._recording.process.device_of()
        if source.family == "dispatch":
            columns["device"] = looked_up(columns["agent"], devices)
            columns["stream"] = pc.coalesce(columns["stream"], columns["queue"])
            columns["name"], openings, unknown = self._lookup.kernels.columns(columns["kernel_id"])
            columns["args"] = pc.binary_join_element_wise(openings, columns["args"], "")
            noticed[UNNAMED_KERNELS] += unknown
            return noticed
        columns["args"] = pc.binary_join_element_wise("{", columns["args"], "")
        if source.family == "copy":
            target, source_device = (looked_up(columns[end], devices) for end in ("target", "source"))
            columns["device"] = pc.coalesce(target, source_device)
            columns["between_gpus"] = pc.fill_null(pc.not_equal(target, source_device), False)
            columns["operation"] = columns["name"]
        if source.family == "call":
            columns["api"] = columns["category"] = pc.utf8_lower(pc.fill_null(columns["category"], "unknown"))
            message = _messages(columns.pop("extdata"))
            columns["name"] = pc.coalesce(message, columns["name"])
            columns["is_marker"] = pc.starts_with(columns["category"], "marker")
        if source.family == "memory":
            is_scratch = pc.equal(columns.pop("level"), "SCRATCH")
            columns["category"] = pc.if_else(is_scratch, "scratch_memory", pa.scalar("memory_allocation"))
        return noticed


def _args(found: pa.Table, source: Source) -> pa.Array:
    """Return the rest of each row as JSON text behind its opening brace."""
    import pyarrow as pa

    pairs = ", ".join(f"{quoted(name)} := {quoted(name)}" for name in found.column_names if name in source.args)
    if not pairs:
        return pa.repeat(pa.scalar("}"), found.num_rows)
    connection = parser_of_thread().connection
    connection.register("batch", found)
    try:
        made: pa.Table = connection.execute(
            f"SELECT substr(to_json(struct_pack({pairs}))::VARCHAR, 2) AS args FROM batch"
        ).to_arrow_table()
    finally:
        connection.unregister("batch")
    return made.column("args").combine_chunks()


def _messages(texts: pa.Array) -> pa.Array:
    """Return the message in each JSON text, that of a marker; NULL where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(texts)
    messages = [_message(text) for text in found.dictionary.to_pylist()]
    return pc.take(pa.array(messages, pa.string()), found.indices)


def _message(text: str | None) -> str | None:
    message = object_in(text).get("message")
    return message if isinstance(message, str) else None


@dataclass
class _Progress:
    """How far a database was read, by its rows."""

    size: int
    watch: Any
    total: int = 0
    rows: int = 0

    def advance(self, rows: int) -> None:
        self.rows += rows
        self.watch()

    @property
    def position(self) -> int:
        return self.size * min(self.rows, self.total) // max(self.total, 1)


class _RocpdFile:
    """A rocpd database as a `base.TraceFile`."""

    def __init__(self, path: Path, how: HowToRead) -> None:
        self._path = path
        self._how = how
        self._database = SqliteFile(path)
        self._progress = _Progress(sum(f.stat().st_size for f in files_of(path)), how.watch)

    @property
    def position(self) -> int:
        return self._progress.position

    @property
    def digest(self) -> str:
        return content_hash(files_of(self._path), self._how.watch)

    def traces(self) -> Iterator[TraceReading]:
        """Yield the processes in the order of their ids."""
        processes = processes_of(self._database, self._path)
        names = {name for tables, _ in processes for source in SOURCES if (name := tables.name(source.table))}
        for name in names:
            if "id" in self._database.tables[name]:
                rows = integer(self._database.rows(f"SELECT max(id) FROM {quoted(name)}")[0][0])
                self._progress.total += rows or 0
        for tables, record in processes:
            yield _RocpdReading(tables, record, self._how, self._progress)

    def __enter__(self) -> _RocpdFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


class RocpdReader:
    """rocprofv3's database: <host>/<pid>_results.db."""

    collector = COLLECTOR
    form = Form.SQLITE

    def recognise(self, path: Path) -> Recognised | None:
        """Claim a SQLite database with rocpd's tables about dispatches or nodes."""
        if not is_sqlite(path):
            return None
        what = "rocprofv3 database (rocpd)"
        try:
            with SqliteFile(path) as database:
                if not any(t.startswith(("rocpd_kernel_dispatch", "rocpd_info_node")) for t in database.tables):
                    return None
                processes = processes_of(database, path)
                facts = Facts()
                if len(processes) == 1:
                    fill_facts(facts, process_of(*processes[0]))
        except TraceAnalyzerError as error:
            return Recognised("SQLite database", problem=error)
        what += f" of {len(processes)} processes" if len(processes) > 1 else ""
        return Recognised(what, self, facts, process=process_of_file(path, _SUFFIXES), richness=RICHNESS)

    def files(self, path: Path) -> list[Path]:
        return files_of(path)

    def open(self, path: Path, how: HowToRead) -> _RocpdFile:
        return _RocpdFile(path, how)
