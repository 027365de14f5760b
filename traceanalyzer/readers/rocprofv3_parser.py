"""Turns blocks of rocprofv3's JSON records into typed rows, and takes apart those that are damaged."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer.readers.base import Reject
from traceanalyzer.readers.byte_search import as_array, holds
from traceanalyzer.readers.kineto_parser import BlockParser, parser_of_thread
from traceanalyzer.readers.rocprofv3_names import KernelNames, RecordNames
from traceanalyzer.readers.rocprofv3_rows import (
    UNNAMED_KERNELS,
    UNNAMED_KINDS,
    Columns,
    Rows,
    looked_up,
    rows_of,
    texts_of,
)
from traceanalyzer.readers.rocprofv3_salvage import sound_records
from traceanalyzer.readers.rocprofv3_tables import FAMILIES, family_of, family_of_kind, flat, read_query, tolerant_query

if TYPE_CHECKING:
    import pyarrow as pa

    from traceanalyzer.readers.rocprofv3_document import Records

_NO_JSON: Final = (
    r"(?:^|[:,\[])\s*-?(?i:nan|inf(?:inity)?)\s*(?:[,}\]]|$)"  # numbers that are not finite
    r"|,\s*(?:[}\]]|$)"  # a comma with nothing behind it
)
"""What DuckDB takes though it is no JSON, in records without their first key and last brace."""
_PERHAPS_NO_JSON: Final = (r":\s*-?[nNiI]", r",\s*-?[nNiI}\]]", r"\[\s*-?[nNiI]")
"""What is in every text in which `_NO_JSON` is; each takes a fraction of the time."""
_LEAST_OBJECT_SIZE: Final = 1 << 20
Texts = tuple[Any, ...]
"""Arrow texts and constant texts, which joined give one text per record."""


class RecordsRefusedError(Exception):
    """A block of records is not what it should be: each record must be looked at."""


@dataclass
class Context:
    """What the records of a process need to be understood; complete before the first one is read."""

    pid: int | None
    devices: dict[int, int]
    """GPU ordinal by handle."""
    kernels: KernelNames
    records: RecordNames
    markers: dict[int, str]
    """Texts of markers by correlation id."""


@dataclass
class ParsedRecords:
    """The rows of one block, with ordinals counted from its first record."""

    events: int
    rows: Rows
    rejects: list[Reject] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    first_repair: int | None = None


def parse_records(records: Records, context: Context) -> ParsedRecords:
    """Return the rows of a block; records that cannot be stored are among its rejects."""
    import pyarrow as pa

    family = family_of(records.group, records.list_name)
    try:
        columns = _read(parser_of_thread(), family, records.block.array)
        args = _record_texts(records, len(columns["start_ns"]))
        if _others(family, columns, records, context):
            raise RecordsRefusedError("records of other lists")
    except RecordsRefusedError:
        return _one_by_one(family, records, context)
    columns["event_id"] = pa.arange(0, len(columns["start_ns"]))
    return ParsedRecords(len(columns["event_id"]), _rows(family, columns, args, records, context))


def _one_by_one(family: str, records: Records, context: Context) -> ParsedRecords:
    """Return the rows of a block of which each record must be looked at.

    Where the end of a list was lost, the records of the next one stand in it; their kind says what they are.
    """
    import pyarrow as pa

    sound = sound_records(records)
    columns, _ = _read_tolerantly(parser_of_thread(), family, sound.pieces)
    others = _others(family, columns, records, context)
    families = [others.get(kind, family) for kind in columns["kind"].to_pylist()] if others else []
    rows = Rows()
    for each in dict.fromkeys(families) if families else [family]:
        at = [n for n, f in enumerate(families) if f == each] if families else range(len(sound.pieces))
        found, args = _read_tolerantly(parser_of_thread(), each, [sound.pieces[n] for n in at])
        found["event_id"] = pa.array([sound.ordinals[n] for n in at], pa.int64())
        made = _rows(each, found, args, records, context)
        rows.noticed += made.noticed
        rows.devices |= made.devices
        for name, table in made.tables.items():
            rows.tables[name] = pa.concat_tables([rows.tables[name], table]) if name in rows.tables else table
    return ParsedRecords(sound.events, rows, sound.rejects, sound.repairs, sound.first_repair)


def _others(family: str, columns: Columns, records: Records, context: Context) -> dict[str | None, str]:
    """Return the families of those kinds of records that do not belong into the list."""
    if family == "other":
        return {}
    kinds = columns["kind"].unique().to_pylist()
    found = {kind: family_of_kind(context.records.kind(records.group, kind)) for kind in kinds}
    return {kind: of for kind, of in found.items() if of and of != family}


def parse_symbols(records: Records, kernels: KernelNames) -> ParsedRecords:
    """Take in a block of kernel symbols. They are no events, so there are no rows."""
    try:
        columns = _read(parser_of_thread(), "symbol", records.block.array)
        repairs, first = Counter[str](), None
    except RecordsRefusedError:
        sound = sound_records(records)
        columns, _ = _read_tolerantly(parser_of_thread(), "symbol", sound.pieces)
        repairs, first = sound.repairs, sound.first_repair
        if sound.rejects:
            repairs["damaged kernel symbol"] += len(sound.rejects)
            first = sound.rejects[0].byte_offset if first is None else first
    names = list(FAMILIES["symbol"])
    for values in zip(*(columns[name].to_pylist() for name in names), strict=True):
        kernels.add(dict(zip(names, values, strict=True)))
    return ParsedRecords(0, Rows(), [], repairs, first)


def _read(parser: BlockParser, family: str, array: bytes) -> Columns:
    """Return the columns of sound records. Raises RecordsRefusedError."""
    import duckdb

    url = parser.files.put("records.json", array)
    try:
        found = parser.connection.sql(read_query(url, family, max(len(array), _LEAST_OBJECT_SIZE))).to_arrow_table()
    except duckdb.Error as error:
        raise RecordsRefusedError(str(error)) from error
    finally:
        parser.files.clear()
    return flat(family, found)


def _read_tolerantly(parser: BlockParser, family: str, texts: list[bytes]) -> tuple[Columns, Texts]:
    """Return the columns of records that are valid JSON objects, and their texts behind the opening brace."""
    import pyarrow as pa

    whole = pa.array(texts, pa.string())
    parser.connection.register("records", pa.table({"text": whole}))
    try:
        found: pa.Table = parser.connection.execute(tolerant_query(family)).to_arrow_table()
    finally:
        parser.connection.unregister("records")
    columns = {name: found.column(name).combine_chunks() for name in found.column_names}
    return columns, (pa.array([text[1:] for text in texts], pa.string()),)


def _record_texts(records: Records, count: int) -> Texts:
    """Return the texts of the records behind their opening braces, cut between two records, as parts to be joined.

    Raises RecordsRefusedError when there are not as many as were read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array, key = records.block.array, re.escape(records.first_key)
    between = re.compile(rb"\}\s*,\s*\{\s*" + key + rb"\s*:").search(array)
    first = re.compile(rb"\[\s*\{\s*" + key + rb"\s*:").match(array)
    if not first or not key:
        raise RecordsRefusedError("a list of something else than records")
    parts = as_array(memoryview(array)[first.end() : array.rindex(b"}")], pa.large_string())
    if between:  # in Arrow that takes a quarter of the time that it takes in Python, and leaves the interpreter alone
        parts = pc.split_pattern(parts, pattern=between.group().decode()).values
    if len(parts) != count:
        raise RecordsRefusedError("the records are not laid out alike")
    is_doubtful = any(holds(array, pattern) for pattern in _PERHAPS_NO_JSON)
    if is_doubtful and pc.any(pc.match_substring_regex(parts, _NO_JSON), min_count=0).as_py():
        raise RecordsRefusedError("something that is no JSON")
    return records.first_key.decode() + ":", parts.cast(pa.string()), "}"


