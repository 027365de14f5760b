"""The SQL library: finds the files of `sql/` and reads what their header comments say.

A header is the run of `--` lines at the top of a file:

    -- name: what it is, in one line.
    --
    -- What one row is, and the definition in words.
    --
    -- Parameters:
    --   threshold_us (number: 0..) = 10: what it does
    --   kind (text: all|kernel) = all: what it does
    -- Uses: steps when by=step; links when linked=true
    -- Empty: what it means that there are no rows; shown as a note when there are none (can be left out).
    -- Missing: total_ns: what it means that this column is NULL; shown as a note when it is (can be left out).
    -- Example: traceanalyzer query STORE name
    -- Columns:
    --   total_ns (ns, summed): what it holds

`Uses` names derived tables and table macros that are needed with one value of a parameter only.
Tables for people show a last row with the sums of the columns that are marked so.
`Columns: as other_file` stands for the same columns as those of another file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from traceanalyzer.errors import UsageError, did_you_mean

_N = TypeVar("_N", int, float)

_PARAMETER: Final = re.compile(r"(\w+) \((text|number|integer|boolean)(?:: ([^)]+))?\) = ([^:]*): (.+)")
_COLUMN: Final = re.compile(r"(\w+) \(([^)]+)\): (.+)")
_USED_PARAMETER: Final = re.compile(r"\$([A-Za-z_]\w*)\b(?!\$)")
_TEXTS: Final = re.compile(r"""("(?:[^"]|"")*")|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\2\$""", re.DOTALL)
_QUERY_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
_SUMMED: Final = ", summed"
_SECTIONS: Final = ("Parameters:", "Uses:", "Empty:", "Missing:", "Example:", "Columns:")
_USES: Final = re.compile(r"([\w, ]+) when (\w+)=(\w+)")


@dataclass(frozen=True)
class Parameter:
    """A query's parameter: its type, allowed values ('a|b' of a text, '0..100' of a number), default and meaning."""

    name: str
    type: str
    allowed: str
    default: str
    doc: str

    @property
    def shown_type(self) -> str:
        """The type with what is allowed, as people read it: 'rules|tracelens', 'number 0..'."""
        return self.allowed if "|" in self.allowed else f"{self.type} {self.allowed}".rstrip()

    def parse(self, text: str) -> str | float | int | bool:
        """Return `text` as a value of the parameter's type. Raises UsageError when it is none, or is not allowed."""
        try:
            match self.type:
                case "number":
                    return self._within(float(text), text)
                case "integer":
                    return self._within(int(text), text)
                case "boolean":
                    return {"true": True, "false": False}[text.lower()]
        except (ValueError, KeyError):
            wanted = {"boolean": "true or false", "integer": "an integer"}.get(self.type, f"a {self.type}")
            raise UsageError(f"parameter {self.name}={text}: it must be {wanted}") from None
        if self.allowed and text not in self.allowed.split("|"):
            raise UsageError(f"parameter {self.name}={text}: it must be one of {self.allowed.replace('|', ', ')}")
        return text

    def _within(self, value: _N, text: str) -> _N:
        least, _, most = self.allowed.partition("..")
        if not -math.inf < value < math.inf or value < float(least or "-inf") or value > float(most or "inf"):
            bounds = f"at least {least}" if least and not most else f"from {least} to {most}" if least else "finite"
            raise UsageError(f"parameter {self.name}={text}: it must be {bounds}")
        return value


@dataclass(frozen=True)
class Column:
    """A column of a view or query: its unit or type, meaning, and whether tables show its sum."""

    name: str
    unit: str
    doc: str
    is_summed: bool = False


@dataclass(frozen=True)
class Use:
    """A derived table or table macro that a query needs only when a parameter has a value."""

    table: str
    parameter: str
    value: str


