"""Reader for rocm_trace_lite's Chrome JSON export: the same events as PyTorch's JSON has, of other categories.

The export moves markers onto GPU 0, leaves out operations without length, and counts time from the first operation, so
the database says more; it is read where there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer import schema
from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Batch, Facts, Form, HowToRead, Recognised
from traceanalyzer.readers.document import Document
from traceanalyzer.readers.kineto import KinetoReading
from traceanalyzer.readers.kineto_facts import KEPT_KEYS
from traceanalyzer.readers.kineto_parser import parser_of_thread
from traceanalyzer.readers.rocprofv3 import process_of_file
from traceanalyzer.readers.rtl import COLLECTOR
from traceanalyzer.readers.source import ByteSource, JsonFile

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD: Final = 64 << 10
CATEGORIES: Final = frozenset({"KernelExecution", "UserMarker"})
_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")

_AXES: Final = tuple(enumerate("xyz", 1))


def _size(key: str, axis: int) -> str:
    return f"TRY_CAST(split_part(args ->> '{key}', ',', {axis}) AS BIGINT)"


_QUERIES: Final = {
    "gpu_events": (
        "category = 'KernelExecution'",
        {
            "kind": "'kernel'",
            "name": r"regexp_replace(coalesce(args ->> 'full_name', name), '\.kd$', '')",
            "device": "coalesce(TRY_CAST(args ->> 'gpu' AS BIGINT), TRY_CAST(pid AS BIGINT))",
            "stream": "TRY_CAST(tid AS BIGINT)",
            **{f"block_{a}": _size("workgroup", n) for n, a in _AXES},
            # a block can be larger than the rest of the grid, which is in work-items: divide up
            **{
                f"grid_{a}": f"({_size('grid', n)} + {_size('workgroup', n)} - 1) // nullif({_size('workgroup', n)}, 0)"
                for n, a in _AXES
            },
            "defect": "CASE WHEN start_ns IS NULL OR dur_ns IS NULL THEN 'incomplete'"
            " WHEN dur_ns < 0 THEN 'negative_duration' END",
            "pid": "NULL",
            "tid": "NULL",
        },
    ),
    "annotations": ("category = 'UserMarker'", {"name": "coalesce(args ->> 'full_name', name)", "side": "'cpu'"}),
    "runtime_calls": ("category = 'hip_api'", {"api": "category"}),
}
"""Table -> which of the events that PyTorch's reader does not know belong to it, and how its columns are got."""


class _RtlJsonReading:
    """An export being read; see `base.TraceReading`."""

    def __init__(self, source: ByteSource, how: HowToRead) -> None:
        self._reading = KinetoReading(source, how)
        self.facts = self._reading.facts
        self._counts: Counter[str] = Counter()
        self._devices: set[int] = set()

    def __iter__(self) -> Iterator[Batch]:
        """Yield the events in file order. Raises as `KinetoReading` does."""
        for batch in self._reading:
            others = batch.tables.pop("other_events", None)
            if others is not None:
                batch.tables.update(_sorted_out(others))
            for name, rows in batch.tables.items():
                self._counts[name] += rows.num_rows
            if "gpu_events" in batch.tables:
                self._devices |= set(batch.tables["gpu_events"].column("device").unique().drop_null().to_pylist())
            if len(self._devices) == 1:
                self.facts.guessed_rank = next(iter(self._devices))
                self.facts.guess_source = "guess: index of the only GPU it used"
            else:
                self.facts.guessed_rank = self.facts.guess_source = None
            yield batch
        self.facts.profiler = "rocm_trace_lite, JSON export"
        self.facts.clock_domain = "relative"
        self.facts.warnings.append(
            "an export counts time from its first operation and leaves out operations without length; the database"
            " it was made from says more"
        )


def _sorted_out(events: pa.Table) -> dict[str, pa.Table]:
    """Return the rows by the table that they belong to."""
    connection = parser_of_thread().connection
    connection.register("events", events)
    made: dict[str, pa.Table] = {}
    try:
        for name, (condition, columns) in _QUERIES.items():
            chosen = ", ".join(
                f"({columns.get(column, column if column in events.column_names else 'NULL')})::{sql_type} AS {column}"
                for column, sql_type in schema.TABLES[name].items()
            )
            found: pa.Table = connection.execute(f"SELECT {chosen} FROM events WHERE {condition}").to_arrow_table()
            if found.num_rows:
                made[name] = found
        known = " OR ".join(f"coalesce({condition}, false)" for condition, _ in _QUERIES.values())
        rest: pa.Table = connection.execute(f"SELECT * FROM events WHERE NOT ({known})").to_arrow_table()
        if rest.num_rows:
            made["other_events"] = rest
    finally:
        connection.unregister("events")
    return made


class RtlJsonReader:
    """rocm_trace_lite's trace.json.gz."""

    collector = COLLECTOR
    form = Form.JSON

    def recognise(self, path: Path) -> Recognised | None:
        """Claim a JSON document whose events are of rocm_trace_lite's categories."""
        with ByteSource(path) as source:
            document = Document(source, _HEAD, KEPT_KEYS)
            try:
                block = document.next_block()
            except InputError:
                return None
        if not block or not any(f'"{category}"'.encode() in block.array for category in CATEGORIES):
            return None
        process = process_of_file(path, _SUFFIXES)
        facts = Facts(clock_domain="relative")
        return Recognised("rocm_trace_lite JSON", self, facts, process=process, richness=1, is_export=True)

    def files(self, path: Path) -> list[Path]:
        return [path]

    def open(self, path: Path, how: HowToRead) -> JsonFile:
        return JsonFile(path, how, lambda source: iter([_RtlJsonReading(source, how)]))
