"""Writes the same recording as rocprofv3's CSV files, and as its rocpd database."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from proxy.collectors import ROCPROFV3, recorded
from proxy.host import Launch, launches
from proxy.model import RANKS, clock_offset_ns
from proxy.rocprofv3 import BOOT_NS, FIRST_QUEUE, HOST, is_copy, kernel_name, pid, thread_id, threads

_FIRST_GPU_NODE: Final = 2
_GUID: Final = "0198a000-0000-7000-8000-{rank:012d}"
_KERNEL_COLUMNS: Final = (
    *("Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"),
    *("Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size", "Scratch_Size", "VGPR_Count"),
    *("Accum_VGPR_Count", "SGPR_Count", "Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z"),
    *("Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"),
)
_API_COLUMNS: Final = (
    *("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"),
)
_COPY_COLUMNS: Final = (
    *("Kind", "Direction", "Stream_Id", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id"),
    *("Start_Timestamp", "End_Timestamp"),
)
_TABLES: Final = {
    "rocpd_string": "string TEXT",
    "rocpd_info_node": "hash INTEGER, machine_id TEXT, system_name TEXT, hostname TEXT, release TEXT, version TEXT,"
    " hardware_name TEXT, domain_name TEXT",
    "rocpd_info_process": "nid INTEGER, ppid INTEGER, pid INTEGER, init INTEGER, fini INTEGER, start INTEGER,"
    ' "end" INTEGER, command TEXT, environment TEXT, extdata TEXT',
    "rocpd_info_thread": 'nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER, name TEXT, start INTEGER, "end" INTEGER',
    "rocpd_info_agent": "nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, logical_index INTEGER,"
    " type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT, product_name TEXT,"
    " user_name TEXT",
    "rocpd_info_queue": "nid INTEGER, pid INTEGER, name TEXT",
    "rocpd_info_stream": "nid INTEGER, pid INTEGER, name TEXT",
    "rocpd_info_kernel_symbol": "nid INTEGER, pid INTEGER, code_object_id INTEGER, kernel_name TEXT, display_name TEXT,"
    " extdata TEXT",
    "rocpd_event": "category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER,"
    " call_stack TEXT, line_info TEXT, extdata TEXT",
    "rocpd_region": 'nid INTEGER, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER, name_id INTEGER,'
    " event_id INTEGER",
    "rocpd_kernel_dispatch": "nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER,"
    ' dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start INTEGER, "end" INTEGER,'
    " private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER,"
    " workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, region_name_id INTEGER,"
    " event_id INTEGER",
    "rocpd_memory_copy": 'nid INTEGER, pid INTEGER, tid INTEGER, start INTEGER, "end" INTEGER, name_id INTEGER,'
    " dst_agent_id INTEGER, dst_address INTEGER, src_agent_id INTEGER, src_address INTEGER, size INTEGER,"
    " queue_id INTEGER, stream_id INTEGER, region_name_id INTEGER, event_id INTEGER",
}
"""Columns behind id and guid, which every table has."""


def write_csv(folder: Path, rank: int, steps: int) -> list[Path]:
    """Write the CSV files of a rank, all fields quoted; return them."""
    made = launches(recorded(rank, ROCPROFV3, steps))
    offset, process = BOOT_NS + clock_offset_ns(rank), pid(rank)
    gpu, kernels, apis, copies = f"Agent {_FIRST_GPU_NODE + rank}", [], [], []
    ids: dict[str, int] = {}
    for number, launch in enumerate(made, 1):
        work, thread = launch.work, thread_id(rank, launch.work)
        times = (offset + work.start_ns, offset + work.end_ns)
        apis.append(
            ("HIP_RUNTIME_API_EXT", work.api, process, thread, number, offset + launch.start_ns, offset + launch.end_ns)
        )
        if is_copy(work):
            to_device = "HtoD" in work.name
            agents = ("Agent 0", gpu) if to_device else (gpu, "Agent 0")
            direction = "MEMORY_COPY_HOST_TO_DEVICE" if to_device else "MEMORY_COPY_DEVICE_TO_HOST"
            copies.append(("MEMORY_COPY", direction, work.stream, *agents, number, *times))
            continue
        name = kernel_name(work)
        size = (256, 1, 1, work.blocks * 256, 1, 1)
        place = ("KERNEL_DISPATCH", gpu, FIRST_QUEUE + work.stream, work.stream, thread, len(kernels) + 1)
        kernels.append((*place, ids.setdefault(name, len(ids) + 1), name, number, *times, 0, 0, 32, 0, 32, *size))
    return [
        _csv(folder / HOST / f"{process}_{kind}.csv", columns, rows)
        for kind, columns, rows in (
            ("kernel_trace", _KERNEL_COLUMNS, kernels),
            ("hip_api_trace", _API_COLUMNS, apis),
            ("memory_copy_trace", _COPY_COLUMNS, copies),
            ("agent_info", ("Node_Id", "Logical_Node_Id", "Agent_Type", "Product_Name"), _agents()),
        )
    ]


def _csv(path: Path, columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def _agents() -> list[tuple[int, int, str, str]]:
    cpus = [(n, n, "CPU", "AMD EPYC 9575F 64-Core Processor") for n in range(_FIRST_GPU_NODE)]
    return cpus + [(_FIRST_GPU_NODE + n, _FIRST_GPU_NODE + n, "GPU", "AMD Instinct MI350X") for n in range(RANKS)]


def write_database(folder: Path, rank: int, steps: int) -> Path:
    """Write <pid>_results.db of a rank: tables with the process's uuid in their names, and views without."""
    path = folder / HOST / f"{pid(rank)}_results.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    guid = _GUID.format(rank=rank)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        suffix = "_" + guid.replace("-", "_")
        for table, columns in _TABLES.items():
            connection.execute(f'CREATE TABLE "{table}{suffix}" (id INTEGER PRIMARY KEY, guid TEXT, {columns})')
            connection.execute(f'CREATE VIEW {table} AS SELECT * FROM "{table}{suffix}"')
        connection.execute(f'CREATE TABLE "rocpd_metadata{suffix}" (id INTEGER PRIMARY KEY, tag TEXT, value TEXT)')
        connection.execute(f'CREATE VIEW rocpd_metadata AS SELECT * FROM "rocpd_metadata{suffix}"')
        pairs = [("schema_version", "3"), ("uuid", suffix), ("guid", guid)]
        connection.executemany(f'INSERT INTO "rocpd_metadata{suffix}" (tag, value) VALUES (?, ?)', pairs)
        _Database(connection, suffix, guid, rank).fill(steps)
    connection.close()
    return path


