"""Ingest: reads planned files in parallel and commits each to the store, or leaves no trace of it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from traceanalyzer import __version__, schema
from traceanalyzer.errors import InputError, MachineError, NothingToAnalyse, TraceAnalyzerError
from traceanalyzer.ingest.plan import STDIN, Planned, RankChoice
from traceanalyzer.readers.base import BLOCK_SIZE, BLOCKS_AT_ONCE, Batch, Facts, TraceReading
from traceanalyzer.readers.source import ByteSource, content_hash, fingerprint
from traceanalyzer.store.layout import MANIFEST
from traceanalyzer.store.manifest import Identity, Manifest
from traceanalyzer.store.store import TRACE_ID_LENGTH, StoredTrace, StoreWriter
from traceanalyzer.store.writer import BYTES_PER_GROUP, TraceWriter, relabel, write_traces_row

_M_ARENA_MAX: Final = -8  # of mallopt, from malloc.h
_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Memory of an ingest, measured: what the process needs anyway, and what each byte of JSON under way costs
# (the text, its parsed table, its typed columns).
_BASE_MEMORY: Final = 200 << 20
_BYTES_PER_BYTE: Final = 3
LEAST_MEMORY: Final = 256 << 20
_LEAST_BLOCK: Final = 500_000


class Progress(Protocol):
    """Told about files as they advance; called from several threads."""

    def file_started(self, path: Path, size: int) -> None: ...

    def file_advanced(self, path: Path, position: int, events: int) -> None: ...

    def file_done(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Resources:
    """How much of the machine an ingest may take: threads that parse, and bytes of memory."""

    jobs: int
    memory: int

    def for_files(self, files: int) -> tuple[int, int, int, int]:
        """Return (files at once, groups of blocks in memory per file, bytes per block, bytes per row group)."""
        at_once = max(1, min(files, self.jobs))
        lookahead = max(2, -(-(self.jobs + 1) // at_once))
        under_way = at_once * lookahead * BLOCKS_AT_ONCE
        block = (self.memory - _BASE_MEMORY) // (under_way * _BYTES_PER_BYTE)
        return at_once, lookahead, max(_LEAST_BLOCK, min(BLOCK_SIZE, block)), BYTES_PER_GROUP // at_once


@dataclass
class Outcome:
    """What became of one planned file."""

    planned: Planned
    state: str
    """'stored', 'already stored', 'rank changed', 'skipped' (not a trace) or 'failed'."""
    trace: StoredTrace | None = None
    error: TraceAnalyzerError | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def gpu_events(self) -> int:
        return self.trace.manifest.rows["gpu_events"] if self.trace else 0


@dataclass
class Ingest:
    """One ingest into a store: options, and what its threads share."""

    writer: StoreWriter
    ranks: RankChoice
    resources: Resources
    replace: bool
    leave_out: frozenset[str]
    """Tables that are not stored: their events are counted as left out."""
    strict: bool
    """A trace with anything to repair, reject or miss is an error and not stored."""
    progress: Progress
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, plan: list[Planned]) -> list[Outcome]:
        """Ingest the planned files; return one outcome per file, in the plan's order.

        Problems with single files are in their outcomes. Raises MachineError when the machine fails (the traces
        committed before stay), KeyboardInterrupt when interrupted.
        """
        _share_heaps(self.resources.jobs)
        at_once, lookahead, block_size, group_bytes = self.resources.for_files(sum(1 for p in plan if p.found.reader))
        if self.replace:
            self._affirm(plan)
        with (
            ThreadPoolExecutor(self.resources.jobs, "parse") as parsers,
            ThreadPoolExecutor(at_once, "file") as files,
        ):

            def one(planned: Planned, part: int | None) -> Outcome:
                job = _FileIngest(self, planned, part, parsers, lookahead, block_size, group_bytes)
                return job.run()

            futures = [files.submit(one, planned, self._reserve_part(planned)) for planned in plan]
            try:
                outcomes = [future.result() for future in futures]
            except BaseException:
                self._stop.set()
                _cancel(futures)
                raise
        self._note_parts(outcomes)
        return outcomes

    def _affirm(self, plan: list[Planned]) -> None:
        """See to it that planned files which are in the store already are not replaced by the other planned ones."""
        for planned in plan:
            if planned.found.reader:
                mark = fingerprint(planned.path)
                stored = self.writer.with_fingerprint(planned.run, planned.found.reader.collector, mark)
                if stored:
                    self.writer.affirm(stored)

    def _note_parts(self, outcomes: list[Outcome]) -> None:
        """Say of what was stored beside other traces of its rank that it was."""
        for outcome in outcomes:
            if outcome.trace and outcome.state == "stored":
                of = outcome.trace.identity
                beside = len(self.writer.others(of.run, of.collector, of.rank)) - 1
                if beside:
                    which = f"rank {_text(of.rank)} of run {of.run}"
                    outcome.notes.append(f"{which} has {beside} other trace(s) in the store: this is part {of.part}")

    def _reserve_part(self, planned: Planned) -> int | None:
        """Number the parts in the plan's order, so that the outcome does not depend on which file is read first."""
        reader = planned.found.reader
        if reader is None:
            return None
        return self.writer.next_part(planned.run, reader.collector, planned.rank, replace=self.replace)

    def check_stop(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt


def _cancel(futures: list[Future[Outcome]]) -> None:
    for future in futures:
        future.cancel()


@dataclass
class _FileIngest:
    """One file on its way into the store."""

    ingest: Ingest
    planned: Planned
    part: int | None
    parsers: ThreadPoolExecutor
    lookahead: int
    block_size: int
    group_bytes: int
    _source: ByteSource = field(init=False)
    _events: int = 0
    _first_reject: int | None = None
    _rejects: Counter[str] = field(default_factory=Counter)
    _left_out: Counter[str] = field(default_factory=Counter)

    def run(self) -> Outcome:
        """Read and commit the file; everything staged is removed when that fails."""
        started = time.monotonic()
        path, problem = self.planned.path, self.planned.found.problem
        if problem:
            state = "failed" if self.planned.counts else "skipped"
            return Outcome(self.planned, state, error=_about(self.planned, problem))
        folder = self.ingest.writer.new_folder()
        try:
            outcome = self._store(folder)
        except TraceAnalyzerError as error:
            if isinstance(error, MachineError):
                raise
            outcome = Outcome(self.planned, "failed", error=_about(self.planned, error))
        except OSError as error:
            raise _machine_error(self.ingest.writer.store.root, error) from error
        except MemoryError as error:
            raise MachineError(f"{path}: out of memory; give a smaller --memory or fewer --jobs") from error
        finally:
            self.ingest.progress.file_done(path)
            shutil.rmtree(folder, ignore_errors=True)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _store(self, folder: Path) -> Outcome:
        reader = self.planned.found.reader
        assert reader is not None
        assert self.part is not None
        path, run, collector = self.planned.path, self.planned.run, reader.collector
        size = path.stat().st_size
        self.ingest.progress.file_started(path, size)
        mark = fingerprint(path)
        stored = self.ingest.writer.with_fingerprint(run, collector, mark)
        if stored and stored.manifest.content_hash == content_hash(path, self.ingest.check_stop):
            return self._already(stored)
        identity = Identity(run, collector, self.planned.rank, self.part, mark[:TRACE_ID_LENGTH])
        with ByteSource(path, self._watch) as source:
            self._source, self._events, self._first_reject = source, 0, None
            reading = reader.read(source, self.parsers, lookahead=self.lookahead, block_size=self.block_size)
            rows_of = self._write(reading, TraceWriter(folder, identity, self.group_bytes))
            digest = source.digest
        if not self._events:
            raise NothingToAnalyse("the trace holds no events")
        if rows_of["rejects"] == self._events:
            raise InputError(
                f"none of its {self._events:,} events can be read; the first is at byte {self._first_reject}"
            )
        if self.ingest.strict:
            self._insist_on_whole(reading.facts, rows_of["rejects"])
        rank, rank_source = self.ingest.ranks.of(path, reading.facts.rank)
        settled = replace(
            identity,
            rank=rank,
            part=self.part
            if rank == identity.rank
            else self.ingest.writer.next_part(run, collector, rank, replace=self.ingest.replace),
            trace_id=self.ingest.writer.free_trace_id(run, collector, rank, mark, digest),
        )
        if settled != identity:
            identity = settled
            relabel(folder, identity)
        shown = self.planned.shown if self.planned.shown == STDIN else str(path.absolute())
        trace = self._trace_row(reading.facts, rows_of, shown, size, rank_source)
        write_traces_row(folder, identity, trace)
        old = self.ingest.writer.before(run, collector, rank) if self.ingest.replace else []
        manifest = Manifest(
            schema_version=schema.VERSION,
            tool_version=__version__,
            identity=identity,
            sequence=0,
            content_hash=digest,
            fingerprint=mark,
            trace=trace,
            rows=rows_of,
            replaces=[self.ingest.writer.store.name_of(t) for t in old],
        )
        committed, is_new = self.ingest.writer.commit(folder, manifest)
        if not is_new:
            return self._already(committed)
        return Outcome(self.planned, "stored", committed, notes=_notes(committed, old))

    def _write(self, reading: TraceReading, tables: TraceWriter) -> dict[str, int]:
        """Write what is read; the next batch is read meanwhile. Return the rows per table."""

        def append(batch: Batch) -> None:
            for table, rows in batch.tables.items():
                if table in self.ingest.leave_out:
                    self._left_out[table] += rows.num_rows
                else:
                    tables.append(table, rows)
            tables.append_rejects(batch.rejects)
            self._rejects.update(reject.reason for reject in batch.rejects)
            if batch.rejects and self._first_reject is None:
                self._first_reject = batch.rejects[0].byte_offset

        written: Future[None] | None = None
        with ThreadPoolExecutor(1, "write") as thread:
            try:
                for batch in reading:
                    if written:
                        written.result()
                    written = thread.submit(append, batch)
                    self._events += batch.events
                if written:
                    written.result()
            finally:
                thread.shutdown()
                rows_of = tables.close()
        return rows_of

    def _insist_on_whole(self, facts: Facts, rejected: int) -> None:
        """Raise InputError, naming the first place, when anything was repaired, rejected or cut off."""
        places = [p for p in (self._first_reject, facts.first_repair) if p is not None]
        if places:
            raise InputError(
                f"--strict: {facts.repairs.total():,} repairs and {rejected:,} rejected events,"
                f" the first at byte {min(places):,}; without --strict the rest is stored"
            )
        if not facts.complete:
            raise InputError(f"--strict: {facts.warnings[0]}; without --strict what there is is stored")

    def _trace_row(
        self, facts: Facts, rows: dict[str, int], shown: str, size: int, rank_source: str
    ) -> dict[str, object]:
        """Return the row of `traces`: the columns of `schema.TRACE_COLUMNS`."""
        rejected, left_out = rows["rejects"], self._left_out.total()
        stored = sum(count for table, count in rows.items() if table != "rejects")
        if stored + rejected + left_out != self._events:
            raise InputError(
                f"{self._events:,} events were read, but {stored:,} stored, {rejected:,} rejected and"
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
            "events_read": self._events,
            "events_stored": stored,
            "events_rejected": rejected,
            "events_left_out": left_out,
            "repairs": facts.repairs.total(),
            "warnings": [*facts.warnings, *self._warnings(facts, rows, rank_source)],
        }

    def _warnings(self, facts: Facts, rows: dict[str, int], rank_source: str) -> list[str]:
        found = []
        if self._rejects:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in self._rejects.most_common(5))
            found.append(f"{rows['rejects']:,} events could not be stored ({reasons}); the view rejects has them")
        if facts.repairs:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(facts.repairs.items()))
            found.append(f"repaired: {kinds}; first at byte {facts.first_repair:,}")
        found += [f"{count:,} {table} were left out, as asked" for table, count in self._left_out.items()]
        if not rows["gpu_events"]:
            seen = sorted(((count, table) for table, count in rows.items() if count), reverse=True)
            found.append(f"no GPU events; the trace holds {', '.join(f'{n:,} {table}' for n, table in seen)}")
        if rank_source == "unknown":
            found.append("the rank is not known: neither the trace nor its name says it (--rank, --rank-map)")
        elif rank_source not in ("distributedInfo", "--rank", "--rank-map"):
            found.append(f"the rank was taken from the {rank_source}, the trace does not say it")
        return found

    def _already(self, stored: StoredTrace) -> Outcome:
        """Say that the content is in the store; give it the rank that the user says, where it has another."""
        rank, rank_source = self.ingest.ranks.of(self.planned.path, None)
        if rank is not None and rank_source.startswith("--") and rank != stored.identity.rank:
            return self._rerank(stored, rank, rank_source)
        of = stored.identity
        notes = [f"the same content is in the store as run {of.run}, rank {_text(of.rank)}, part {of.part}"]
        if self.ingest.replace and (removed := self.ingest.writer.keep_only(stored)):
            notes.append(f"removed {len(removed)} other part(s) of that rank (--replace)")
        return Outcome(self.planned, "already stored", stored, notes=notes)

    def _rerank(self, stored: StoredTrace, rank: int, rank_source: str) -> Outcome:
        """Put a stored trace under another rank."""
        writer, old = self.ingest.writer, stored.identity
        part = writer.next_part(old.run, old.collector, rank, replace=self.ingest.replace)
        identity = replace(old, rank=rank, part=part)
        folder = writer.new_folder()
        try:
            shutil.copytree(stored.folder, folder, ignore=shutil.ignore_patterns(MANIFEST, "traces.parquet"))
            relabel(folder, identity)
            trace = {**stored.manifest.trace, "rank_source": rank_source}
            trace["warnings"] = [w for w in trace["warnings"] if not w.startswith("the rank ")]
            write_traces_row(folder, identity, trace)
            replaced = writer.before(old.run, old.collector, rank) if self.ingest.replace else []
            names = [writer.store.name_of(t) for t in (stored, *replaced)]
            manifest = replace(stored.manifest, identity=identity, trace=trace, replaces=names)
            committed, _ = writer.commit(folder, manifest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        note = f"it was in the store as rank {_text(old.rank)}, part {old.part}"
        return Outcome(self.planned, "rank changed", committed, notes=[note])

    def _watch(self) -> None:
        self.ingest.check_stop()
        self.ingest.progress.file_advanced(self.planned.path, self._source.raw_position, self._events)


def _text(rank: int | None) -> str:
    return "unknown" if rank is None else str(rank)


def _about(planned: Planned, error: TraceAnalyzerError) -> TraceAnalyzerError:
    """Put the file's name, as the user knows it, in front of a reader's message."""
    text = str(error).removeprefix(f"{planned.path}: ")
    return type(error)(f"{planned.shown}: {text}")


def _machine_error(root: Path, error: OSError) -> TraceAnalyzerError:
    if error.errno in _DISK_FULL or "No space left" in str(error):
        return MachineError(f"{root}: the disk is full ({error.strerror or error}); nothing of this trace was stored")
    return MachineError(f"{root}: cannot be written: {error}")


def _notes(trace: StoredTrace, replaced: list[StoredTrace]) -> list[str]:
    notes = list(trace.manifest.trace["warnings"])
    if replaced:
        notes.append(f"replaced {len(replaced)} earlier part(s) of rank {_text(trace.identity.rank)}")
    return notes


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
    every thread a heap of its own and keeps what is freed in each, is told to share a few.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and sys.platform == "linux":
        mallopt(_M_ARENA_MAX, heaps)


def cores() -> int:
    """Return the number of processors this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1
