"""What SQL may do: read the store, nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer.engine.library import SqlFile
from traceanalyzer.engine.result import query_error
from traceanalyzer.engine.rules import quoted
from traceanalyzer.errors import QueryError

if TYPE_CHECKING:
    import duckdb

_WORD: Final = re.compile(r"[A-Za-z_]+")
_WRITING: Final = {
    *("COPY", "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "DROP", "ALTER"),
    *("ATTACH", "DETACH", "EXPORT", "IMPORT", "INSTALL", "LOAD"),
}
"""Words of statements that write, which DuckDB also takes inside of WITH and EXPLAIN ANALYZE."""


def shut(connection: duckdb.DuckDBPyConnection, folders: list[Path]) -> None:
    """Let the connection reach no file outside `folders`, and no setting be changed any more."""
    paths = {path for folder in folders for path in (folder, folder.resolve())}
    allowed = ", ".join(quoted(f"{path}/") for path in sorted(paths))
    connection.execute(f"SET allowed_directories = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def checked(connection: duckdb.DuckDBPyConnection, text: str, query: SqlFile | None = None) -> str:
    """Return the text (of a query of the user's, if one is given) when it is a single statement that only reads.

    The settings forbid other files, but not writing into the allowed folder, so the statement counts too.
    Raises QueryError.
    """
    import duckdb

    where = f"{query.path}: " if query else ""
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as error:
        raise query_error(error, query) from error
    if len(statements) != 1:
        raise QueryError(f"{where}one statement at a time, please: there are {len(statements)} in the query")
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        what = "several statements in one (PIVOT without IN does that)" if kind == "MULTI" else kind
        raise QueryError(
            f"{where}a query must be one SELECT (or EXPLAIN, DESCRIBE), not {what}: the store is only read"
        )
    if writing := sorted(_words(text) & _WRITING):  # in EXPLAIN ANALYZE, or in a WITH clause
        raise QueryError(
            f"{where}the store is only read, and the query says {', '.join(writing)};"
            " a column of that name goes in quotes"
        )
    return text


def _words(text: str) -> set[str]:
    """Return the words of an SQL text outside of quotes and comments, in capitals.

    DuckDB's tokens come with their position; whether that counts bytes or characters does not matter here, since both
    are looked at.
    """
    import duckdb

    places = [at for at, kind in duckdb.tokenize(text) if kind.name in ("keyword", "identifier")]
    raw = text.encode()
    found = [_WORD.match(text, at) for at in places] + [_WORD.match(raw[at:].decode(errors="replace")) for at in places]
    return {match.group().upper() for match in found if match}
