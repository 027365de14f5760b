"""`traceanalyzer runs`: what is in a store; names runs anew, and removes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer import output
from traceanalyzer.cli.query import Format, Target, format_of
from traceanalyzer.console import Console
from traceanalyzer.errors import UsageError
from traceanalyzer.tables import Unit

if TYPE_CHECKING:
    from traceanalyzer.store.store import StoredTrace, StoreWriter

_COLUMNS = {
    "run": Unit("text"),
    "collector": Unit("text"),
    "traces": Unit("count", is_summed=True),
    "ranks": Unit("text"),
    "world_size": Unit("number"),
    "complete": Unit("boolean"),
    "events": Unit("count", is_summed=True),
    "gpu_events": Unit("count", is_summed=True),
    "source_bytes": Unit("bytes", is_summed=True),
    "stored_bytes": Unit("bytes", is_summed=True),
}


def runs(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to look into.")],
    rename: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="Call the run A from now on B; can be repeated.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Remove this run; can be repeated.")] = None,
    form: Format = None,
    target: Target = None,
    raw: Annotated[bool, typer.Option("--raw", help="The values as they are, sizes in bytes.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False,
) -> None:
    """List the runs of a store, after renaming or removing some.

    A run that is renamed to one that exists joins it.

    Example: traceanalyzer runs mystore --rename run3=fused
    """
    form = format_of(form, target)
    from traceanalyzer.store.move import rename_run, traces_of
    from traceanalyzer.store.store import Store, writing

    console = Console(quiet=quiet)
    Store(store)  # which says what is wrong, where `writing` would make a new one
    pairs = [_pair(text) for text in rename or ()]
    if pairs or remove:
        with writing(store) as writer:
            _check(writer, pairs, remove or [])
            for old, new in pairs:
                moved, dropped = rename_run(writer, old, new)
                known = f"; {len(dropped)} were dropped, run {new} holds their content already" if dropped else ""
                console.note(f"{len(moved)} trace(s) of run {old} are now of run {new}{known}")
            for run in dict.fromkeys(remove or ()):
                gone = traces_of(writer, run)
                writer.remove(gone)
                console.note(f"removed run {run} with {len(gone)} trace(s)")
    rows = _rows(Store(store).traces())
    output.write(list(_COLUMNS), [rows], form, target, units={} if raw else _COLUMNS)


def _check(writer: StoreWriter, pairs: list[tuple[str, str]], remove: list[str]) -> None:
    """Raise UsageError, before anything is done, when a name does not fit."""
    from traceanalyzer.store.move import check_new_name, traces_of

    made: set[str] = set()
    for old, new in pairs:
        check_new_name(old, new)
        if old not in made:
            traces_of(writer, old)
        made = (made | {new}) - {old}
    for run in remove:
        if run not in made:
            traces_of(writer, run)


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (equals and old and new):
        raise UsageError(f"--rename {text}: write it as OLD=NEW")
    return old, new


def _rows(traces: list[StoredTrace]) -> list[tuple[object, ...]]:
    """Return one row per run and collector, with the columns of `_COLUMNS`."""
    groups: dict[tuple[str, str], list[StoredTrace]] = {}
    for trace in traces:
        groups.setdefault((trace.identity.run, trace.identity.collector), []).append(trace)
    return [(*key, *_summary(group)) for key, group in groups.items()]


def _summary(traces: list[StoredTrace]) -> tuple[object, ...]:
    described = [trace.manifest.trace for trace in traces]
    ranks = sorted({trace.identity.rank for trace in traces if trace.identity.rank is not None})
    unknown = any(trace.identity.rank is None for trace in traces)
    return (
        len(traces),
        ", ".join([*_ranges(ranks), *(["unknown"] if unknown else [])]),
        max((row["world_size"] for row in described if row["world_size"]), default=None),
        all(row["complete"] for row in described),
        sum(row["events_stored"] for row in described),
        sum(trace.manifest.rows["gpu_events"] for trace in traces),
        sum(row["bytes"] or 0 for row in described),
        sum(file.stat().st_size for trace in traces for file in trace.folder.rglob("*") if file.is_file()),
    )


def _ranges(numbers: list[int]) -> list[str]:
    """Return sorted numbers with neighbours drawn together.

    >>> _ranges([0, 1, 2, 5])
    ['0-2', '5']
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges]