class _Database:
    def __init__(self, connection: sqlite3.Connection, suffix: str, guid: str, rank: int) -> None:
        self.connection = connection
        self.suffix = suffix
        self.guid = guid
        self.rank = rank
        self.strings: dict[str, int] = {}
        self.kernels: dict[str, int] = {}

    def insert(self, table: str, key: int | None, *values: object) -> int:
        """Insert a row behind its id (None for the next one) and guid; return its id."""
        marks = ", ".join("?" * (len(values) + 2))
        cursor = self.connection.execute(
            f'INSERT INTO "{table}{self.suffix}" VALUES ({marks})', (key, self.guid, *values)
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = self.insert("rocpd_string", None, text)
        return self.strings[text]

    def fill(self, steps: int) -> None:
        """Write everything about the process; its environment is as empty as it should have been."""
        process, offset = pid(self.rank), BOOT_NS + clock_offset_ns(self.rank)
        made = launches(recorded(self.rank, ROCPROFV3, steps))
        end = offset + max(launch.work.end_ns for launch in made)
        self.insert("rocpd_info_node", 1, 0, "0" * 32, "Linux", HOST, "", "", "x86_64", "(none)")
        times = (offset - 9_000_000_000, end + 2_000_000_000, offset, end)
        self.insert("rocpd_info_process", process, 1, 1, process, *times, "python -u pretrain.py", "{}", "{}")
        for thread in threads(self.rank):
            self.insert("rocpd_info_thread", thread, 1, 1, process, thread, "", offset, end)
        for node, _, kind, product in _agents():
            index = node - _FIRST_GPU_NODE if kind == "GPU" else node
            names = ("gfx950" if kind == "GPU" else product, "", "AMD", product, "")
            self.insert("rocpd_info_agent", node + 1, 1, process, kind, node, node, index, 0, *names)
        for stream in sorted({launch.work.stream for launch in made}):
            self.insert("rocpd_info_queue", FIRST_QUEUE + stream, 1, process, f"Queue {FIRST_QUEUE + stream}")
            self.insert("rocpd_info_stream", stream + 1, 1, process, f"Stream {stream}")
        for number, launch in enumerate(made, 1):
            self._launch(number, launch, offset)

    def _launch(self, number: int, launch: Launch, offset: int) -> None:
        work, process, thread = launch.work, pid(self.rank), thread_id(self.rank, launch.work)
        category = self.string("HIP_RUNTIME_API_EXT")
        event = self.insert("rocpd_event", None, category, number, 0, 0, "{}", "{}", "{}")
        span = (offset + launch.start_ns, offset + launch.end_ns)
        self.insert("rocpd_region", None, 1, process, thread, *span, self.string(work.api), event)
        times = (offset + work.start_ns, offset + work.end_ns)
        gpu, queue, stream = _FIRST_GPU_NODE + self.rank + 1, FIRST_QUEUE + work.stream, work.stream + 1
        category = self.string("MEMORY_COPY" if is_copy(work) else "KERNEL_DISPATCH")
        event = self.insert("rocpd_event", None, category, number, number, 0, "{}", "{}", "{}")
        if is_copy(work):
            to_device = "HtoD" in work.name
            name = self.string("MEMORY_COPY_HOST_TO_DEVICE" if to_device else "MEMORY_COPY_DEVICE_TO_HOST")
            agents = (gpu, 0, 1, 0) if to_device else (1, 0, gpu, 0)
            size = work.copied_bytes
            row = (1, process, thread, *times, name, *agents, size, queue, stream, name, event)
            self.insert("rocpd_memory_copy", None, *row)
            return
        kernel = self._kernel(kernel_name(work))
        shape = (0, 0, 256, 1, 1, work.blocks * 256, 1, 1)
        row = (1, process, thread, gpu, kernel, number, queue, stream, *times, *shape, self.string(""), event)
        self.insert("rocpd_kernel_dispatch", None, *row)

    def _kernel(self, name: str) -> int:
        if name not in self.kernels:
            more = json.dumps({"kernel_id": len(self.kernels) + 1, "formatted_kernel_name": name})
            row = (1, pid(self.rank), 1, f"{name}.kd", name, more)
            self.kernels[name] = self.insert("rocpd_info_kernel_symbol", len(self.kernels) + 1, *row)
        return self.kernels[name]
