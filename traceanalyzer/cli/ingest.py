"""`traceanalyzer ingest`: trace files into a store."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer import output
from traceanalyzer.console import Console, ProgressLine
from traceanalyzer.errors import UsageError

if TYPE_CHECKING:
    from traceanalyzer.ingest.file import Outcome
    from traceanalyzer.ingest.plan import Planned
    from traceanalyzer.store.store import StoredTrace

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text: str) -> int:
    """Return a size such as '512MB', '2g' or '1000000' in bytes (K, M, G are powers of 1024).

    Raises UsageError for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"'{text}' is not a size: write it like 512MB or 2GB")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def ingest(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files, folders (searched), globs, or - for stdin.")
    ],
    store: Annotated[Path, typer.Option(help="The store to add to; made when it does not exist.")],
    run: Annotated[str | None, typer.Option(help="Name of the training run. [default: the folder's name]")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of all the sources.")] = None,
    rank_map: Annotated[
        Path | None, typer.Option(help="Ranks by file name: JSON {name: rank} or lines name,rank.")
    ] = None,
    collector: Annotated[
        str, typer.Option(help="What wrote the traces: auto, pytorch, rocprofv3 or rocm_trace_lite.")
    ] = "auto",
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads that parse. [default: the processors]")] = None,
    memory: Annotated[str, typer.Option(help="Memory to stay within, such as 512MB or 2GB.")] = "512MB",
    replace: Annotated[bool, typer.Option("--replace", help="Drop earlier traces of the same run and rank.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on a trace with anything to repair, reject or miss.")
    ] = False,
    no_python: Annotated[
        bool, typer.Option("--no-python", help="Leave out Python frames; they can be most of a trace.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what each file is and what would happen.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes, no progress.")] = False,
) -> None:
    """Read traces and store them as Parquet.

    Example: traceanalyzer ingest results/ --store mystore --run baseline
    """
    from traceanalyzer.ingest.plan import STDIN, RankChoice, make_plan
    from traceanalyzer.ingest.run import LEAST_MEMORY, Ingest, Resources, exit_code
    from traceanalyzer.machine import cores
    from traceanalyzer.store.store import writing

    console = Console(quiet=quiet)
    ranks = RankChoice.from_options(rank, rank_map)
    resources = Resources(jobs or cores(), parse_bytes(memory))
    if resources.memory < LEAST_MEMORY:
        raise UsageError(f"--memory {memory}: at least {LEAST_MEMORY >> 20}MB are needed")
    if STDIN in sources and len(sources) > 1:
        raise UsageError("- (standard input) cannot be mixed with other sources")
    if dry_run:
        if STDIN in sources:
            raise UsageError("--dry-run needs files: what comes on standard input cannot be read twice")
        _print_plan(make_plan(sources, run=run, ranks=ranks, collector=collector), store, replace)
        return
    if STDIN not in sources:  # find out that nothing is there before a store is made
        plan = make_plan(sources, run=run, ranks=ranks, collector=collector)
    left_out = frozenset({"python_calls"} if no_python else ())
    with writing(store) as writer:
        if STDIN in sources:
            spooled = writer.staging / "stdin"
            with spooled.open("wb") as file:
                if sys.stdin is None:
                    raise UsageError("standard input is closed")
                shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
            plan = make_plan([str(spooled)], run=run or "stdin", ranks=ranks, collector=collector)
            plan = [dataclasses.replace(item, shown=STDIN) for item in plan]
        with ProgressLine(console, len(plan)) as progress:
            work = Ingest(
                writer=writer,
                ranks=ranks,
                resources=resources,
                replace=replace,
                leave_out=left_out,
                strict=strict,
                progress=progress,
            )
            outcomes = work.run(plan)
    _print_outcomes(console, outcomes)
    for name in ranks.unused(plan):
        console.note(f"--rank-map {rank_map}: no file is named {name}")
    code = exit_code(outcomes)
    if code:
        raise typer.Exit(code)


def _print_plan(plan: list[Planned], root: Path, replace: bool) -> None:
    """Print what would happen with each file; `replaces` counts the stored traces that would go."""
    from traceanalyzer.store.layout import STORE_FILE
    from traceanalyzer.store.store import Store

    traces = Store(root).traces() if (root / STORE_FILE).is_file() else []
    stored = [trace.identity for trace in traces]
    columns = ["file", "what", "action", "run", "collector", "rank", "rank_source", "replaces", "bytes"]
    rows = []
    for item in plan:
        reader = item.found.reader
        action = _action(item, traces) if reader else ("fail" if item.counts else "skip")
        readable: tuple[object, ...] = (None,) * 5
        if reader:
            gone = sum((i.run, i.collector, i.rank) == (item.run, reader.collector, item.rank) for i in stored)
            readable = (item.run, reader.collector, item.rank, item.rank_source, gone if replace else None)
        size = item.path.stat().st_size if item.path.exists() else None
        rows.append((str(item.path), item.found.what, action, *readable, size))
    output.write(columns, [rows], "table", None)


def _action(item: Planned, traces: list[StoredTrace]) -> str:
    """Return what would happen with a trace, as far as that is known without reading it."""
    from traceanalyzer.readers.source import fingerprint

    assert item.found.reader is not None
    mark = fingerprint(item.found.reader.files(item.path)) if traces else None
    if item.copy_of:
        return f"skip: a copy of {item.copy_of}"
    for trace in traces:
        of = trace.identity
        if of.run == item.run and trace.manifest.fingerprint == mark:
            moves = item.rank_source.startswith("--") and item.rank != of.rank
            return f"rank {'unknown' if of.rank is None else of.rank} -> {item.rank}" if moves else "already stored"
    return "store"


def _print_outcomes(console: Console, outcomes: list[Outcome]) -> None:
    """Print a row per trace on stdout; problems and notes on stderr."""
    rows = []
    for outcome in outcomes:
        path = outcome.planned.shown
        if outcome.trace:
            of, manifest = outcome.trace.identity, outcome.trace.manifest
            ledger = [manifest.trace[f"events_{what}"] for what in ("read", "stored", "rejected")]
            seconds = round(outcome.seconds, 2)
            known = (path, outcome.state, of.run, of.collector, of.rank, of.part)
            rows.append((*known, *ledger, manifest.trace["repairs"], outcome.gpu_events, seconds))
        elif outcome.error:
            (console.note if outcome.state == "skipped" else console.error)(str(outcome.error))
            if isinstance(outcome.error.__cause__, Exception) and "--debug" in sys.argv:
                console.error("".join(traceback.format_exception(outcome.error.__cause__)))
        for note in outcome.notes:
            console.note(f"{path}: {note}")
    columns = ["file", "state", "run", "collector", "rank", "part", "events_read", "stored", "rejected", "repairs"]
    columns += ["gpu_events", "seconds"]
    if rows:
        output.write(columns, [rows], "table", None)
