"""`traceanalyzer query`, `queries` and `schema`: ask a store, and see what can be asked."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer import output
from traceanalyzer.console import Console
from traceanalyzer.errors import UsageError, did_you_mean
from traceanalyzer.tables import Unit

Format = Annotated[
    str | None,
    typer.Option("--format", "-f", help=f"One of {', '.join(output.FORMATS)}. [default: by -o's ending, else table]"),
]
Target = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")]

Queries = Annotated[
    Path | None, typer.Option("--queries", metavar="DIR", help="A folder with named queries of your own (.sql files).")
]

if TYPE_CHECKING:
    from traceanalyzer.engine.library import SqlFile

_ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "markdown", ".parquet": "parquet"}
_NAME = re.compile(r"[a-z_][a-z0-9_-]*", re.IGNORECASE)


def query(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to ask.")],
    question: Annotated[
        str, typer.Argument(metavar="QUERY", help="A named query, SQL text, a .sql file, or - for stdin.")
    ],
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Parameter of a named query.")
    ] = None,
    run: Annotated[list[str] | None, typer.Option(help="Only this run; can be repeated.")] = None,
    rank: Annotated[list[str] | None, typer.Option(help="Only this rank (a number or unknown); repeatable.")] = None,
    collector: Annotated[list[str] | None, typer.Option(help="Only this collector; can be repeated.")] = None,
    device: Annotated[list[int] | None, typer.Option(help="Only GPU work of this device; can be repeated.")] = None,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Kernel rules of your own (CSV), tried before the built-in ones."),
    ] = None,
    folder: Queries = None,
    form: Format = None,
    target: Target = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Tables with the values as they are, times in integer nanoseconds.")
    ] = False,
    allow_external: Annotated[
        bool, typer.Option("--allow-external", help="Let SQL read other files, attach databases, write.")
    ] = False,
    notes: Annotated[
        bool, typer.Option("--notes", help="Say which versions and traces the answer comes from.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False,
) -> None:
    """Answer a named query or an SQL SELECT.

    'traceanalyzer queries' lists the queries, 'traceanalyzer schema' the views that SQL can ask.

    Example: traceanalyzer query mystore timeline --rank 0 --format json
    """
    form = format_of(form, target)
    if target and target.resolve().is_relative_to(store.resolve()):
        raise UsageError(f"-o {target}: answers are not written into the store")
    from traceanalyzer.engine import library
    from traceanalyzer.engine.rules import load
    from traceanalyzer.engine.session import Filters, Session
    from traceanalyzer.store.store import Store

    console = Console(quiet=quiet)
    if not store.exists() and str(store) in library.queries(folder):
        raise UsageError(f"the store comes first: traceanalyzer query {question} {store}")
    named, text, path = _resolve(question)
    parameters = _parameters(parameter or [])
    found = library.named_query(named, folder) if named else None
    if found is None and parameters:
        raise UsageError("-p gives parameters to a named query; in SQL, write the value into the text")
    filters = Filters(tuple(run or ()), tuple(rank or ()), tuple(collector or ()), tuple(device or ()))
    session = Session(Store(store), filters, rules=load(rules), queries=folder, allow_external=allow_external)
    result = session.named(found, parameters) if found else session.sql(text, path)
    for line in session.caveats(found):
        console.note(line)
    if notes:
        for line in [*session.provenance(), *result.notes]:
            console.note(line)
    units = {c.name: Unit(c.unit, c.is_summed) for c in found.columns} if found and not raw else {}
    written = output.write(result.columns, result.batches(), form, target, result.arrow, units)
    for line in result.meanings(written):
        console.note(line)


def format_of(form: str | None, target: Path | None) -> str:
    """Return the format asked for: by name, else by the ending of the target file, else a table."""
    if target is not None and not target.absolute().parent.is_dir():
        raise UsageError(f"-o {target}: there is no folder {target.parent}")
    if form is None:
        return _ENDINGS.get(target.suffix.lower(), "table") if target else "table"
    if form not in output.FORMATS:
        raise UsageError(f"unknown format '{form}'{did_you_mean(form, output.FORMATS)}")
    return form


def _resolve(question: str) -> tuple[str | None, str, Path | None]:
    """Return (name of a named query or None, SQL text, its file)."""
    if question == "-" and sys.stdin is None:
        raise UsageError("standard input is closed")
    if question == "-":
        return None, _decoded(sys.stdin.buffer.read(), "standard input"), None
    if question.endswith(".sql"):
        path = Path(question)
        if not path.is_file():
            raise UsageError(f"{question}: no such file")
        return None, _decoded(path.read_bytes(), question), path
    if _NAME.fullmatch(question.strip()):
        return question.strip(), "", None
    return None, question, None


def _decoded(text: bytes, where: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _parameters(given: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"-p {text}: write it as name=value")
        values[name.strip()] = value
    return values


def queries(
    name: Annotated[str | None, typer.Argument(help="Explain this query.")] = None,
    folder: Queries = None,
    form: Format = None,
    target: Target = None,
) -> None:
    """List the named queries, or explain one.

    Explaining shows the parameters, the columns and the SQL itself.

    Example: traceanalyzer queries timeline
    """
    form = format_of(form, target)
    from traceanalyzer.engine import library

    if name is None:
        known = library.queries(folder).values()
        rows = [(q.name, q.summary, ", ".join(p.name for p in q.parameters)) for q in known]
        output.write(["query", "answers", "parameters"], [rows], form, target)
    else:
        _explain(library.named_query(name, folder), form, target)


def schema(
    view: Annotated[str | None, typer.Argument(help="Explain this view or macro.")] = None,
    form: Format = None,
    target: Target = None,
) -> None:
    """List the views and macros for SQL, or explain one.

    Example: traceanalyzer schema gpu_events
    """
    form = format_of(form, target)
    from traceanalyzer.engine import library

    views, macros = library.load("views"), library.load("macros")
    if view is None:
        rows = [
            (file.name, kind, file.summary)
            for kind, files in (("view", views), ("macro", macros))
            for file in files.values()
        ]
        output.write(["name", "kind", "holds"], [rows], form, target)
        return
    known = {**macros, **views}
    if view not in known:
        raise UsageError(f"unknown view '{view}'{did_you_mean(view, known)} ('traceanalyzer schema' lists them)")
    _explain(known[view], form, target)


def _explain(file: SqlFile, form: str, target: Path | None) -> None:
    """Print all that a file's header says; as a table also the SQL, else one row per parameter and column."""
    if form != "table" or target:
        rows = [(p.name, "parameter", p.shown_type, p.default, p.doc) for p in file.parameters]
        rows += [(c.name, "column", c.unit, "", c.doc) for c in file.columns]
        output.write(["name", "kind", "unit", "default", "meaning"], [rows], form, target)
        return
    parts = [f"{file.name}: {file.summary}", file.description]
    if file.parameters:
        lines = [f"  -p {p.name}={p.default}  ({p.shown_type}) {p.doc}" for p in file.parameters]
        parts.append("\n".join(["Parameters:", *lines]))
    if file.columns:
        parts.append("\n".join(["Columns:", *(f"  {c.name} ({c.unit}): {c.doc}" for c in file.columns)]))
    if file.example:
        parts.append(f"Example: {file.example}")
    parts.append(f"SQL ({file.path}):\n\n{file.body}")
    output.write_text("\n\n".join(parts))
