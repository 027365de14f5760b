"""Reader for rocprofv3's CSV files: all files of a process are one trace."""

from __future__ import annotations

import csv as csv_module
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised, Reject, TraceReading
from traceanalyzer.readers.csv_file import batches_of, header_of
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.kineto_parser import parser_of_thread
from traceanalyzer.readers.recording import Recording, in_order
from traceanalyzer.readers.rocprofv3 import COLLECTOR, process_of_file
from traceanalyzer.readers.rocprofv3_facts import GPU, Agent, Process, fill_facts
from traceanalyzer.readers.rocprofv3_names import kernel_name
from traceanalyzer.readers.rocprofv3_rows import Columns, Rows, rows_of
from traceanalyzer.readers.source import ByteSource, content_hash
from traceanalyzer.readers.sqlite_file import literal

if TYPE_CHECKING:
    import pyarrow as pa

_ENDINGS: Final = ("", ".gz", ".zst")
_AGENTS: Final = "agent_info"
_API_FILE: Final = re.compile(
    r"(.*)_((?:hip|hsa|rccl|rocdecode|rocjpeg|hipfile)_api)_trace\.csv(?:\.gz|\.zst)?", re.DOTALL
)
RICHNESS: Final = 1
_HEAD: Final = 64 << 10
_SAMPLE: Final = 200

_TIMES: Final = {"start_ns": "Start_Timestamp", "end_ns": "End_Timestamp"}
_IDS: Final = {"correlation_id": "Correlation_Id", "tid": "Thread_Id"}
_API: Final = {**_TIMES, **_IDS, "pid": "Process_Id", "api": "Domain", "name": "Function"}


@dataclass(frozen=True)
class _Kind:
    """A kind of file: to which family its rows belong, and its columns by the names that `rows_of` knows."""

    family: str
    columns: dict[str, str]
    required: frozenset[str] = frozenset(_TIMES.values())


_KERNELS: Final = _Kind(
    "dispatch",
    {
        **_TIMES,
        **_IDS,
        **{"agent": "Agent_Id", "queue": "Queue_Id", "stream": "Stream_Id", "kernel_id": "Kernel_Id"},
        "name": "Kernel_Name",
        **{f"block_{axis}": f"Workgroup_Size_{axis.upper()}" for axis in "xyz"},
        **{f"items_{axis}": f"Grid_Size_{axis.upper()}" for axis in "xyz"},
    },
    frozenset({*_TIMES.values(), "Kernel_Name", "Agent_Id"}),
)
_COPIES: Final = _Kind(
    "copy",
    {
        **_TIMES,
        **_IDS,
        **{"operation": "Direction", "stream": "Stream_Id"},
        **{"source": "Source_Agent_Id", "target": "Destination_Agent_Id"},
    },
)
_MEMORY: Final = _Kind("memory", {**_TIMES, **_IDS, "category": "Kind", "name": "Operation"})
_KINDS: Final = {
    "kernel": _KERNELS,
    "memory_copy": _COPIES,
    "marker_api": _Kind("marker", _API),
    "memory_allocation": _MEMORY,
    "scratch_memory": _MEMORY,
    "counter_collection": _Kind("other", {**_TIMES, **_IDS, "name": "Kernel_Name", "category": "Counter_Name"}),
}
_NUMBERS: Final = frozenset(
    {*_TIMES, "correlation_id", "queue", "stream", "kernel_id"}
    | {f"{what}_{axis}" for what in ("block", "items") for axis in "xyz"}
)
_LISTS: Final = {"kernel": "kernel_dispatch"}
"""What the same records are called in rocprofv3's JSON, where that is something else."""


def _kind(name: str) -> _Kind | None:
    return _KINDS.get(name) or (_Kind("api", _API) if name.endswith("_api") else None)


def _parts(path: Path) -> tuple[str, str] | None:
    """Return (process, kind) by a file's name: ('908', 'hip_api') of 908_hip_api_trace.csv."""
    for kind in (*_KINDS, _AGENTS):
        for ending in _ENDINGS:
            process = process_of_file(path, (f"_{kind}_trace.csv{ending}", f"_{kind}.csv{ending}"))
            if process is not None:
                return process, kind
    match = _API_FILE.fullmatch(path.name)
    return (match.group(1), match.group(2)) if match else None


