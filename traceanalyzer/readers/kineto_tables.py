"""How a Kineto event becomes a row: which table it belongs to, and how that table's columns are got.

Two queries do it. `read_query` turns blocks of JSON into rows with the fields every event has, typed, and the number
of the table each row belongs to. `typed_query` then takes out of `args` what one table needs; the rows of the tables
that need nothing from `args` are done after the first. Spellings from torch 1.8 to today's are accepted.
"""

from __future__ import annotations

import json
from typing import Final

from traceanalyzer import schema

BLOCK_COLUMNS: Final = {
    "ph": "VARCHAR",
    "cat": "VARCHAR",
    "name": "VARCHAR",
    "pid": "VARCHAR",
    "tid": "VARCHAR",
    "ts": "DOUBLE",
    "dur": "DOUBLE",
    "id": "VARCHAR",
    "args": "JSON",
    "bp": "VARCHAR",
    "s": "VARCHAR",
}

EXACT_DOUBLE_US: Final = float(2**43)
"""Up to here a double holds a microsecond value with three decimals so closely (error below half a nanosecond) that
rounding `ts * 1000` gives the nanosecond exactly; Unix epoch microseconds are beyond it and are read as decimals."""

LATEST_US: Final = 4.6e15
"""Times and durations from here on (the year 2115) are taken for garbage: start + duration must fit 63 bits of ns."""

_GPU_KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
_COMPLETE_EVENTS: Final = {
    **dict.fromkeys(_GPU_KINDS, "gpu_events"),
    "cpu_op": "cpu_ops",
    "operator": "cpu_ops",
    "user_annotation": "annotations",
    "gpu_user_annotation": "annotations",
    "python_function": "python_calls",
    "cuda_runtime": "runtime_calls",
    "cuda_driver": "runtime_calls",
    "runtime": "runtime_calls",
    "hip_runtime": "runtime_calls",
    "hip_driver": "runtime_calls",
    "xpu_runtime": "runtime_calls",
    "xpu_driver": "runtime_calls",
    "mtia_runtime": "runtime_calls",
    "glow_runtime": "runtime_calls",
    "privateuse1_runtime": "runtime_calls",
    "privateuse1_driver": "runtime_calls",
}
_FREQUENT: Final = ("python_function", "cuda_runtime", "cpu_op", "kernel")
_PHASES: Final = {
    "i": "instants",
    "I": "instants",
    "C": "counters",
    "s": "flows",
    "t": "flows",
    "f": "flows",
    "M": "threads",
}


_TABLE_NUMBERS: Final = {table: number for number, table in enumerate(schema.TABLES)}

_EXTERNAL_ID = """COALESCE(a."External id", TRY_CAST(args ->> 'external id' AS BIGINT)) AS external_id"""
_KIND = "CASE lower(cat) " + " ".join(f"WHEN '{cat}' THEN '{kind}'" for cat, kind in _GPU_KINDS.items()) + " END"

