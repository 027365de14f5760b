"""Reader for rocpd, rocprofv3's SQLite database (<host>/<pid>_results.db), also merged from several processes.

Tables have the process's uuid in their names (`rocpd_string_0198a...`), and views without it unite them. What API
calls and GPU work share is `rocpd_event.stack_id`; `rocpd_event.correlation_id` is the user's own, external one.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from traceanalyzer.errors import InputError, NothingToAnalyse, TraceAnalyzerError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised, TraceReading
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.kineto_parser import parser_of_thread
from traceanalyzer.readers.rocpd_queries import SOURCES, Source, has_types, query_of
from traceanalyzer.readers.rocprofv3 import (
    COLLECTOR,
    about_process,
    explain_missing_kernels,
    noticed_warnings,
    process_of_file,
)
from traceanalyzer.readers.rocprofv3_facts import (
    Agent,
    Process,
    fill_facts,
    guess_from_devices,
    rank_from_command,
    rank_from_environment,
)
from traceanalyzer.readers.rocprofv3_names import KernelNames
from traceanalyzer.readers.rocprofv3_rows import UNNAMED_KERNELS, Columns, Rows, looked_up, readable, rows_of, texts_of
from traceanalyzer.readers.source import content_hash
from traceanalyzer.readers.sqlite_file import DamagedError, SqliteFile, files_of, is_sqlite, literal, quoted

if TYPE_CHECKING:
    import pyarrow as pa

RICHNESS: Final = 2
_SUFFIXES: Final = ("_results.db",)
_PROCESSES: Final = "rocpd_info_process"
_FEW_ROWS: Final = 64
"""So many rows are given up together where a page of a database is damaged."""
_LAST_NUMBER: Final = re.compile(r"(\d+)\D*\Z")


@dataclass
class Tables:
    """The tables of one process in a database."""

    database: SqliteFile
    guid: str | None
    is_shared: bool = False
    """Whether several processes have the same guid, so that rows must be told apart by their process."""

    def name(self, table: str) -> str | None:
        """Return the table that holds this process's rows, None when there is none."""
        names = self.database.tables
        own = f"{table}_{(self.guid or '').replace('-', '_')}"
        return own if own in names else table if table in names else None

    def columns(self, table: str) -> list[str]:
        name = self.name(table)
        return self.database.tables[name] if name else []

    def condition(self, table: str) -> str:
        """Return the SQL condition for this process's rows: needed where a table holds those of several."""
        name = self.name(table)
        if name != table or self.guid is None or "guid" not in self.columns(table):
            return "true"
        return f"{quoted(name)}.guid = {literal(self.guid)}"

    def records(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return all rows of a small table, with the columns of those asked for that it has."""
        name, there = self.name(table), [c for c in columns if c in self.columns(table)]
        if name is None or not there:
            return []
        chosen = ", ".join(map(quoted, there))
        rows = self.database.rows(f"SELECT {chosen} FROM {quoted(name)} WHERE {self.condition(table)}")
        return [dict(zip(there, row, strict=True)) for row in rows]


@dataclass
class _Lookup:
    """What the numbers in the large tables mean."""

    strings: dict[int, str] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)
    kernels: KernelNames = field(default_factory=KernelNames)


class _RocpdReading:
    """One process of a database; see `base.TraceReading`."""

    def __init__(self, tables: Tables, record: dict[str, Any], how: HowToRead, progress: _Progress) -> None:
        self.facts = Facts()
        self._tables = tables
        self._key = record.get("id")
        self._how = how
        self._progress = progress
        self._process = _process(tables, record)
        fill_facts(self.facts, self._process)
        version = next(
            (r["value"] for r in tables.records("rocpd_metadata", "tag", "value") if r.get("tag") == "schema_version"),
            None,
        )
        self.facts.profiler = f"rocprofv3 rocpd, schema {version}" if version else "rocprofv3 rocpd"
        self._lookup = _lookup(tables)
        self._events = 0
        self._recorded: Counter[str] = Counter()
        self._noticed: Counter[str] = Counter()
        self._devices: set[int] = set()
        self._damage: list[str] = []

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows table by table.

        Raises NothingToAnalyse when the process recorded nothing, InputError for a table that lacks a column.
        """
        about: Batch | None = None
        for source in SOURCES:
            for rows, count in self._rows(source):
                self._devices |= rows.devices
                if about is None:
                    guess_from_devices(self.facts, self._process, self._devices)
                    about = about_process(self._process)
                    self._events += about.events
                    yield about
                yield self._batch(source, rows, count)
        self._note_what_is_missing()
        if self._damage and not self._recorded.total():
            raise DamagedError(self._damage[0])
        if not self._recorded.total():
            raise NothingToAnalyse("a process without any records: a helper that only loaded the GPU's runtime")
        guess_from_devices(self.facts, self._process, self._devices)
        self.facts.warnings.extend(noticed_warnings(self._noticed))
        explain_missing_kernels(self.facts, self._recorded)

    def _rows(self, source: Source) -> Iterator[tuple[Rows, int]]:
        """Yield the rows of one table with their number; pieces of it are read and converted in the pool."""
        waiting: deque[Future[tuple[Rows, int]]] = deque()
        for task in self._tasks(source):
            waiting.append(self._how.pool.submit(task))
            if len(waiting) >= self._how.lookahead:
                made = self._advanced(waiting.popleft().result())
                if made[1]:
                    yield made
        yield from (made for future in waiting if (made := self._advanced(future.result()))[1])

    def _tasks(self, source: Source) -> Iterator[Callable[[], tuple[Rows, int]]]:
        """Yield what the pool is to do for a table: a piece each, which it reads itself where there are row ids."""
        query, name = self._query(source), self._tables.name(source.table)
        if query is None or name is None:
            return
        try:
            ranges = self._tables.database.ranges(name)
        except DamagedError:
            ranges = None
        if ranges is not None:
            for rowids in ranges:
                yield partial(self._fetch, source, rowids)
            return
        try:
            for rows in self._tables.database.batches(query):
                yield partial(self._convert, rows, source)
        except DamagedError as error:
            self._damage.append(f"{name}: {error}")

    def _query(self, source: Source, *, checked: bool = True, rowids: tuple[int, int] | None = None) -> str | None:
        return query_of(source, self._tables, self._key, checked=checked, rowids=rowids)

    def _fetch(self, source: Source, rowids: tuple[int, int]) -> tuple[Rows, int]:
        """Return the rows of a range of row ids.

        Only where a value of another type than its column's is met, each value is looked at: that takes as long as
        reading it. Rows of damaged pages are left out, and those around them found.
        """
        try:
            query = self._query(source, checked=False, rowids=rowids)
            assert query is not None
            rows = self._tables.database.fetch(query)
            if has_types(source, rows.schema):
                return self._convert(rows, source)
        except DamagedError:
            pass
        import pyarrow as pa

        found = self._readable(source, rowids)
        if not found:
            return Rows(), 0
        return self._convert(pa.concat_tables(found), source)

    def _readable(self, source: Source, rowids: tuple[int, int]) -> list[pa.Table]:
        """Return what can be read of a range of row ids, by halving it where that fails."""
        query = self._query(source, rowids=rowids)
        assert query is not None
        low, high = rowids
        try:
            return [self._tables.database.fetch(query)]
        except DamagedError as error:
            if high - low <= _FEW_ROWS:
                self._damage.append(f"{self._tables.name(source.table)}, rows {low:,} to {high - 1:,}: {error}")
                return []
        middle = (low + high) // 2
        return self._readable(source, (low, middle)) + self._readable(source, (middle, high))

    def _note_what_is_missing(self) -> None:
        """Say what of the database could not be read, or is not there."""
        if self._damage:
            self.facts.complete = False
            self.facts.warnings.append(
                f"the database is damaged, and rows of {len(self._damage):,} places are missing;"
                f" the first: {self._damage[0]}"
            )
        for table, what in (("rocpd_event", "correlation ids"), ("rocpd_string", "names")):
            if self._tables.name(table) is None:
                self.facts.warnings.append(f"the database has no table {table}: no {what}")

    def _advanced(self, made: tuple[Rows, int]) -> tuple[Rows, int]:
        self._progress.advance(made[1])
        return made

    def _convert(self, found: pa.Table, source: Source) -> tuple[Rows, int]:
        import pyarrow as pa

        for name in source.texts:
            found = found.set_column(
                found.column_names.index(name), name, readable(found.column(name).combine_chunks())
            )
        columns: Columns = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns["event_id"] = pa.arange(0, found.num_rows)
        columns["args"] = _args(found, source)
        self._resolve(columns)
        noticed = self._complete(source, columns)
        rows = rows_of(source.family, columns, self._process.pid, source.list_name)
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
        devices = self._process.device_of()
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

    def _batch(self, source: Source, rows: Rows, count: int) -> Batch:
        import pyarrow as pa
        import pyarrow.compute as pc

        base = pa.scalar(self._events, pa.int64())
        tables = {
            name: made.set_column(0, "event_id", pc.add(made.column("event_id"), base))
            for name, made in rows.tables.items()
            if made.num_rows
        }
        self._events += count
        self._recorded[source.list_name] += count
        self._noticed += rows.noticed
        return Batch(count, tables)


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
    message = _object(text).get("message")
    return message if isinstance(message, str) else None


def _object(text: object) -> dict[str, Any]:
    """Return the JSON object that a text holds, an empty one when it holds none."""
    try:
        value = orjson.loads(text) if isinstance(text, str | bytes) and text else None
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _process(tables: Tables, record: dict[str, Any]) -> Process:
    """Return what the database says about a process; of its environment and command line only the rank is read."""
    node = next(
        (n for n in tables.records("rocpd_info_node", "id", "hostname") if n.get("id") == record.get("nid")), {}
    )
    process = Process(
        pid=integer(record.get("pid")),
        host=node.get("hostname") or None,
        init_ns=integer(record.get("init")),
        fini_ns=integer(record.get("fini")),
        agents=[_agent(a) for a in tables.records("rocpd_info_agent", *_AGENT_COLUMNS)],
    )
    rank_from_command(process, str(record.get("command") or "").split())
    rank_from_environment(process, _object(record.get("environment")))
    return process


_AGENT_COLUMNS: Final = (*("id", "type", "absolute_index", "type_index", "uuid", "name", "product_name", "extdata"),)
_AGENT_EXTRAS: Final = ("location_id", "domain", "gpu_id", "hive_id", "gfx_target_version", "cu_count", "num_xcc")


def _agent(record: dict[str, Any]) -> Agent:
    more = _object(record.get("extdata"))
    facts = {"name": record.get("name"), "node_id": record.get("absolute_index"), "uuid": record.get("uuid")}
    facts |= {key: more[key] for key in _AGENT_EXTRAS if key in more}
    visibility = more.get("runtime_visibility")
    return Agent(
        handle=integer(record.get("id")) or 0,
        kind=str(record.get("type") or "").upper(),
        ordinal=integer(record.get("type_index"), 0, 2**31),
        product=record.get("product_name") or None,
        facts={key: value for key, value in facts.items() if value not in (None, "")},
        visible=not isinstance(visibility, dict) or visibility.get("hip") != 0,
    )


def _lookup(tables: Tables) -> _Lookup:
    look = _Lookup()
    for key, record in _by_id(tables, "rocpd_string", "string"):
        look.strings[key] = _text(record.get("string"))
    for key, record in _by_id(tables, "rocpd_info_thread", "tid"):
        if (tid := integer(record.get("tid"))) is not None:
            look.threads[key] = tid
    for table, numbers in (("rocpd_info_stream", look.streams), ("rocpd_info_queue", look.queues)):
        for key, record in _by_id(tables, table, "name"):
            match = _LAST_NUMBER.search(_text(record.get("name")))
            number = integer(match.group(1)) if match else None
            numbers[key] = key if number is None else number
    for key, record in _by_id(tables, "rocpd_info_kernel_symbol", "kernel_name", "display_name", "extdata"):
        names = {
            "formatted_kernel_name": _text(record.get("display_name")),
            "kernel_name": _text(record.get("kernel_name")),
        }
        more = {k: v for k, v in _object(record.get("extdata")).items() if k.endswith("kernel_name") and v}
        look.kernels.add({**names, **more, "kernel_id": key})
    return look


def _by_id(tables: Tables, table: str, *columns: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a small table by their ids."""
    for record in tables.records(table, "id", *columns):
        if (key := integer(record.get("id"))) is not None:
            yield key, record


def _text(value: object) -> str:
    """Return a value as text, whatever a database has in a column of texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


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
        processes = _processes(self._database, self._path)
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


def _processes(database: SqliteFile, path: Path) -> list[tuple[Tables, dict[str, Any]]]:
    """Return the processes of a database, each with its tables. Raises InputError when it names none."""
    columns = ("id", "guid", "nid", "pid", "init", "fini", "command", "environment")
    found = []
    names = (
        [_PROCESSES]
        if _PROCESSES in database.tables
        else sorted(t for t in database.tables if t.startswith(_PROCESSES))
    )
    for name in names:
        there = [c for c in columns if c in database.tables[name]]
        if "pid" not in there:
            raise InputError(f"{path}: column {name}.pid is missing")
        for row in database.rows(f"SELECT {', '.join(map(quoted, there))} FROM {quoted(name)} ORDER BY id"):
            record = dict(zip(there, row, strict=True))
            found.append((Tables(database, record.get("guid")), record))
    of_guid = Counter(tables.guid for tables, _ in found)
    for tables, _ in found:
        tables.is_shared = of_guid[tables.guid] > 1
    if not found:
        raise NothingToAnalyse(f"{path}: a rocpd database without any process")
    return found


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
                processes = _processes(database, path)
                facts = Facts()
                if len(processes) == 1:
                    fill_facts(facts, _process(*processes[0]))
        except TraceAnalyzerError as error:
            return Recognised("SQLite database", problem=error)
        what += f" of {len(processes)} processes" if len(processes) > 1 else ""
        return Recognised(what, self, facts, process=process_of_file(path, _SUFFIXES), richness=RICHNESS)

    def files(self, path: Path) -> list[Path]:
        return files_of(path)

    def open(self, path: Path, how: HowToRead) -> _RocpdFile:
        return _RocpdFile(path, how)
