"""An independent, slow and plain re-computation of what the analyser reports, from the trace file alone.

Standard library only, and nothing of the tool: a number that agrees here was reached by another road.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

Interval = tuple[int, int]  # half-open: [start, end)

TABLE_OF_CATEGORY = {
    **dict.fromkeys(["kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"], "gpu_events"),
    **dict.fromkeys(["cpu_op", "operator"], "cpu_ops"),
    **dict.fromkeys(["user_annotation", "gpu_user_annotation"], "annotations"),
    "python_function": "python_calls",
    **dict.fromkeys(["cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"], "runtime_calls"),
    **dict.fromkeys(["xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime"], "runtime_calls"),
    **dict.fromkeys(["privateuse1_runtime", "privateuse1_driver"], "runtime_calls"),
}
TABLE_OF_PHASE = {"i": "instants", "I": "instants", "C": "counters", "M": "threads", **dict.fromkeys("stf", "flows")}
COPY_KERNEL = re.compile(
    r"(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?"
)
COMMUNICATION_WORDS = ("nccl", "rccl", "cross_device_reduce")
CLASSES = ("computation", "communication", "memcpy")  # C, M and P below
PAINT_LIMIT_NS = 200_000
EXACT = Context(prec=200)  # enough digits that multiplying a time by 1000 never rounds


def load(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the events in file order and the other top-level keys (none when the top level is a list)."""
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    document = json.loads(raw, parse_float=Decimal)
    if isinstance(document, list):
        return document, {}
    return document.get("traceEvents", []), {key: value for key, value in document.items() if key != "traceEvents"}


def time_ns(value: Any) -> int | None:
    """Microseconds (int, Decimal or numeric text) as whole nanoseconds, exactly; nearest, halves away from zero."""
    if value is None or isinstance(value, bool):
        return None
    try:
        microseconds = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    if not microseconds.is_finite():
        return None
    return int(EXACT.multiply(microseconds, Decimal(1000)).to_integral_value(rounding=ROUND_HALF_UP))


def table_of(event: dict[str, Any]) -> str:
    """The table of an event: complete events by category, all others by phase; what is unknown is other_events."""
    phase = event.get("ph")
    if phase == "X":
        return TABLE_OF_CATEGORY.get(_category(event), "other_events")
    return TABLE_OF_PHASE.get(str(phase), "other_events")


