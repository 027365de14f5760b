"""What every analysis of the sample traces must find, computed from the model's list of work and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from proxy import logs
from proxy.collectors import (
    BLIT,
    PYTORCH,
    PYTORCH_ALL_RANKS,
    ROCPROFV3,
    RTL_FULL,
    RTL_LITE,
    UNPROFILED_STEP_MS,
    Collector,
    recorded,
)
from proxy.model import RANKS, STEPS, STRAGGLER, Work, clock_offset_ns, one_step, step_ns, window

PUBLISHED: Final = {
    "window_ms": 522.0,
    "computation_ms": 424.1,
    "communication_ms": 58.3,
    "exposed_communication_ms": 22.3,
    "exposed_memcpy_ms": 1.1,
    "idle_ms": 74.4,
}
"""Of rank 0's window of two steps. The model was fitted to these, so they say nothing about the tool."""
_MEGA_MOE: Final = {
    "prologue": "dispatch_prologue_kernel",
    "epoch": "epoch_bump_kernel",
    "dispatch_gemm": "dispatch_grouped_gemm_kernel",
    "gemm_combine": "grouped_gemm_combine_kernel",
    "swiglu": "swiglu_",
    "wgrad_variable_k": "kernel_grouped_variable_k",
}
"""Subcategories of mega_moe, by how the names of their kernels begin."""
_LEAST_BUBBLE_NS: Final = 300_000
"""Longer gaps have a cause of their own, shorter ones are what a launch takes."""
_OPTIMIZER: Final = {"grad_norm": "l2norm", "clip": "multi_tensor_scale", "update": "Adam"}
"""Parts of the optimizer, by what its kernels have in their names."""


def truth(steps: int = STEPS) -> dict[str, Any]:
    """Return the truth about the traces of all ranks; times in nanoseconds on rank 0's clock."""
    return {
        "published": PUBLISHED,
        "ranks": RANKS,
        "steps": steps,
        "step_ns": step_ns(),
        "straggler": STRAGGLER,
        "clock_offset_ns": [clock_offset_ns(rank) for rank in range(RANKS)],
        "timeline": [timeline(window(rank, steps)) for rank in range(RANKS)],
        "per_step": per_step(one_step()),
        "lateness_ns": [_lateness(rank) for rank in range(RANKS)],
        "collectors": {c.name: _collector(c, steps) for c in (PYTORCH_ALL_RANKS, ROCPROFV3, RTL_LITE, RTL_FULL)},
        "unprofiled_step_ms": UNPROFILED_STEP_MS,
        "pytorch_factor": PYTORCH.factor,
        "runs": [
            {"run": rung.name, "step_ms": rung.step_ms, "memory_gb": rung.memory_gb, "global_batch_size": rung.batch}
            for rung in (*logs.LADDER, *logs.BATCHES)
        ],
    }


def _collector(collector: Collector, steps: int) -> dict[str, Any]:
    """Return what a collector records of rank 0, and where its window went."""
    works = recorded(0, collector, steps)
    return {
        "factor": collector.factor,
        "step_ns": collector.step_ns,
        "launch_cost_ns": collector.launch_cost_ns,
        "work": len(works),
        "collectives": sum(bool(work.collective) for work in works),
        "copies": sum(_copies(work) for work in works),
        "total_ns": sum(work.dur_ns for work in works),
        "timeline": timeline(works),
    }


def timeline(works: list[Work]) -> dict[str, int]:
    """Return where the window of a rank went: unions of intervals, as docs/definitions.md has them."""
    communication = _union((w.start_ns, w.end_ns) for w in works if w.collective)
    memcpy = _union((w.start_ns, w.end_ns) for w in works if _copies(w))
    computation = _union((w.start_ns, w.end_ns) for w in works if not w.collective and not _copies(w))
    hidden_by = _union([*computation, *communication])
    busy = _union([*hidden_by, *memcpy])
    window_ns = max(w.end_ns for w in works) - min(w.start_ns for w in works)
    return {
        "window_ns": window_ns,
        "computation_ns": _length(computation),
        "communication_ns": _length(communication),
        "exposed_communication_ns": _length(hidden_by) - _length(computation),
        "memcpy_ns": _length(memcpy),
        "exposed_memcpy_ns": _length(busy) - _length(hidden_by),
        "busy_ns": _length(busy),
        "idle_ns": window_ns - _length(busy),
    }


