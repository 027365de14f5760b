"""Arrows point one way: cli -> capability -> engine and store -> readers; nobody imports what stands above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import traceanalyzer

PACKAGE = Path(traceanalyzer.__file__).parent

# What each part may import of the others. Parts not named here are leaves: schema, errors, console, output.
LEAVES = {"schema", "errors", "console", "output", "tables", "machine"}
ALLOWED = {
    "schema": set(),
    "errors": set(),
    "console": set(),
    "tables": set(),
    "machine": set(),
    "output": {"errors", "tables"},
    "api": {"errors", "engine", "store", "tables"},
    "readers": {"schema", "errors"},
    "store": {"schema", "errors"},
    "engine": {"schema", "errors", "machine", "store"},
    "ingest": {"schema", "errors", "store", "readers"},
    "cli": {*LEAVES, "engine", "ingest", "store", "readers"},
    "__main__": {"cli"},
    "__init__": {"api"},
}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = part(path)
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        imported |= {n.split(".")[1] for n in names if n.startswith("traceanalyzer.") and len(n.split(".")) > 1}
    imported.discard("__version__")
    assert imported - {own} <= ALLOWED[own], f"{own} imports {imported - {own} - ALLOWED[own]}"


def test_only_two_modules_write_to_the_terminal():
    allowed = {"console.py", "output.py", "cli/main.py"}  # main prints the version
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert name in allowed or "print" not in calls, name


def test_sql_never_reads_json_files():
    for path in (PACKAGE.parent / "sql").rglob("*.sql"):
        assert "read_json" not in path.read_text(), path
