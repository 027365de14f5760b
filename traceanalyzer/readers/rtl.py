"""Reader for rocm_trace_lite's SQLite databases: trace_<pid>.db of a process, trace.db merged from several."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer.errors import NothingToAnalyse, TraceAnalyzerError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised, TraceReading
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.recording import in_order, noticed_warnings, shifted
from traceanalyzer.readers.rocprofv3 import process_of_file
from traceanalyzer.readers.rocprofv3_names import kernel_name
from traceanalyzer.readers.rocprofv3_rows import UNNAMED_KERNELS, Columns, Rows, rows_of, texts_of
from traceanalyzer.readers.rtl_parts import Part, first_gpu, is_rpd, parts_of, pids_of
from traceanalyzer.readers.source import content_hash
from traceanalyzer.readers.sqlite_file import (
    ALL_ROWS,
    DamagedError,
    SqliteFile,
    files_of,
    integers,
    is_sqlite,
    lost_warning,
)

if TYPE_CHECKING:
    import pyarrow as pa

COLLECTOR: Final = "rocm_trace_lite"
_FILE: Final = re.compile(r"(?:^|_)(\d+)\.db\Z")
_KERNEL: Final = "KernelExecution"
_MARKER: Final = "UserMarker"
_SIGNAL: Final = re.compile(r"(?:hwq=(?P<hwq>\S+))?\s*(?:wg=(?P<wg>[\d,]+))?\s*(?:grid=(?P<grid>[\d,]+))?")
_UNNAMED: Final = r"^kernel_0x[0-9a-f]+$"
_NEEDED: Final = ("gpuId", "queueId", "start", "end", "description_id", "opType_id")
_OPERATIONS: Final = {
    **{"device": "gpuId", "queue": "queueId", "start_ns": "start", "end_ns": "end", "name_id": "description_id"},
    **{"kind_id": "opType_id", "sequence": "sequenceId", "roctx": "roctxId"},
}
_CALLS: Final = {
    **{"pid": "pid", "tid": "tid", "start_ns": "start", "end_ns": "end", "name_id": "apiName_id"},
    "args_id": "args_id",
}
_GUESS: Final = "guess: index of the only GPU it used"


class _RtlReading:
    """One process of a database; see `base.TraceReading`."""

    def __init__(
        self,
        database: SqliteFile,
        part: Part,
        how: HowToRead,
        advance: Callable[[int], None],
        *,
        may_guess: bool,
    ) -> None:
        """Read one part; `may_guess`: its GPU may be taken for its rank."""
        import pyarrow as pa

        self._may_guess = may_guess
        self.facts = Facts(pid=part.pid, clock_domain="boot")
        self._database = database
        self._part = part
        self._how = how
        self._advance = advance
        self._strings = {key: str(text) for key, text in database.rows("SELECT id, string FROM rocpd_string")}
        self._names = {key: kernel_name({"formatted_kernel_name": text}) or text for key, text in self._strings.items()}
        unnamed = [key for key, name in self._names.items() if re.search(_UNNAMED, name)]
        self._unnamed = pa.array(unnamed, pa.int64())
        self._types = {text: key for key, text in self._strings.items()}
        self._queues: dict[int, int] = {}
        self._events = 0
        self._counts: Counter[str] = Counter()
        self._devices: set[int] = set()
        self._lost: list[str] = []

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows in the order of the database.

        Raises NothingToAnalyse when there are none, InputError for a damaged database.
        """
        for rows, count in in_order(self._how, self._tasks()):
            if count:
                yield self._batch(rows, count)
        if not self._events and self._lost:
            raise DamagedError(self._lost[0])
        if not self._events:
            raise NothingToAnalyse("a database without operations: a helper process, or nothing was recorded")
        self._complete_facts()

    def _tasks(self) -> Iterator[Callable[[], tuple[Rows, int]]]:
        """Yield a task per piece of the tables: to read it and convert its rows."""
        part, database = self._part, self._database
        operations = partial(_operations_query, database, part)
        for piece in database.pieces("rocpd_op", operations, ("signal",), self._lost, (part.low, part.high)):
            yield partial(self._operations, piece)
        if part.with_calls and "rocpd_api" in database.tables:
            for piece in database.pieces("rocpd_api", _calls_query, (), self._lost):
                yield partial(self._calls, piece)

    def _operations(self, piece: Callable[[], pa.Table]) -> tuple[Rows, int]:
        """Return the rows of operations: kernels, markers, and what else there may be."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = piece()
        columns: Columns = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns["event_id"] = pa.arange(0, found.num_rows)
        kind = columns.pop("kind_id")
        is_marker = pc.fill_null(pc.equal(kind, self._types.get(_MARKER, -1)), False)
        is_kernel = pc.and_(
            pc.fill_null(pc.equal(kind, self._types.get(_KERNEL, -1)), False),
            pc.fill_null(pc.greater_equal(columns["device"], 0), False),
        )
        columns["args"] = _args(columns)
        made = Rows()
        for family, chosen in (
            ("dispatch", is_kernel),
            ("marker", is_marker),
            ("other", pc.invert(pc.or_(is_kernel, is_marker))),
        ):
            if pc.any(chosen, min_count=0).as_py():
                self._add(made, family, {n: pc.filter(c, chosen) for n, c in columns.items()}, pc.filter(kind, chosen))
        return made, found.num_rows

    def _add(self, made: Rows, family: str, columns: Columns, kind: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = len(columns["event_id"])
        columns["name"] = texts_of(columns["name_id"], self._names if family == "dispatch" else self._strings)
        for name in ("tid", "correlation_id", "external_id"):
            columns[name] = pa.nulls(rows, pa.int64())
        if family == "dispatch":
            columns["kernel_id"] = columns["name_id"]
            columns["stream"] = columns["queue"]
            columns |= _geometry(columns["signal"])
            is_unnamed = pc.is_in(columns["name_id"], value_set=self._unnamed)
            made.noticed[UNNAMED_KERNELS] += pc.sum(is_unnamed).as_py() or 0
        elif family == "other":
            columns["category"] = texts_of(kind, self._strings)
        found = rows_of(family, columns, self.facts.pid, "operation")
        made.tables |= found.tables
        made.devices |= found.devices

    def _calls(self, piece: Callable[[], pa.Table]) -> tuple[Rows, int]:
        """Return the rows of API calls, which mode 'hip' records."""
        import pyarrow as pa

        found = piece()
        columns: Columns = {name: found.column(name).combine_chunks() for name in found.column_names}
        rows = found.num_rows
        columns["event_id"] = pa.arange(0, rows)
        columns["name"] = texts_of(columns["name_id"], self._strings)
        columns["api"] = pa.repeat(pa.scalar("hip_api"), rows)
        texts = {key: json.dumps({"args": text}, ensure_ascii=False) for key, text in self._strings.items()}
        columns["args"] = texts_of(columns["args_id"], texts)
        for name in ("correlation_id", "external_id"):
            columns[name] = pa.nulls(rows, pa.int64())
        return rows_of("api", columns, self.facts.pid, "rocpd_api"), rows

    def _batch(self, rows: Rows, count: int) -> Batch:
        """Number the rows, and the queues in the order in which they come."""
        tables = shifted(rows.tables, self._events)
        if "gpu_events" in tables:
            tables["gpu_events"] = self._with_streams(tables["gpu_events"])
        self._events += count
        self._counts += Counter({name: made.num_rows for name, made in tables.items()})
        self._counts += rows.noticed
        self._devices |= rows.devices
        if len(self._devices) == 1 and self._may_guess:
            [device] = self._devices
            self.facts.guessed_rank, self.facts.guess_source = device, _GUESS
        self._advance(count)
        return Batch(count, tables)

    def _with_streams(self, events: pa.Table) -> pa.Table:
        """Put small numbers in the place of the queues' addresses, which are in args."""
        import pyarrow as pa
        import pyarrow.compute as pc

        at = events.schema.get_field_index("stream")
        found = pc.dictionary_encode(events.column(at).combine_chunks())
        numbers = [
            None if queue is None else self._queues.setdefault(queue, len(self._queues))
            for queue in found.dictionary.to_pylist()
        ]
        streams = pc.take(pa.array(numbers, pa.int64()), found.indices)
        return events.set_column(at, "stream", streams)

    def _complete_facts(self) -> None:
        facts, counts = self.facts, self._counts
        facts.profiler = "rocm_trace_lite"
        if self._lost:
            facts.complete = False
            facts.warnings.append(lost_warning(self._lost))
        facts.warnings.extend(noticed_warnings(Counter({UNNAMED_KERNELS: counts[UNNAMED_KERNELS]})))
        if len(self._devices) != 1:
            facts.guessed_rank = facts.guess_source = None  # what its first rows looked like
        if not counts["gpu_events"] and counts["annotations"]:
            facts.warnings.append(
                f"no kernels but {counts['annotations']:,} roctx markers: the failure of rocm_trace_lite with ROCm 10"
                " (TheRock), where another tool registers first; record again with HSA_TOOLS_DISABLE_REGISTER=1"
            )
        elif not counts["gpu_events"]:
            facts.is_helper = True


