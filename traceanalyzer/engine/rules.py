"""Kernel rules: ordered patterns on kernel names that give class, category and subcategory (`sql/rules`).

The rules are data. DuckDB evaluates them, through a macro in which every pattern is a constant and so compiled once,
on each distinct name of a trace and not on each event.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer.engine.library import sql_folder
from traceanalyzer.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import duckdb

CLASSES: Final = ("computation", "communication", "memcpy")
OTHER: Final = "other"
"""Category of what no rule knows."""
_COLUMNS: Final = ("order", "id", "pattern", "unless", "class", "category", "subcategory", "why")


@dataclass(frozen=True)
class Rule:
    """One rule: a name that matches `pattern` but not `unless`, in any case, is of this class and category."""

    id: str
    pattern: str
    unless: str
    kernel_class: str
    category: str
    subcategory: str
    why: str

    def condition(self, text: str) -> str:
        """Return the SQL condition that the rule puts on the SQL expression `text`.

        Patterns mind no case, and their `.` takes newlines too.
        """
        matches = f"regexp_matches({text}, {quoted(self.pattern)}, 'is')"
        return f"{matches} AND NOT regexp_matches({text}, {quoted(self.unless)}, 'is')" if self.unless else matches


@dataclass(frozen=True)
class Rules:
    """Rules in the order in which they are tried; the first that matches counts."""

    rules: tuple[Rule, ...]

    @property
    def digest(self) -> str:
        """A hash that changes with anything that the rules say."""
        import xxhash  # an import that is cheap only when it is needed

        return xxhash.xxh3_128_hexdigest(repr(self.rules).encode())

    def statements(self) -> list[str]:
        """Return the SQL that makes the table `kernel_rules` and the macro `first_rule(name)`, the id or NULL."""
        cases = " ".join(f"WHEN {rule.condition('text')} THEN {quoted(rule.id)}" for rule in self.rules)
        rows = ", ".join(
            "(" + ", ".join(map(quoted, (r.id, r.kernel_class, r.category, r.subcategory, r.why))) + ")"
            for r in self.rules
        )
        return [
            f"CREATE TABLE kernel_rules AS FROM (VALUES {rows}) AS r(rule_id, class, category, subcategory, why)",
            f"CREATE MACRO first_rule(name) AS (SELECT CASE {cases} END"
            " FROM (SELECT regexp_replace(lower(name), '\\.kd$', '') AS text))",
        ]


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _ordered(name: str) -> list[dict[str, str]]:
    """Return the rows of a built-in rule file by their order."""
    with (sql_folder() / "rules" / name).open(newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: float(row["order"]))


@cache
def operator_macros() -> dict[str, str]:
    """Return the SQL that makes the macros of the rules on operators, by the macros' names.

    `op_family(op)` by `sql/rules/op_families.csv`: patterns mind upper and lower case; the family of NULL is
    'launch_not_recorded'.
    `context_rule(category, subcategory, op, node, annotation, is_in_node)` by `sql/rules/context_rules.csv`: the id of
    the first rule that fits, NULL when none does. A category must be equal, the other columns are patterns, and what a
    rule leaves empty it does not ask for; '^$' asks that there is none.
    `context_stage(id)`, `context_phase(id)` and `context_confidence(id)` are what the rule says.
    """
    families = " ".join(f"WHEN {_fits_family(row)} THEN {quoted(row['family'])}" for row in _ordered("op_families.csv"))
    contexts = _ordered("context_rules.csv")
    fits = " ".join(f"WHEN {_fits_context(row)} THEN {quoted(row['id'])}" for row in contexts)
    bodies = {
        "op_family(op)": f"CASE WHEN op IS NULL THEN 'launch_not_recorded' {families} ELSE 'other' END",
        "context_rule(category, subcategory, op, node, annotation, is_in_node)": f"CASE {fits} END",
    }
    for column in ("stage", "phase", "confidence"):
        said = " ".join(f"WHEN {quoted(row['id'])} THEN {quoted(row[column])}" for row in contexts)
        bodies[f"context_{column}(id)"] = f"CASE id {said} END"
    return {call.partition("(")[0]: f"CREATE OR REPLACE MACRO {call} AS {body}" for call, body in bodies.items()}


def _fits_family(row: dict[str, str]) -> str:
    unless = f" AND NOT regexp_matches(op, {quoted(row['unless'])})" if row["unless"] else ""
    return f"regexp_matches(op, {quoted(row['pattern'])}){unless}"


def _fits_context(row: dict[str, str]) -> str:
    conditions = [f"category = {quoted(row['category'])}"] if row["category"] else []
    conditions += [
        f"regexp_matches(COALESCE({column}, ''), {quoted(row[column])})"
        for column in ("subcategory", "op", "node", "annotation")
        if row[column]
    ]
    if row["place"]:
        conditions.append(f"is_in_node = {str(row['place'] == 'node').lower()}")
    return " AND ".join(conditions)


@cache
def built_in() -> Rules:
    """Return the rules of `sql/rules/kernel_rules.csv`."""
    return Rules(tuple(_read(sql_folder() / "rules" / "kernel_rules.csv", categories=None)))


def load(path: Path | None = None) -> Rules:
    """Return the built-in rules, behind those of the user's file if one is given.

    Raises UsageError, naming the line, for a file that cannot be read as rules: a missing column, an order that is no
    number, a pattern that DuckDB does not take, an unknown class or category, an id that is there twice.
    """
    if path is None:
        return built_in()
    known = {rule.category for rule in built_in().rules} | {OTHER}
    try:
        own = _read(path, categories=known)
    except UnicodeDecodeError as error:
        raise UsageError(f"--rules {path}: not UTF-8 text; save it as CSV in UTF-8, with commas") from error
    except (OSError, csv.Error) as error:
        raise UsageError(f"--rules {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return Rules((*own, *built_in().rules))


def _read(path: Path, categories: set[str] | None) -> list[Rule]:
    """Return the rules of a CSV file by their order; `categories` are those to check against, None checks nothing."""
    import duckdb

    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
    missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(
            f"{path}: line 1: the columns {', '.join(missing)} are missing; it must name {','.join(_COLUMNS)}"
        )
    connection = duckdb.connect() if categories is not None else None
    ordered: list[tuple[float, Rule]] = []
    seen = {rule.id: "built in" for rule in built_in().rules} if categories is not None else {}
    for row in reader:
        where = f"{path}: line {reader.line_num}"
        rule = _rule(row)
        if rule.id in seen or not rule.id:
            raise UsageError(f"{where}: the id '{rule.id}' is {seen.get(rule.id, 'empty')}; every rule needs its own")
        seen[rule.id] = f"used in line {reader.line_num} already"
        if connection and categories is not None:
            _check(rule, categories, where, connection)
        ordered.append((_order(row["order"], where), rule))
    return [rule for _, rule in sorted(ordered, key=lambda pair: pair[0])]


def _rule(row: dict[str, str | None]) -> Rule:
    values = {column: (row[column] or "").strip() for column in _COLUMNS}
    return Rule(
        id=values["id"],
        pattern=values["pattern"],
        unless=values["unless"],
        kernel_class=values["class"],
        category=values["category"],
        subcategory=values["subcategory"],
        why=values["why"],
    )


def _order(text: str | None, where: str) -> float:
    try:
        order = float(text or "")
    except ValueError:
        order = math.nan
    if not math.isfinite(order):
        raise UsageError(f"{where}: the order '{text}' is no number")
    return order


def _check(rule: Rule, categories: Iterable[str], where: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Raise UsageError when DuckDB does not take the patterns, or class or category are unknown."""
    import duckdb

    if not rule.pattern:
        raise UsageError(f"{where}: the pattern is empty, which would match every name")
    for pattern in filter(None, (rule.pattern, rule.unless)):
        try:
            connection.execute("SELECT regexp_matches('', $pattern)", {"pattern": pattern})
        except duckdb.Error as error:
            why = " ".join(str(error).split()).removeprefix("Invalid Input Error: ")
            raise UsageError(f"{where}: DuckDB does not take the pattern '{pattern}': {why}") from error
    if rule.kernel_class not in CLASSES:
        hint = did_you_mean(rule.kernel_class, CLASSES)
        raise UsageError(f"{where}: unknown class '{rule.kernel_class}'{hint}")
    if rule.category not in categories:
        raise UsageError(f"{where}: unknown category '{rule.category}'{did_you_mean(rule.category, categories)}")
