"""Makes the views that a query uses, and nothing that it does not use: every file opened costs milliseconds.

Views come from `sql/views`, over the traces' raw tables (`raw.x`) and derived tables (`derived.x`). Named queries can
be asked like views, with their default parameters, as `queries.x`, where no view has their name.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from traceanalyzer import schema
from traceanalyzer.engine import library
from traceanalyzer.engine.asked import asks_for
from traceanalyzer.engine.derived import DerivedTables, reading
from traceanalyzer.engine.result import query_error
from traceanalyzer.engine.rules import operator_macros
from traceanalyzer.errors import InputError, UsageError
from traceanalyzer.store.store import StoredTrace

if TYPE_CHECKING:
    import duckdb

_SCHEMAS: Final = ("raw", "derived", "queries")
_WORD: Final = r'(?:"[^"]+"|[A-Za-z_]\w*)'
_PATH: Final = re.compile(rf"{_WORD}(?:\s*\.\s*{_WORD})*")
_ASKS_FOR_NAMES: Final = {"information_schema", "duckdb_views", "duckdb_tables", "duckdb_columns", "show", "pg_catalog"}
"""What asks which views there are."""
_HANDED_ON: Final = frozenset({"gpu_events", "kernels", "memcpys", "memsets", "cpu_ops", "runtime_calls"})
"""Views that have the columns of optional tables without reading them themselves."""
_MACRO: Final = re.compile(r"CREATE OR REPLACE MACRO (\w+\([^)]*\)) AS TABLE")
_TYPES: Final = {"text": "VARCHAR", "boolean": "BOOLEAN", "JSON": "VARCHAR", "numbers": "BIGINT[]"}
"""SQL types of columns by their units; all others are numbers."""


def names_in(text: str) -> set[str]:
    """Return what an SQL text may name, in small letters: 'x', and of the schemas that are ours 'raw.x'.

    More than it really uses, such as columns and its own names; never less.
    """
    found = set()
    for path in _PATH.finditer(library.without_texts(text)):
        parts = [word.strip('"').lower() for word in re.findall(_WORD, path.group())]
        found |= {part for n, part in enumerate(parts) if n == 0 or parts[n - 1] not in _SCHEMAS}
        found |= {f"{a}.{b}" for a, b in pairwise(parts) if a in _SCHEMAS}
    return found


def _skipped(unused: frozenset[str]) -> set[str]:
    """Return the names, as SQL has them, of derived tables and table macros."""
    macros = {name for name in unused if name in library.load("macros")}
    return macros | {f"derived.{name}" for name in unused}


@dataclass
class Views:
    """The views of one connection over some traces."""

    connection: duckdb.DuckDBPyConnection
    traces: list[StoredTrace]
    devices: tuple[int, ...]
    derived: DerivedTables
    queries: dict[str, library.SqlFile]
    check: Callable[[library.SqlFile], object]
    """Raises an error for a query that does more than read; called before a query becomes a view."""
    _bodies: dict[str, str] = field(init=False)
    _uses: dict[str, set[str]] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._bodies = {name: view.body for name, view in library.load("views").items()}
        self._bodies |= {name: macro.body for name, macro in library.load("macros").items() if macro.is_table_macro}
        self._bodies |= operator_macros()
        for name, query in self.queries.items():
            if name not in self._bodies:  # a view of that name would be hidden from all views beside it
                self._bodies[f"queries.{name}"] = query.with_defaults()
        for name in _SCHEMAS:
            self.connection.execute(f"CREATE SCHEMA {name}")
        for macro in library.scalar_macros():
            self.connection.execute(macro)

    def _used_by(self, name: str) -> set[str]:
        if name not in self._uses:
            self._uses[name] = names_in(self._bodies[name]) - {name}
        return self._uses[name]

    def make(self, text: str, unused: Collection[str] = (), *, is_reviewed: bool = False) -> None:
        """Make the views that an SQL text uses, directly or through others, as far as they are not there.

        Derived tables and table macros in `unused` are not made, but empty: the text names them, but does not read them
        this time. So are optional tables of which it asks no column; `is_reviewed` texts name what they ask for.
        Makes all views for a text that asks which there are. Raises InputError when the store is damaged, UsageError
        when queries of the user's use each other in a circle.
        """
        used, order = self._closure(text, frozenset(unused))
        for table in schema.STORED:
            if f"raw.{table}" in used:
                self._stored(f"raw.{table}", self._raw(table))
        bodies = [(text, frozenset(unused), is_reviewed)]
        bodies += [self._body(name) for name in order if name not in _HANDED_ON]
        mentioned = names_in(text).union(*map(self._used_by, order))
        for name, file in library.load("derived").items():
            if f"derived.{name}" in used and self._is_read(file, bodies):
                self._derived(name)
            elif f"derived.{name}" in mentioned:
                self._placeholder(file)
        for macro in library.load("macros").values():
            if macro.is_table_macro and macro.name in mentioned and macro.name not in order:
                self._placeholder(macro)
        for name in order:
            self._view(name)

    def _closure(self, text: str, unused: frozenset[str]) -> tuple[set[str], list[str]]:
        """Return all names that a text uses, directly or through views, and the views in the order to make them."""
        names = names_in(text) - _skipped(unused)
        if names & _ASKS_FOR_NAMES:
            names |= library.load("views").keys()
        uses: dict[str, set[str]] = {}
        waiting = sorted(names & self._bodies.keys())
        while waiting:
            name = waiting.pop()
            if name not in uses:
                found = self._used_by(name) - _skipped(self._body(name)[1])
                names |= found
                uses[name] = found & self._bodies.keys()
                waiting += sorted(uses[name])
        try:
            return names, list(graphlib.TopologicalSorter(uses).static_order())
        except graphlib.CycleError as error:
            raise UsageError(f"queries use each other in a circle: {' -> '.join(error.args[1])}") from error

    def _body(self, name: str) -> tuple[str, frozenset[str], bool]:
        """Return the SQL of a view, what of its names it does not read, and whether it names all that it asks for."""
        query = self.queries[name.removeprefix("queries.")] if name.startswith("queries.") else None
        if not query:
            return self._bodies[name], frozenset(), True
        return self._bodies[name], frozenset(query.unused(query.defaults())), query.is_built_in

    def _is_read(self, file: library.SqlFile, bodies: list[tuple[str, frozenset[str], bool]]) -> bool:
        """Say whether one of some texts reads a derived table: an optional one if it names it, or asks for a column.

        Each text comes with what of its names it does not read, and whether it names all columns that it asks for.
        """
        if not file.is_optional:
            return True
        columns = {column.name for column in file.columns} - set(schema.IDENTITY) - {"event_id"}
        for text, unused, is_reviewed in bodies:
            if file.name in unused:
                continue
            names = names_in(text)
            if f"derived.{file.name}" in names or columns & names:
                return True
            if not is_reviewed and asks_for(self.connection, text, columns):
                return True
        return False

    def _placeholder(self, file: library.SqlFile) -> None:
        """Make a derived table or table macro without rows, unless the real one is there: that plans in no time."""
        types = {column.name: _TYPES.get(column.unit, "BIGINT") for column in file.columns} | schema.IDENTITY
        nothing = ", ".join(f"NULL::{types[column.name]} AS {column.name}" for column in file.columns)
        macro = _MACRO.match(file.body)
        name = file.name if macro else f"derived.{file.name}"
        if name not in self._made:
            what = f"MACRO {macro.group(1)} AS TABLE" if macro else f"VIEW {name} AS"
            self.connection.execute(f"CREATE OR REPLACE {what} SELECT {nothing} WHERE false")

    def _view(self, name: str) -> None:
        import duckdb

        query = self.queries[name.removeprefix("queries.")] if name.startswith("queries.") else None
        if query:
            self.check(query)
        try:
            self._once(name, self._bodies[name])
        except duckdb.Error as error:
            raise query_error(error, query) from error

    def _once(self, name: str, body: str) -> None:
        if name not in self._made:
            is_macro = name in operator_macros() or name in library.load("macros")
            self.connection.execute(body if is_macro else f"CREATE OR REPLACE VIEW {name} AS {body}")
            self._made.add(name)

    def _stored(self, name: str, body: str) -> None:
        import duckdb

        try:
            self._once(name, body)
        except duckdb.Error as error:
            text = " ".join(str(error).partition("\nLINE ")[0].split())
            raise InputError(f"the store is damaged: {text}; remove the run and ingest its traces again") from error

    def _derived(self, table: str) -> None:
        """Make the view of a derived table; a file that cannot be read is made anew, as everything in it can be."""
        import duckdb

        try:
            self._once(f"derived.{table}", self._reading_derived(table))
        except duckdb.Error:
            self.derived.drop(table, self.traces)
            self._stored(f"derived.{table}", self._reading_derived(table))

    def _reading_derived(self, table: str) -> str:
        select = reading(self.derived.files(table, self.traces))
        if table == "steps" and self.devices:
            return f"{select} WHERE device IS NULL OR device IN ({', '.join(map(str, self.devices))})"
        return select

    def _raw(self, table: str) -> str:
        select = reading([trace.file(table) for trace in self.traces])
        if table == "gpu_events" and self.devices:
            return f"{select} WHERE device IN ({', '.join(map(str, self.devices))})"
        return select