class _CsvReading:
    """The CSV files of one process as one trace; see `base.TraceReading`."""

    def __init__(self, files: list[Path], how: HowToRead, opened: Callable[[Path], ByteSource]) -> None:
        self._how = how
        self._opened = opened
        self._files = files
        self._recording = Recording(Process(pid=_pid(files[0]), agents=_agents(files)))
        self.facts = self._recording.facts
        self.facts.profiler = "rocprofv3 CSV"
        self._rejects: list[Reject] = []

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows file by file.

        Raises InputError for a file without the columns it must have, NothingToAnalyse when none has rows.
        """
        recording = self._recording
        for file in self._files:
            _, name = _parts(file) or ("", "")
            if kind := _kind(name):
                list_name = _LISTS.get(name, name)
                for rows, count in in_order(self._how, self._tasks(file, kind, list_name)):
                    rejects = [replace(r, event_id=count + n) for n, r in enumerate(self._rejects)]
                    self._rejects = []
                    yield from recording.batches(rows, count + len(rejects), list_name, rejects)
        recording.finish()
        if recording.devices and not any(agent.kind == GPU for agent in recording.process.agents):
            self.facts.warnings.append(
                "no agent_info.csv beside the traces: GPUs are numbered among all agents, not from 0"
            )

    def _tasks(self, file: Path, kind: _Kind, list_name: str) -> Iterator[Callable[[], tuple[Rows, int]]]:
        """Yield a task per batch of a file's rows: to convert it."""
        source = self._opened(file)
        for batch in batches_of(file, source, self._how.block_size, self._note_reject):
            if missing := kind.required - set(batch.schema.names):
                raise InputError(f"{file.name}: no column {', '.join(sorted(missing))}")
            yield partial(self._convert, batch, kind, list_name)
        if self._rejects:  # behind the last row
            yield lambda: (Rows(), 0)
        if source.damage:
            self.facts.complete = False
            self.facts.warnings.append(f"{file.name}: {source.damage}")

    def _note_reject(self, reject: Reject, file: Path, is_cut: bool) -> None:
        self._rejects.append(reject)
        if is_cut:
            self.facts.complete = False
            self.facts.warnings.append(f"{file.name} ends early, inside of a row")

    def _convert(self, batch: pa.RecordBatch, kind: _Kind, list_name: str) -> tuple[Rows, int]:
        """Return the rows of a batch; what has no column of its own goes into args under its name in the file."""
        import pyarrow as pa

        names = batch.schema.names
        place = {column: f"c{number}" for number, column in reversed(list(enumerate(names)))}
        known = {name: place[column] for name, column in kind.columns.items() if column in place}
        rest = [(name, f"c{number}") for number, name in enumerate(names) if f"c{number}" not in known.values()]
        chosen = [_selected(name, column) for name, column in known.items()]
        pairs = ", ".join(f"{literal(name)}, {column}" for name, column in rest)
        chosen.append(f"json_object({pairs})::VARCHAR AS args")
        batch = batch.rename_columns([f"c{number}" for number in range(len(names))])
        connection = parser_of_thread().connection
        connection.register("batch", pa.Table.from_batches([batch]))
        try:
            found: pa.Table = connection.execute(f"SELECT {', '.join(chosen)} FROM batch").to_arrow_table()
        finally:
            connection.unregister("batch")
        columns: Columns = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns["event_id"] = pa.arange(0, batch.num_rows)
        for name in ("correlation_id", "kernel_id", "stream", "queue"):
            columns.setdefault(name, pa.nulls(batch.num_rows, pa.int64()))
        self._complete(kind.family, columns)
        return rows_of(kind.family, columns, self._recording.process.pid, list_name), batch.num_rows

    def _complete(self, family: str, columns: Columns) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        devices = self._recording.process.device_of()
        if family == "dispatch":
            columns["device"] = _device(columns["agent"], devices)
            columns["stream"] = pc.coalesce(columns["stream"], columns["queue"])
            columns["name"] = _kernel_names(columns["name"])
            columns["kernel_id"] = pc.coalesce(columns["kernel_id"], pa.scalar(0, pa.int64()))
        elif family == "copy":
            none = pa.nulls(len(columns["event_id"]), pa.string())
            target, source = (_device(columns.get(end, none), devices) for end in ("target", "source"))
            columns["device"] = pc.coalesce(target, source)
            columns["between_gpus"] = pc.fill_null(pc.not_equal(target, source), False)
        for name in ("api", "category"):
            if name in columns and family != "other":
                columns[name] = pc.utf8_lower(columns[name])


def _selected(name: str, column: str) -> str:
    return f"TRY_CAST({column} AS BIGINT) AS {name}" if name in _NUMBERS else f"{column} AS {name}"


