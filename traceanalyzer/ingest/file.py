"""One trace file on its way into the store: read, written, committed, or nothing of it left."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from traceanalyzer import __version__, schema
from traceanalyzer.errors import InputError, MachineError, NothingToAnalyse, TraceAnalyzerError
from traceanalyzer.ingest.plan import STDIN, Planned, RankChoice
from traceanalyzer.readers.base import Batch, Facts, TraceReading
from traceanalyzer.readers.source import ByteSource, content_hash, fingerprint
from traceanalyzer.store.manifest import Identity, Manifest
from traceanalyzer.store.move import move
from traceanalyzer.store.store import TRACE_ID_LENGTH, StoredTrace, StoreWriter
from traceanalyzer.store.writer import TraceWriter, relabel, write_traces_row

_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Progress(Protocol):
    """Told about files as they advance; called from several threads."""

    def file_started(self, path: Path, size: int) -> None: ...

    def file_advanced(self, path: Path, position: int, events: int) -> None: ...

    def file_done(self, path: Path) -> None: ...


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


@dataclass(kw_only=True)
class Shared:
    """What the files of one ingest share: the store, and how to store."""

    writer: StoreWriter
    ranks: RankChoice
    replace: bool
    leave_out: frozenset[str]
    """Tables that are not stored: their events are counted as left out."""
    strict: bool
    """A trace with anything to repair, reject or miss is an error and not stored."""
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)

    def check_stop(self) -> None:
        """Raise KeyboardInterrupt once the ingest is to stop."""
        if self.stop.is_set():
            raise KeyboardInterrupt


@dataclass
class FileIngest:
    """One file on its way into the store."""

    ingest: Shared
    planned: Planned
    part: int | None
    parsers: Executor
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
            trace_id=self.ingest.writer.free_trace_id(run, collector, mark, digest),
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
        notes = [f"the same content is in the store as run {of.run}, rank {rank_text(of.rank)}, part {of.part}"]
        if self.ingest.replace and (removed := self.ingest.writer.keep_only(stored)):
            notes.append(f"removed {len(removed)} other part(s) of that rank (--replace)")
        return Outcome(self.planned, "already stored", stored, notes=notes)

    def _rerank(self, stored: StoredTrace, rank: int, rank_source: str) -> Outcome:
        """Put a stored trace under another rank."""
        writer, old = self.ingest.writer, stored.identity
        part = self.part  # reserved for this rank of the run that the plan names
        if part is None or self.planned.run != old.run or self.planned.rank != rank:
            part = writer.next_part(old.run, old.collector, rank, replace=self.ingest.replace)
        identity = replace(old, rank=rank, part=part)
        trace = {**stored.manifest.trace, "rank_source": rank_source}
        trace["warnings"] = [w for w in trace["warnings"] if not w.startswith("the rank ")]
        replaced = writer.before(old.run, old.collector, rank) if self.ingest.replace else []
        committed = move(writer, stored, identity, trace, replaced)
        note = f"it was in the store as rank {rank_text(old.rank)}, part {old.part}"
        return Outcome(self.planned, "rank changed", committed, notes=[note])

    def _watch(self) -> None:
        self.ingest.check_stop()
        self.ingest.progress.file_advanced(self.planned.path, self._source.raw_position, self._events)


def rank_text(rank: int | None) -> str:
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
        notes.append(f"replaced {len(replaced)} earlier part(s) of rank {rank_text(trace.identity.rank)}")
    return notes
