"""The SQL library: finds the files of `sql/` and reads what their header comments say.

A header is the run of `--` lines at the top of a file:

    -- name: what it is, in one line.
    --
    -- What one row is, and the definition in words.
    --
    -- Parameters:
    --   threshold_us (number) = 10: what it does
    --   kind (text: all|kernel) = all: what it does
    -- Example: traceanalyzer query STORE name
    -- Columns:
    --   total_ns (ns): what it holds

`Columns: as other_file` stands for the same columns as those of another file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from traceanalyzer.errors import UsageError, did_you_mean

_PARAMETER: Final = re.compile(r"(\w+) \((text|number|integer|boolean)(?:: ([^)]+))?\) = ([^:]*): (.+)")
_COLUMN: Final = re.compile(r"(\w+) \(([^)]+)\): (.+)")
_SECTIONS: Final = ("Parameters:", "Example:", "Columns:")


@dataclass(frozen=True)
class Parameter:
    """A query's parameter: its type, allowed values (for text), default and meaning."""

    name: str
    type: str
    choices: tuple[str, ...]
    default: str
    doc: str

    def parse(self, text: str) -> str | float | int | bool:
        """Return `text` as a value of the parameter's type. Raises UsageError when it is none."""
        try:
            match self.type:
                case "number":
                    return float(text)
                case "integer":
                    return int(text)
                case "boolean":
                    return {"true": True, "false": False}[text.lower()]
        except (ValueError, KeyError):
            wanted = "true or false" if self.type == "boolean" else f"a {self.type}"
            raise UsageError(f"parameter {self.name}={text}: it must be {wanted}") from None
        if self.choices and text not in self.choices:
            raise UsageError(f"parameter {self.name}={text}: it must be one of {', '.join(self.choices)}")
        return text


@dataclass(frozen=True)
class Column:
    """A column of a view or query: its unit or type, and meaning."""

    name: str
    unit: str
    doc: str


@dataclass(frozen=True)
class SqlFile:
    """A documented SQL file."""

    name: str
    path: Path
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    example: str
    columns: tuple[Column, ...]
    body: str

    @property
    def works_without_gpu(self) -> bool:
        """Whether the query has an answer for traces without GPU events; its header says so."""
        return "Works without GPU events." in self.description


def sql_folder() -> Path:
    """Return the folder of SQL files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sql", package.parent / "sql"):
        if (folder / "views").is_dir():
            return folder
    raise RuntimeError(f"the installation is incomplete: no SQL files beside {package}; install traceanalyzer again")


@cache
def load(kind: str) -> dict[str, SqlFile]:
    """Return the files of `sql/<kind>` by name, in alphabetical order; kind is 'views', 'macros' or 'queries'."""
    return {path.stem: parse(path) for path in sorted((sql_folder() / kind).glob("*.sql"))}


def named_query(name: str) -> SqlFile:
    """Return the named query. Raises UsageError with the nearest name when there is none."""
    queries = load("queries")
    if name not in queries:
        raise UsageError(f"unknown query '{name}'{did_you_mean(name, queries)} ('traceanalyzer queries' lists them)")
    return queries[name]


def parse(path: Path) -> SqlFile:
    """Read an SQL file and its header. Raises ValueError, naming the line, when the header has another form."""
    lines = path.read_text().splitlines()
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
        example=" ".join(sections["Example:"]).strip(),
        columns=_columns(path, _entries(sections["Columns:"])),
        body="\n".join(lines[count:]).strip(),
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
    name, kind, choices, default, doc = match.groups()
    return Parameter(name, kind, tuple(choices.split("|")) if choices else (), default.strip(), doc)


def _columns(path: Path, entries: list[str]) -> tuple[Column, ...]:
    """Return the columns described; 'as gpu_events' takes those of that file."""
    if len(entries) == 1 and entries[0].startswith("as "):
        return parse(path.with_stem(entries[0].removeprefix("as "))).columns
    return tuple(_column(path, entry) for entry in entries)


def _column(path: Path, entry: str) -> Column:
    match = _COLUMN.fullmatch(entry)
    if not match:
        raise ValueError(f"{path}: '{entry}' is not 'column (unit): meaning'")
    return Column(*match.groups())
