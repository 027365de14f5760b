"""Writes the pages that are made from the comments in `sql/`: queries.md, schema.md and categories.md.

usage: python docs/generate.py [--check]

--check writes nothing and fails when a page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from traceanalyzer.engine import library, rules
from traceanalyzer.engine.library import SqlFile

HERE = Path(__file__).parent
_MADE = "<!-- Made by docs/generate.py from the comments in sql/; change those. -->\n"


def queries_page() -> str:
    """Return the page of the named queries and checks."""
    queries, checks = library.load("queries").values(), library.load("checks").values()
    parts = [
        "# Queries\n",
        _MADE,
        "`traceanalyzer query STORE NAME -p parameter=value`; in SQL, `queries.NAME` is the answer with defaults.\n",
        _table(["query", "answers"], [(f"[{q.name}](#{q.name})", q.summary) for q in queries]),
        *(_section(query, "queries") for query in queries),
        "# Checks\n",
        "What must hold on every store; `traceanalyzer doctor` runs them. Each gives one row per contradiction.\n",
        _table(["check", "what holds"], [(f"[{c.name}](../sql/checks/{c.name}.sql)", c.summary) for c in checks]),
    ]
    return "\n".join(parts)


def schema_page() -> str:
    """Return the page of the views and macros."""
    views, macros = library.load("views").values(), library.load("macros").values()
    parts = [
        "# Views and macros\n",
        _MADE,
        'What SQL can ask: `traceanalyzer query STORE "SELECT ... FROM kernels"`.\n',
        _table(
            ["name", "kind", "holds"],
            [(f"[{v.name}](#{v.name})", "view", v.summary) for v in views]
            + [(f"[{m.name}](#{m.name})", "macro", m.summary) for m in macros],
        ),
        *(_section(view, "views") for view in views),
        *(_section(macro, "macros") for macro in macros),
    ]
    return "\n".join(parts)


def categories_page() -> str:
    """Return the page of the kernel categories and the rules that give them."""
    built_in = rules.built_in().rules
    categories = list(dict.fromkeys((r.category, r.subcategory, r.kernel_class) for r in built_in))
    parts = [
        "# Kernel categories\n",
        _MADE,
        "Rules are tried in this order on the name in lower case (without a last `.kd`); the first whose pattern"
        " matches and whose `unless` does not counts. What none knows is `other`. `--rules FILE`, a CSV file with the"
        " columns of [kernel_rules.csv](../sql/rules/kernel_rules.csv), goes in front:\n",
        "```csv\norder,id,pattern,unless,class,category,subcategory,why\n"
        "1,mine,^my_fused_kernel,,computation,activation,mine,Our fused activation.\n```\n",
        _table(["category", "subcategory", "class"], categories),
        "## Rules\n",
        _table(
            ["rule", "category", "subcategory", "pattern", "unless", "why"],
            [(r.id, r.category, r.subcategory, _code(r.pattern), _code(r.unless), r.why) for r in built_in],
        ),
    ]
    return "\n".join(parts)


def _section(file: SqlFile, folder: str) -> str:
    parts = [f"## {file.name}\n", f"{file.summary[:1].upper()}{file.summary[1:]}\n", f"{file.description}\n"]
    if file.parameters:
        rows = [(_code(p.name), p.shown_type, _code(p.default), p.doc) for p in file.parameters]
        parts.append(_table(["parameter", "type", "default", "meaning"], rows))
    if file.empty:
        parts.append(f"No rows: {file.empty}\n")
    if file.example:
        parts.append(f"```\n{file.example}\n```\n")
    if file.columns:
        parts.append(_table(["column", "unit", "holds"], [(_code(c.name), c.unit, c.doc) for c in file.columns]))
    parts.append(f"SQL: [sql/{folder}/{file.name}.sql](../sql/{folder}/{file.name}.sql)\n")
    return "\n".join(parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: list[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


PAGES = {"queries.md": queries_page, "schema.md": schema_page, "categories.md": categories_page}


def main() -> None:
    """Write the pages, or with --check say which are stale and fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [name for name, page in PAGES.items() if not _is_fresh(HERE / name, page())]
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run python docs/generate.py")
    for name in [] if check else stale:
        (HERE / name).write_text(PAGES[name]())


def _is_fresh(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    main()