# What from_json takes out of args (one call is much cheaper than one extraction per key), and the columns made of it.
_ARGS: Final[dict[str, dict[str, str | list[str]]]] = {
    "gpu_events": {
        "device": "BIGINT",
        "stream": "VARCHAR",
        "correlation": "BIGINT",
        "External id": "BIGINT",
        "bytes": "BIGINT",
        "grid": ["BIGINT"],
        "block": ["BIGINT"],
    },
    "runtime_calls": {"correlation": "BIGINT", "External id": "BIGINT"},
    "annotations": {"External id": "BIGINT"},
    "cpu_ops": {
        "External id": "BIGINT",
        "Sequence number": "BIGINT",
        "Fwd thread id": "BIGINT",
        "Input Dims": "VARCHAR",
        "Input type": "VARCHAR",
        "Input Strides": "VARCHAR",
        "Concrete Inputs": "VARCHAR",
    },
    "threads": {"name": "VARCHAR", "labels": "VARCHAR", "sort_index": "VARCHAR"},
}
_TYPED: Final[dict[str, str]] = {
    # The stream is the track where args do not say it; torch 1.8 calls the track "stream 7". Some tools write the
    # grid as the text '[128, 1, 1]'.
    "gpu_events": f"""
        {_KIND} AS kind,
        COALESCE(a.device, TRY_CAST(pid AS BIGINT)) AS device,
        TRY_CAST(COALESCE(a.stream, replace(tid, 'stream ', '')) AS BIGINT) AS stream,
        a.correlation AS correlation_id, {_EXTERNAL_ID},
        COALESCE(a.grid, TRY_CAST(args ->> 'grid' AS BIGINT[])) AS grid,
        COALESCE(a.block, TRY_CAST(args ->> 'block' AS BIGINT[])) AS block,
        grid[1] AS grid_x, grid[2] AS grid_y, grid[3] AS grid_z,
        block[1] AS block_x, block[2] AS block_y, block[3] AS block_z,
        a.bytes AS bytes,
        COALESCE(len(json_keys(args)) > len(list_distinct(json_keys(args))), false) AS has_key_twice,
        CASE WHEN is_impossible THEN 'impossible_timestamp'
             WHEN start_ns IS NULL OR dur_ns IS NULL THEN 'incomplete'
             WHEN dur_ns < 0 THEN 'negative_duration'
        END AS defect""",
    "cpu_ops": f"""
        {_EXTERNAL_ID}, a."Sequence number" AS sequence_number, a."Fwd thread id" AS forward_tid,
        a."Input Dims" AS input_dims, a."Input type" AS input_types, a."Input Strides" AS input_strides,
        a."Concrete Inputs" AS concrete_inputs""",
    "runtime_calls": f"lower(cat) AS api, a.correlation AS correlation_id, {_EXTERNAL_ID}",
    "annotations": f"CASE lower(cat) WHEN 'gpu_user_annotation' THEN 'gpu' ELSE 'cpu' END AS side, {_EXTERNAL_ID}",
    "threads": "COALESCE(a.name, a.labels, a.sort_index) AS value",
}

_EVENT_FIELDS: Final = ("ph", "cat", "name", "pid", "tid", "id", "bp", "s", "args")
RECORDED_AS: Final = {"phase": "ph", "category": "cat", "scope": "s", "binding": "bp"}
"""Columns that hold a field of the event under a better name."""


# DuckDB takes NaN and Infinity, in any mixture of cases, for numbers and keeps them as they are, which is no JSON. The
# searches are cheap enough for every row and find every candidate; the pattern, tried on the candidates alone, decides.
_PARTS_OF_NOT_FINITE: Final = ("nf", "NF", "aN", "nan", "AN", "Nan", "Nf", "nF", "An")
NOT_FINITE: Final = r"[:,\[]\s*-?(?i:nan|inf)"

LARGEST_READABLE: Final = 1e17
"""Microseconds that DECIMAL(20,3) can hold."""


def _may_be_not_finite(text: str) -> str:
    return "(" + " OR ".join(f"contains({text}, '{part}')" for part in _PARTS_OF_NOT_FINITE) + ")"


def _route() -> str:
    """Return the SQL that gives the number of the table an event belongs to.

    A CASE tries its branches in turn on the rows that are left, so today's most frequent spellings come first and
    `lower` only meets what is none of them.
    """
    other = _TABLE_NUMBERS["other_events"]
    frequent = " ".join(f"WHEN '{cat}' THEN {_TABLE_NUMBERS[_COMPLETE_EVENTS[cat]]}" for cat in _FREQUENT)
    complete = " ".join(f"WHEN '{cat}' THEN {_TABLE_NUMBERS[table]}" for cat, table in _COMPLETE_EVENTS.items())
    phases = " ".join(f"WHEN '{ph}' THEN {_TABLE_NUMBERS[table]}" for ph, table in _PHASES.items())
    return f"""CASE WHEN ph = 'X' THEN CASE cat {frequent} ELSE CASE lower(cat) {complete} ELSE {other} END END
               ELSE CASE ph {phases} ELSE {other} END END"""


