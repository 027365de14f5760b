"""Writes the model as rocm_trace_lite would have recorded it: an SQLite database per process, merged ones, JSON."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from proxy.collectors import Collector, recorded
from proxy.model import Work, clock_offset_ns

BOOT_NS: Final = 63_850_000_000_000
"""When the first step began on the node's clock, which counts from its boot."""
_FIRST_PID: Final = 41_000
_QUEUE: Final = 0x7F12A4000000
_MARKER: Final = "iteration {step}"
# As rocm_trace_lite 0.3.7 makes them; most of these tables stay empty.
_TABLES: Final = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT UNIQUE);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
    completionSignal TEXT, start INTEGER, end INTEGER, description_id INTEGER REFERENCES rocpd_string(id),
    opType_id INTEGER REFERENCES rocpd_string(id), roctxId INTEGER DEFAULT 0);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER,
    apiName_id INTEGER REFERENCES rocpd_string(id), args_id INTEGER REFERENCES rocpd_string(id));
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER REFERENCES rocpd_api(id),
    op_id INTEGER REFERENCES rocpd_op(id));
CREATE TABLE rocpd_kernelapi (api_id INTEGER PRIMARY KEY REFERENCES rocpd_api(id), stream TEXT, gridX INTEGER,
    gridY INTEGER, gridZ INTEGER, workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER,
    groupSegmentSize INTEGER, privateSegmentSize INTEGER, kernelName_id INTEGER);
CREATE TABLE rocpd_copyapi (api_id INTEGER PRIMARY KEY REFERENCES rocpd_api(id), stream TEXT, size INTEGER, dst TEXT,
    src TEXT, kind INTEGER, sync INTEGER);
