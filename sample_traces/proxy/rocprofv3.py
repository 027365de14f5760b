"""Writes the model as rocprofv3 would have recorded it: JSON per process, in madengine's folders.

Records of several threads' buffers follow each other, so they are not sorted; durations are mostly whole ticks of 40
ns; copies within a GPU are kernels of the runtime, the others are memory copies; and every launch is a HIP call.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from proxy.collectors import BLIT, ROCPROFV3, recorded
from proxy.host import Launch, launches
from proxy.model import RANKS, Work, clock_offset_ns

BOOT_NS: Final = 71_200_000_000_000
HOST: Final = "mi350x-node-0"
_FIRST_PID: Final = 52_000
_CPU_HANDLE, _GPU_HANDLE = 37_944, 37_946
_KINDS: Final = (
    *("NONE", "HSA_CORE_API", "HSA_AMD_EXT_API", "HSA_IMAGE_EXT_API", "HSA_FINALIZE_EXT_API", "HIP_RUNTIME_API"),
    *("HIP_COMPILER_API", "MARKER_CORE_API", "MARKER_CONTROL_API", "MARKER_NAME_API", "MEMORY_COPY", "KERNEL_DISPATCH"),
    *("SCRATCH_MEMORY", "CORRELATION_ID_RETIREMENT", "RCCL_API", "OMPT", "MEMORY_ALLOCATION"),
    *("RUNTIME_INITIALIZATION", "ROCDECODE_API", "ROCJPEG_API", "HIP_STREAM", "HIP_RUNTIME_API_EXT"),
    *("HIP_COMPILER_API_EXT", "ROCDECODE_API_EXT", "KFD_EVENT_PAGE_MIGRATE", "KFD_EVENT_PAGE_FAULT", "KFD_EVENT_QUEUE"),
    *("KFD_EVENT_UNMAP_FROM_GPU", "KFD_EVENT_DROPPED_EVENTS", "KFD_PAGE_MIGRATE", "KFD_PAGE_FAULT", "KFD_QUEUE"),
    "MARKER_CORE_RANGE_API",
)
_KINDS_0_5: Final = (*_KINDS[:12], "PAGE_MIGRATION", "SCRATCH_MEMORY", "CORRELATION_ID_RETIREMENT", "RCCL_API")
"""Before rocprofiler-sdk 1.0 other numbers mean other kinds, which is why the file says what its numbers mean."""
_HIP: Final = (
    *("hipApiName", "hipLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "hipExtLaunchKernel"),
    *("hipMemcpyAsync", "hipStreamSynchronize"),
)
_OPERATIONS: Final = {
    "HIP_RUNTIME_API": _HIP,
    "HIP_RUNTIME_API_EXT": _HIP,
    "MEMORY_COPY": ("NONE", "HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE"),
    "KERNEL_DISPATCH": ("NONE", "ENQUEUE", "COMPLETE"),
    "MEMORY_ALLOCATION": ("NONE", "ALLOCATE", "VMEM_ALLOCATE", "FREE", "VMEM_FREE"),
}
_LISTS: Final = (
    *("kernel_dispatch", "hip_api", "hsa_api", "marker_api", "rccl_api", "memory_copy", "memory_allocation"),
    *("scratch_memory", "rocdecode_api", "rocjpeg_api", "pc_sample_host_trap", "pc_sample_stochastic"),
)
_LISTS_0_5: Final = tuple(name for name in _LISTS if name not in ("memory_allocation", "rocdecode_api", "rocjpeg_api"))
FIRST_QUEUE: Final = 16
_AUTOGRAD: Final = 187
"""The thread of the backward pass has this much higher an id than the main one."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Version:
    """A version of rocprofiler-sdk, as far as its files differ."""

    name: str
    kinds: tuple[str, ...]
    lists: tuple[str, ...]
    has_streams: bool
    has_arguments: bool


VERSION_1_0: Final = Version("1.0.0", _KINDS, _LISTS, has_streams=True, has_arguments=True)
VERSION_0_5: Final = Version("0.5.0", _KINDS_0_5, _LISTS_0_5, has_streams=False, has_arguments=False)


def pid(rank: int) -> int:
    """Return the process id of a rank."""
    return _FIRST_PID + rank


def thread_id(rank: int, work: Work) -> int:
    """Return the thread of a rank that launched the work."""
    return pid(rank) + (_AUTOGRAD if work.thread == "autograd" else 0)


def threads(rank: int) -> tuple[int, int]:
    """Return the threads of a rank: the main one, and that of the backward pass."""
    return pid(rank), pid(rank) + _AUTOGRAD


