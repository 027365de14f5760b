"""Small documents as rocprofv3 writes them, and what is in such a document by plain Python."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.oracle import GpuEvent, _class_of

GPU, CPU = 9000, 100
KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "MEMORY_COPY", "operations": ["NONE", "HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST"]},
    {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
    {"kind": "HIP_RUNTIME_API_EXT", "operations": ["hipApiName", "hipLaunchKernel", "hipMemcpyAsync"]},
    {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
    {"kind": "MEMORY_ALLOCATION", "operations": ["NONE", "ALLOCATE"]},
]
Record = dict[str, Any]


def dispatch(kernel_id: int, start: int, end: int, correlation: int = 1, gpu: int = 0, **more: Any) -> Record:
    """Return the record of a kernel on one of the GPUs: 256 threads a block, 4 and a half blocks."""
    return {
        **{"size": 184, "kind": 2, "operation": 2, "thread_id": 77},
        **{"correlation_id": {"internal": correlation, "external": 0}},
        **{"start_timestamp": start, "end_timestamp": end},
        "dispatch_info": {
            **{"size": 72, "agent_id": {"handle": GPU + gpu}, "queue_id": {"handle": 16}, "kernel_id": kernel_id},
            **{"dispatch_id": correlation, "private_segment_size": 0, "group_segment_size": 0},
            **{"workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1152, "y": 1, "z": 1}},
        },
        "stream_id": {"handle": 5},
        **more,
    }


def copy(start: int, end: int, correlation: int = 2, **more: Any) -> Record:
    """Return the record of a copy from the host to GPU 0."""
    return {
        **{"size": 120, "kind": 1, "operation": 2, "thread_id": 77},
        **{"correlation_id": {"internal": correlation, "external": 0}},
        **{"start_timestamp": start, "end_timestamp": end},
        **{"dst_agent_id": {"handle": GPU}, "src_agent_id": {"handle": CPU}, "bytes": 4096, "stream_id": {"handle": 5}},
        **more,
    }


def call(start: int, end: int, correlation: int = 1, **more: Any) -> Record:
    """Return the record of a HIP call with arguments."""
    return {
        **{"size": 80, "kind": 3, "operation": 1, "correlation_id": {"internal": correlation, "external": 0}},
        **{"start_timestamp": start, "end_timestamp": end, "thread_id": 78},
        **{"args": [{"type": "void*", "name": "f", "value": "0x1"}, {"type": "dim3", "name": "n", "value": "4"}]},
        **{"retval": 0, **more},
    }


def marker(start: int, end: int, correlation: int) -> Record:
    """Return the record of a range pushed by the user."""
    return {
        **{"size": 56, "kind": 4, "operation": 1, "correlation_id": {"internal": correlation, "external": 0}},
        **{"start_timestamp": start, "end_timestamp": end, "thread_id": 77},
    }


def symbol(number: int, name: str, **more: Any) -> Record:
    """Return a kernel's symbol."""
    return {
        **{"size": 88, "kernel_id": number, "code_object_id": 1, "kernel_name": f"_Z{number}f.kd"},
        **{"formatted_kernel_name": name, "demangled_kernel_name": f"{name} [clone .kd]"},
        **{"truncated_kernel_name": name.split("<")[0], **more},
    }


