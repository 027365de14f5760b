"""One trace on its way: its batches written into a folder nobody sees yet, and the books kept about its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.base import Batch, Facts, TraceReading
from traceanalyzer.store.manifest import Identity
from traceanalyzer.store.writer import TraceWriter

GUESS: Final = "guess: "
"""How the rank source of a guessed rank begins."""
RECORDED: tuple[str, ...] = ("--rank", "--rank-map")
"""Rank sources that are the user's word."""


@dataclass
class Staged:
    """A trace in its folder, and what is known about it."""

    folder: Path
    identity: Identity
    facts: Facts
    leave_out: frozenset[str]
    events: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    first_reject: int | None = None
    rejects: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def write(self, reading: TraceReading, group_bytes: int, identify: Callable[[Facts], Identity]) -> None:
        """Write all batches; the next one is read while one is written.

        `identify` is asked for the trace's identity when its first batch is there. Raises NothingToAnalyse when the
        trace holds no events, InputError when none of them can be read.
        """
        tables: TraceWriter | None = None
        written: Future[None] | None = None
        with ThreadPoolExecutor(1, "write") as thread:
            try:
                for batch in reading:
                    if tables is None:
                        self.identity = identify(reading.facts)
                        tables = TraceWriter(self.folder, self.identity, group_bytes)
                    if written:
                        written.result()
                    written = thread.submit(self._append, tables, batch)
                    self.events += batch.events
                if written:
                    written.result()
            finally:
                thread.shutdown()
                if tables:
                    self.rows = tables.close()
        if not self.events:
            raise NothingToAnalyse("the trace holds no events")
        if self.rows["rejects"] == self.events:
            raise InputError(
                f"none of its {self.events:,} events can be read; the first is at byte {self.first_reject}"
            )

    def _append(self, tables: TraceWriter, batch: Batch) -> None:
        for table, rows in batch.tables.items():
            if table in self.leave_out:
                self.left_out[table] += rows.num_rows
            else:
                tables.append(table, rows)
        tables.append_rejects(batch.rejects)
        self.rejects.update(reject.reason for reject in batch.rejects)
        if batch.rejects and self.first_reject is None:
            self.first_reject = batch.rejects[0].byte_offset

    def insist_on_whole(self) -> None:
        """Raise InputError, naming the first place, when anything was repaired, rejected or cut off."""
        places = [p for p in (self.first_reject, self.facts.first_repair) if p is not None]
        if places:
            raise InputError(
                f"--strict: {self.facts.repairs.total():,} repairs and {self.rows['rejects']:,} rejected events,"
                f" the first at byte {min(places):,}; without --strict the rest is stored"
            )
        if not self.facts.complete:
            raise InputError(f"--strict: {self.facts.warnings[0]}; without --strict what there is is stored")

    def trace_row(self, shown: str, size: int, rank_source: str) -> dict[str, object]:
        """Return the row of `traces`: the columns of `schema.TRACE_COLUMNS`.

        Raises InputError when the books do not balance.
        """
        facts, rejected, left_out = self.facts, self.rows["rejects"], self.left_out.total()
        stored = sum(count for table, count in self.rows.items() if table != "rejects")
        if stored + rejected + left_out != self.events:
            raise InputError(
                f"{self.events:,} events were read, but {stored:,} stored, {rejected:,} rejected and"
                f" {left_out:,} left out: a fault of this tool, please report it"
            )
        return {
            "world_size": facts.world_size,
            "rank_source": rank_source,
            "path": shown,
            "bytes": size,
            "host": facts.host,
            "pid": facts.pid,
            "device_name": facts.device_name,
            "profiler": facts.profiler,
            "clock_base_ns": facts.clock_base_ns,
            "clock_domain": facts.clock_domain,
            "complete": facts.complete,
            "events_read": self.events,
            "events_stored": stored,
            "events_rejected": rejected,
            "events_left_out": left_out,
            "repairs": facts.repairs.total(),
            "warnings": [*facts.warnings, *self._warnings(rank_source)],
        }

    def _warnings(self, rank_source: str) -> list[str]:
        found, facts, rows = [], self.facts, self.rows
        if self.rejects:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in self.rejects.most_common(5))
            found.append(f"{rows['rejects']:,} events could not be stored ({reasons}); the view rejects has them")
        if facts.repairs:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(facts.repairs.items()))
            found.append(f"repaired: {kinds}; first at byte {facts.first_repair:,}")
        found += [f"{count:,} {table} were left out, as asked" for table, count in self.left_out.items()]
        if not rows["gpu_events"]:
            seen = sorted(((count, table) for table, count in rows.items() if count), reverse=True)
            found.append(f"no GPU events; the trace holds {', '.join(f'{n:,} {table}' for n, table in seen)}")
        if rank_source == "unknown":
            found.append("the rank is not known: neither the trace nor its name says it (--rank, --rank-map)")
        elif rank_source.startswith(GUESS):
            guess = rank_source.removeprefix(GUESS)
            found.append(f"the rank is a guess, the {guess}: the trace does not say it (--rank, --rank-map)")
        elif rank_source not in (*RECORDED, facts.rank_source):
            found.append(f"the rank was taken from the {rank_source}, the trace does not say it")
        return found
