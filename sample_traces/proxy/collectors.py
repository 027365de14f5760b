"""How a collector changes what it measures: the model's work as each collector would have recorded it.

A collector makes every launch take longer, so that the step grows by the published factor; the cost of a launch goes
into the gap before its kernel, never into the kernel. Durations change by the rules of `_recorded_ns`, by less than two
per cent. What a collector cannot record is left out, and `truth.json` counts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from proxy.model import Work, one_step, step_ns, window

UNPROFILED_STEP_MS: Final = 239.8
_TICK_NS: Final = 40
BLIT: Final = "__amd_rocclr_copyBuffer"
"""The runtime's kernel that copies within a GPU."""


@dataclass(frozen=True)
class Collector:
    """A collector: by what it multiplies the unprofiled step, and what it misses."""

    name: str
    factor: float
    misses_collectives: bool = False
    """It does not see packets that have a completion signal of their own, as those of RCCL."""
    misses_copies: bool = False
    """Copies by the DMA engines; copies within a GPU are kernels of the runtime, which it sees."""

    @property
    def launch_cost_ns(self) -> int:
        """What each launch takes longer than in rank 0's PyTorch window, which is the model itself."""
        launches = sum(not work.collective for work in one_step())
        return max(round((UNPROFILED_STEP_MS * 1e6 * self.factor - step_ns()) / launches), 0)

    @property
    def step_ns(self) -> int:
        """How long a step takes under this collector."""
        return step_ns() + self.launch_cost_ns * sum(not work.collective for work in one_step())


PYTORCH: Final = Collector("pytorch", 1.09)
"""One rank with its host side: the model."""
PYTORCH_ALL_RANKS: Final = Collector("pytorch, all ranks", 1.20)
RTL_LITE: Final = Collector("rocm_trace_lite, lite", 1.44, misses_collectives=True, misses_copies=True)
RTL_FULL: Final = Collector("rocm_trace_lite, full", 1.44, misses_copies=True)
ROCPROFV3: Final = Collector("rocprofv3", 5.06)


def recorded(rank: int, collector: Collector, steps: int) -> list[Work]:
    """Return the work of a rank as a collector records it, in the order of the starts, on rank 0's clock."""
    cost, shift, found = collector.launch_cost_ns, 0, []
    for work in window(rank, steps):
        if not work.collective:
            shift += cost
        moved = replace(work, start_ns=work.start_ns + shift, dur_ns=_recorded_ns(work, collector))
        if work.is_copy and collector.misses_copies:
            if "DtoD" not in work.name:
                continue
            moved = replace(moved, name=BLIT)
        if work.collective and collector.misses_collectives:
            continue
        found.append(moved)
    return sorted(found, key=lambda work: (work.start_ns, work.index))


def _recorded_ns(work: Work, collector: Collector) -> int:
    """Return the duration that a collector sees: its clock ticks; for rocm_trace_lite, up to 0.6 % more or less."""
    if collector is ROCPROFV3:
        ticks = max(round(work.dur_ns / _TICK_NS), 1)
        return ticks * _TICK_NS if work.index % 10 else work.dur_ns + 1  # nine of ten are whole ticks
    if collector in (RTL_LITE, RTL_FULL):
        return work.dur_ns + work.dur_ns * (work.index * 7 % 13 - 6) // 1000
    return work.dur_ns
