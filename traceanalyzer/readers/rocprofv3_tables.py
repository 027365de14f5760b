"""How a record of rocprofv3's JSON becomes a row: which table its list belongs to, and where its columns are got.

Each family of lists has columns, each a path into the record and a type. `read_query` reads them in one go and is what
sound records need; `tolerant_query` takes any JSON object and leaves empty what does not have the type it should.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_COMMON: Final = {
    "tid": ("thread_id", "VARCHAR"),
    "correlation_id": ("correlation_id.internal", "UBIGINT"),
    "external_id": ("correlation_id.external", "UBIGINT"),
    "start_ns": ("start_timestamp", "BIGINT"),
    "end_ns": ("end_timestamp", "BIGINT"),
}
_NAMED: Final = {"kind": ("kind", "VARCHAR"), "operation": ("operation", "VARCHAR")}
_IN_DISPATCH: Final = "dispatch_data.dispatch_info"

FAMILIES: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "dispatch": {
        **_COMMON,
        "kind": ("kind", "VARCHAR"),
        "agent": ("dispatch_info.agent_id.handle", "UBIGINT"),
        "kernel_id": ("dispatch_info.kernel_id", "BIGINT"),
        **{f"block_{axis}": (f"dispatch_info.workgroup_size.{axis}", "BIGINT") for axis in "xyz"},
        **{f"items_{axis}": (f"dispatch_info.grid_size.{axis}", "BIGINT") for axis in "xyz"},
        "stream": ("stream_id.handle", "UBIGINT"),
        "queue": ("dispatch_info.queue_id.handle", "UBIGINT"),
    },
    "copy": {
        **_COMMON,
        **_NAMED,
        "target": ("dst_agent_id.handle", "UBIGINT"),
        "source": ("src_agent_id.handle", "UBIGINT"),
        "bytes": ("bytes", "BIGINT"),
        "stream": ("stream_id.handle", "UBIGINT"),
    },
    "api": {**_COMMON, **_NAMED},
    "marker": {**_COMMON, **_NAMED},
    "memory": {**_COMMON, **_NAMED},
    "other": {
        **_COMMON,
        **_NAMED,
        "kernel_id": (f"{_IN_DISPATCH}.kernel_id", "BIGINT"),
        "dispatch_start_ns": ("dispatch_data.start_timestamp", "BIGINT"),
        "dispatch_end_ns": ("dispatch_data.end_timestamp", "BIGINT"),
        "dispatch_correlation": ("dispatch_data.correlation_id.internal", "UBIGINT"),
    },
    "symbol": {
        "kernel_id": ("kernel_id", "BIGINT"),
        **{
            f"{which}kernel_name": (f"{which}kernel_name", "VARCHAR")
            for which in ("formatted_", "demangled_", "truncated_", "")
        },
    },
}
"""Family -> column -> (path into the record, type)."""

_FAMILY_OF: Final = {
    "kernel_dispatch": "dispatch",
    "memory_copy": "copy",
    "marker_api": "marker",
    "memory_allocation": "memory",
    "scratch_memory": "memory",
}


_FAMILY_OF_KIND: Final = {
    "KERNEL_DISPATCH": "dispatch",
    "MEMORY_COPY": "copy",
    "MARKER": "marker",
    "MEMORY_ALLOCATION": "memory",
    "SCRATCH_MEMORY": "memory",
}


def family_of(group: str, list_name: str) -> str:
    """Return the family of a list of records; lists that nobody foresaw are 'other'."""
    if group == "callback_records":
        return "other"
    return _FAMILY_OF.get(list_name, "api" if list_name.endswith("_api") else "other")


def family_of_kind(kind: str | None) -> str | None:
    """Return the family of records of a kind, None for a kind that may be in any list."""
    if kind is None:
        return None
    for beginning, family in _FAMILY_OF_KIND.items():
        if kind.startswith(beginning):
            return family
    return "api" if "_API" in kind else None


def read_query(url: str, family: str, largest: int) -> str:
    """Return the query that reads a JSON array of sound records as they are nested: a row per record, in order.

    `largest` is the size of the array in bytes. That it is an array of records is said, since finding out is slow.
    """
    tree: dict[str, object] = {}
    for path, sql_type in FAMILIES[family].values():
        *above, last = path.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})  # type: ignore[assignment]  # a path goes through objects only
        node[last] = sql_type
    spec = ", ".join(f"{key}: '{_sql_type(value)}'" for key, value in tree.items())
    return f"""
        SELECT *
        FROM read_json(['{url}'], format = 'array', records = true, columns = {{{spec}}},
                       maximum_object_size = {largest})"""


def flat(family: str, nested: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of a family out of what `read_query` gives; in Arrow that takes no time."""
    import pyarrow.compute as pc

    columns = {}
    for name, (path, sql_type) in FAMILIES[family].items():
        first, *rest = path.split(".")
        column = nested.column(first).combine_chunks()
        column = pc.struct_field(column, rest) if rest else column
        columns[name] = _signed(column) if sql_type == "UBIGINT" else column
    return columns


def _signed(column: pa.Array) -> pa.Array:
    """Return unsigned 64-bit handles as signed numbers; those beyond mean 'none', and are exact in args."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        none = pa.scalar(None, pa.uint64())
        return pc.if_else(pc.less(column, pa.scalar(2**63, pa.uint64())), column, none).cast(pa.int64())


def tolerant_query(family: str) -> str:
    """Return the query over `records` (text), JSON objects whatever they hold, for the columns of a family."""
    columns = FAMILIES[family]
    paths = json.dumps([f"$.{path}" for path, _ in columns.values()]).replace('"', "'")
    chosen = ", ".join(
        f"TRY_CAST(found[{n}] AS {'BIGINT' if kind == 'UBIGINT' else kind}) AS {name}"
        for n, (name, (_, kind)) in enumerate(columns.items(), 1)
    )
    return f"SELECT {chosen} FROM (SELECT json_extract_string(text, {paths}) AS found FROM records)"


def _sql_type(value: object) -> str:
    if isinstance(value, dict):
        return "STRUCT(" + ", ".join(f'"{key}" {_sql_type(inner)}' for key, inner in value.items()) + ")"
    return str(value)