def process(lists: dict[str, list[Record]], *, symbols: list[Record] | None = None, **more: Any) -> Record:
    """Return one process with these records; keyword arguments replace parts of its head."""
    metadata = {
        **{"node": {"hostname": "node-0"}, "pid": 4242, "init_time": 1_000, "fini_time": 9_000_000},
        **{"command": ["python", "train.py"], "config": {"output_path": "."}},
    }
    agents = [{"size": 1, "id": {"handle": CPU}, "type": 1, "logical_node_type_id": 0, "product_name": "EPYC"}]
    agents += [
        {
            **{"size": 1, "id": {"handle": GPU + n}, "type": 2, "logical_node_type_id": n, "location_id": 300 + n},
            **{"product_name": "AMD Instinct MI350X", "hive_id": 17_332_996_360_099_338_395},
            **{"uuid": {"bytes": {f"value{k}": k + n for k in range(16)}}},
        }
        for n in range(2)
    ]
    kinds = {"buffer_records": KINDS, "callback_records": KINDS, "marker_api": [{"key": 50, "value": "forward"}]}
    names = [symbol(0, "0"), symbol(1, "void gemm<float>(int)"), symbol(2, "ncclDevKernel_Generic(x)")]
    head = {"metadata": metadata, "agents": agents, "counters": [], "strings": kinds, "code_objects": []}
    head |= {"kernel_symbols": names if symbols is None else symbols, "host_functions": [], "summary": []}
    head |= {key: value for key, value in more.items() if key in head}
    callbacks = {name: lists.get(name, []) for name in ("counter_collection",)}
    buffers = {"kernel_dispatch": [], "hip_api": [], "marker_api": [], "memory_copy": [], "memory_allocation": []}
    buffers |= {name: records for name, records in lists.items() if name not in callbacks}
    return {**head, "callback_records": callbacks, "buffer_records": buffers}


def text_of(*processes: Record, **layout: Any) -> str:
    """Return the document as text, compact as the collector writes it."""
    return json.dumps({"rocprofiler-sdk-tool": list(processes)}, **(layout or {"separators": (",", ":")}))


def gpu_events(tool: Record) -> list[GpuEvent]:
    """Return the GPU work of a process, in file order, read with nothing but dictionaries."""
    names = {s["kernel_id"]: s["formatted_kernel_name"].removesuffix(".kd") for s in tool["kernel_symbols"]}
    ordinals = {a["id"]["handle"]: a["logical_node_type_id"] for a in tool["agents"] if a["type"] == 2}
    found = []
    for record in tool["buffer_records"]["kernel_dispatch"]:
        info = record["dispatch_info"]
        name = names[info["kernel_id"]]
        found.append(_event(record, "kernel", name, ordinals[info["agent_id"]["handle"]]))
    kinds = tool["strings"]["buffer_records"]
    for record in tool["buffer_records"]["memory_copy"]:
        name = kinds[record["kind"]]["operations"][record["operation"]]
        ends = [ordinals.get(record[f"{end}_agent_id"]["handle"]) for end in ("dst", "src")]
        found.append(_event(record, "memcpy", name, next(end for end in ends if end is not None)))
    return found


def _event(record: Record, kind: str, name: str, device: int) -> GpuEvent:
    start, end = record["start_timestamp"], record["end_timestamp"]
    correlation = record["correlation_id"]["internal"]
    stream = record.get("stream_id", {}).get("handle")
    return GpuEvent(0, kind, name, device, stream, start, end - start, correlation, _class_of(kind, name))


def merged_database(path: Path, databases: list[Path]) -> Path:
    """Write one database with the tables of several, as 'rocpd merge' does: each with its uuid, and views over all."""
    tables: dict[str, list[str]] = {}
    with sqlite3.connect(path) as target:
        for number, database in enumerate(databases):
            target.execute(f"ATTACH '{database}' AS d{number}")
            listed = target.execute(f"SELECT name, sql FROM d{number}.sqlite_master WHERE type = 'table'").fetchall()
            for name, ddl in listed:
                target.execute(ddl)
                target.execute(f'INSERT INTO "{name}" SELECT * FROM d{number}."{name}"')
                tables.setdefault(name[: name.index("_0198a")], []).append(name)
            target.commit()
            target.execute(f"DETACH d{number}")
        for base, names in tables.items():
            union = " UNION ALL ".join(f'SELECT * FROM "{name}"' for name in names)
            target.execute(f"CREATE VIEW {base} AS {union}")
    target.close()
    return path