def write(folder: Path, rank: int, steps: int, version: Version = VERSION_1_0, *, ending: str = ".json.gz") -> Path:
    """Write <host>/<pid>_results.json of a rank, compressed or, with ending='.json', not."""
    path = folder / HOST / f"{pid(rank)}_results{ending}"
    made = launches(recorded(rank, ROCPROFV3, steps))
    recording = _Recording(rank, version, made)
    with _text(path) as out:
        out.write('{"rocprofiler-sdk-tool":[{')
        for key, value in recording.head().items():
            out.write(f"{json.dumps(key)}:{_compact(value)},")
        out.write('"buffer_records":{')
        filled = {"kernel_dispatch": recording.dispatches(), "memory_copy": recording.copies()}
        filled["hip_api"] = recording.calls()
        for number, name in enumerate(version.lists):
            out.write(f'{"," if number else ""}"{name}":')
            _list(out, filled.get(name, ()))
        out.write("}}]}")
    return path


def write_helper(folder: Path) -> Path:
    """Write what a helper process leaves behind that loads HIP and launches nothing."""
    path = folder / HOST / f"{_FIRST_PID + 900}_results.json.gz"
    with _text(path) as out:
        head = _Recording(0, VERSION_1_0, []).head()
        head["metadata"]["pid"] = _FIRST_PID + 900
        lists = {name: [] for name in _LISTS}
        out.write(_compact({"rocprofiler-sdk-tool": [{**head, "buffer_records": lists}]}))
    return path


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        with path.open("w", encoding="utf-8", newline="\n") as plain:
            yield plain
        return
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _list(out: IO[str], records: Iterable[Record]) -> None:
    separator = "["
    for record in records:
        out.write(separator + _compact(record))
        separator = ","
    out.write("[]" if separator == "[" else "]")


def is_copy(work: Work) -> bool:
    """Say whether the DMA engines copy: between host and device."""
    return work.is_copy and "DtoD" not in work.name


def kernel_name(work: Work) -> str:
    """Return the name of a kernel, or of the runtime's kernel that copies within a GPU."""
    return BLIT if work.is_copy else work.name


