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
    rules: Annotated[
        Path | None, typer.Option(help="Kernel rules of your own, tried before the built-in ones.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the table, no verdict.")] = False,
) -> None:
    """Say whether the numbers can be trusted.

    Prints what the query health finds, errors first, and which of the checks in sql/checks do not hold; exits with 1
    when something makes the numbers untrustworthy.

    Example: traceanalyzer doctor mystore
    """
    from traceanalyzer.engine import library
    from traceanalyzer.engine.rules import load
    from traceanalyzer.engine.session import Session
    from traceanalyzer.store.store import Store

    session = Session(Store(store), rules=load(rules))
    query = library.named_query("health")
    result = session.named(query, {})
    found = [dict(zip(result.columns, row, strict=True)) for batch in result.batches() for row in batch]
    broken = [
        {**row, "check": name, "severity": "error", "count": 1, "detail": f"{check.summary} But {row['detail']}"}
        for name, check in library.load("checks").items()
        for row in session.violations(check)
    ]
    rows = [*broken, *found]
    output.write(result.columns, [[tuple(row[name] for name in result.columns) for row in rows]], "table", None)
    errors = [row["check"] for row in rows if row["severity"] == "error"]
    warnings = [row["check"] for row in rows if row["severity"] == "warning"]
    if errors:
        raise QueryError(f"the numbers cannot be trusted: {', '.join(sorted(set(map(str, errors))))}")
    verdict = "the numbers can be trusted"
    if warnings:
        verdict += f"; look at {', '.join(sorted(set(map(str, warnings))))}"
    Console(quiet=quiet).note(verdict)
