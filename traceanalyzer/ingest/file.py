"""One trace file on its way into the store: read, written, committed, or nothing of it left."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from traceanalyzer import __version__, schema
from traceanalyzer.errors import InputError, InternalError, MachineError, NothingToAnalyse, TraceAnalyzerError
from traceanalyzer.ingest.plan import STDIN, Planned, RankChoice
from traceanalyzer.ingest.stage import Staged
from traceanalyzer.readers.base import Facts, HowToRead, TraceFile
from traceanalyzer.readers.source import content_hash, fingerprint, numbered
from traceanalyzer.store.manifest import Identity, Manifest
from traceanalyzer.store.move import move
from traceanalyzer.store.store import TRACE_ID_LENGTH, StoredTrace, StoreWriter
from traceanalyzer.store.writer import relabel, write_traces_row

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
    """One file on its way into the store; it may hold several traces."""

    ingest: Shared
    planned: Planned
    part: int | None
    parsers: Executor
    lookahead: int
    block_size: int
    group_bytes: int
    _file: TraceFile = field(init=False)
    _events: int = 0

    def run(self) -> list[Outcome]:
        """Read the file and commit its traces; everything staged is removed when that fails."""
        started = time.monotonic()
        path, problem = self.planned.path, self.planned.found.problem
        if problem:
            state = "failed" if self.planned.counts else "skipped"
            return [Outcome(self.planned, state, error=_about(self.planned, problem))]
        folders: list[Path] = []
        try:
            outcomes = self._store(folders)
        except TraceAnalyzerError as error:
            if isinstance(error, MachineError):
                raise
            is_helper = isinstance(error, NothingToAnalyse) and self.planned.searched
            state = "skipped" if is_helper else "failed"
            outcomes = [Outcome(self.planned, state, error=_about(self.planned, error))]
        except OSError as error:
            raise _machine_error(self.ingest.writer.store.root, error) from error
        except MemoryError as error:
            raise MachineError(f"{path}: out of memory; give a smaller --memory or fewer --jobs") from error
        except Exception as error:  # a fault of ours with one file is no reason to give up the others
            fault = InternalError(f"internal error: {type(error).__name__}: {error}; please report it")
            fault.__cause__ = error
            outcomes = [Outcome(self.planned, "failed", error=_about(self.planned, fault))]
        finally:
            self.ingest.progress.file_done(path)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        if self.planned.otherwise and (instead := self._otherwise(outcomes)):
            return instead
        for outcome in outcomes:
            outcome.seconds = time.monotonic() - started
        return outcomes

    def _otherwise(self, outcomes: list[Outcome]) -> list[Outcome] | None:
        """Read the same process from its other format where this one could not be read; None where it could."""
        other = self.planned.otherwise
        if other is None or any(outcome.trace for outcome in outcomes):
            return None
        why = str(outcomes[0].error)
        part = self.part if self.part is not None else 0
        found = replace(self, planned=replace(other, may_guess=self.planned.may_guess), part=part).run()
        for outcome in found:
            outcome.notes.append(f"read instead of {self.planned.path.name} ({why})")
        return found

    def _store(self, folders: list[Path]) -> list[Outcome]:
        reader, writer = self.planned.found.reader, self.ingest.writer
        assert reader is not None
        path, run = self.planned.path, self.planned.run
        files = reader.files(path)
        size = sum(file.stat().st_size for file in files)
        self.ingest.progress.file_started(path, size)
        mark = fingerprint(files)
        stored = writer.with_fingerprint(run, reader.collector, mark)
        if stored and stored.manifest.content_hash == content_hash(files, self.ingest.check_stop):
            return [self._already(trace) for trace in writer.of_same_file(stored)]
        staged: list[Staged] = []
        problem: NothingToAnalyse | None = None
        with reader.open(path, self._reading()) as file:
            self._file = file
            for number, reading in enumerate(file.traces()):
                folders.append(writer.new_folder())
                trace_id = numbered(mark, number, hashed=True)[:TRACE_ID_LENGTH]
                identity = Identity(run, reader.collector, self.planned.rank, self.part or 0, trace_id)
                trace = Staged(folders[-1], identity, reading.facts, self.ingest.leave_out)
                try:
                    trace.write(reading, self.group_bytes, partial(self._identify, identity, number))
                    self._check(trace)
                except NothingToAnalyse as error:  # of several processes, some may have done nothing
                    problem = error
                    continue
                self._events += trace.events
                staged.append(trace)
            digest = file.digest
        if self.ingest.strict:
            for trace in staged:
                trace.insist_on_whole()
        if len({trace.facts.host for trace in staged}) > 1:  # processes of several machines in one file
            for trace in staged:
                trace.facts.guessed_rank = None
        if self.planned.otherwise and not all(trace.facts.complete for trace in staged):
            raise InputError(next(t.facts.warnings[0] for t in staged if not t.facts.complete))
        if not staged:
            raise problem or NothingToAnalyse("the trace holds no events")
        # The first trace of a file is committed last: where it is in the store, the others are.
        numbers = range(len(staged))
        outcomes = [self._commit(staged[n], n, mark, digest, size) for n in reversed(numbers)]
        return outcomes[::-1]

    def _reading(self) -> HowToRead:
        return HowToRead(self.parsers, self.lookahead, self.block_size, self._watch)

    def _identify(self, identity: Identity, number: int, facts: Facts) -> Identity:
        """Return the identity with the rank that is known once some of the trace was read."""
        rank, _ = self.planned.rank_of(self.ingest.ranks, facts)
        if not number and rank in (None, identity.rank):
            return identity
        part = self.ingest.writer.next_part(identity.run, identity.collector, rank, replace=self.ingest.replace)
        return replace(identity, rank=rank, part=part)

    def _check(self, trace: Staged) -> None:
        """Raise NothingToAnalyse for a process that did not use the GPU, InputError for what --strict minds."""
        if trace.facts.is_helper and self.planned.searched and not trace.rows["gpu_events"]:
            raise NothingToAnalyse(
                f"a process without GPU records ({trace.events - trace.rows['threads']:,} others);"
                " name the file itself to store it"
            )

    def _commit(self, trace: Staged, number: int, mark: str, digest: str, size: int) -> Outcome:
        """Put a staged trace into the store."""
        writer, first = self.ingest.writer, trace.identity
        run, collector = first.run, first.collector
        rank, rank_source = self.planned.rank_of(self.ingest.ranks, trace.facts)
        part = first.part
        if rank != first.rank:
            part = writer.next_part(run, collector, rank, replace=self.ingest.replace)
        by_content = numbered(digest, number, hashed=True)[:TRACE_ID_LENGTH]
        trace_id = writer.free_trace_id(run, collector, first.trace_id, by_content)
        identity = replace(first, rank=rank, part=part, trace_id=trace_id)
        if identity != first:
            relabel(trace.folder, identity)
        shown = self.planned.shown if self.planned.shown == STDIN else str(self.planned.path.absolute())
        row = trace.trace_row(shown, size, rank_source)
        write_traces_row(trace.folder, identity, row)
        old = writer.before(run, collector, rank) if self.ingest.replace else []
        manifest = Manifest(
            schema_version=schema.VERSION,
            tool_version=__version__,
            identity=identity,
            sequence=0,
            content_hash=numbered(digest, number),
            fingerprint=numbered(mark, number),
            trace=row,
            rows=trace.rows,
            replaces=[writer.store.name_of(t) for t in old],
        )
        committed, is_new = writer.commit(trace.folder, manifest)
        if not is_new:
            return self._already(committed)
        return Outcome(self.planned, "stored", committed, notes=_notes(committed, old))

    def _already(self, stored: StoredTrace) -> Outcome:
        """Say that the content is in the store; give it the rank that the user says, where it has another."""
        rank, rank_source = self.ingest.ranks.of(self.planned.path, Facts())
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
        self.ingest.progress.file_advanced(self.planned.path, self._file.position, self._events)


def rank_text(rank: int | None) -> str:
    return "unknown" if rank is None else str(rank)


def _about(planned: Planned, error: TraceAnalyzerError) -> TraceAnalyzerError:
    """Put the file's name, as the user knows it, in front of a reader's message."""
    text = str(error).removeprefix(f"{planned.path}: ")
    about = type(error)(f"{planned.shown}: {text}")
    about.__cause__ = error.__cause__
    return about


def _machine_error(root: Path, error: OSError) -> TraceAnalyzerError:
    if error.errno in _DISK_FULL or "No space left" in str(error):
        return MachineError(f"{root}: the disk is full ({error.strerror or error}); nothing of this trace was stored")
    return MachineError(f"{root}: cannot be written: {error}")


def _notes(trace: StoredTrace, replaced: list[StoredTrace]) -> list[str]:
    notes = list(trace.manifest.trace["warnings"])
    if replaced:
        notes.append(f"replaced {len(replaced)} earlier part(s) of rank {rank_text(trace.identity.rank)}")
    return notes
