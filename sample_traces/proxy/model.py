"""The model: every piece of GPU work of two training steps, as one list per rank, in integer nanoseconds.

`step.csv` has one step of rank 0: when each piece runs, on which stream, and what launched it. Nothing was measured
here; its column `basis` says of each row whether its duration was published (P), follows from source code and sizes
(D), was assumed and scaled so that the published totals come out (A), or was assumed and left alone (F).

All ranks run the same work. They differ by rules that are stated here, so that what an analysis must find is known:

* a rank gets later from one collective to the next, rank 5 the most: its host is slower, so the gaps between its
  kernels are longer; behind the collective it catches up in the gaps;
* a collective starts when its rank arrives, and ends on all ranks at the same moment;
* every rank has its own clock, which is off by some microseconds.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

RANKS: Final = 8
STEPS: Final = 2
STRAGGLER: Final = 5
COMPUTE_STREAM: Final = 0
_HERE: Final = Path(__file__).parent
_CLOCK_OFFSETS_NS: Final = (0, 41_300, -18_750, 7_120, -96_400, 63_010, -2_480, 120_900)
_LATENESS: Final = (0.0, 0.10, 0.04, 0.15, 0.07, 0.45, 0.12, 0.02)
"""How much of the shortest coming collective a rank is late at it; below 1, or rank 0 would have to wait."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel or copy, and what launched it."""

    index: int
    """Ordinal in the step, the same on all ranks and in all steps."""
    step: int
    start_ns: int
    dur_ns: int
    stream: int
    name: str
    phase: str
    module: str
    annotation: str
    thread: str
    """'main' or 'autograd'."""
    nodes: tuple[str, ...]
    """The autograd nodes or functions around the operator, outermost first."""
    ops: tuple[str, ...]
    """The operators, outermost first; none where the launch comes from a binding that the profiler does not see."""
    api: str
    collective: str
    payload_bytes: int
    basis: str

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns

    @property
    def blocks(self) -> int:
        """The size of the grid, which nobody published: a block for half a microsecond."""
        return max(self.dur_ns // 500, 1)

    @property
    def copied_bytes(self) -> int:
        """The size of a copy: 64 bytes in 8 ns."""
        return max(self.dur_ns // 8, 1) * 64

    @property
    def is_copy(self) -> bool:
        return self.name.startswith("Memcpy")


@cache
def one_step() -> tuple[Work, ...]:
    """Return one step of rank 0, from time 0, in the order of the starts."""
    with (_HERE / "kernels.csv").open(newline="", encoding="utf-8") as file:
        names = {row["kernel"]: row["name"] for row in csv.DictReader(file)}
    with (_HERE / "step.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_work(index, row, names) for index, row in enumerate(csv.DictReader(file)))


def _work(index: int, row: dict[str, str], names: dict[str, str]) -> Work:
    return Work(
        index=index,
        step=0,
        start_ns=int(row["start_ns"]),
        dur_ns=int(row["dur_ns"]),
        stream=int(row["stream"]),
        name=names[row["kernel"]],
        phase=row["phase"],
        module=row["module"],
        annotation=row["annotation"],
        thread=row["thread"],
        nodes=tuple(row["nodes"].split(" > ")) if row["nodes"] else (),
        ops=tuple(row["op"].split(" > ")) if row["op"] != "-" else (),
        api=row["api"],
        collective=row["collective"],
        payload_bytes=round(float(row["payload_mib"] or 0) * 1024 * 1024),
        basis=row["basis"],
    )


@cache
def step_ns() -> int:
    """Return how long a step of rank 0 takes: until the end of its last work."""
    return max(work.end_ns for work in one_step())


def clock_offset_ns(rank: int) -> int:
    """Return what the clock of a rank is ahead of rank 0's."""
    return _CLOCK_OFFSETS_NS[rank]


def window(rank: int, steps: int = STEPS) -> list[Work]:
    """Return the work of a rank in `steps` steps, in the order of the starts, on rank 0's clock."""
    late = _lateness(rank)
    free_ns: dict[int, int] = {}
    found = []
    for step in range(steps):
        for work in one_step():
            moved = _of_rank(
                replace(work, step=step, start_ns=work.start_ns + step * step_ns()), rank, late[work.index]
            )
            if not moved.collective:  # a stream runs one kernel after the other
                moved = replace(moved, start_ns=max(moved.start_ns, free_ns.get(moved.stream, 0)))
            free_ns[moved.stream] = moved.end_ns
            found.append(moved)
    return sorted(found, key=lambda work: (work.start_ns, work.index))


def _of_rank(work: Work, rank: int, late_ns: int) -> Work:
    """Return work of rank 0 as a rank runs it that is late by so much: a collective still ends with all others."""
    if rank == 0:
        return work
    if work.collective:
        return replace(work, start_ns=work.start_ns + late_ns, dur_ns=work.dur_ns - late_ns)
    return replace(work, start_ns=work.start_ns + late_ns)


@cache
def _lateness(rank: int) -> tuple[int, ...]:
    """Return by how much each piece of work of a step starts late on a rank.

    Lateness grows from one collective to the next, up to the rank's share of that collective's duration, and is gone
    behind it.
    """
    works = one_step()
    late = [0] * len(works)
    begin_ns = 0
    pending: list[Work] = []
    for work in works:
        pending.append(work)
        if not work.collective:
            continue
        most = round(work.dur_ns * _LATENESS[rank])
        span = max(work.start_ns - begin_ns, 1)
        for earlier in pending:
            late[earlier.index] = most * max(earlier.start_ns - begin_ns, 0) // span
        late[work.index] = most
        begin_ns, pending = work.end_ns, []
    return tuple(late)