@dataclass(frozen=True)
class SqlFile:
    """A documented SQL file."""

    name: str
    path: Path
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    empty: str
    """What it means that there are no rows."""
    missing: dict[str, str]
    """What it means that a column is NULL."""
    uses: tuple[Use, ...]
    example: str
    columns: tuple[Column, ...]
    body: str
    first_line: int
    """Line of the file in which the body begins."""

    def defaults(self) -> dict[str, str | float | int | bool]:
        """Return the parameters' defaults."""
        return {p.name: p.parse(p.default) for p in self.parameters}

    def with_defaults(self) -> str:
        """Return the SQL with the parameters' defaults in their places."""
        values = self.defaults()
        return _USED_PARAMETER.sub(lambda match: literal(values[match.group(1)]), self.body)

    def unused(self, values: Mapping[str, object]) -> set[str]:
        """Return the derived tables and table macros that are not needed with these values of the parameters."""
        return {use.table for use in self.uses if str(values[use.parameter]).lower() != use.value}

    @property
    def is_table_macro(self) -> bool:
        """Whether a macro gives a table, of views that must be there before it."""
        return "AS TABLE" in self.body

    @property
    def is_optional(self) -> bool:
        """Whether a derived table is joined to others only for its columns, and not needed where none is asked for."""
        return "Joined only where one of its columns is asked for." in self.description

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with the tool."""
        return self.path.is_relative_to(sql_folder())

    @property
    def compares_collectors(self) -> bool:
        """Whether the query is about the differences between collectors; its header says so."""
        return "Compares collectors." in self.description

    @property
    def works_without_gpu(self) -> bool:
        """Whether the query has an answer for traces without GPU events; its header says so."""
        return "Works without GPU events." in self.description


def without_texts(sql: str) -> str:
    """Return an SQL text without its strings and comments; quoted names stay."""
    return _TEXTS.sub(lambda match: match.group(1) or " ", sql)


def literal(value: str | float | int | bool) -> str:
    """Return a value as SQL."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def sql_folder() -> Path:
    """Return the folder of SQL files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sql", package.parent / "sql"):
        if (folder / "views").is_dir():
            return folder
    raise RuntimeError(f"the installation is incomplete: no SQL files beside {package}; install traceanalyzer again")


@cache
def load(kind: str) -> dict[str, SqlFile]:
    """Return the files of `sql/<kind>` by name, in alphabetical order.

    `kind` is 'views', 'derived', 'macros', 'queries' or 'checks'.
    """
    return {path.stem: parse(path) for path in sorted((sql_folder() / kind).glob("*.sql"))}


def scalar_macros() -> list[str]:
    """Return the statements that make the macros that need no views."""
    return [macro.body for macro in load("macros").values() if not macro.is_table_macro]


def queries(folder: Path | None = None) -> dict[str, SqlFile]:
    """Return the named queries by name, with those of a user's folder.

    Raises UsageError when there is no such folder, a header cannot be read, or a name is taken.
    """
    found = dict(load("queries"))
    if folder is None:
        return found
    if not folder.is_dir():
        raise UsageError(f"--queries {folder}: there is no such folder")
    for path in sorted(folder.glob("*.sql")):
        query = _own_query(path)
        if query.name in found:
            raise UsageError(f"{path}: there is a query {query.name} already; give the file another name")
        found[query.name] = query
    return dict(sorted(found.items()))


def _own_query(path: Path) -> SqlFile:
    """Return a query of the user's. Raises UsageError when its name or header is not as it must be."""
    if not _QUERY_NAME.fullmatch(path.stem):
        raise UsageError(f"{path}: a query's name has small letters, digits and _ only; give the file another name")
    try:
        query = parse(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if missing := [part for part in ("description", "example", "columns") if not getattr(query, part)]:
        raise UsageError(f"{path}: the header lacks {', '.join(missing)}; CONTRIBUTING.md shows one")
    known = {parameter.name for parameter in query.parameters}
    for name in _USED_PARAMETER.findall(without_texts(query.body)):
        if name not in known:
            raise UsageError(
                f"{path}: the SQL uses ${name}, the header has no such parameter{did_you_mean(name, known)}"
            )
    return query


def unnamed(text: str, path: Path) -> SqlFile:
    """Return an SQL text of the user's that has no header, to name its file in errors."""
    return SqlFile(path.stem, path, "", "", (), "", {}, (), "", (), text, first_line=1)


def named_query(name: str, folder: Path | None = None) -> SqlFile:
    """Return the named query, of `sql/queries` or the user's folder.

    Raises UsageError with the nearest name when there is none.
    """
    known = queries(folder)
    if name not in known:
        raise UsageError(f"unknown query '{name}'{did_you_mean(name, known)} ('traceanalyzer queries' lists them)")
    return known[name]


def parse(path: Path) -> SqlFile:
    """Read an SQL file and its header. Raises ValueError, naming file and entry, when the header has another form."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    count = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = [line.removeprefix("--").removeprefix(" ") for line in lines[:count]]
    title, _, summary = (header[0] if header else "").partition(": ")
    if title != path.stem or not summary:
        raise ValueError(f"{path}: line 1 must be '-- {path.stem}: what it is'")
    sections = _sections(header[1:])
    return SqlFile(
        name=path.stem,
        path=path,
        summary=summary,
        description="\n".join(sections[""]).strip("\n"),
        parameters=tuple(_parameter(path, line) for line in _entries(sections["Parameters:"])),
        empty=" ".join(map(str.strip, sections["Empty:"])).strip(),
        missing=dict(_missing(path, entry) for entry in _entries(sections["Missing:"])),
        uses=tuple(
            use for entry in " ".join(map(str.strip, sections["Uses:"])).split(";") for use in _uses(path, entry)
        ),
        example=" ".join(sections["Example:"]).strip(),
        columns=_columns(path, _entries(sections["Columns:"])),
        body="\n".join(lines[count:]).strip(),
        first_line=1 + next((n for n, line in enumerate(lines) if n >= count and line.strip()), count),
    )


def _sections(header: list[str]) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {"": [], **{title: [] for title in _SECTIONS}}
    current = ""
    for line in header:
        title = next((t for t in _SECTIONS if line.startswith(t)), None)
        if title:
            current = title
            line = line.removeprefix(title)
            if not line.strip():
                continue
        sections[current].append(line)
    return sections


def _entries(lines: list[str]) -> list[str]:
    """Join the continuation lines (indented deeper) of each entry."""
    entries: list[str] = []
    for line in filter(str.strip, lines):
        if line.startswith("    ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    return entries


def _parameter(path: Path, entry: str) -> Parameter:
    match = _PARAMETER.fullmatch(entry)
    if not match:
        raise ValueError(f"{path}: '{entry}' is not 'name (type) = default: meaning'")
    name, kind, allowed, default, doc = match.groups()
    parameter = Parameter(name, kind, (allowed or "").replace(" ", ""), default.strip(), doc)
    try:
        parameter.parse(parameter.default)
    except UsageError as error:
        raise ValueError(f"{path}: the default of {error}") from error
    return parameter


def _uses(path: Path, entry: str) -> list[Use]:
    if not entry.strip():
        return []
    match = _USES.fullmatch(entry.strip())
    if not match:
        raise ValueError(f"{path}: '{entry}' is not 'table, table when parameter=value'")
    tables, parameter, value = match.groups()
    return [Use(table.strip(), parameter, value) for table in tables.split(",")]


def _missing(path: Path, entry: str) -> tuple[str, str]:
    column, colon, meaning = entry.partition(": ")
    if not colon or not column.isidentifier():
        raise ValueError(f"{path}: '{entry}' is not 'column: what it means that it is NULL'")
    return column, meaning


def _columns(path: Path, entries: list[str]) -> tuple[Column, ...]:
    """Return the columns described; 'as gpu_events' takes those of that file, 'as derived/x' of one in that folder."""
    if len(entries) == 1 and entries[0].startswith("as "):
        other = entries[0].removeprefix("as ")
        if other == path.stem or not path.is_relative_to(sql_folder()):
            raise ValueError(f"{path}: 'Columns: {entries[0]}' is for files beside those of the tool; list the columns")
        return parse((path.parent.parent / f"{other}.sql") if "/" in other else path.with_stem(other)).columns
    return tuple(_column(path, entry) for entry in entries)


def _column(path: Path, entry: str) -> Column:
    match = _COLUMN.fullmatch(entry)
    if not match:
        raise ValueError(f"{path}: '{entry}' is not 'column (unit): meaning'")
    name, unit, doc = match.groups()
    return Column(name, unit.removesuffix(_SUMMED), doc, unit.endswith(_SUMMED))
