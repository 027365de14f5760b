"""A store: a folder of traces in Parquet. Finds them, and lets one writer at a time add to them.

A trace is written under `.staging`, moved to its place as a whole, and becomes visible when its manifest is put
there by one rename. What a killed writer left behind is invisible and swept away by the next writer.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from traceanalyzer import __version__, schema
from traceanalyzer.errors import InputError, MachineError, UsageError
from traceanalyzer.store.layout import DERIVED, LOCK, MANIFEST, STAGING, STORE_FILE, trace_folder
from traceanalyzer.store.manifest import Identity, Manifest, write_json

TRACE_ID_LENGTH: Final = 12
_ABANDONED_S: Final = 3600
"""Age of a half-written derived table of which no process can still be busy with it."""


@dataclass(frozen=True)
class StoredTrace:
    """A visible trace: its manifest and its folder."""

    manifest: Manifest
    folder: Path

    @property
    def identity(self) -> Identity:
        return self.manifest.identity

    def file(self, table: str) -> Path:
        """Return the Parquet file of a table."""
        return self.folder / f"{table}.parquet"


class Store:
    """The store at `root`, for reading; `Store.writing` gives one for adding traces."""

    def __init__(self, root: Path) -> None:
        """Open an existing store.

        Raises UsageError when there is none, InputError when this version cannot read it.
        """
        self.root = root
        if not root.is_dir():
            raise UsageError(f"{root}: there is no store; make one with 'traceanalyzer ingest SOURCE --store {root}'")
        if not (root / STORE_FILE).is_file():
            raise UsageError(f"{root}: not a store ({STORE_FILE} is missing); is it the folder given to --store?")
        self._check_version()

    def _check_version(self) -> None:
        path = self.root / STORE_FILE
        try:
            version = orjson.loads(path.read_bytes())["schema_version"]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: damaged: {error}") from error
        if not isinstance(version, int) or version > schema.VERSION:
            raise InputError(
                f"{self.root}: the store has schema version {version}, made by a newer traceanalyzer;"
                f" this one ({__version__}) reads up to version {schema.VERSION}: upgrade it, or ingest again"
            )
        if version < schema.VERSION:
            raise InputError(
                f"{self.root}: the store has schema version {version}, this traceanalyzer needs {schema.VERSION}:"
                " ingest the traces again into a new store"
            )

    def name_of(self, trace: StoredTrace) -> str:
        """Return the trace's folder below the store's, by which manifests name it."""
        return trace.folder.relative_to(self.root).as_posix()

    def traces(self) -> list[StoredTrace]:
        """Return the visible traces, ordered by run, collector, rank (unknown last), part.

        Raises InputError when a manifest is damaged.
        """
        found = []
        for path in self.root.glob(f"run=*/collector=*/rank=*/*/{MANIFEST}"):
            try:
                found.append(StoredTrace(Manifest.read(path), path.parent))
            except FileNotFoundError:  # replaced by a writer while we looked
                continue
        hidden = {old: trace.manifest.sequence for trace in found for old in trace.manifest.replaces}

        def is_hidden(trace: StoredTrace) -> bool:
            return trace.manifest.sequence < hidden.get(self.name_of(trace), 0)

        return sorted((trace for trace in found if not is_hidden(trace)), key=_order)


def _place(trace: StoredTrace) -> tuple[str, str, int | None]:
    of = trace.identity
    return of.run, of.collector, of.rank


def _order(trace: StoredTrace) -> tuple[str, str, bool, int, int, int]:
    of = trace.identity
    return of.run, of.collector, of.rank is None, of.rank or 0, of.part, trace.manifest.sequence


@dataclass
class StoreWriter:
    """Adds traces to a store; made by `writing`, which holds the store's lock. Safe for threads."""

    store: Store
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    _parts: dict[tuple[str, str, int | None], int] = field(default_factory=dict)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self._existing = self.store.traces()
        self._before = {trace.folder for trace in self._existing}
        self._sequence = max((t.manifest.sequence for t in self._existing), default=0)
        self._sweep()

    @property
    def staging(self) -> Path:
        """A folder on the store's disk for files on their way; emptied by the next writer."""
        folder = self.store.root / STAGING
        folder.mkdir(exist_ok=True)
        return folder

    def _sweep(self) -> None:
        """Remove what killed writers left: staged files, folders without manifest, replaced traces."""
        shutil.rmtree(self.store.root / STAGING, ignore_errors=True)
        keep = {trace.folder for trace in self._existing}
        for path in self.store.root.glob(f"run=*/collector=*/rank=*/*/{DERIVED}/*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()
        for folder in self.store.root.glob("run=*/collector=*/rank=*/*"):
            if folder not in keep:
                _remove(folder)

    def with_fingerprint(self, run: str, collector: str, fingerprint: str) -> StoredTrace | None:
        """Return the trace of this run and collector that was made from a file with this fingerprint."""
        return self._find(run, collector, lambda manifest: manifest.fingerprint == fingerprint)

    def with_content(self, run: str, collector: str, content_hash: str) -> StoredTrace | None:
        """Return the trace of this run and collector that has this content."""
        return self._find(run, collector, lambda manifest: manifest.content_hash == content_hash)

    def of_same_file(self, first: StoredTrace) -> list[StoredTrace]:
        """Return the traces that came from the same file as `first`, its first one."""
        of = first.identity
        begin = f"{first.manifest.content_hash}#"
        with self._mutex:
            return [first] + [
                trace
                for trace in self._existing
                if (trace.identity.run, trace.identity.collector) == (of.run, of.collector)
                and trace.manifest.content_hash.startswith(begin)
            ]

    def _find(self, run: str, collector: str, is_wanted: Callable[[Manifest], bool]) -> StoredTrace | None:
        with self._mutex:
            for trace in self._existing:
                if (trace.identity.run, trace.identity.collector) == (run, collector) and is_wanted(trace.manifest):
                    return trace
        return None

    def others(self, run: str, collector: str, rank: int | None) -> list[StoredTrace]:
        """Return the traces that are in the store for this run, collector and rank."""
        with self._mutex:
            return [trace for trace in self._existing if _place(trace) == (run, collector, rank)]

    def before(self, run: str, collector: str, rank: int | None) -> list[StoredTrace]:
        """Return those of `others` that were there before this writer came: what `--replace` replaces."""
        return [trace for trace in self.others(run, collector, rank) if trace.folder in self._before]

    def affirm(self, trace: StoredTrace) -> None:
        """Count a stored trace as one of this writer's: `--replace` does not replace it."""
        self._before.discard(trace.folder)

    def next_part(self, run: str, collector: str, rank: int | None, *, replace: bool) -> int:
        """Reserve and return the next free part number; from 0 when the old parts are to be replaced."""
        old = [] if replace else [trace.identity.part for trace in self.before(run, collector, rank)]
        with self._mutex:
            part = self._parts.get((run, collector, rank), max(old, default=-1) + 1)
            self._parts[run, collector, rank] = part + 1
        return part

    def free_trace_id(self, run: str, collector: str, wanted: str, otherwise: str) -> str:
        """Return the id for a trace: the wanted one, or the other where the run has that one already."""
        with self._mutex:
            traces = [t.identity for t in self._existing]
        taken = {i.trace_id for i in traces if (i.run, i.collector) == (run, collector)}
        return otherwise if wanted in taken else wanted

    def new_folder(self) -> Path:
        """Return a path under the staging folder for one trace; it does not exist yet."""
        return self.staging / uuid.uuid4().hex

    def commit(self, staged: Path, manifest: Manifest) -> tuple[StoredTrace, bool]:
        """Move a finished trace to its place and make it visible; hides and removes what it replaces.

        Returns the trace and True, or, when the run holds the same content already, that trace and False.
        """
        of = manifest.identity
        folder = trace_folder(self.store.root, of.run, of.collector, of.rank, of.trace_id)
        with self._mutex:
            same = self.with_content(of.run, of.collector, manifest.content_hash)
            if same and self.store.name_of(same) not in manifest.replaces:
                return same, False
            self._sequence += 1
            manifest = replace(manifest, sequence=self._sequence)
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.rename(staged, folder)
            manifest.write(folder)
            trace = StoredTrace(manifest, folder)
            replaced = self._take_replaced(trace)
            self._existing.append(trace)
        for old in replaced:
            _remove(old.folder)
        return trace, True

    def keep_only(self, trace: StoredTrace) -> list[StoredTrace]:
        """Let a stored trace replace what else was there for its run, collector and rank; return what was removed."""
        of = trace.identity
        self.affirm(trace)
        old = self.before(of.run, of.collector, of.rank)
        if old:
            with self._mutex:
                self._sequence += 1
                names = [self.store.name_of(t) for t in old]
                replace(trace.manifest, sequence=self._sequence, replaces=names).write(trace.folder)
                self._existing = [t for t in self._existing if t not in old]
            for gone in old:
                _remove(gone.folder)
        return old

    def remove(self, traces: list[StoredTrace]) -> None:
        """Take traces out of the store."""
        with self._mutex:
            self._existing = [trace for trace in self._existing if trace not in traces]
        for trace in traces:
            _remove(trace.folder)

    def _take_replaced(self, trace: StoredTrace) -> list[StoredTrace]:
        names = trace.manifest.replaces
        replaced = [t for t in self._existing if self.store.name_of(t) in names and t.folder != trace.folder]
        self._existing = [t for t in self._existing if t not in replaced]
        return replaced


def _remove(folder: Path) -> None:
    """Remove a trace's folder, its manifest first, so that it is never seen in part, and folders above left empty."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for above in folder.parents[:3]:  # of the rank, the collector, the run
        with suppress(OSError):
            above.rmdir()


@contextmanager
def writing(root: Path) -> Iterator[StoreWriter]:
    """Open the store at `root` for adding traces, making it when there is none; one writer at a time.

    Raises MachineError when another process is writing to it, UsageError or InputError as `Store` does.
    """
    from filelock import FileLock, Timeout

    if "*" in str(root):
        raise UsageError(f"{root}: a store's path cannot hold '*', which DuckDB takes for a pattern")
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root}: --store must name a folder, this is a file")
    new = not root.exists()
    if not new and not (root / STORE_FILE).exists() and any(p.name != LOCK for p in root.iterdir()):
        raise UsageError(f"{root}: a folder with other files in it; --store needs a new folder or a store")
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise MachineError(f"{root}: another process is writing to this store; wait for it to end") from error
    except OSError as error:
        raise MachineError(f"{root}: the store cannot be written: {error.strerror or error}") from error
    try:
        if not (root / STORE_FILE).exists():
            write_json(root / STORE_FILE, {"schema_version": schema.VERSION, "made_by": f"traceanalyzer {__version__}"})
        writer = StoreWriter(Store(root))
        try:
            yield writer
        finally:
            shutil.rmtree(root / STAGING, ignore_errors=True)
            if new and not any(root.glob("run=*")):  # nothing came of it: leave no empty store behind
                shutil.rmtree(root, ignore_errors=True)
    finally:
        lock.release()
