"""Writes the model as the PyTorch profiler would have recorded it: JSON, gzip."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proxy.collectors import Collector, recorded
from proxy.host import EVALUATE, Launch, Span, frame_edges, frames, launches, spans
from proxy.model import RANKS, Work, clock_offset_ns, window

BASE_NS: Final = 1_782_967_788_000_000_000
"""What the trace's times count from; the unit of the trace is then microseconds since."""
_BEGIN_NS: Final = 7_000_000_000
_FIRST_STEP: Final = 12
_HOST_PID: Final = 4_000
_AUTOGRAD_TID: Final = 4_187
_BLOCK: Final = 256
SDK_RANK: Final = 6
"""This rank's profiler is built on rocprofiler-sdk, the others' on roctracer."""
_FORWARD_OF: Final = {
    "MmBackward0": "aten::mm",
    "BmmBackward0": "aten::bmm",
    "EmbeddingBackward0": "aten::embedding",
    "ToCopyBackward0": "aten::copy_",
    "MulBackward0": "aten::mul",
}
Event = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """How much a profiler recorded."""

    calls: bool
    """The runtime calls that launched the work."""
    host: bool
    """Operators, steps, annotations and memory too."""
    stacks: bool = False
    """Python frames too."""


GPU_ONLY: Final = Recorded(calls=False, host=False)
WITH_CALLS: Final = Recorded(calls=True, host=False)
WITH_HOST: Final = Recorded(calls=True, host=True)
WITH_STACKS: Final = Recorded(calls=True, host=True, stacks=True)


