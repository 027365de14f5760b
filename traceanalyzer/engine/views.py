"""Makes the views that a query uses, and nothing that it does not use: every file opened costs milliseconds.

Views come from `sql/views`, over the traces' raw tables (`raw.x`) and derived tables (`derived.x`). Named queries can
be asked like views, with their default parameters, as `queries.x`, where no view has their name.
"""

from __future__ import annotations

import graphlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from traceanalyzer import schema
from traceanalyzer.engine import library
from traceanalyzer.engine.derived import DerivedTables, reading, used
from traceanalyzer.errors import InputError
from traceanalyzer.store.store import StoredTrace

if TYPE_CHECKING:
    import duckdb

_RAW: Final = re.compile(r"\braw\.(\w+)")
_NAME: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_QUERY: Final = re.compile(r"\bqueries\.(\w+)")
_ASKS_FOR_NAMES: Final = re.compile(r"\b(information_schema|duckdb_\w+|pg_catalog|show|sqlite_master)\b", re.IGNORECASE)
"""What asks which views there are."""


@dataclass
class Views:
    """The views of one connection over some traces."""

    connection: duckdb.DuckDBPyConnection
    traces: list[StoredTrace]
    devices: tuple[int, ...]
    derived: DerivedTables
    queries: dict[str, library.SqlFile]
    _bodies: dict[str, str] = field(init=False)
    _uses: dict[str, set[str]] = field(init=False)
    _made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._bodies = {name: view.body for name, view in library.load("views").items()}
        for name, query in self.queries.items():
            if name not in self._bodies:  # a view of that name would be hidden from all views beside it
                self._bodies[f"queries.{name}"] = query.with_defaults()
        self._uses = {name: self._used(body) - {name} for name, body in self._bodies.items()}
        for name in ("raw", "derived", "queries"):
            self.connection.execute(f"CREATE SCHEMA {name}")
        for macro in library.load("macros").values():
            self.connection.execute(macro.body)

    def _used(self, text: str) -> set[str]:
        """Return the views that an SQL text names; `raw.x` names the stored table, not the view x."""
        names = {name.lower() for name in _NAME.findall(text)}
        names |= {f"queries.{name.lower()}" for name in _QUERY.findall(text)}
        return names & self._bodies.keys()

    def make(self, text: str) -> None:
        """Make the views that an SQL text uses, directly or through others, as far as they are not there.

        Makes all for a text that asks which there are. Raises InputError when the store is damaged.
        """
        import duckdb

        wanted = list(self._bodies if _ASKS_FOR_NAMES.search(text) else self._used(text))
        for name in wanted:  # grows
            wanted.extend(self._uses[name] - set(wanted))
        bodies = [text, *(self._bodies[name] for name in wanted)]
        raw = {table for body in bodies for table in _RAW.findall(body)}
        derived = {table for body in bodies for table in used(body)}
        try:
            for table in sorted(raw & set(schema.STORED)):
                self._once(f"raw.{table}", self._raw(table))
            for table in sorted(derived & library.load("derived").keys()):
                self._once(f"derived.{table}", reading(self.derived.files(table, self.traces)))
        except duckdb.Error as error:
            raise InputError(f"the store is damaged: {' '.join(str(error).split())}; ingest the trace again") from error
        for name in graphlib.TopologicalSorter(self._uses).static_order():
            if name in wanted:
                self._once(name, self._bodies[name])

    def _once(self, name: str, body: str) -> None:
        if name not in self._made:
            self.connection.execute(f"CREATE VIEW {name} AS {body}")
            self._made.add(name)

    def _raw(self, table: str) -> str:
        select = reading([trace.file(table) for trace in self.traces])
        if table == "gpu_events" and self.devices:
            return f"{select} WHERE device IN ({', '.join(map(str, self.devices))})"
        return select
