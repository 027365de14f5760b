"""What columns an SQL text asks for, by DuckDB's own parse tree: a guess would give empty columns where it is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import duckdb

_WHOLE_TABLES: Final = frozenset({"TABLE_FUNCTION", "PIVOT", "SHOW_REF", "BOUND_TABLE_REF", "COLUMN_DATA"})
"""Kinds of things behind FROM that may take all columns of a table without naming them."""


def asks_for(connection: duckdb.DuckDBPyConnection, text: str, columns: set[str]) -> bool:
    """Say whether a SELECT asks for one of the columns (in small letters): by name, by `*`, or by a whole row.

    Where DuckDB does not show the parse tree, as of DESCRIBE, the answer is yes.
    """
    [(shown,)] = connection.execute("SELECT json_serialize_sql($text)", {"text": text}).fetchall()
    tree = json.loads(shown)
    if tree.get("error"):
        return True
    nodes = list(_nodes(tree))
    tables = {str(node.get(key, "")).lower() for node in nodes for key in ("alias", "table_name")} - {""}
    by_all = {id(order.get("expression")) for node in nodes for order in node.get("orders") or ()}
    return any(_takes(node, columns, tables) for node in nodes if id(node) not in by_all or node.get("class") != "STAR")


def _takes(node: dict[str, Any], columns: set[str], tables: set[str]) -> bool:
    if node.get("type") in _WHOLE_TABLES or node.get("class") == "STAR" or node.get("column_name_alias"):
        return True
    if node.get("class") != "COLUMN_REF":
        return bool(columns & {str(name).lower() for name in node.get("using_columns") or ()})
    names = [str(name).lower() for name in node.get("column_names", ())]
    return bool(columns & set(names)) or bool(names and names[-1] in tables)  # the name of a table is a whole row


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