def _kernel_names(names: pa.Array) -> pa.Array:
    """Return kernel names without their suffixes; there are few different ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(names)
    plain = [kernel_name({"formatted_kernel_name": name}) for name in found.dictionary.to_pylist()]
    return pc.take(pa.array(plain, pa.string()), found.indices)


def _device(agents: pa.Array, devices: dict[int, int]) -> pa.Array:
    """Return GPU ordinals for agents as the files name them: 'Agent 4', or 4 before 1.0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.dictionary_encode(agents)
    numbers = [integer(str(text).removeprefix("Agent ")) for text in found.dictionary.to_pylist()]
    ordinals = [devices.get(n) if devices and n is not None else n for n in numbers]
    return pc.take(pa.array(ordinals, pa.int64()), found.indices)


def _agents(files: list[Path]) -> list[Agent]:
    """Return the agents that the agent_info.csv among the files lists, by node id."""
    for file in files:
        parts = _parts(file)
        if parts and parts[1] == _AGENTS:
            with ByteSource(file) as source:
                text = source.read(1 << 20).decode("utf-8", "replace")
            return list(_listed(csv_module.DictReader(text.splitlines())))
    return []


def _listed(rows: Iterable[dict[str, Any]]) -> Iterator[Agent]:
    counts: Counter[str] = Counter()
    for row in rows:
        node, kind = integer(row.get("Node_Id")), str(row.get("Agent_Type") or "").upper()
        if node is None:
            continue
        ordinal = integer(row.get("Logical_Node_Type_Id"), 0, 2**31)
        ordinal = counts[kind] if ordinal is None else ordinal
        counts[kind] += 1
        keys = ("Name", "Gfx_Target_Version", "Location_Id", "Domain", "Gpu_Id", "Hive_Id", "Uuid")
        facts = {
            key.lower(): integer(row[key]) if str(row[key]).isdigit() else row[key] for key in keys if row.get(key)
        }
        yield Agent(node, kind, ordinal, row.get("Product_Name") or None, {**facts, "node_id": node})


def _pid(file: Path) -> int | None:
    """Return the process id that the file's name begins with; before 1.0 and after, that is the usual name."""
    parts = _parts(file)
    return integer(parts[0]) if parts and parts[0].isdigit() else None


def _is_sound(file: Path, name: str) -> bool:
    """Say whether a file beside another can be read with it: it has the columns that its name promises."""
    kind = _kind(name)
    try:
        return kind is None or kind.required <= set(header_of(file))
    except InputError:
        return False


class _CsvFile:
    """The CSV files of one process as a `base.TraceFile`."""

    def __init__(self, files: list[Path], how: HowToRead) -> None:
        self._files = files
        self._how = how
        self._done = 0
        self._current: ByteSource | None = None

    @property
    def position(self) -> int:
        return self._done + (self._current.raw_position if self._current else 0)

    @property
    def digest(self) -> str:
        return content_hash(self._files, self._how.watch)

    def traces(self) -> Iterator[TraceReading]:
        yield _CsvReading(self._files, self._how, self._open)

    def _open(self, file: Path) -> ByteSource:
        if self._current:
            self._done += self._current.path.stat().st_size
            self._current.close()
        self._current = ByteSource(file, self._how.watch)
        return self._current

    def __enter__(self) -> _CsvFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._current:
            self._current.close()


class Rocprofv3CsvReader:
    """rocprofv3's CSV: <host>/<pid>_kernel_trace.csv and its neighbours."""

    collector = COLLECTOR
    form = Form.CSV

    def recognise(self, path: Path) -> Recognised | None:
        """Claim a file with the name of one of rocprofv3's CSV files and the columns that it must have."""
        parts = _parts(path)
        if not parts:
            return None
        process, name = parts
        kind = _kind(name)
        header = set(header_of(path))
        if kind is None or not header & set(kind.columns.values()):
            return None
        if missing := sorted(kind.required - header):
            problem = InputError(f"{path}: rocprofv3 CSV without the column {', '.join(missing)}")
            return Recognised("rocprofv3 CSV", problem=problem)
        files = self.files(path)
        facts = Facts()
        fill_facts(facts, Process(pid=_pid(path), agents=_agents(files)))
        return Recognised(f"rocprofv3 CSV ({len(files)} files)", self, facts, process=process, richness=RICHNESS)

    def files(self, path: Path) -> list[Path]:
        """Return the files of the same process beside `path`, kernels first."""
        parts = _parts(path)
        assert parts is not None
        order = [*_KINDS, _AGENTS]
        found: dict[str, Path] = {}
        for file in sorted(path.parent.iterdir()):
            other = _parts(file)
            if other and other[0] == parts[0] and file.is_file() and _is_sound(file, other[1]):
                found.setdefault(other[1], file)
        found[parts[1]] = path
        return [found[kind] for kind in sorted(found, key=lambda k: (order.index(k) if k in order else 2, k))]

    def open(self, path: Path, how: HowToRead) -> _CsvFile:
        return _CsvFile(self.files(path), how)
