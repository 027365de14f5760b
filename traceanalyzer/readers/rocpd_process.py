"""What a rocpd database says besides its records: processes, machines, agents, and the texts behind numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from traceanalyzer.errors import InputError, NothingToAnalyse
from traceanalyzer.readers.kineto_facts import integer
from traceanalyzer.readers.rocprofv3_facts import Agent, Process, rank_from_command, rank_from_environment
from traceanalyzer.readers.rocprofv3_names import KernelNames
from traceanalyzer.readers.sqlite_file import SqliteFile, literal, quoted

_PROCESSES: Final = "rocpd_info_process"
_LAST_NUMBER: Final = re.compile(r"(\d+)\D*\Z")


@dataclass
class Tables:
    """The tables of one process in a database."""

    database: SqliteFile
    guid: str | None
    is_shared: bool = False
    """Whether several processes have the same guid, so that rows must be told apart by their process."""

    def name(self, table: str) -> str | None:
        """Return the table that holds this process's rows, None when there is none."""
        names = self.database.tables
        own = f"{table}_{(self.guid or '').replace('-', '_')}"
        return own if own in names else table if table in names else None

    def columns(self, table: str) -> list[str]:
        name = self.name(table)
        return self.database.tables[name] if name else []

    def condition(self, table: str) -> str:
        """Return the SQL condition for this process's rows: needed where a table holds those of several."""
        name = self.name(table)
        if name != table or self.guid is None or "guid" not in self.columns(table):
            return "true"
        return f"{quoted(name)}.guid = {literal(self.guid)}"

    def records(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return all rows of a small table, with the columns of those asked for that it has."""
        name, there = self.name(table), [c for c in columns if c in self.columns(table)]
        if name is None or not there:
            return []
        chosen = ", ".join(map(quoted, there))
        rows = self.database.rows(f"SELECT {chosen} FROM {quoted(name)} WHERE {self.condition(table)}")
        return [dict(zip(there, row, strict=True)) for row in rows]


@dataclass
class Lookup:
    """What the numbers in the large tables mean."""

    strings: dict[int, str] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)
    kernels: KernelNames = field(default_factory=KernelNames)


def object_in(text: object) -> dict[str, Any]:
    """Return the JSON object that a text holds, an empty one when it holds none."""
    try:
        value = orjson.loads(text) if isinstance(text, str | bytes) and text else None
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def process_of(tables: Tables, record: dict[str, Any]) -> Process:
    """Return what the database says about a process; of its environment and command line only the rank is read."""
    node = next(
        (n for n in tables.records("rocpd_info_node", "id", "hostname") if n.get("id") == record.get("nid")), {}
    )
    process = Process(
        pid=integer(record.get("pid")),
        host=node.get("hostname") or None,
        init_ns=integer(record.get("init")),
        fini_ns=integer(record.get("fini")),
        agents=[_agent(a) for a in tables.records("rocpd_info_agent", *_AGENT_COLUMNS)],
    )
    rank_from_command(process, str(record.get("command") or "").split())
    rank_from_environment(process, object_in(record.get("environment")))
    return process


_AGENT_COLUMNS: Final = (*("id", "type", "absolute_index", "type_index", "uuid", "name", "product_name", "extdata"),)
_AGENT_EXTRAS: Final = ("location_id", "domain", "gpu_id", "hive_id", "gfx_target_version", "cu_count", "num_xcc")


def _agent(record: dict[str, Any]) -> Agent:
    more = object_in(record.get("extdata"))
    facts = {"name": record.get("name"), "node_id": record.get("absolute_index"), "uuid": record.get("uuid")}
    facts |= {key: more[key] for key in _AGENT_EXTRAS if key in more}
    visibility = more.get("runtime_visibility")
    return Agent(
        handle=integer(record.get("id")) or 0,
        kind=str(record.get("type") or "").upper(),
        ordinal=integer(record.get("type_index"), 0, 2**31),
        product=record.get("product_name") or None,
        facts={key: value for key, value in facts.items() if value not in (None, "")},
        visible=not isinstance(visibility, dict) or visibility.get("hip") != 0,
    )


def schema_version(tables: Tables) -> str | None:
    """Return the version of the schema that the database names."""
    tags = tables.records("rocpd_metadata", "tag", "value")
    return next((str(record["value"]) for record in tags if record.get("tag") == "schema_version"), None)


def lookup_of(tables: Tables) -> Lookup:
    """Return what the numbers in the large tables mean."""
    look = Lookup()
    for key, record in _by_id(tables, "rocpd_string", "string"):
        look.strings[key] = _text(record.get("string"))
    for key, record in _by_id(tables, "rocpd_info_thread", "tid"):
        if (tid := integer(record.get("tid"))) is not None:
            look.threads[key] = tid
    for table, numbers in (("rocpd_info_stream", look.streams), ("rocpd_info_queue", look.queues)):
        for key, record in _by_id(tables, table, "name"):
            match = _LAST_NUMBER.search(_text(record.get("name")))
            number = integer(match.group(1)) if match else None
            numbers[key] = key if number is None else number
    for key, record in _by_id(tables, "rocpd_info_kernel_symbol", "kernel_name", "display_name", "extdata"):
        names = {
            "formatted_kernel_name": _text(record.get("display_name")),
            "kernel_name": _text(record.get("kernel_name")),
        }
        more = {k: v for k, v in object_in(record.get("extdata")).items() if k.endswith("kernel_name") and v}
        look.kernels.add({**names, **more, "kernel_id": key})
    return look


def _by_id(tables: Tables, table: str, *columns: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a small table by their ids."""
    for record in tables.records(table, "id", *columns):
        if (key := integer(record.get("id"))) is not None:
            yield key, record


def _text(value: object) -> str:
    """Return a value as text, whatever a database has in a column of texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def processes_of(database: SqliteFile, path: Path) -> list[tuple[Tables, dict[str, Any]]]:
    """Return the processes of a database, each with its tables. Raises InputError when it names none."""
    columns = ("id", "guid", "nid", "pid", "init", "fini", "command", "environment")
    found = []
    names = (
        [_PROCESSES]
        if _PROCESSES in database.tables
        else sorted(t for t in database.tables if t.startswith(_PROCESSES))
    )
    for name in names:
        there = [c for c in columns if c in database.tables[name]]
        if "pid" not in there:
            raise InputError(f"{path}: column {name}.pid is missing")
        for row in database.rows(f"SELECT {', '.join(map(quoted, there))} FROM {quoted(name)} ORDER BY id"):
            record = dict(zip(there, row, strict=True))
            found.append((Tables(database, record.get("guid")), record))
    of_guid = Counter(tables.guid for tables, _ in found)
    for tables, _ in found:
        tables.is_shared = of_guid[tables.guid] > 1
    if not found:
        raise NothingToAnalyse(f"{path}: a rocpd database without any process")
    return found
