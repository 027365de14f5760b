"""Whose rows those of rocm_trace_lite's databases are.

Operations of a merged database do not say their process, but each process's rows lie together, in the order of the
process ids in its metadata, and each began anew in time: where the clock jumps back, the next process begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.sqlite_file import DamagedError, SqliteFile, literal

_JUMP: Final = 0.5
"""Where the clock jumps back by this share of the whole span, another process's rows begin."""


@dataclass
class Part:
    """The rows of one process."""

    pid: int | None
    low: int
    high: int
    """Row ids from `low` to before `high`."""
    with_calls: bool
    """Whether the API calls of the database are this process's: merging keeps those of the first one only."""


def first_gpu(database: SqliteFile, low: int, high: int) -> int | None:
    """Return the GPU of the first work among some rows."""
    query = "SELECT gpuId FROM rocpd_op WHERE gpuId >= 0 AND rowid >= ? AND rowid < ? LIMIT 1"
    return next((integer(gpu) for (gpu,) in database.rows(query, low, high)), None)


def pids_of(database: SqliteFile) -> list[int]:
    """Return the process ids that the metadata names, in their order."""
    if "rocpd_metadata" not in database.tables:
        return []
    rows = database.rows("SELECT value FROM rocpd_metadata WHERE tag = 'pid' ORDER BY rowid")
    return [pid for (value,) in rows if (pid := integer(value)) is not None]


def parts_of(database: SqliteFile, pids: list[int]) -> list[Part] | None:
    """Return the rows of each process of a merged database; None when they cannot be told apart."""
    if len(pids) < 2:
        return None
    try:
        starts = [_first_of(database, jump) for jump in _jumps(database)]
    except DamagedError:
        return None
    if len(starts) != len(pids) - 1:
        return None
    edges = [-(2**62), *starts, 2**62]
    return [Part(pid, edges[n], edges[n + 1], with_calls=n == 0) for n, pid in enumerate(pids)]


def _jumps(database: SqliteFile) -> list[tuple[int, int, int]]:
    """Return where the starts of the GPU's work jump back in time: (row id before, its start, row id behind)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    work = "FROM rocpd_op WHERE gpuId >= 0"
    [(low, high)] = database.rows(f"SELECT min(start), max(start) {work}")
    if low is None:
        return []
    found: list[tuple[int, int, int]] = []
    last = (pa.array([], pa.int64()), pa.array([], pa.int64()))
    for rows in database.batches(f"SELECT rowid AS id, start {work} ORDER BY rowid"):
        ids, times = (
            pa.concat_arrays([before, rows.column(name).combine_chunks()])
            for before, name in zip(last, ("id", "start"), strict=True)
        )
        steps = pc.subtract(times.slice(1), times.slice(0, len(times) - 1))
        for at in pc.indices_nonzero(pc.less(steps, -_JUMP * (high - low))).to_pylist():
            found.append((ids[at].as_py(), times[at].as_py(), ids[at + 1].as_py()))
        last = (ids.slice(len(ids) - 1), times.slice(len(times) - 1))
    return found


def _first_of(database: SqliteFile, jump: tuple[int, int, int]) -> int:
    """Return the first row of the process behind a jump: rows are in the order of their ends, markers as well."""
    before, start_ns, behind = jump
    between = f"rowid > {before} AND rowid < {behind} AND end < {start_ns}"
    [(first,)] = database.rows(f"SELECT min(rowid) FROM rocpd_op WHERE {between}")
    return behind if first is None else int(first)


def is_rpd(database: SqliteFile) -> bool:
    """Say whether a database is rocmProfileData's, which has the same tables with other content."""
    if "rocpd_barrierop" in database.tables or "api_ptr_id" in database.tables.get("rocpd_kernelapi", ()):
        return True
    if "rocpd_metadata" not in database.tables:
        return False
    return bool(database.rows(f"SELECT 1 FROM rocpd_metadata WHERE tag = 'schema_version' AND value = {literal('2')}"))
