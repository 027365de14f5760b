"""Puts stored traces under another run or rank, for `runs` and for a repeated ingest with --rank."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from traceanalyzer.errors import UsageError, did_you_mean
from traceanalyzer.store.layout import DERIVED, MANIFEST
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
    folder = writer.new_folder()
    left_behind = shutil.ignore_patterns(MANIFEST, "traces.parquet", DERIVED)
    try:
        shutil.copytree(stored.folder, folder, ignore=left_behind)
        relabel(folder, identity)
        write_traces_row(folder, identity, trace)
        names = [writer.store.name_of(old) for old in (stored, *replaced)]
        manifest = replace(stored.manifest, identity=identity, trace=trace, replaces=names)
        committed, _ = writer.commit(folder, manifest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return committed


def rename_run(writer: StoreWriter, old: str, new: str) -> list[StoredTrace]:
    """Put all traces of a run under another name; return them.

    Where the run `new` exists, they become further parts of it, but for those that it holds already.
    Raises UsageError when there is no run `old`, or the names are the same or empty.
    """
    if not new or old == new:
        raise UsageError(f"--rename {old}={new}: the new name must be another one")
    moved = []
    for stored in traces_of(writer, old):
        of = stored.identity
        if writer.with_content(new, of.collector, stored.manifest.content_hash):
            writer.remove([stored])
            continue
        part = writer.next_part(new, of.collector, of.rank, replace=False)
        moved.append(move(writer, stored, replace(of, run=new, part=part), stored.manifest.trace, []))
    return moved


def traces_of(writer: StoreWriter, run: str) -> list[StoredTrace]:
    """Return the traces of a run. Raises UsageError, with the nearest name, when the store has none of it."""
    traces = writer.store.traces()
    found = [trace for trace in traces if trace.identity.run == run]
    if not found:
        raise UsageError(f"the store has no run '{run}'{did_you_mean(run, {t.identity.run for t in traces})}")
    return found