def _copies(work: Work) -> bool:
    """Say whether work copies, be it recorded as a copy or as the runtime's kernel that does so within a GPU."""
    return work.is_copy or work.name == BLIT


def per_step(works: Iterable[Work]) -> dict[str, Any]:
    """Return counts and sums of one step of rank 0."""
    works = list(works)
    kernels: dict[str, list[int]] = {}
    for work in works:
        kernels.setdefault(work.name, []).append(work.dur_ns)
    operators = Counter(work.ops[-1] for work in works if work.ops)
    adds = [work for work in works if work.ops and work.ops[-1] == "aten::add_"]
    owned = [work for work in adds if "AccumulateGrad" in " ".join(work.nodes)]
    experts = [work for work in owned if work.module.endswith(".experts")]
    return {
        "kernels": sum(not work.is_copy for work in works),
        "copies": sum(work.is_copy for work in works),
        "total_ns_by_name": {name: sum(durations) for name, durations in sorted(kernels.items())},
        "events_by_name": {name: len(durations) for name, durations in sorted(kernels.items())},
        "launches_by_operator": dict(sorted(operators.items())),
        "collectives": _collectives(works),
        "mega_moe_ns": {stage: _total(works, words) for stage, words in _MEGA_MOE.items()},
        "idle_ns_by_cause": dict(sorted(_idle(works).items())),
        "optimizer": {part: _span(works, word) for part, word in _OPTIMIZER.items()},
        "add_ns": sum(work.dur_ns for work in adds),
        "add_in_accumulate_grad_ns": sum(work.dur_ns for work in owned),
        "add_in_accumulate_grad_of_experts_ns": sum(work.dur_ns for work in experts),
        "total_ns_by_basis": dict(sorted(_by_basis(works).items())),
    }


def _total(works: list[Work], name: str) -> int:
    return sum(work.dur_ns for work in works if work.name.startswith(name))


def _collectives(works: list[Work]) -> dict[str, dict[str, int]]:
    """Return count, bytes and exposed time by kind of collective; no two kinds run at the same time."""
    computation = _union((w.start_ns, w.end_ns) for w in works if not w.collective and not w.is_copy)
    found = {}
    for kind in sorted({work.collective for work in works if work.collective}):
        ours = [work for work in works if work.collective == kind]
        both = _union([*computation, *((w.start_ns, w.end_ns) for w in ours)])
        found[kind] = {
            "calls": len(ours),
            "bytes": sum(work.payload_bytes for work in ours),
            "total_ns": sum(work.dur_ns for work in ours),
            "exposed_ns": _length(both) - _length(computation),
        }
    return found


def _idle(works: list[Work]) -> Counter[str]:
    """Return the idle time of a step by what the model has in its place: the work behind a gap tells."""
    causes: Counter[str] = Counter()
    free_ns = 0
    for work in sorted(works, key=lambda w: w.start_ns):
        gap = work.start_ns - free_ns
        if gap > 0:
            causes[_cause(work, gap)] += gap
        free_ns = max(free_ns, work.end_ns)
    return causes


def _cause(work: Work, gap_ns: int) -> str:
    if gap_ns < _LEAST_BUBBLE_NS:
        return f"launches, {work.phase}"
    causes = {"get_batch": "data loading", "loss": "loss", "logging": "logging"}
    return causes.get(work.module, "gradient norm sync")


def _span(works: list[Work], word: str) -> dict[str, int]:
    """Return count, sum, and first start to last end of the optimizer's kernels with `word` in their names."""
    found = [work for work in works if work.phase == "opt" and word in work.name]
    first, last = min(work.start_ns for work in found), max(work.end_ns for work in found)
    return {"kernels": len(found), "busy_ns": sum(work.dur_ns for work in found), "span_ns": last - first}


def _by_basis(works: list[Work]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for work in works:
        totals[work.basis] += work.dur_ns
    return totals


def _lateness(rank: int) -> dict[str, int]:
    """Return by how much a rank starts the collectives of a step after rank 0."""
    ours = {work.index: work for work in window(rank, 1) if work.collective}
    late = [ours[work.index].start_ns - work.start_ns for work in one_step() if work.collective]
    return {"sum_ns": sum(late), "max_ns": max(late), "collectives": len(late)}


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted intervals that do not touch, which cover the same moments."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in intervals)
