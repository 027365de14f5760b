"""Whose rows those of rocm_trace_lite's databases are.

Operations of a merged database do not say their process, but each process's rows lie together, in the order of the
process ids in its metadata, and each began anew in time: where the clock jumps back, the next process begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.sqlite_file import ALL_ROWS, DamagedError, SqliteFile, literal

_JUMP: Final = 0.5
"""Where the clock jumps back by this share of the whole span, another process's rows begin."""
_WORK: Final = "FROM rocpd_op WHERE gpuId >= 0 AND typeof(start) = 'integer'"
_FIRST_WORK: Final = f"SELECT rowid, start {_WORK} AND rowid >= ? AND rowid < ? ORDER BY rowid LIMIT 1"
_PROBES: Final = 1024
_NEAR: Final = 4096
"""In so many rows from a probed one on some work is looked for."""


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
        starts = [_first_of(database, jump) for jump in _jumps(database, len(pids) - 1)]
    except DamagedError:
        return None
    if len(starts) != len(pids) - 1:
        return None
    edges = [ALL_ROWS[0], *starts, ALL_ROWS[1]]
    return [Part(pid, edges[n], edges[n + 1], with_calls=n == 0) for n, pid in enumerate(pids)]


Jump = tuple[int, int, int]
"""Row id of the last work before a jump, its start, row id of the first work behind."""


def _jumps(database: SqliteFile, wanted: int) -> list[Jump]:
    """Return where the starts of the GPU's work jump back in time.

    Some rows, evenly apart, are looked at first, then what lies between two of them where time went back. Only when
    that gives another number of jumps than is `wanted`, since a process has few rows, all rows are read.
    """
    ends = [database.rows(f"SELECT rowid, start {_WORK} ORDER BY rowid {way} LIMIT 1") for way in ("", "DESC")]
    if not ends[0]:
        return []
    [(low, first)], [(high, last)] = ends
    probes = {low: first, high: last}
    for rowid in range(low, high, max((high - low) // _PROBES, 1)):
        probes |= database.rows(_FIRST_WORK, rowid, min(rowid + _NEAR, high))
    span = max(probes.values()) - min(probes.values())
    pairs = [(a, b) for a, b in pairwise(sorted(probes.items())) if a[1] - b[1] > _JUMP * span]
    found = [_jump_between(database, *pair) for pair in pairs]
    return found if len(found) == wanted else _all_jumps(database)


def _jump_between(database: SqliteFile, before: tuple[int, int], behind: tuple[int, int]) -> Jump:
    """Return the one jump between two rows, (row id, start) each, by halving what lies between them."""
    middle_ns = (before[1] + behind[1]) / 2
    bound = behind[0]
    while bound - before[0] > 1:
        half = (before[0] + bound) // 2
        work = database.rows(_FIRST_WORK, half, bound)
        if work and work[0][1] > middle_ns:
            before = work[0]
        else:
            behind, bound = (work[0] if work else behind), half
    return (*before, behind[0])


def _all_jumps(database: SqliteFile) -> list[Jump]:
    """Return where the starts of the GPU's work jump back in time, by reading all of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    [(low, high)] = database.rows(f"SELECT min(start), max(start) {_WORK}")
    if low is None:
        return []
    found: list[Jump] = []
    last = (pa.array([], pa.int64()), pa.array([], pa.int64()))
    for rows in database.batches(f"SELECT rowid AS id, start {_WORK} ORDER BY rowid"):
        ids, times = (
            pa.concat_arrays([before, rows.column(name).combine_chunks()])
            for before, name in zip(last, ("id", "start"), strict=True)
        )
        steps = pc.subtract(times.slice(1), times.slice(0, len(times) - 1))
        for at in pc.indices_nonzero(pc.less(steps, -_JUMP * (high - low))).to_pylist():
            found.append((ids[at].as_py(), times[at].as_py(), ids[at + 1].as_py()))
        last = (ids.slice(len(ids) - 1), times.slice(len(times) - 1))
    return found


def _first_of(database: SqliteFile, jump: Jump) -> int:
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