def _rows(family: str, columns: Columns, texts: Texts, records: Records, context: Context) -> Rows:
    """Put names in the place of numbers, and return the rows."""
    import pyarrow.compute as pc

    noticed: Counter[str] = Counter()
    openings: Any = "{"
    if family == "dispatch":
        columns["device"] = looked_up(columns["agent"], context.devices)
        columns["stream"] = pc.coalesce(columns["stream"], columns["queue"])
        columns["name"], openings, unknown = context.kernels.columns(columns["kernel_id"])
        noticed[UNNAMED_KERNELS] += unknown
    elif family == "copy":
        target, source = (looked_up(columns[end], context.devices) for end in ("target", "source"))
        columns["device"] = pc.coalesce(target, source)
        columns["between_gpus"] = pc.fill_null(pc.not_equal(target, source), False)
    if family != "dispatch":
        noticed[UNNAMED_KINDS] += _name_records(family, columns, records, context)
    if family == "marker":
        columns["name"] = pc.coalesce(texts_of(columns["correlation_id"], context.markers), columns["name"])
    if family == "other":
        _fill_counter_records(columns, context)
    columns["args"] = pc.binary_join_element_wise(openings, *texts, "")
    rows = rows_of(family, columns, context.pid, records.list_name)
    rows.noticed += noticed
    return rows


def _name_records(family: str, columns: Columns, records: Records, context: Context) -> int:
    """Name kind and operation of the records, of which there are few different ones; return how many have no name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    group = records.group
    pair = pc.binary_join_element_wise(pc.fill_null(columns["kind"], ""), pc.fill_null(columns["operation"], ""), "\n")
    found = pc.dictionary_encode(pair)
    kinds, operations, is_unknown = [], [], []
    for text in found.dictionary.to_pylist():
        kind, _, operation = text.partition("\n")
        kind_name = context.records.kind(group, kind)
        name = context.records.operation(group, kind, operation)
        is_unknown.append(bool(kind or operation) and not (kind_name and name))
        kinds.append((kind_name or f"kind {kind}").lower() if kind else records.list_name)
        operations.append((name or f"operation {operation}") if operation else None)
    at = found.indices
    columns["operation"] = pc.take(pa.array(operations, pa.string()), at)
    columns["category"] = columns["api"] = pc.take(pa.array(kinds, pa.string()), at)
    if family != "copy":
        columns["name"] = columns["operation"]
    if family == "other":  # these lists need not have kinds and operations
        return 0
    unknown: int = pc.sum(pc.take(pa.array(is_unknown, pa.bool_()), at)).as_py() or 0
    return unknown


def _fill_counter_records(columns: Columns, context: Context) -> None:
    """Take time, correlation id and kernel name of a counter's record from the dispatch in it."""
    import pyarrow.compute as pc

    columns["start_ns"] = pc.coalesce(columns["start_ns"], columns["dispatch_start_ns"])
    columns["end_ns"] = pc.coalesce(columns["end_ns"], columns["dispatch_end_ns"])
    names, _, _ = context.kernels.columns(columns["kernel_id"])
    columns["name"] = pc.coalesce(columns["name"], names)
    correlation = pc.coalesce(columns["correlation_id"], columns["dispatch_correlation"])
    columns["id"] = pc.cast(correlation, "string")
