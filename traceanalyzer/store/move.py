"""Puts stored traces under another run or rank, for `runs` and for a repeated ingest with --rank."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from traceanalyzer import schema
from traceanalyzer.errors import InputError, MachineError, UsageError, did_you_mean
from traceanalyzer.store.layout import DERIVED, MANIFEST, check_run_name
from traceanalyzer.store.manifest import Identity
from traceanalyzer.store.store import StoredTrace, StoreWriter
from traceanalyzer.store.writer import relabel, write_traces_row


def move(
    writer: StoreWriter,
    stored: StoredTrace,
    identity: Identity,
    trace: dict[str, Any],
    replaced: list[StoredTrace],
) -> StoredTrace:
    """Put a stored trace under another identity, with `trace` as its description, in place of `replaced` too.

    Every file carries its identity, so the files are written anew. At any moment the trace is seen under one of both.
    """
    missing = [table for table in schema.STORED if not stored.file(table).is_file()]
    if missing:
        raise InputError(
            f"{stored.folder}: {', '.join(missing)} is missing; remove the run and ingest its traces again"
        )
    folder = writer.new_folder()
    left_behind = shutil.ignore_patterns(MANIFEST, "traces.parquet", DERIVED)
    try:
        shutil.copytree(stored.folder, folder, ignore=left_behind)
        relabel(folder, identity)
        write_traces_row(folder, identity, trace)
        names = [writer.store.name_of(old) for old in (stored, *replaced)]
        manifest = replace(stored.manifest, identity=identity, trace=trace, replaces=names)
        committed, _ = writer.commit(folder, manifest)
    except OSError as error:
        raise MachineError(f"{writer.store.root}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return committed


def rename_run(writer: StoreWriter, old: str, new: str) -> tuple[list[StoredTrace], list[StoredTrace]]:
    """Put all traces of a run under another name; return them, and those that were dropped.

    Where the run `new` exists, they become further parts of it; dropped is what it holds already.
    Raises UsageError when there is no run `old`, or the new name does not fit.
    """
    check_new_name(old, new)
    moved, dropped = [], []
    for stored in traces_of(writer, old):
        of, manifest = stored.identity, stored.manifest
        if writer.with_content(new, of.collector, manifest.content_hash):
            writer.remove([stored])
            dropped.append(stored)
            continue
        part = writer.next_part(new, of.collector, of.rank, replace=False)
        trace_id = writer.free_trace_id(new, of.collector, manifest.fingerprint, manifest.content_hash)
        moved.append(move(writer, stored, replace(of, run=new, part=part, trace_id=trace_id), manifest.trace, []))
    return moved, dropped


def check_new_name(old: str, new: str) -> None:
    """Raise UsageError when a run cannot be called `new`."""
    if not new or old == new:
        raise UsageError(f"--rename {old}={new}: the new name must be another one")
    check_run_name(new)


def traces_of(writer: StoreWriter, run: str) -> list[StoredTrace]:
    """Return the traces of a run. Raises UsageError, with the nearest name, when the store has none of it."""
    traces = writer.store.traces()
    found = [trace for trace in traces if trace.identity.run == run]
    if not found:
        raise UsageError(f"the store has no run '{run}'{did_you_mean(run, {t.identity.run for t in traces})}")
    return found
