"""Makes typed rows of rocprofv3's records, whichever of its formats they came from.

A reader brings columns as `FAMILIES` names them (`rocprofv3_tables`), with names instead of numbers where it knows
them; what becomes of them, and in which table they end, is the same for all formats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer import schema
from traceanalyzer.readers.rocprofv3_names import copy_name

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, Any]
"""Column name -> Arrow array, all of one length; a missing column is one without values."""

UNNAMED_KERNELS: Final = "kernels whose name the file does not hold"
UNNAMED_KINDS: Final = "records of a kind or operation that the file does not name"


@dataclass
class Rows:
    """Rows of some records, and what was noticed about them."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    noticed: Counter[str] = field(default_factory=Counter)
    devices: set[int] = field(default_factory=set)
    """GPUs that ran kernels."""


def rows_of(family: str, columns: Columns, pid: int | None, list_name: str) -> Rows:
    """Return the rows of records of one family.

    `columns` of every family: event_id, args, start_ns, end_ns, tid, correlation_id, external_id. Of 'dispatch' also
    name, kernel_id, device, stream, items_x..z (the grid in work-items) and block_x..z; of 'copy' operation, device,
    stream, bytes, between_gpus; of 'api' api and name; of 'marker' name; of 'call', which are both, api, name and
    is_marker; of 'memory' and 'other' category and name. A dispatch without kernel and size is none, and becomes one
    of the other events.
    """
    made = Rows()
    common = {**columns, "dur_ns": _difference(columns["end_ns"], columns["start_ns"])}
    common.setdefault("pid", _constant(None if pid is None else str(pid), columns))
    if family in ("dispatch", "copy"):
        _gpu_events(made, family, common)
    elif family == "api":
        made.tables["runtime_calls"] = table("runtime_calls", common)
    elif family == "marker":
        made.tables["annotations"] = _annotations(common)
    elif family == "call":
        _calls(made, common)
    elif family == "memory":
        made.tables["instants"] = table("instants", common)
    else:
        _other(made, common, list_name)
    return made


def _annotations(common: Columns) -> pa.Table:
    return table("annotations", {**common, "side": _constant("cpu", common)})


def _calls(made: Rows, common: Columns) -> None:
    """Tell markers and API calls, which stand in one table, from each other."""
    import pyarrow.compute as pc

    is_marker = common.pop("is_marker")
    made.tables["annotations"] = _annotations({n: pc.filter(c, is_marker) for n, c in common.items()})
    calls = {name: pc.filter(column, pc.invert(is_marker)) for name, column in common.items()}
    made.tables["runtime_calls"] = table("runtime_calls", calls)


def _gpu_events(made: Rows, family: str, common: Columns) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if family == "dispatch":
        is_real = pc.or_(pc.is_valid(common["kernel_id"]), pc.is_valid(common["block_x"]))
        if not pc.all(is_real, min_count=0).as_py():
            _other(made, {n: pc.filter(c, pc.invert(is_real)) for n, c in common.items()}, "kernel_dispatch")
            common = {name: pc.filter(column, is_real) for name, column in common.items()}
        for axis in "xyz":
            common[f"grid_{axis}"] = _blocks(common[f"items_{axis}"], common[f"block_{axis}"])
        made.devices = set(pc.unique(common["device"]).drop_null().to_pylist())
    else:
        common["name"] = _copy_names(common)
    common["kind"] = _constant({"dispatch": "kernel", "copy": "memcpy"}[family], common)
    incomplete = pc.is_null(common["dur_ns"])
    negative = pc.fill_null(pc.less(common["dur_ns"], 0), False)
    nothing = pa.scalar(None, pa.string())
    common["defect"] = pc.if_else(incomplete, "incomplete", pc.if_else(negative, "negative_duration", nothing))
    made.tables["gpu_events"] = table("gpu_events", common)


def _copy_names(common: Columns) -> pa.Array:
    """Return the names of copies, which are few: by direction, and whether it went from GPU to GPU."""
    import pyarrow as pa
    import pyarrow.compute as pc

    between = pc.if_else(pc.fill_null(common["between_gpus"], False), "1", "0")
    keys = pc.binary_join_element_wise(pc.fill_null(common["operation"], ""), between, " ")
    found = pc.dictionary_encode(keys)
    names = []
    for key in found.dictionary.to_pylist():
        operation, _, is_between = key.rpartition(" ")
        names.append(copy_name(operation or None, between_gpus=is_between == "1") or "Memcpy")
    return pc.take(pa.array(names, pa.string()), found.indices)


def _other(made: Rows, common: Columns, list_name: str) -> None:
    common = {**common}
    common.setdefault("category", _constant(list_name, common))
    common.setdefault("name", _constant(None, common))
    made.tables["other_events"] = table("other_events", common)


def _blocks(items: pa.Array, block: pa.Array) -> pa.Array:
    """Return grids in blocks: work-items divided by the block, rounded up, since a block may be cut by the grid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    size = pc.if_else(pc.greater(block, 0), block, pa.scalar(None, pa.int64()))
    return pc.divide(pc.add(items, pc.subtract(size, 1)), size)


def _difference(end: pa.Array, start: pa.Array) -> pa.Array:
    """Return durations; none where the times are so far apart that 63 bits do not hold it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.subtract_checked(end, start)
    except pa.ArrowInvalid:
        fits = pc.and_(pc.less(pc.abs(end), 2**62), pc.less(pc.abs(start), 2**62))
        return pc.if_else(fits, pc.subtract(end, start), pa.scalar(None, pa.int64()))


def _constant(value: str | None, columns: Columns) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.string()), len(columns["event_id"]))


def looked_up(keys: pa.Array, values: dict[int, int], *, otherwise: bool = False) -> pa.Array:
    """Return the values of keys; of a key that has none, nothing, or if `otherwise` the key itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = keys.cast(pa.int64())
    at = pc.index_in(keys, value_set=pa.array(values.keys(), pa.int64()))
    found = pc.take(pa.array(values.values(), pa.int64()), at)
    return pc.coalesce(found, keys) if otherwise else found


def texts_of(keys: pa.Array, texts: dict[int, str]) -> pa.Array:
    """Return the texts of keys, nothing where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = pc.index_in(keys.cast(pa.int64()), value_set=pa.array(texts.keys(), pa.int64()))
    return pc.take(pa.array(texts.values(), pa.string()), at)


def table(name: str, columns: Columns) -> pa.Table:
    """Return the columns of `schema.TABLES[name]`; those that are not there are without values."""
    import pyarrow as pa

    types = {"VARCHAR": pa.string(), "BIGINT": pa.int64()}
    rows = len(columns["event_id"])
    made = {}
    for column, sql_type in schema.TABLES[name].items():
        values = columns.get(column)
        made[column] = pa.nulls(rows, types[sql_type]) if values is None else values.cast(types[sql_type])
    return pa.table(made)