def _category(event: dict[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def _integer(*values: Any) -> int | None:
    """The first value that is an integer, or text that is one."""
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
            return int(value)
    return None


@dataclass(frozen=True)
class GpuEvent:
    """One kernel, copy or memset on a GPU; event_id is its ordinal in the file, from 0."""

    event_id: int
    kind: str  # kernel, memcpy or memset
    name: str
    device: int | None
    stream: int | None
    start_ns: int | None
    dur_ns: int | None
    correlation_id: int | None
    cls: str  # computation, communication or memcpy

    @property
    def interval(self) -> Interval | None:
        """[start, end), or None where the times are not sound: start or duration missing, or duration negative."""
        if self.start_ns is None or self.dur_ns is None or self.dur_ns < 0:
            return None
        return self.start_ns, self.start_ns + self.dur_ns


def _class_of(kind: str, name: str) -> str:
    """Copies by kind or by the whole kernel name, then communication by a word in the name, else computation."""
    if kind == "memcpy" or (kind == "kernel" and COPY_KERNEL.fullmatch(name)):
        return "memcpy"
    if any(word in name.lower() for word in COMMUNICATION_WORDS):
        return "communication"
    return "computation"


def gpu_events(events: list[dict[str, Any]]) -> list[GpuEvent]:
    """All GPU events in file order; device from args.device else pid, stream from args.stream else tid."""
    found = []
    for event_id, event in enumerate(events):
        if table_of(event) != "gpu_events":
            continue
        args = event.get("args") or {}
        tid = event.get("tid")
        if isinstance(tid, str):
            tid = re.sub(r"^\s*stream\s*", "", tid, flags=re.IGNORECASE)
        kind = _category(event).removeprefix("gpu_")  # kernel, memcpy or memset
        name = str(event.get("name") or "")
        found.append(
            GpuEvent(
                event_id=event_id,
                kind=kind,
                name=name,
                device=_integer(args.get("device"), event.get("pid")),
                stream=_integer(args.get("stream"), tid),
                start_ns=time_ns(event.get("ts")),
                dur_ns=time_ns(event.get("dur")),
                correlation_id=_integer(args.get("correlation")),
                cls=_class_of(kind, name),
            )
        )
    return found


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The covered time as sorted, disjoint, non-empty intervals: an interval joins the last one it meets or touches."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def subtract(intervals: list[Interval], holes: list[Interval]) -> list[Interval]:
    """The parts of the intervals outside all holes; both lists as union returns them."""
    rest, first = [], 0
    for position, end in intervals:
        while first < len(holes) and holes[first][1] <= position:
            first += 1  # over before this interval begins, hence before all later ones
        index = first
        while index < len(holes) and holes[index][0] < end:
            if position < holes[index][0]:
                rest.append((position, holes[index][0]))
            position = max(position, holes[index][1])
            index += 1
        if position < end:
            rest.append((position, end))
    return rest


def length(intervals: list[Interval]) -> int:
    """The time in disjoint intervals."""
    return sum(end - start for start, end in intervals)


@dataclass(frozen=True)
class Timeline:
    """Where the time of one device went; all are lengths of unions, in ns."""

    window_ns: int
    computation_ns: int
    communication_ns: int
    exposed_communication_ns: int
    memcpy_ns: int
    exposed_memcpy_ns: int
    busy_ns: int
    idle_ns: int


def _by_device(events: list[GpuEvent]) -> dict[int | None, list[tuple[str, Interval]]]:
    """Class and interval of the events with sound times, per device; a device without any is absent."""
    devices: dict[int | None, list[tuple[str, Interval]]] = defaultdict(list)
    for event in events:
        if event.interval is not None:
            devices[event.device].append((event.cls, event.interval))
    return devices


def timeline(events: list[GpuEvent]) -> dict[int | None, Timeline]:
    """Per device, by merging and subtracting sorted lists of intervals; empty events count for the window only."""
    result: dict[int | None, Timeline] = {}
    for device, found in _by_device(events).items():
        c, m, p = (union(interval for cls, interval in found if cls == wanted) for wanted in CLASSES)
        window = max(end for _, (_, end) in found) - min(start for _, (start, _) in found)
        busy = length(union(c + m + p))
        result[device] = Timeline(
            window_ns=window,
            computation_ns=length(c),
            communication_ns=length(m),
            exposed_communication_ns=length(subtract(m, c)),
            memcpy_ns=length(p),
            exposed_memcpy_ns=length(subtract(subtract(p, c), m)),
            busy_ns=busy,
            idle_ns=window - busy,
        )
    return result


def paint(events: list[GpuEvent]) -> dict[int | None, Timeline]:
    """The same by counting single nanoseconds in sets; ValueError where a window is too long for that."""
    result: dict[int | None, Timeline] = {}
    for device, found in _by_device(events).items():
        first, last = min(start for _, (start, _) in found), max(end for _, (_, end) in found)
        if last - first > PAINT_LIMIT_NS:
            raise ValueError(f"a window of {last - first} ns is too long to paint")
        window = set(range(first, last))
        c, m, p = ({ns for cls, span in found if cls == wanted for ns in range(*span)} for wanted in CLASSES)
        result[device] = Timeline(
            window_ns=len(window),
            computation_ns=len(c),
            communication_ns=len(m),
            exposed_communication_ns=len(m - c),
            memcpy_ns=len(p),
            exposed_memcpy_ns=len(p - c - m),
            busy_ns=len(c | m | p),
            idle_ns=len(window - c - m - p),
        )
    return result


@dataclass(frozen=True)
class KernelRow:
    """The durations of all GPU events of one name and class."""

    name: str
    cls: str
    events: int
    total_ns: int
    mean_ns: Fraction
    median_ns: Fraction
    min_ns: int
    max_ns: int


def kernel_summary(events: list[GpuEvent]) -> list[KernelRow]:
    """One row per name and class, events of sound times only; longest total first, then by name, then by class."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        if event.interval is not None:
            groups[event.name, event.cls].append(length([event.interval]))
    rows = [
        KernelRow(name, cls, len(ns), sum(ns), Fraction(sum(ns), len(ns)), median(map(Fraction, ns)), min(ns), max(ns))
        for (name, cls), ns in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name, row.cls))