def _operations_query(database: SqliteFile, part: Part, rowids: tuple[int, int] | None, checked: bool) -> str:
    """Return the query over the operations of a part; see `SqliteFile.pieces`."""
    there = set(database.tables["rocpd_op"])
    columns = {named: column if column in there else "0" for named, column in _OPERATIONS.items()}
    columns |= {named: f"coalesce({columns[named]}, 0)" for named in ("sequence", "roctx")}
    signal = "coalesce(CAST(completionSignal AS TEXT), '')" if "completionSignal" in there else "''"
    low, high = rowids or (part.low, part.high)
    within = f"rowid >= {max(low, part.low)} AND rowid < {min(high, part.high)}"
    return f"SELECT {integers(columns, checked)}, {signal} AS signal FROM rocpd_op WHERE {within}"


def _calls_query(rowids: tuple[int, int] | None, checked: bool) -> str:
    """Return the query over the API calls; see `SqliteFile.pieces`."""
    within = f"rowid >= {rowids[0]} AND rowid < {rowids[1]}" if rowids else "true"
    return f"SELECT {integers(_CALLS, checked)} FROM rocpd_api WHERE {within}"


def _args(columns: Columns) -> pa.Array:
    """Return what has no column of its own, as JSON."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(columns["signal"])
    texts = [_as_json(text) for text in found.dictionary.to_pylist()]
    signal = pc.take(pa.array(texts, pa.string()), found.indices)
    queue, sequence, roctx = (_texts(columns[name]) for name in ("queue", "sequence", "roctx"))
    return pc.binary_join_element_wise(
        *('{"queueId":', queue, ',"completionSignal":', signal, ',"sequenceId":', sequence, ',"roctxId":', roctx, "}"),
        "",
    )


_as_json = lru_cache(maxsize=1 << 16)(json.dumps)


def _texts(numbers: pa.Array) -> Any:
    """Return numbers, of which there are few different ones, as JSON: one text if they are all the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(numbers, null_encoding="encode")
    texts = pc.fill_null(pc.cast(found.dictionary, pa.string()), "null")
    return texts[0] if len(texts) == 1 else pc.take(texts, found.indices)