def read_query(urls: list[str], largest: int, *, exact: bool) -> str:
    """Return the query that reads blocks of events: one row per event, in order.

    `largest` is the size in bytes of the largest block. `exact` reads times as decimals, which is slower and holds any.

    Columns: table_number, ph, cat, name, pid, tid, id, bp, s, args (text); may_be_not_finite (args may hold NaN or an
    infinity); and if `exact` start_ns, dur_ns, is_impossible (a time is beyond `LATEST_US`), else the doubles ts and
    dur in microseconds, out of which Arrow makes the same in a tenth of the time.
    """
    time_type = "DECIMAL(20,3)" if exact else "DOUBLE"
    columns = {**BLOCK_COLUMNS, "ts": time_type, "dur": time_type}
    spec = "{" + ", ".join(f"{name}: '{sql_type}'" for name, sql_type in columns.items()) + "}"
    times = "ts, dur"
    if exact:
        times = f"""
               CASE WHEN abs(ts) < {LATEST_US} THEN TRY_CAST(ts * 1000 AS BIGINT) END AS start_ns,
               CASE WHEN abs(dur) < {LATEST_US} THEN TRY_CAST(dur * 1000 AS BIGINT) END AS dur_ns,
               COALESCE(abs(ts) >= {LATEST_US}, false) OR COALESCE(abs(dur) >= {LATEST_US}, false) AS is_impossible"""
    return f"""
        SELECT ({_route()})::TINYINT AS table_number,
               ph, cat, name, pid, tid, id, bp, s, args::VARCHAR AS args, {times},
               COALESCE({_may_be_not_finite("args")}, false) AS may_be_not_finite
        FROM read_json({urls}, format = 'array', columns = {spec}, maximum_object_size = {largest})"""


def suspects_query(*, keys_once: bool) -> str:
    """Return the query over `pieces` (text, number) for the numbers of those that are not one sound event each.

    Sound is a JSON object without numbers that are not finite whose times are numbers or texts of numbers, and, if
    `keys_once`, without a key that it or its args hold twice.
    """
    times = " AND ".join(
        f"(times[{n}] IS NULL OR COALESCE(abs(TRY_CAST(times[{n}] AS DOUBLE)) < {LARGEST_READABLE}, false))"
        for n in (1, 2)
    )
    once = " AND ".join(
        f"COALESCE(len(json_keys(event, '{path}')) = len(list_distinct(json_keys(event, '{path}'))), true)"
        for path in ("$", "$.args")
    )
    return f"""
        WITH valid AS (
            SELECT number, CASE WHEN starts_with(text, '{{') AND json_valid(text) THEN text END AS event FROM pieces),
        looked_at AS (
            SELECT number, event, json_extract_string(event, ['$.ts', '$.dur']) AS times,
                   CASE WHEN {_may_be_not_finite("event")} THEN regexp_matches(event, '{NOT_FINITE}')
                   END AS is_not_finite
            FROM valid)
        SELECT number FROM looked_at
        WHERE event IS NULL OR is_not_finite OR NOT ({times}) {f"OR NOT ({once})" if keys_once else ""}
        ORDER BY number"""


def fields_of(table: str) -> list[str]:
    """Return the columns of `read_query`, and event_id, that the rows of `table` are made of."""
    needed = {RECORDED_AS.get(column, column) for column in schema.TABLES[table]}
    if table in _TYPED:
        needed |= {"cat", "pid", "tid", "args", "start_ns", "dur_ns", "is_impossible"}
    return [name for name in (*_EVENT_FIELDS, "start_ns", "dur_ns", "is_impossible", "event_id") if name in needed]


def typed_query(table: str) -> str | None:
    """Return the query over `rows` (rows of `read_query`) for the columns of `table` that come out of args.

    None when the table has none. The order of the rows is kept.
    """
    if table not in _TYPED:
        return None
    return f"SELECT {_TYPED[table]} FROM (SELECT *, from_json(args, '{json.dumps(_ARGS[table])}') AS a FROM rows)"
