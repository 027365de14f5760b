"""What ingest is measured against; prints seconds of work (interpreter start and imports not counted).

usage: python benchmarks/baselines.py count|orjson|sqlite FILE [WORKERS]

count   DuckDB's bare count(*) over the same blocks of the same file, with as many workers: the cost of parsing alone.
orjson  orjson.loads of the whole file with the garbage collector off: what most Python tools start with.
sqlite  all rows of a database of rocm_trace_lite as Python tuples, with their names.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import duckdb
import orjson

from traceanalyzer.readers.base import BLOCK_SIZE
from traceanalyzer.readers.blocks import BlockFileSystem
from traceanalyzer.readers.document import Document
from traceanalyzer.readers.kineto_facts import KEPT_KEYS
from traceanalyzer.readers.kineto_tables import BLOCK_COLUMNS
from traceanalyzer.readers.rocprofv3_document import HEAD_KEYS, Rocprofv3Document
from traceanalyzer.readers.rocprofv3_tables import family_of, read_query
from traceanalyzer.readers.source import ByteSource

COLUMNS = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in BLOCK_COLUMNS.items()) + "}"
_local = threading.local()


def _count(array: bytes, family: str | None = None) -> int:
    if not hasattr(_local, "connection"):
        _local.connection = duckdb.connect(config={"threads": 1})
        _local.files = BlockFileSystem()
        _local.connection.register_filesystem(_local.files)
    url = _local.files.put("b.json", array)
    if family:
        query = read_query(url, family, len(array)).replace("SELECT *", "SELECT count(*)")
    else:
        source = f"read_json('{url}', format='array', columns={COLUMNS}, maximum_object_size={len(array)})"
        query = f"SELECT count(*) FROM {source}"
    rows = _local.connection.execute(query).fetchall()
    _local.files.clear()
    return int(rows[0][0])


def count(path: Path, workers: int) -> int:
    """Return the number of events, counted block by block."""
    total = 0
    waiting: deque[Future[int]] = deque()
    with ThreadPoolExecutor(workers) as pool, ByteSource(path) as source:
        for array, family in _blocks(source):
            waiting.append(pool.submit(_count, array, family))
            while len(waiting) > workers:
                total += waiting.popleft().result()
        return total + sum(future.result() for future in waiting)


def _blocks(source: ByteSource) -> Iterator[tuple[bytes, str | None]]:
    """Yield blocks of events as the readers cut them; of rocprofv3's JSON with the family of the records."""
    if source.path.name.endswith(("_results.json", "_results.json.gz")):
        records = Rocprofv3Document(source, BLOCK_SIZE, HEAD_KEYS)
        while records.next_process():
            while found := records.next_block():
                yield found.block.array, family_of(found.group, found.list_name)
        return
    document = Document(source, BLOCK_SIZE, KEPT_KEYS)
    while block := document.next_block():
        yield block.array, None


def load(path: Path) -> int:
    """Return the number of events, from the parsed document."""
    gc.disable()
    return len(orjson.loads(path.read_bytes())["traceEvents"])


def rows(path: Path) -> int:
    """Return the number of operations of a SQLite database, each read as Python objects, with its name."""
    with sqlite3.connect(path) as connection:
        names = dict(connection.execute("SELECT id, string FROM rocpd_string"))
        query = "SELECT gpuId, queueId, start, end, completionSignal, description_id FROM rocpd_op"
        return sum(bool(names[name]) for *_, name in connection.execute(query))


if __name__ == "__main__":
    what, file = sys.argv[1], Path(sys.argv[2])
    started = time.perf_counter()
    events = count(file, int(sys.argv[3])) if what == "count" else rows(file) if what == "sqlite" else load(file)
    print(f"{time.perf_counter() - started:.3f} {events}", flush=True)