def _geometry(signals: pa.Array) -> Columns:
    """Return work-items and block sizes as the completion signal's text has them; there are few different ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(signals)
    sizes = [geometry(text) for text in found.dictionary.to_pylist()]
    names = [f"{what}_{axis}" for what in ("block", "items") for axis in "xyz"]
    return {
        name: pc.take(pa.array([size[n] for size in sizes], pa.int64()), found.indices) for n, name in enumerate(names)
    }


@lru_cache(maxsize=1 << 16)
def geometry(text: str | None) -> tuple[int | None, ...]:
    """Return block and grid (in work-items), x to z each, of 'hwq=0x7f wg=256,1,1 grid=65536,1,1'.

    >>> geometry("hwq=0x7f wg=256,1,1 grid=65536,2,1")
    (256, 1, 1, 65536, 2, 1)
    """
    match = _SIGNAL.match(text or "")
    sizes: list[int | None] = []
    for part in ("wg", "grid"):
        numbers = [integer(n) for n in ((match.group(part) if match else None) or "").split(",")]
        sizes += numbers if len(numbers) == 3 else [None, None, None]
    return tuple(sizes)


class _RtlFile:
    """A database as a `base.TraceFile`."""

    def __init__(self, path: Path, how: HowToRead) -> None:
        self._path = path
        self._how = how
        self._database = SqliteFile(path)
        self._size = sum(f.stat().st_size for f in files_of(path))
        self._rows = self._total = 0

    @property
    def position(self) -> int:
        return self._size * min(self._rows, self._total) // max(self._total, 1)

    @property
    def digest(self) -> str:
        return content_hash(files_of(self._path), self._how.watch)

    def traces(self) -> Iterator[TraceReading]:
        """Yield the processes in the order of their rows."""
        pids = pids_of(self._database)
        [(last,)] = self._database.rows("SELECT max(rowid) FROM rocpd_op")
        self._total = last or 0
        parts = parts_of(self._database, pids)
        if parts is None:
            named = _FILE.search(self._path.name)
            pid = pids[0] if len(pids) == 1 else int(named.group(1)) if named else None
            whole = Part(pid, *ALL_ROWS, with_calls=True)
            reading = _RtlReading(self._database, whole, self._how, self._done, may_guess=len(pids) < 2)
            if len(pids) > 1:
                reading.facts.warnings.append(
                    f"{len(pids)} processes were merged into this database, and their rows cannot be told apart: work"
                    " of the same GPU number may be of several GPUs; keep the trace_<pid>.db of each process"
                )
            yield reading
            return
        gpus = [first_gpu(self._database, part.low, part.high) for part in parts]
        for part in parts:
            may_guess = len(set(gpus)) == len(gpus)
            reading = _RtlReading(self._database, part, self._how, self._done, may_guess=may_guess)
            if not part.with_calls:
                reading.facts.warnings.append(
                    "merging the databases lost the API calls and marker links of this process"
                )
            yield reading

    def _done(self, rows: int) -> None:
        self._rows += rows
        self._how.watch()

    def __enter__(self) -> _RtlFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


class RtlReader:
    """rocm_trace_lite's database: trace.db, trace_<pid>.db."""

    collector = COLLECTOR
    form = Form.SQLITE

    def recognise(self, path: Path) -> Recognised | None:
        """Claim a SQLite database with rocpd_op that is not rocmProfileData's."""
        if not is_sqlite(path):
            return None
        try:
            with SqliteFile(path) as database:
                if not set(_NEEDED) <= set(database.tables.get("rocpd_op", ())) or is_rpd(database):
                    return None
                pids = pids_of(database)
                facts = Facts(pid=pids[0] if len(pids) == 1 else None, clock_domain="boot")
                facts.pids = pids
                named = _FILE.search(path.name)
                if not pids and named:
                    facts.pids = [int(named.group(1))]
                gpu = first_gpu(database, *ALL_ROWS)
                if gpu is not None and len(facts.pids) <= 1:
                    facts.guessed_rank, facts.guess_source = gpu, _GUESS
                    facts.has_gpu_work = True
        except TraceAnalyzerError as error:
            return Recognised("SQLite database", problem=error)
        what = "rocm_trace_lite database"
        what += f" of {len(pids)} processes" if len(pids) > 1 else ""
        return Recognised(what, self, facts, process=process_of_file(path, (".db",)), richness=2)

    def files(self, path: Path) -> list[Path]:
        return files_of(path)

    def open(self, path: Path, how: HowToRead) -> _RtlFile:
        return _RtlFile(path, how)
