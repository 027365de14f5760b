"""Ingest: reads planned files in parallel and commits each to the store."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from traceanalyzer.errors import NothingToAnalyse
from traceanalyzer.ingest.file import FileIngest, Outcome, Shared, rank_text
from traceanalyzer.ingest.plan import Planned
from traceanalyzer.readers.base import BLOCK_SIZE, BLOCKS_AT_ONCE
from traceanalyzer.readers.source import fingerprint
from traceanalyzer.store.writer import BYTES_PER_GROUP

# Of mallopt, from malloc.h: what to set, and to what.
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = (-3, 64 << 20)
_M_TRIM_THRESHOLD: Final = (-1, 96 << 20)

# Memory of an ingest, measured: what the process needs anyway, and what each byte of JSON under way costs
# (the text, its parsed table, its typed columns).
_BASE_MEMORY: Final = 200 << 20
_BYTES_PER_BYTE: Final = 3
_MEMORY_PER_PARSER: Final = 100 << 20
LEAST_MEMORY: Final = 256 << 20
_LEAST_BLOCK: Final = 500_000


@dataclass(frozen=True)
class Resources:
    """How much of the machine an ingest may take: threads that parse, and bytes of memory."""

    jobs: int
    memory: int

    @property
    def parsers(self) -> int:
        """Threads that parse: the jobs asked for, as far as the memory allows."""
        return max(1, min(self.jobs, (self.memory - _BASE_MEMORY) // _MEMORY_PER_PARSER))

    def for_files(self, files: int) -> tuple[int, int, int, int]:
        """Return (files at once, groups of blocks in memory per file, bytes per block, bytes per row group)."""
        at_once = max(1, min(files, self.parsers))
        lookahead = max(2, -(-(self.parsers + 1) // at_once))
        under_way = at_once * lookahead * BLOCKS_AT_ONCE
        block = (self.memory - _BASE_MEMORY) // (under_way * _BYTES_PER_BYTE)
        return at_once, lookahead, max(_LEAST_BLOCK, min(BLOCK_SIZE, block)), BYTES_PER_GROUP // at_once


@dataclass(kw_only=True)
class Ingest(Shared):
    """One ingest into a store: options, and what its threads share."""

    resources: Resources

    def run(self, plan: list[Planned]) -> list[Outcome]:
        """Ingest the planned files; return one outcome per trace, in the plan's order.

        Problems with single files are in their outcomes. Raises MachineError when the machine fails (the traces
        committed before stay), KeyboardInterrupt when interrupted.
        """
        _share_heaps(self.resources.parsers)
        at_once, lookahead, block_size, group_bytes = self.resources.for_files(sum(1 for p in plan if p.found.reader))
        if self.replace:
            self._affirm(plan)
        with (
            ThreadPoolExecutor(self.resources.parsers, "parse") as parsers,
            ThreadPoolExecutor(at_once, "file") as files,
        ):

            def one(planned: Planned, part: int | None) -> list[Outcome]:
                job = FileIngest(self, planned, part, parsers, lookahead, block_size, group_bytes)
                return job.run()

            futures = [files.submit(one, planned, self._reserve_part(planned)) for planned in plan]
            try:
                outcomes = [outcome for future in futures for outcome in future.result()]
            except BaseException:
                self.stop.set()
                _cancel(futures)
                raise
        self._note_parts(outcomes)
        return outcomes

    def _affirm(self, plan: list[Planned]) -> None:
        """See to it that planned files which are in the store already are not replaced by the other planned ones."""
        for planned in plan:
            if planned.found.reader:
                mark = fingerprint(planned.found.reader.files(planned.path))
                stored = self.writer.with_fingerprint(planned.run, planned.found.reader.collector, mark)
                for trace in self.writer.of_same_file(stored) if stored else ():
                    self.writer.affirm(trace)

    def _note_parts(self, outcomes: list[Outcome]) -> None:
        """Say of what was stored beside other traces of its rank that it was."""
        for outcome in outcomes:
            if outcome.trace and outcome.state == "stored":
                of = outcome.trace.identity
                beside = len(self.writer.others(of.run, of.collector, of.rank)) - 1
                if beside:
                    which = f"rank {rank_text(of.rank)} of run {of.run}"
                    outcome.notes.append(f"{which} has {beside} other trace(s) in the store: this is part {of.part}")

    def _reserve_part(self, planned: Planned) -> int | None:
        """Number the parts in the plan's order, so that the outcome does not depend on which file is read first."""
        reader = planned.found.reader
        if reader is None:
            return None
        return self.writer.next_part(planned.run, reader.collector, planned.rank, replace=self.replace)


def _cancel(futures: list[Future[list[Outcome]]]) -> None:
    for future in futures:
        future.cancel()


def exit_code(outcomes: list[Outcome]) -> int:
    """Return the code to exit with: the highest of the failures that count, 4 when no GPU event was found at all."""
    failures = [o.error.exit_code for o in outcomes if o.state == "failed" and o.error]
    if any(o.gpu_events for o in outcomes):
        # A helper process without GPU records does not count beside traces that have some.
        return max((code for code in failures if code != NothingToAnalyse.exit_code), default=0)
    if failures and not any(o.trace for o in outcomes):
        return max(failures)
    return max([*failures, NothingToAnalyse.exit_code])


def _share_heaps(heaps: int) -> None:
    """Keep freed memory from piling up: each measure lowers the peak of a 1 GB ingest by about 50 MB.

    The system's allocator gives Arrow's freed buffers back, where Arrow's own keeps them; and glibc, which gives
    every thread a heap of its own and keeps what is freed in each, is told to share a few. It is also told not to map
    and unmap each large buffer anew, which costs a twelfth of the time.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and sys.platform == "linux":
        mallopt(_M_ARENA_MAX, heaps)
        mallopt(*_M_MMAP_THRESHOLD)
        mallopt(*_M_TRIM_THRESHOLD)
