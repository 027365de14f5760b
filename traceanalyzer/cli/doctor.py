"""`traceanalyzer doctor`: whether the numbers of a store can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceanalyzer import output
from traceanalyzer.console import Console
from traceanalyzer.errors import QueryError


def doctor(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to look at.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the table, no verdict.")] = False,
) -> None:
    """Say whether the numbers can be trusted.

    Prints what the query health finds, errors first; exits with 1 when something makes the numbers untrustworthy.

    Example: traceanalyzer doctor mystore
    """
    from traceanalyzer.engine import library
    from traceanalyzer.engine.session import Session
    from traceanalyzer.store.store import Store

    result = Session(Store(store)).named(library.named_query("health"), {})
    rows = [row for batch in result.batches() for row in batch]
    output.write(result.columns, [rows], "table", None)
    severity, check = result.columns.index("severity"), result.columns.index("check")
    errors = [row[check] for row in rows if row[severity] == "error"]
    warnings = [row[check] for row in rows if row[severity] == "warning"]
    if errors:
        raise QueryError(f"the numbers cannot be trusted: {', '.join(sorted(set(map(str, errors))))}")
    verdict = "the numbers can be trusted"
    if warnings:
        verdict += f"; look at {', '.join(sorted(set(map(str, warnings))))}"
    Console(quiet=quiet).note(verdict)