def write(path: Path, rank: int, steps: int, what: Recorded, collector: Collector | None = None) -> None:
    """Write the trace of a rank, as the model has it or as a collector that costs more records it."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        head, tail = _keys(rank, what)
        text.write("{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()))
        text.write(',\n  "traceEvents": [\n')
        separator = "  "
        for event in _events(rank, steps, what, collector):
            text.write(separator + json.dumps(event, ensure_ascii=False))
            separator = ",\n  "
        text.write("\n  ],\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in tail.items()) + "\n}\n")
        text.flush()
        text.detach()


def _keys(rank: int, what: Recorded) -> tuple[Event, Event]:
    """Return the top-level keys before and behind the events; older profilers write the base time behind."""
    gpu = {"id": rank, "name": "AMD Instinct MI350X", "totalGlobalMem": 309220868096, "computeMajor": 9}
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS, "pg_count": 1}
    backend = {"rocprofiler-sdk_version": 1.0} if rank == SDK_RANK else {"roctracer_version": 4.1}
    head: Event = {"schemaVersion": 1, "deviceProperties": [gpu], **backend, "distributedInfo": info}
    if what.host:
        head |= {"record_shapes": 1, "profile_memory": 1, **({"with_stack": 1} if what.stacks else {})}
    if rank % 3 == 2:
        head |= {"host_name": "mi350x-node-0", "trace_id": f"{rank:032X}"}  # keys that nobody needs
    times = {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    tail = {"traceName": f"/results/deepseek_v4_flash_proxy-rank[{rank}].pt.trace.json"}
    return (head, tail | times) if rank % 2 else (head | times, tail)


def _events(rank: int, steps: int, what: Recorded, collector: Collector | None) -> Iterator[Event]:
    works = recorded(rank, collector, steps) if collector else window(rank, steps)
    made = launches(works)
    writer = _Writer(rank)
    if what.host:
        yield from writer.host(made)
    if what.stacks:
        yield from writer.stacks(made)
    for number, launch in enumerate(made):
        if what.calls:
            yield writer.runtime(launch, number)
            yield writer.arrow("s", launch.start_ns, number, _HOST_PID, writer.tid(launch.work.thread))
        yield writer.gpu(launch, number)
        if what.calls:
            yield writer.arrow("f", launch.work.start_ns, number, rank, launch.work.stream)
    yield from writer.names()
    if what.host:
        first, last = writer.us(works[0].start_ns - 50_000), writer.us(max(work.end_ns for work in works) + 50_000)
        yield {
            **{"ph": "X", "cat": "Trace", "ts": first, "dur": round(last - first, 3), "pid": "Spans"},
            **{"tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
        }
        yield {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": last}


class _Writer:
    """Makes the events of one rank, with the ids that tie them together."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._external: dict[int, int] = {}
        self._forward: dict[tuple[int, str, str], list[tuple[int, Span]]] = {}
        self._sequence = 0
        self._arrows: list[Event] = []

    def us(self, time_ns: int) -> float:
        """Return a time on rank 0's clock as this rank's profiler writes it."""
        return (time_ns + _BEGIN_NS + clock_offset_ns(self.rank)) / 1000

    def tid(self, thread: str) -> int:
        return _AUTOGRAD_TID if thread == "autograd" else _HOST_PID

    def host(self, made: list[Launch]) -> Iterator[Event]:
        """Yield steps, annotations, operators and memory events."""
        by_step: dict[int, list[Launch]] = {}
        for launch in made:
            by_step.setdefault(launch.work.step, []).append(launch)
        begins = [min(launch.start_ns - launch.before_ns for launch in group) - 200 for group in by_step.values()]
        begins.append(max(launch.work.end_ns for launch in made) + 30_000)
        number = 0
        for step in by_step:
            name, start, end = f"ProfilerStep#{_FIRST_STEP + step}", begins[step], begins[step + 1] - 100
            yield self._host("user_annotation", name, "main", start, end, {"External id": 1_000_000 + step})
        for number, span in enumerate(spans(made), 1):
            yield self._span(span, number)
        yield from self._arrows
        yield from self._memory(made, number)

    def _span(self, span: Span, number: int) -> Event:
        args: Event = {"External id": number, "Ev Idx": number}
        for launch in span.launches:
            self._external[id(launch)] = number
        work = span.launches[0].work if span.launches else None
        if span.name in ("Optimizer.step#FusedAdam.step",) or span.name.startswith("fused_mega_moe"):
            return self._host("user_annotation", span.name, span.thread, span.start_ns, span.end_ns, args)
        if work and work.collective:
            args |= _collective(work)
        args |= self._sequence_number(span, work)
        if work and span.is_leaf and not work.collective and span.name.startswith("aten::"):
            args |= shapes(span.name, work)
        return self._host("cpu_op", span.name, span.thread, span.start_ns, span.end_ns, args)

    def _sequence_number(self, span: Span, work: Work | None) -> Event:
        """Return the number that a forward operator shares with its node of the backward pass."""
        if work is None:
            return {}
        if work.phase == "fwd" and not span.name.startswith("record_"):
            self._sequence += 1
            self._forward.setdefault((work.step, work.module, span.name), []).append((self._sequence, span))
            return {"Sequence number": self._sequence}
        node = next((n.removeprefix(EVALUATE) for n in reversed(work.nodes) if n.startswith(EVALUATE)), None)
        if node is None or span.name.removeprefix(EVALUATE) != node:
            return {}
        forward = _FORWARD_OF.get(node, node.removesuffix("Backward"))
        known = self._forward.get((work.step, work.module, forward))
        if not known:
            return {}
        number, of_forward = known[-1]
        if span.name == node:
            self._arrow_to_backward(of_forward, span)
        return {"Sequence number": number, "Fwd thread id": 1}

    def _arrow_to_backward(self, forward: Span, backward: Span) -> None:
        number = len(self._arrows) // 2 + 1
        for phase, span, end in (("s", forward, {}), ("f", backward, {"bp": "e"})):
            place = {"ph": phase, "id": number, "pid": _HOST_PID, "tid": self.tid(span.thread)}
            self._arrows.append(
                {**place, "ts": self.us(span.start_ns), "cat": "fwdbwd", "name": "fwdbwd", **end},
            )

    def _memory(self, made: list[Launch], number: int) -> Iterator[Event]:
        """Yield an allocation where a module's forward begins, and its release where its backward ends."""
        total, size = 48 << 30, 192 << 20
        held: dict[tuple[int, str], int] = {}
        for launch in made:
            work = launch.work
            key = (work.step, work.module)
            change = size if work.phase == "fwd" and key not in held else 0
            if work.phase == "bwd" and held.get(key) == 1:
                change = -size
            if not change:
                continue
            held[key] = 1 if change > 0 else 0
            number, total = number + 1, total + change
            args = {"Total Reserved": 96 << 30, "Total Allocated": total, "Bytes": change, "Device Id": self.rank}
            args |= {"Device Type": 6, "Addr": (127 << 40) + number * size, "Ev Idx": number}
            yield {
                **{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": _HOST_PID},
                **{"tid": self.tid(work.thread), "ts": self.us(launch.start_ns), "args": args},
            }

    def stacks(self, made: list[Launch]) -> Iterator[Event]:
        """Yield the Python frames around each call of a module: the wrapper, the module, its forward or backward."""
        number = 0
        modules: dict[str, int] = {}
        for first, last in frames(made):
            work = first.work
            module = modules.setdefault(work.module, len(modules) + 1)
            leaf = "_call_backward" if work.thread == "autograd" else "forward"
            path = work.module.replace("decoder.layers.", "layer").split(".")
            parent = None
            for depth, name in enumerate(
                (
                    "torch/nn/modules/module.py(1739): _wrapped_call_impl",
                    f"nn.Module: {''.join(part.title() for part in path[-1].split('_'))}_{module}",
                    f"primus/modules/{'/'.join(path)}.py(77): {leaf}",
                )
            ):
                number += 1
                start, end = frame_edges(first, last, depth)
                args: Event = {"Python id": number, "Python parent id": parent, "Python thread": 0, "Ev Idx": -number}
                if depth == 1:
                    args["Python module id"] = module
                parent = number
                yield self._host("python_function", name, work.thread, start, end, args)

    def runtime(self, launch: Launch, number: int) -> Event:
        """Return the call that launched a piece of work."""
        args: Event = {"cid": 107, "correlation": 5_000 + number}
        if external := self._external.get(id(launch)):
            args = {"External id": external, **args}
        if not launch.work.is_copy:
            args |= {"kernel": launch.work.name, **_shape(launch.work), "shared memory": 0}
        return self._host("cuda_runtime", launch.work.api, launch.work.thread, launch.start_ns, launch.end_ns, args)

    def gpu(self, launch: Launch, number: int) -> Event:
        """Return a kernel or copy."""
        work = launch.work
        args: Event = {"device": self.rank, "stream": work.stream, "correlation": 5_000 + number}
        external = self._external.get(id(launch))
        if external:
            args = {"External id": external, **args}
        is_copy, name = work.is_copy, work.name
        if self.rank == SDK_RANK:  # whose kernels keep their suffix, and whose copies within a GPU are kernels
            is_copy = is_copy and "DtoD" not in name
            name = name if is_copy else _with_suffix("__amd_rocclr_copyBuffer" if work.is_copy else name)
        if is_copy:
            args |= {"kind": work.name.split()[1], "bytes": str(work.copied_bytes)}
        else:
            args |= {"kind": "Dispatch Kernel", **_shape(work)}
            if work.collective and external:
                args |= _collective(work)
        return {
            **{"ph": "X", "cat": "gpu_memcpy" if is_copy else "kernel", "name": name, "pid": self.rank},
            **{"tid": work.stream, "ts": self.us(work.start_ns), "dur": work.dur_ns / 1000, "args": args},
        }

    def arrow(self, phase: str, time_ns: int, number: int, pid: int, tid: int) -> Event:
        """Return an end of the arrow from a launch to its work."""
        end = {"bp": "e"} if phase == "f" else {}
        return {
            **{"ph": phase, "id": 5_000 + number, "pid": pid, "tid": tid, "ts": self.us(time_ns)},
            **{"cat": "ac2g", "name": "ac2g", **end},
        }

    def names(self) -> Iterator[Event]:
        """Yield the records that name processes."""
        for pid, label in ((_HOST_PID, "CPU"), (self.rank, f"GPU {self.rank}")):
            yield {
                "name": "process_name",
                "ph": "M",
                "ts": self.us(0),
                "pid": pid,
                "tid": 0,
                "args": {"name": "python"},
            }
            yield {
                **{"name": "process_labels", "ph": "M", "ts": self.us(0), "pid": pid, "tid": 0},
                **{"args": {"labels": label}},
            }

    def _host(self, cat: str, name: str, thread: str, start_ns: int, end_ns: int, args: Event) -> Event:
        return {
            **{"ph": "X", "cat": cat, "name": name, "pid": _HOST_PID, "tid": self.tid(thread)},
            **{"ts": self.us(start_ns), "dur": (end_ns - start_ns) / 1000, "args": args},
        }


_MATRICES: Final = {
    "q_up": (4096, 1024, 32768),
    "o_b": (4096, 8192, 4096),
    "output_layer": (4096, 4096, 129408),
    "router": (4096, 4096, 256),
    "attn_hc": (4096, 16384, 24),
    "mlp_hc": (4096, 16384, 24),
    "fn": (4096, 16384, 24),
    "hyper_head": (4096, 16384, 4),
    "compressor": (4096, 4096, 1024),
    "indexer": (4096, 1024, 8192),
}
"""Rows, inner size and columns of the products of a module's forward; the backward multiplies the same sizes."""
_GRADIENTS: Final = {544_000: [32, 4096, 4096], 272_000: [32, 2048, 4096], 540_000: [129408, 4096]}
"""Shapes of the large gradients, by how long their addition takes."""
_ELEMENTS_PER_NS: Final = 0.987


def shapes(operator: str, work: Work) -> Event:
    """Return the sizes and types of an operator's inputs: derived for products and large gradients, else assumed."""
    module = work.module.rpartition(".")[2]
    if operator in ("aten::mm", "aten::bmm") and module in _MATRICES:
        rows, inner, columns = _MATRICES[module]
        dims = [[rows, inner], [inner, columns]]
    else:
        elements = max(round(work.dur_ns * _ELEMENTS_PER_NS / 4096), 1)
        one = _GRADIENTS.get(work.dur_ns, [4096, elements]) if operator == "aten::add_" else [4096, elements]
        dims = [one, one]
    return {
        **{"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)},
        **{"Input Strides": [_strides(of) for of in dims], "Concrete Inputs": [""] * len(dims)},
    }


def _strides(dims: list[int]) -> list[int]:
    strides = [1]
    for size in reversed(dims[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def _with_suffix(name: str) -> str:
    """Return a kernel's name as the first profilers on rocprofiler-sdk write it."""
    return f"{name} [clone .kd]" if "(" in name else f"{name}.kd"


def _shape(work: Work) -> Event:
    """Return grid and block; hipExtModuleLaunchKernel counts work-items."""
    grid = work.blocks * _BLOCK if work.api == "hipExtModuleLaunchKernel" else work.blocks
    return {"grid": [grid, 1, 1], "block": [_BLOCK, 1, 1]}


def _collective(work: Work) -> Event:
    """Return what the profiler knows of a collective: elements are per rank, not bytes."""
    dtype, size = ("BFloat16", 2) if work.payload_bytes >= 1 << 20 else ("Float", 4)
    whole = max(work.payload_bytes // size, 1)
    ours, theirs = {
        "reduce_scatter_tensor_coalesced": (whole, whole // RANKS),
        "allgather_into_tensor_coalesced": (whole // RANKS, whole),
    }.get(work.collective, (whole, whole))
    return {
        **{"Collective name": work.collective, "dtype": dtype, "In msg nelems": ours, "Out msg nelems": theirs},
        **{"In split size": "[]", "Out split size": "[]", "Group size": RANKS, "Process Group Name": "0"},
        **{"Process Group Description": "default_pg", "Process Group Ranks": str(list(range(RANKS)))},
    }
