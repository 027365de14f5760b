"""The host side of a rank: when each piece of work was launched, and which spans of operators lay around that.

A launch comes at least 3 us before its kernel. Where the GPU waited for the host (a gap before the kernel), it comes
6 us before; elsewhere the host runs ahead of the GPU, one launch in 5.5 us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from proxy.model import Work

_LEAST_AHEAD_NS: Final = 3_000
_BOUND_AHEAD_NS: Final = 6_000
_BETWEEN_LAUNCHES_NS: Final = 5_500
_LAUNCH_NS: Final = 4_000
_BEFORE_NS: Final = 1_500
_BEHIND_NS: Final = 400
EVALUATE: Final = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class Launch:
    """The call that launched a piece of work, and the room for operators around it."""

    work: Work
    start_ns: int
    dur_ns: int
    before_ns: int
    """Time before the call that no other call of the thread needs."""
    behind_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True, slots=True)
class Span:
    """An operator, node or annotation on a host thread; `launch` is the call directly in it, if there is one."""

    name: str
    thread: str
    start_ns: int
    end_ns: int
    launches: tuple[Launch, ...]
    is_leaf: bool


def launches(works: list[Work]) -> list[Launch]:
    """Return the launches of a rank's work, in the order of that work."""
    starts: list[int] = []
    previous, busy_until = works[0].start_ns - 2 * _BOUND_AHEAD_NS, works[0].start_ns
    for work in works:
        is_bound = work.collective or work.start_ns - busy_until > _LEAST_AHEAD_NS
        wanted = work.start_ns - _BOUND_AHEAD_NS if is_bound else previous + _BETWEEN_LAUNCHES_NS
        previous = min(max(wanted, previous + 600), work.start_ns - _LEAST_AHEAD_NS)
        starts.append(previous)
        if not work.collective:
            busy_until = work.end_ns
    order = sorted(range(len(works)), key=lambda n: (starts[n], n))
    found: dict[int, Launch] = {}
    for place, n in enumerate(order):
        after = starts[order[place + 1]] - starts[n] if place + 1 < len(order) else 1_000_000
        before = starts[n] - starts[order[place - 1]] if place else 1_000_000
        dur = min(_LAUNCH_NS, after * 6 // 10)
        room = before - min(_LAUNCH_NS, before * 6 // 10)
        behind = after - dur
        found[n] = Launch(works[n], starts[n], dur, min(_BEFORE_NS, room * 6 // 10), min(_BEHIND_NS, behind * 3 // 10))
    return [found[n] for n in range(len(works))]


def spans(made: list[Launch]) -> Iterator[Span]:
    """Yield the operators and nodes around the launches of a rank, and its annotations, outermost first."""
    ordered = sorted(made, key=lambda launch: launch.start_ns)
    for _, group in groupby(ordered, key=lambda launch: _around(launch.work)):
        yield from _group(list(group))


def _around(work: Work) -> tuple[object, ...]:
    return work.step, work.thread, work.phase, work.module, work.annotation, work.nodes


def _group(group: list[Launch]) -> Iterator[Span]:
    """Yield the spans that consecutive launches share, then those of each alone."""
    first, last = group[0], group[-1]
    shared = [first.work.annotation] if first.work.annotation else []
    shared += first.work.nodes
    own = [() if launch.work.ops == launch.work.nodes[-1:] else launch.work.ops for launch in group]
    for level, name in enumerate(shared):
        is_leaf = level == len(shared) - 1 and any(not ops for ops in own)
        direct = tuple(launch for launch, ops in zip(group, own, strict=True) if not ops) if is_leaf else ()
        start, end = (
            _edges(first, level, len(shared) + len(own[0]))[0],
            _edges(last, level, len(shared) + len(own[-1]))[1],
        )
        yield Span(name, first.work.thread, start, end, direct, is_leaf and bool(direct))
    for launch, ops in zip(group, own, strict=True):
        for level, name in enumerate(ops):
            start, end = _edges(launch, len(shared) + level, len(shared) + len(ops))
            is_leaf = level == len(ops) - 1
            yield Span(name, launch.work.thread, start, end, (launch,) if is_leaf else (), is_leaf)


def frames(made: list[Launch]) -> Iterator[tuple[Launch, Launch]]:
    """Yield the first and last launch of each call of a module: of consecutive work of one module on one thread."""
    for thread in ("main", "autograd"):
        ordered = sorted((m for m in made if m.work.thread == thread), key=lambda launch: launch.start_ns)
        for _, group in groupby(ordered, key=lambda launch: (launch.work.step, launch.work.phase, launch.work.module)):
            calls = list(group)
            yield calls[0], calls[-1]


def frame_edges(first: Launch, last: Launch, depth: int) -> tuple[int, int]:
    """Return start and end of the Python frame at a depth (0 to 2), outside of all operators."""
    ninths = 9 - depth
    return first.start_ns - first.before_ns * ninths // 9, last.end_ns + last.behind_ns * ninths // 9


def _edges(launch: Launch, level: int, levels: int) -> tuple[int, int]:
    """Return start and end of the span at a level (0 is outermost) around a launch: each strictly inside the last.

    A third of the room is left for Python frames.
    """
    ninths = 6 * (levels - level)
    start = launch.start_ns - launch.before_ns * ninths // (9 * levels)
    return start, launch.end_ns + launch.behind_ns * ninths // (9 * levels)