CREATE TABLE rocpd_metadata (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_monitor (id INTEGER PRIMARY KEY, deviceType TEXT, deviceId INTEGER, monitorType TEXT, start INTEGER,
    end INTEGER, value TEXT);
CREATE VIEW top AS SELECT s.string AS Name, count(*) AS Calls, sum(o.end - o.start) AS TotalNs,
    avg(o.end - o.start) AS AvgNs, min(o.end - o.start) AS MinNs, max(o.end - o.start) AS MaxNs,
    100.0 * sum(o.end - o.start) / (SELECT sum(end - start) FROM rocpd_op WHERE end > start AND gpuId >= 0) AS Pct
    FROM rocpd_op o JOIN rocpd_string s ON s.id = o.description_id WHERE o.end > o.start AND o.gpuId >= 0
    GROUP BY s.string ORDER BY TotalNs DESC;
CREATE VIEW busy AS SELECT gpuId, 100.0 * sum(end - start) / (max(end) - min(start)) AS utilization_pct,
    count(*) AS ops, sum(end - start) AS busy_ns, max(end) - min(start) AS wall_ns
    FROM rocpd_op WHERE end > start AND gpuId >= 0 GROUP BY gpuId;
"""


def pid(rank: int) -> int:
    """Return the process id of a rank."""
    return _FIRST_PID + rank


def write(folder: Path, rank: int, collector: Collector, steps: int) -> Path:
    """Write trace_<pid>.db of a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trace_{pid(rank)}.db"
    _database(path, {rank: _rows(rank, collector, steps)})
    return path


def write_merged(folder: Path, ranks: list[int], collector: Collector, steps: int) -> list[Path]:
    """Write trace.db, merged from those of several ranks, and its trace.json.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    _database(folder / "trace.db", {rank: _rows(rank, collector, steps) for rank in ranks})
    _json(folder / "trace.json.gz", folder / "trace.db")
    return [folder / "trace.db", folder / "trace.json.gz"]


Row = tuple[int, int, str | None, int, int, str, str, int]
"""gpuId, queueId, completionSignal, start, end, description, opType, roctxId."""


def _rows(rank: int, collector: Collector, steps: int) -> Iterator[Row]:
    """Yield the rows of a rank, of each step in the order in which they were committed, which is that of their ends."""
    offset = BOOT_NS + clock_offset_ns(rank)
    for step, group in groupby(recorded(rank, collector, steps), key=lambda work: work.step):
        works = list(group)
        found: list[Row] = []
        for work in works:
            times = (offset + work.start_ns, offset + work.end_ns)
            found.append((rank, _queue(rank, work), _signal(work), *times, short_name(work.name), "KernelExecution", 0))
        start, end = (offset + works[0].start_ns - 20_000, offset + works[-1].end_ns)
        found.append((-1, 0, None, start, end, _MARKER.format(step=step), "UserMarker", step + 1))
        yield from sorted(found, key=lambda row: row[4])


def _queue(rank: int, work: Work) -> int:
    return _QUEUE + rank * 0x100000 + work.stream * 0x1000


def _signal(work: Work) -> str:
    return f"hwq={_QUEUE + work.stream * 0x1000:#x} wg=256,1,1 grid={work.blocks * 256},1,1"


def short_name(name: str) -> str:
    """Return a kernel's name as rocm_trace_lite has it: without return type, cut before the arguments.

    The cut is at the first parenthesis that does not open '(anonymous namespace)', wherever that stands.

    >>> short_name("void at::native::f<4, g()::{lambda()#1}>(int)")
    'at::native::f<4, g'
    """
    head, separator, tail = name.partition("::")
    if separator and " " in head:
        name = head.partition(" ")[2] + separator + tail
    return re.split(r"\((?!anonymous namespace\))", name)[0]


def _database(path: Path, of_ranks: Mapping[int, Iterable[Row]]) -> None:
    """Write a database; in one of several processes only the first one's markers keep their ids."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.executescript(_TABLES)
        strings: dict[str, int] = {}
        for number, rows in enumerate(of_ranks.values()):
            for gpu, queue, signal, start, end, name, kind, roctx in rows:
                for text in (name, kind):
                    if text not in strings:
                        strings[text] = len(strings) + 1
                        connection.execute("INSERT INTO rocpd_string VALUES (?, ?)", (strings[text], text))
                connection.execute(
                    "INSERT INTO rocpd_op (gpuId, queueId, sequenceId, completionSignal, start, end, description_id,"
                    " opType_id, roctxId) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?)",
                    (gpu, queue, signal, start, end, strings[name], strings[kind], 0 if number else roctx),
                )
        pids = [("pid", str(pid(rank))) for rank in of_ranks]
        connection.executemany("INSERT INTO rocpd_metadata (tag, value) VALUES (?, ?)", pids)
    connection.close()


def _json(path: Path, database: Path) -> None:
    """Write a database as Chrome JSON, whose times count from the first operation, which is stored nowhere."""
    query = (
        "SELECT max(gpuId, 0), queueId, completionSignal, start, end, d.string, k.string FROM rocpd_op"
        " JOIN rocpd_string d ON d.id = description_id JOIN rocpd_string k ON k.id = opType_id"
        " WHERE end > start ORDER BY start, rocpd_op.id"
    )
    with (
        sqlite3.connect(database) as connection,
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
    ):
        first, *_ = connection.execute("SELECT min(start) FROM rocpd_op WHERE end > start").fetchone()
        tracks = _tracks(connection)
        out = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        out.write('{"traceEvents":[')
        for number, (device, track, queue) in enumerate((gpu, n, queue) for (gpu, queue), n in tracks.items()):
            event: dict[str, Any] = {"name": "thread_name", "ph": "M", "pid": device, "tid": track}
            event["args"] = {"name": f"HWQ {queue:#x}"}
            if track == 0:
                process = {"name": "process_name", "ph": "M", "pid": device, "tid": 0}
                out.write(("," if number else "") + _compact({**process, "args": {"name": f"GPU {device}"}}))
            out.write("," + _compact(event))
        for device, queue, signal, start, end, name, kind in connection.execute(query):
            args: dict[str, Any] = {"full_name": name, "gpu": device, "queue": queue}
            if signal:
                hwq, workgroup, grid = (part.partition("=")[2] for part in signal.split())
                args |= {"hwq": hwq, "workgroup": workgroup, "grid": grid}
            event = {"name": name[:57], "cat": kind, "ph": "X", "pid": device, "tid": tracks[device, queue]}
            event |= {"ts": (start - first) / 1000.0, "dur": (end - start) / 1000.0, "args": args}
            out.write("," + _compact(event))
        out.write("]}")
        out.flush()
        out.detach()


def _tracks(connection: sqlite3.Connection) -> dict[tuple[int, int], int]:
    """Return (GPU, queue) -> track: the ordinal of the queue on its GPU."""
    tracks: dict[tuple[int, int], int] = {}
    for device, queue in connection.execute("SELECT DISTINCT max(gpuId, 0), queueId FROM rocpd_op ORDER BY 1, 2"):
        tracks[device, queue] = sum(1 for gpu, _ in tracks if gpu == device)
    return tracks


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
