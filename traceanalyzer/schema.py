"""The tables of a stored trace: what readers hand over and the store writes.

`VERSION` goes into every store; it is raised whenever a column here is renamed, removed or changes its meaning.
What the columns mean is written beside the public views in `sql/views`; this module only fixes names and types.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1

IDENTITY: Final[dict[str, str]] = {
    "run": "VARCHAR",
    "collector": "VARCHAR",
    "rank": "INTEGER",
    "part": "INTEGER",
    "trace_id": "VARCHAR",
}
"""Columns that say which trace a row comes from; constant in a file, added by the store's writer."""

# As the file has them: integers nearly everywhere, but also "Spans" or "stream 7". The views make integers of them.
_TRACK = {"pid": "VARCHAR", "tid": "VARCHAR"}
_SPAN = {"start_ns": "BIGINT", "dur_ns": "BIGINT"}

TABLES: Final[dict[str, dict[str, str]]] = {
    "gpu_events": {
        "event_id": "BIGINT",
        "kind": "VARCHAR",
        "name": "VARCHAR",
        "device": "BIGINT",
        "stream": "BIGINT",
        **_SPAN,
        "correlation_id": "BIGINT",
        "external_id": "BIGINT",
        **{f"grid_{axis}": "BIGINT" for axis in "xyz"},
        **{f"block_{axis}": "BIGINT" for axis in "xyz"},
        "bytes": "BIGINT",
        "defect": "VARCHAR",
        **_TRACK,
        "args": "VARCHAR",
    },
    "cpu_ops": {
        "event_id": "BIGINT",
        "name": "VARCHAR",
        **_TRACK,
        **_SPAN,
        "external_id": "BIGINT",
        "sequence_number": "BIGINT",
        "forward_tid": "BIGINT",
        "input_dims": "VARCHAR",
        "input_types": "VARCHAR",
        "input_strides": "VARCHAR",
        "concrete_inputs": "VARCHAR",
        "args": "VARCHAR",
    },
    "runtime_calls": {
        "event_id": "BIGINT",
        "api": "VARCHAR",
        "name": "VARCHAR",
        **_TRACK,
        **_SPAN,
        "correlation_id": "BIGINT",
        "external_id": "BIGINT",
        "args": "VARCHAR",
    },
    "annotations": {
        "event_id": "BIGINT",
        "name": "VARCHAR",
        "side": "VARCHAR",
        **_TRACK,
        **_SPAN,
        "external_id": "BIGINT",
        "args": "VARCHAR",
    },
    "python_calls": {
        "event_id": "BIGINT",
        "name": "VARCHAR",
        **_TRACK,
        **_SPAN,
        "args": "VARCHAR",
    },
    "instants": {
        "event_id": "BIGINT",
        "category": "VARCHAR",
        "name": "VARCHAR",
        "scope": "VARCHAR",
        **_TRACK,
        "start_ns": "BIGINT",
        "args": "VARCHAR",
    },
    "counters": {
        "event_id": "BIGINT",
        "category": "VARCHAR",
        "name": "VARCHAR",
        **_TRACK,
        "start_ns": "BIGINT",
        "args": "VARCHAR",
    },
    "flows": {
        "event_id": "BIGINT",
        "category": "VARCHAR",
        "name": "VARCHAR",
        "phase": "VARCHAR",
        "id": "VARCHAR",
        "binding": "VARCHAR",
        **_TRACK,
        "start_ns": "BIGINT",
        "args": "VARCHAR",
    },
    "threads": {
        "event_id": "BIGINT",
        "name": "VARCHAR",
        "value": "VARCHAR",
        **_TRACK,
        "start_ns": "BIGINT",
        "args": "VARCHAR",
    },
    "other_events": {
        "event_id": "BIGINT",
        "phase": "VARCHAR",
        "category": "VARCHAR",
        "name": "VARCHAR",
        "id": "VARCHAR",
        **_TRACK,
        **_SPAN,
        "args": "VARCHAR",
    },
}
"""Event tables: table -> column -> SQL type, in order. Every event of a trace is in exactly one of them."""

REJECTS: Final[dict[str, str]] = {
    "event_id": "BIGINT",
    "byte_offset": "BIGINT",
    "reason": "VARCHAR",
    "sample": "VARCHAR",
}
"""Columns of `rejects`, the events of a trace that could not be stored."""

TRACE_COLUMNS: Final[dict[str, str]] = {
    "world_size": "INTEGER",
    "rank_source": "VARCHAR",
    "path": "VARCHAR",
    "bytes": "BIGINT",
    "host": "VARCHAR",
    "pid": "BIGINT",
    "device_name": "VARCHAR",
    "profiler": "VARCHAR",
    "clock_base_ns": "BIGINT",
    "clock_domain": "VARCHAR",
    "complete": "BOOLEAN",
    "events_read": "BIGINT",
    "events_stored": "BIGINT",
    "events_rejected": "BIGINT",
    "events_left_out": "BIGINT",
    "repairs": "BIGINT",
    "warnings": "VARCHAR[]",
}
"""Columns of `traces`, one row per trace, after the identity columns."""

STORED: Final = (*TABLES, "rejects", "traces")
"""Every trace has a file of each."""
