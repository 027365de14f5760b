"""Writes one trace's tables as Parquet, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from traceanalyzer import schema
from traceanalyzer.store.manifest import Identity

_ROWS_PER_GROUP: Final = 131_072
BYTES_PER_GROUP: Final = 6 << 20
_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1  # level 3 saves 2 % of the size and costs a tenth of the encoding time
_ARROW_TYPES: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR[]": pa.list_(pa.string()),
}
FILES: Final = {**schema.TABLES, "rejects": schema.REJECTS}
"""The tables that every trace has a file of, besides `traces`."""

_NO_DICTIONARY: Final = frozenset({"event_id", "start_ns", "dur_ns", "correlation_id", "external_id", "args"})
"""Columns whose values hardly repeat: building a dictionary for them is wasted time."""

_ENCODINGS: Final = {"event_id": "DELTA_BINARY_PACKED"}
"""Ordinals take a few bits as differences, and less time than compressing them as they are."""


def _type(column: str, sql_type: str) -> pa.DataType:
    # The identity is constant in a file: as a dictionary of one value it costs next to nothing.
    if column in schema.IDENTITY and sql_type == "VARCHAR":
        return pa.dictionary(pa.int32(), pa.string())
    return _ARROW_TYPES[sql_type]


def arrow_schema(columns: dict[str, str]) -> pa.Schema:
    """Return the Arrow schema of a table's Parquet file: the identity columns, then `columns`."""
    return pa.schema([pa.field(name, _type(name, kind)) for name, kind in {**schema.IDENTITY, **columns}.items()])


def _constant(value: str | int | None, sql_type: str, rows: int) -> pa.Array:
    if sql_type == "VARCHAR":
        zeros = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))])
        return pa.DictionaryArray.from_arrays(zeros, pa.array([value], pa.string()))
    return pa.repeat(pa.scalar(value, _ARROW_TYPES[sql_type]), rows)


class _TableFile:
    """One Parquet file that grows by row groups."""

    def __init__(self, path: Path, columns: dict[str, str], group_bytes: int = BYTES_PER_GROUP) -> None:
        self._group_bytes = group_bytes
        self._schema = arrow_schema(columns)
        dictionary = [name for name in self._schema.names if name not in _NO_DICTIONARY]
        self._path = path
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=dictionary,
            column_encoding=_ENCODINGS,
            write_statistics=[f.name for f in self._schema if not pa.types.is_string(f.type)],
        )
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self.rows = 0

    def append(self, rows: pa.Table, identity: Identity) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self._waiting_rows >= _ROWS_PER_GROUP or self._waiting_bytes >= self._group_bytes:
            self._flush(identity)

    def _flush(self, identity: Identity) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._writer.write_table(stamped(rows, identity, self._schema), row_group_size=max(1, rows.num_rows))

    def close(self, identity: Identity) -> None:
        self._flush(identity)
        self._writer.close()
        _sync(self._path)


def stamped(rows: pa.Table, identity: Identity, target: pa.Schema) -> pa.Table:
    """Return `rows` with the identity columns in front, in the types of `target`."""
    values = asdict(identity)
    constants = [_constant(values[name], kind, rows.num_rows) for name, kind in schema.IDENTITY.items()]
    own = [rows.column(name) for name in target.names[len(constants) :]]
    return pa.Table.from_arrays([*constants, *own], schema=target)


class TraceWriter:
    """Writes the event tables of one trace into `folder`; every table gets a file, also without rows."""

    def __init__(self, folder: Path, identity: Identity, group_bytes: int = BYTES_PER_GROUP) -> None:
        """Make `folder`; `group_bytes` bounds what each table holds back for its next row group."""
        self._identity = identity
        folder.mkdir(parents=True)
        self._files = {
            name: _TableFile(folder / f"{name}.parquet", columns, group_bytes) for name, columns in FILES.items()
        }

    def append(self, table: str, rows: pa.Table) -> None:
        """Add rows (columns of `FILES[table]`) to a table."""
        self._files[table].append(rows, self._identity)

    def append_rejects(self, rejects: Sequence[object]) -> None:
        """Add rows to `rejects`; each object has the attributes of `schema.REJECTS`."""
        if rejects:
            columns = {
                name: pa.array([getattr(r, name) for r in rejects], _ARROW_TYPES[kind])
                for name, kind in schema.REJECTS.items()
            }
            self.append("rejects", pa.table(columns))

    def close(self) -> dict[str, int]:
        """Finish all files; return the number of rows per table."""
        for file in self._files.values():
            file.close(self._identity)
        return {name: file.rows for name, file in self._files.items()}


def write_traces_row(folder: Path, identity: Identity, trace: dict[str, object]) -> None:
    """Write `traces.parquet`, the one row that describes the trace."""
    target = arrow_schema(schema.TRACE_COLUMNS)
    row = pa.table({n: pa.array([trace[n]], _ARROW_TYPES[kind]) for n, kind in schema.TRACE_COLUMNS.items()})
    path = folder / "traces.parquet"
    pq.write_table(stamped(row, identity, target), path)
    _sync(path)


def relabel(folder: Path, identity: Identity) -> None:
    """Rewrite a trace's event tables under another identity, row group by row group.

    Needed when a compressed trace names its rank only behind its events.
    """
    for name, columns in FILES.items():
        path = folder / f"{name}.parquet"
        new = path.with_suffix(".new")
        file = _TableFile(new, columns)
        with pq.ParquetFile(path) as old:
            for group in range(old.num_row_groups):
                file.append(old.read_row_group(group, columns=list(columns)), identity)
        file.close(identity)
        os.replace(new, path)


def _sync(path: Path) -> None:
    """Have the file on the disk before a manifest makes it visible."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
