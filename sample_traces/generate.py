"""Generates the sample traces: two ranks of a small made-up training run, as the PyTorch profiler writes them.

usage: python sample_traces/generate.py [FOLDER]

Nothing here was measured. The model is three layers deep and runs two steps on two GPUs; its kernels are drawn with
fixed durations, rank 1 computes two per cent slower than rank 0, and the gradients' all-reduces run on a stream of
their own, partly hidden behind the backward pass. The same call always writes the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RANKS = 2
STEPS = 2
LAYERS = 3
BASE_NS = 1_782_967_788_000_000_000
HOST_PID = 4000
MAIN_THREAD, BACKWARD_THREAD = 4000, 4001
COMPUTE_STREAM, COMMUNICATION_STREAM = 0, 3

GEMM = "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1"
SCALE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16,"
    " c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int,"
    " at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16,"
    " at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous"
    " namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float,"
    " 4, (at::native::ADAM_MODE)1, false> >(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
)
ALL_REDUCE = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class Trace:
    """The events of one rank as they come, with the clocks of its host thread and its streams (nanoseconds)."""

    rank: int
    events: list[dict[str, Any]] = field(default_factory=list)
    host_ns: int = 7_000_000_000
    stream_ns: dict[int, int] = field(default_factory=lambda: {COMPUTE_STREAM: 0, COMMUNICATION_STREAM: 0})
    correlation: int = 100
    external: int = 0

    def add(self, cat: str, name: str, start_ns: int, dur_ns: int, pid: Any, tid: Any, **args: Any) -> None:
        """Append a complete event."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": us(start_ns), "dur": us(dur_ns)}
        self.events.append({**event, "args": args})

    def op(self, name: str, thread: int, kernel: str, gpu_ns: int, **args: Any) -> None:
        """Append an operator, its launch, the kernel it launches, and the arrow between the two."""
        self.external += 1
        self.correlation += 1
        ids = {"External id": self.external, "correlation": self.correlation}
        start = self.host_ns
        launch_ns = start + 4_250
        self.add("cpu_op", name, start, 14_500, HOST_PID, thread, **{"External id": self.external}, **args)
        stream = COMMUNICATION_STREAM if kernel == ALL_REDUCE else COMPUTE_STREAM
        copy = kernel.startswith("Memcpy")
        self.add(
            "cuda_runtime",
            "hipMemcpyWithStream" if copy else "hipLaunchKernel",
            launch_ns,
            6_125,
            HOST_PID,
            thread,
            **ids,
        )
        begin = max(launch_ns + 7_410, self.stream_ns[stream])
        if kernel == ALL_REDUCE:  # it reads what the computation before it wrote
            begin = max(begin, self.stream_ns[COMPUTE_STREAM])
        self.stream_ns[stream] = begin + gpu_ns
        where = {"device": self.rank, "stream": stream}
        shape = {"bytes": 8_388_608, "kind": "HtoD"} if copy else {"grid": [512, 1, 1], "block": [256, 1, 1]}
        self.add("gpu_memcpy" if copy else "kernel", kernel, begin, gpu_ns, self.rank, stream, **ids, **where, **shape)
        arrow = {"cat": "ac2g", "name": "ac2g", "id": self.correlation}
        self.events.append({"ph": "s", **arrow, "pid": HOST_PID, "tid": thread, "ts": us(launch_ns)})
        self.events.append({"ph": "f", "bp": "e", **arrow, "pid": self.rank, "tid": stream, "ts": us(begin)})
        self.host_ns = start + 16_750

    def wait(self) -> None:
        """Append the synchronisation that ends a step: the host waits for all streams."""
        end = max(self.stream_ns.values())
        self.add(
            "cuda_runtime", "hipDeviceSynchronize", self.host_ns, max(2_000, end - self.host_ns), HOST_PID, MAIN_THREAD
        )
        self.host_ns = max(self.host_ns + 2_000, end) + 21_375


def us(ns: int) -> float:
    """Return nanoseconds as the microseconds with three decimals that the profiler writes."""
    return ns / 1000


def step(trace: Trace, number: int) -> None:
    """Append one training step."""
    began = trace.host_ns
    slow = 100 + 2 * trace.rank
    trace.op("aten::copy_", MAIN_THREAD, "Memcpy HtoD (Host -> Device)", 41_207)
    for layer in range(LAYERS):
        dims = {"Input Dims": [[4096, 2048], [2048, 2048]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
        module = f"nn.Module: Linear_{layer}"
        trace.add("python_function", module, trace.host_ns - 300, 34_000, HOST_PID, MAIN_THREAD, **{"Python id": layer})
        trace.op("aten::mm", MAIN_THREAD, GEMM, 183_411 * slow // 100, **dims, **{"Sequence number": layer})
        trace.op("aten::mul", MAIN_THREAD, SCALE, 23_947 * slow // 100)
    for layer in reversed(range(LAYERS)):
        trace.op("aten::mm", BACKWARD_THREAD, GEMM, 371_083 * slow // 100, **{"Sequence number": layer})
        trace.op("record_param_comms", BACKWARD_THREAD, ALL_REDUCE, 402_660 - 7_400 * trace.rank)
    trace.stream_ns[COMPUTE_STREAM] = max(trace.stream_ns.values())  # the optimizer needs the reduced gradients
    trace.op("aten::_fused_adam_", MAIN_THREAD, ADAM, 118_509)
    trace.wait()
    trace.add("user_annotation", f"ProfilerStep#{number}", began, trace.host_ns - began, HOST_PID, MAIN_THREAD)


def document(rank: int) -> dict[str, Any]:
    """Return the whole trace of one rank."""
    trace = Trace(rank)
    for number in range(STEPS):
        step(trace, number + 5)
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": HOST_PID, "tid": MAIN_THREAD}
    trace.events.append({**memory, "ts": us(7_000_001_000), "args": {"Bytes": 8_388_608, "Total Allocated": 8_388_608}})
    for pid, label in ((HOST_PID, "python"), (rank, "python")):
        named = {"ph": "M", "ts": 0, "pid": pid, "tid": 0, "name": "process_name", "args": {"name": label}}
        trace.events.append(named)
    span = trace.host_ns - 7_000_000_000
    trace.add("Trace", "PyTorch Profiler (0)", 7_000_000_000, span, "Spans", "PyTorch Profiler", **{"Op count": 0})
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": n, "name": "AMD Instinct MI350X", "numSms": 256} for n in range(RANKS)],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "roctracer_version": 4.1,
        "record_shapes": 1,
        "with_stack": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": trace.events,
        "traceName": f"sample-rank[{rank}].pt.trace.json",
    }


def write(folder: Path) -> list[Path]:
    """Write one trace per rank into `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rank in range(RANKS):
        path = folder / f"sample-rank[{rank}].pt.trace.json.gz"
        text = json.dumps(document(rank), indent=1).encode()
        path.write_bytes(gzip.compress(text, mtime=0))
        files.append(path)
    return files


if __name__ == "__main__":
    for written in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(written)