class _Recording:
    """The records of one process."""

    def __init__(self, rank: int, version: Version, made: list[Launch]) -> None:
        self.rank = rank
        self.version = version
        self.made = made
        self.offset = BOOT_NS + clock_offset_ns(rank)
        self._correlation = {id(launch): number for number, launch in enumerate(made, 1)}
        names = dict.fromkeys(kernel_name(launch.work) for launch in made if not is_copy(launch.work))
        self._kernel_ids = {name: number for number, name in enumerate(names, 1)}

    # -- before the records --------------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return everything that stands before the records."""
        ends = [launch.work.end_ns for launch in self.made]
        node = {"id": 0, "hash": 0, "machine_id": "0" * 32, "system_name": "Linux", "hostname": HOST}
        metadata: Record = {"node": node} if self.version.has_streams else {}
        metadata |= {
            **{"pid": pid(self.rank), "init_time": self.offset - 9_000_000_000},
            **{"fini_time": self.offset + max(ends, default=0) + 2_000_000_000},
            **{"command": ["python", "-u", "pretrain.py"], "config": {"output_path": "rocprof_output"}},
        }
        head: dict[str, Any] = {"metadata": metadata}
        if self.version is VERSION_0_5:
            head["summary"] = []
        head |= {"agents": self._agents(), "counters": [], "strings": self._strings()}
        head |= {"code_objects": self._code_objects(), "kernel_symbols": self._symbols()}
        if self.version is not VERSION_0_5:
            head |= {"host_functions": [], "summary": []}
        return head | {"callback_records": {"counter_collection": []}}

    def _agents(self) -> list[Record]:
        cpu = {"size": 312, "id": {"handle": _CPU_HANDLE}, "type": 1, "name": "AMD EPYC 9575F 64-Core Processor"}
        agents = [{**cpu, "node_id": n, "logical_node_type_id": n, "id": {"handle": _CPU_HANDLE + n}} for n in range(2)]
        cache = {"size": 32, "level": 1, "cache_line_size": 128, "type": {"Data": 1, "Instruction": 0, "HSACU": 1}}
        for gpu in range(RANKS):
            agents.append(
                {
                    **{"size": 312, "id": {"handle": _GPU_HANDLE + gpu}, "type": 2, "simd_count": 1024},
                    **{"gfx_target_version": 90500, "location_id": 29_952 + 256 * gpu, "cu_count": 256},
                    **{"hive_id": 17_332_996_360_099_338_395, "gpu_id": 12_605 + gpu, "name": "gfx950"},
                    **{"vendor_name": "AMD", "product_name": "AMD Instinct MI350X", "node_id": 2 + gpu},
                    **{"logical_node_id": 2 + gpu, "logical_node_type_id": gpu},
                    **{"runtime_visibility": {"hsa": 1, "hip": int(gpu == self.rank), "rccl": 1, "rocdecode": 1}},
                    **{"uuid": {"bytes": {f"value{n}": (gpu * 37 + n * 11) % 256 for n in range(16)}}},
                    **{"caches": [{"processor_id_low": n, **cache} for n in range(550)], "io_links": []},
                }
            )
        return agents

    def _strings(self) -> Record:
        kinds = [{"kind": kind, "operations": list(_OPERATIONS.get(kind, ()))} for kind in self.version.kinds]
        return {
            **{"callback_records": kinds, "buffer_records": kinds, "marker_api": []},
            **{"correlation_id": {"external": []}, "counters": {"dimension_ids": []}, "pc_sample_instructions": []},
        }

    def _code_objects(self) -> list[Record]:
        nothing = {"size": 0, "code_object_id": 0, "agent_id": {"handle": 0}, "uri": "", "load_base": 0}
        return [nothing, {**nothing, "size": 88, "code_object_id": 1, "agent_id": {"handle": _GPU_HANDLE + self.rank}}]

    def _symbols(self) -> list[Record]:
        found = [_symbol(0, "")]
        return found + [_symbol(number, name) for name, number in self._kernel_ids.items()]

    # -- records -------------------------------------------------------------------------------------------------

    def _unsorted(self) -> list[Launch]:
        """Return the launches as their threads' buffers were flushed: those of the backward pass first."""
        return sorted(self.made, key=lambda launch: launch.work.thread != "autograd")

    def _correlation_of(self, launch: Launch) -> Record:
        return {"internal": self._correlation[id(launch)], "external": 0}

    def _times(self, start_ns: int, end_ns: int) -> Record:
        return {"start_timestamp": self.offset + start_ns, "end_timestamp": self.offset + end_ns}

    def _stream(self, work: Work) -> Record:
        return {"stream_id": {"handle": work.stream}} if self.version.has_streams else {}

    def dispatches(self) -> Iterator[Record]:
        """Yield the kernels, those of the runtime that copy included."""
        for number, launch in enumerate(launch for launch in self._unsorted() if not is_copy(launch.work)):
            work = launch.work
            size = {"size": 72, "agent_id": {"handle": _GPU_HANDLE + self.rank}}
            yield {
                **{"size": 184, "kind": self.version.kinds.index("KERNEL_DISPATCH"), "operation": 2},
                **{"thread_id": thread_id(self.rank, work), "correlation_id": self._correlation_of(launch)},
                **self._times(work.start_ns, work.end_ns),
                "dispatch_info": {
                    **{**size, "queue_id": {"handle": FIRST_QUEUE + work.stream}},
                    **{"kernel_id": self._kernel_ids[kernel_name(work)], "dispatch_id": number + 1},
                    **{"private_segment_size": 0, "group_segment_size": 0},
                    **{"workgroup_size": {"x": 256, "y": 1, "z": 1}},
                    **{"grid_size": {"x": work.blocks * 256, "y": 1, "z": 1}},
                },
                **self._stream(work),
            }

    def copies(self) -> Iterator[Record]:
        """Yield the copies between host and device."""
        for launch in self._unsorted():
            work = launch.work
            if is_copy(work):
                to_device = "HtoD" in work.name
                host, device = {"handle": _CPU_HANDLE}, {"handle": _GPU_HANDLE + self.rank}
                yield {
                    **{"size": 120, "kind": self.version.kinds.index("MEMORY_COPY")},
                    **{"operation": 2 if to_device else 3, "thread_id": thread_id(self.rank, work)},
                    **{"correlation_id": self._correlation_of(launch)},
                    **self._times(work.start_ns, work.end_ns),
                    **{"dst_agent_id": device if to_device else host, "src_agent_id": host if to_device else device},
                    **{"bytes": work.copied_bytes, **self._stream(work)},
                }

    def calls(self) -> Iterator[Record]:
        """Yield the HIP calls that launched the work."""
        kind = "HIP_RUNTIME_API_EXT" if "HIP_RUNTIME_API_EXT" in self.version.kinds else "HIP_RUNTIME_API"
        for launch in self._unsorted():
            arguments = [{"type": "hipStream_t", "name": "stream", "value": f"0x{launch.work.stream:x}"}]
            yield {
                **{"size": 80, "kind": self.version.kinds.index(kind), "operation": _HIP.index(launch.work.api)},
                **{"correlation_id": self._correlation_of(launch)},
                **self._times(launch.start_ns, launch.end_ns),
                **{"thread_id": thread_id(self.rank, launch.work)},
                **({"args": arguments, "retval": 0} if self.version.has_arguments else {}),
            }


def _symbol(number: int, name: str) -> Record:
    """Return a kernel's symbol with its names: C++ names are mangled in the object, others end in .kd."""
    base = re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)::", ""))[0].rpartition("::")[2]
    is_cpp = "(" in name or "<" in name
    mangled = f"_Z{len(base)}{base}v.kd" if is_cpp else f"{name}.kd"
    return {
        **{"size": 88 if number else 0, "kernel_id": number, "code_object_id": min(number, 1)},
        **{
            "kernel_name": mangled if number else "",
            "kernel_object": 140_340_943_469_632 + number * 64 if number else 0,
        },
        **{"kernarg_segment_size": 64, "group_segment_size": 0, "private_segment_size": 0},
        "formatted_kernel_name": name if number else "0",
        "demangled_kernel_name": (f"{name} [clone .kd]" if is_cpp else f"{name}.kd") if number else "0",
        "truncated_kernel_name": (base if is_cpp else f"{name}.kd") if number else "0",
    }
