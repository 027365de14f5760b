"""What the formats of rocprofv3 have in common while a process's records are read: numbers, counts, what to say."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from traceanalyzer.errors import NothingToAnalyse
from traceanalyzer.readers.base import Batch, Facts, HowToRead, Reject
from traceanalyzer.readers.rocprofv3_facts import Process, fill_facts, guess_from_devices
from traceanalyzer.readers.rocprofv3_rows import Rows, table

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def in_order(how: HowToRead, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Have the pool do tasks, `how.lookahead` at once, and yield what they return in the tasks' order."""
    waiting: deque[Future[T]] = deque()
    try:
        for task in tasks:
            waiting.append(how.pool.submit(task))
            if len(waiting) >= how.lookahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def shifted(tables: dict[str, pa.Table], by: int) -> dict[str, pa.Table]:
    """Return rows with their event ids, the first column, counted from elsewhere; tables without rows are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    base = pa.scalar(by, pa.int64())
    return {
        name: rows.set_column(0, "event_id", pc.add(rows.column("event_id"), base))
        for name, rows in tables.items()
        if rows.num_rows
    }


@dataclass
class Recording:
    """A process whose records are being read."""

    process: Process
    facts: Facts = field(default_factory=Facts)
    events: int = 0
    rejected: int = 0
    recorded: Counter[str] = field(default_factory=Counter)
    """Records by list, as rocprofv3's JSON names the lists."""
    _noticed: Counter[str] = field(default_factory=Counter)
    _devices: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        fill_facts(self.facts, self.process)

    @property
    def devices(self) -> set[int]:
        """GPUs that ran kernels."""
        return self._devices

    def batches(self, rows: Rows, count: int, list_name: str, rejects: Sequence[Reject] = ()) -> Iterator[Batch]:
        """Yield `count` records, stored and rejected, numbered; what the process says about itself comes first.

        The event ids of `rows` and `rejects` count from the first of these records.
        """
        self._devices |= rows.devices
        self._noticed += rows.noticed
        if not self.events:
            guess_from_devices(self.facts, self.process, self._devices)
            about = about_process(self.process)
            self.events += about.events
            yield about
        tables = shifted(rows.tables, self.events)
        numbered = [replace(reject, event_id=reject.event_id + self.events) for reject in rejects]
        self.events += count
        self.rejected += len(rejects)
        self.recorded[list_name] += count
        yield Batch(count, tables, numbered)

    def finish(self) -> None:
        """Complete the facts. Raises NothingToAnalyse when there were no records."""
        facts, recorded = self.facts, self.recorded
        if not recorded.total():
            raise NothingToAnalyse("a process without any records: a helper that only loaded the GPU's runtime")
        guess_from_devices(facts, self.process, self._devices)
        facts.warnings.extend(noticed_warnings(self._noticed))
        if not recorded["kernel_dispatch"]:
            self._explain_missing_kernels()

    def _explain_missing_kernels(self) -> None:
        """Say what kind of run it was, by the records there are."""
        counters = sum(self.recorded[name] for name in ("counter_collection", "spm_counter_collection"))
        samples = sum(self.recorded[name] for name in ("pc_sample_host_trap", "pc_sample_stochastic"))
        if counters:
            self.facts.warnings.append(
                "no kernel dispatches but counters: a run that collects counters executes kernels one by one, so its"
                " times say nothing about the training; record again with --kernel-trace"
            )
        elif samples:
            self.facts.warnings.append(
                "no kernel dispatches but samples of program counters; record with --kernel-trace"
            )
        elif not self.recorded["memory_copy"]:
            self.facts.is_helper = True


def about_process(process: Process) -> Batch:
    """Return what a process says about itself as rows of `threads`: when it ran, and each of its agents."""
    import pyarrow as pa

    life = {"init_time": process.init_ns, "fini_time": process.fini_ns}
    rows: list[tuple[str, str | None, str | None, int | None, dict[str, object]]] = [
        ("process", process.host, None, process.init_ns, dict(life))
    ]
    for agent in process.agents:
        about = {"kind": agent.kind, "handle": agent.handle, "visible": agent.visible, **agent.facts}
        rows.append(("agent", agent.product, None if agent.ordinal is None else str(agent.ordinal), None, about))
    names, values, tids, starts, args = zip(*rows, strict=True)
    columns = {
        "event_id": pa.arange(0, len(rows)),
        "name": pa.array(names, pa.string()),
        "value": pa.array(values, pa.string()),
        "pid": pa.repeat(pa.scalar(None if process.pid is None else str(process.pid), pa.string()), len(rows)),
        "tid": pa.array(tids, pa.string()),
        "start_ns": pa.array(starts, pa.int64()),
        "args": pa.array(map(json.dumps, args), pa.string()),
    }
    return Batch(len(rows), {"threads": table("threads", columns)})


def noticed_warnings(noticed: Counter[str]) -> list[str]:
    """Say how many records could not be named."""
    return [f"{count:,} {what}" for what, count in sorted(noticed.items()) if count]
