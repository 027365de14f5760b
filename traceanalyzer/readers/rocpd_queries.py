"""The queries over the tables of a rocpd database: one for each kind of record.

A query names the columns as `rocprofv3_rows` does; a column that the database does not have is NULL, unless it must be
there. Numbers are taken only where they are numbers, so that a column has one type throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceanalyzer.errors import InputError
from traceanalyzer.readers.sqlite_file import integers, literal, quoted

if TYPE_CHECKING:
    from traceanalyzer.readers.rocpd_process import Tables

_EVENT: Final = {"stack_id": "correlation_id", "correlation_id": "external_id"}
_TIMES: Final = {"start": "start_ns", "end": "end_ns"}


@dataclass(frozen=True)
class Source:
    """A table of records and what is taken from it."""

    table: str
    family: str
    list_name: str
    """What the same records are called in rocprofv3's JSON."""
    required: dict[str, str]
    """Columns that must be there -> the names they get."""
    optional: dict[str, str]
    texts: tuple[str, ...] = ()
    """Columns that hold text."""
    event: dict[str, str] | None = None
    """Columns of the row's rocpd_event -> the names they get."""
    args: tuple[str, ...] = ()
    """Names of what is kept in args."""


_AXES: Final = ("x", "y", "z")
_PLACE: Final = {"tid": "tid", "queue_id": "queue", "stream_id": "stream"}

SOURCES: Final = (
    Source(
        "rocpd_kernel_dispatch",
        "dispatch",
        "kernel_dispatch",
        {**_TIMES, "agent_id": "agent", "kernel_id": "kernel_id", "event_id": "event_key"},
        {
            **_PLACE,
            "dispatch_id": "dispatch_id",
            "private_segment_size": "private_segment_size",
            "group_segment_size": "group_segment_size",
            **{f"workgroup_size_{axis}": f"block_{axis}" for axis in _AXES},
            **{f"grid_size_{axis}": f"items_{axis}" for axis in _AXES},
            "graph_exec_id": "graph_exec_id",
            "graph_node_id": "graph_node_id",
        },
        event=_EVENT,
        args=(
            *("dispatch_id", "kernel_id", "agent", "queue", "private_segment_size", "group_segment_size"),
            *("items_x", "items_y", "items_z", "graph_exec_id", "graph_node_id"),
        ),
    ),
    Source(
        "rocpd_memory_copy",
        "copy",
        "memory_copy",
        {**_TIMES, "name_id": "name_id", "event_id": "event_key"},
        {
            **_PLACE,
            "size": "bytes",
            "dst_agent_id": "target",
            "src_agent_id": "source",
            "dst_address": "dst_address",
            "src_address": "src_address",
        },
        event=_EVENT,
        args=("target", "source", "dst_address", "src_address", "queue"),
    ),
    Source(
        "rocpd_region",
        "call",
        "region",
        {**_TIMES, "name_id": "name_id", "event_id": "event_key"},
        {"tid": "tid"},
        event={
            **_EVENT,
            "parent_stack_id": "parent_stack_id",
            "category_id": "category_id",
            "extdata": "extdata",
            "call_stack": "call_stack",
            "line_info": "line_info",
        },
        texts=("extdata", "call_stack", "line_info"),
        args=("parent_stack_id", "call_stack", "line_info"),
    ),
    Source(
        "rocpd_sample",
        "call",
        "sample",
        {"timestamp": "start_ns", "event_id": "event_key"},
        {"track_id": "track"},
        event={**_EVENT, "category_id": "category_id", "extdata": "extdata"},
        texts=("extdata",),
        args=("track",),
    ),
    Source(
        "rocpd_memory_allocate",
        "memory",
        "memory_allocation",
        {**_TIMES, "event_id": "event_key"},
        {**_PLACE, "type": "name", "level": "level", "size": "bytes", "address": "address", "agent_id": "agent"},
        event=_EVENT,
        texts=("name", "level"),
        args=("bytes", "address", "agent", "end_ns", "level"),
    ),
    Source(
        "rocpd_pmc_event",
        "other",
        "counter_collection",
        {"event_id": "event_key"},
        {"pmc_id": "pmc_id", "value": "value"},
        event={"stack_id": "correlation_id"},
        texts=("value",),
        args=("pmc_id", "value"),
    ),
)


def query_of(source: Source, tables: Tables, process: object, rowids: tuple[int, int] | None, checked: bool) -> str:
    """Return the query over a source for one process.

    `checked`: values that are no integers are NULL where one should be. `rowids`: only rows of this range.

    Raises InputError, naming the column, when one that must be there is missing.
    """
    name, events = tables.name(source.table) or source.table, tables.name("rocpd_event")
    there = set(tables.columns(source.table))
    if missing := [column for column in source.required if column not in there]:
        raise InputError(f"{tables.database.path}: column {name}.{missing[0]} is missing")
    columns = [("r", column, named, there) for column, named in {**source.required, **source.optional}.items()]
    if source.event:
        known = set(tables.columns("rocpd_event"))
        columns += [("e", column, named, known) for column, named in source.event.items()]
    chosen = [
        _selected(f"{of}.{quoted(column)}", named, source, checked)
        if column in has
        else f"{_nothing(named, source)} AS {named}"
        for of, column, named, has in columns
    ]
    if "end_ns" not in {*source.required.values(), *source.optional.values()}:
        chosen.append("NULL AS end_ns" if "start_ns" not in source.required.values() else "r.timestamp AS end_ns")
    if "start_ns" not in source.required.values():
        chosen.append("NULL AS start_ns")
    if "tid" not in {*source.required.values(), *source.optional.values()}:
        chosen.append("NULL AS tid")
    joined = ""
    if events:
        joined = f"LEFT JOIN {quoted(events)} AS e ON e.id = r.event_id"
        joined += " AND e.guid = r.guid" if events == "rocpd_event" and {"guid"} <= there else ""
    conditions = []
    if name == source.table and tables.guid is not None and "guid" in there:
        conditions.append(f"r.guid = {literal(tables.guid)}")
    if tables.is_shared and "pid" in there and isinstance(process, int):
        conditions.append(f"r.pid = {process}")
    if rowids:
        conditions.append(f"r.rowid >= {rowids[0]} AND r.rowid < {rowids[1]}")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(chosen)} FROM {quoted(name)} AS r {joined} {where}"


def _selected(value: str, named: str, source: Source, checked: bool) -> str:
    if named in source.texts:
        return f"coalesce(CAST({value} AS TEXT), '') AS {named}"
    return integers({named: value}, checked)


def _nothing(named: str, source: Source) -> str:
    return "''" if named in source.texts else "NULL"
