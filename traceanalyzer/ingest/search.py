"""Finds the files behind the sources of an ingest."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from traceanalyzer.errors import UsageError

_SUFFIXES: Final = (
    *(".json", ".json.gz", ".json.zst", ".json.tmp", ".db", ".rpd"),
    *(".pftrace", ".perfetto-trace", ".otf2", ".xplane.pb", ".nsys-rep", ".qdrep", ".sqlite"),
)
_CSV: Final = re.compile(
    r"_(?:(?:kernel|\w+_api|memory_copy|memory_allocation|scratch_memory)_trace|counter_collection)"
    r"\.csv(?:\.gz|\.zst)?\Z"
)
"""Names that a search in a folder looks at; a file named on the command line may be called anything."""


def find_files(sources: list[str]) -> list[tuple[Path, Path, bool]]:
    """Return (file, folder that names the run, searched?) in a stable order, each file once.

    Raises UsageError for a source that does not exist.
    """
    seen: dict[Path, tuple[Path, Path, bool]] = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            listed = [(file, path, True) for file in sorted(_search(path), key=_natural)]
        elif os.path.lexists(path):
            listed = [(path, path.absolute().parent, False)]
        elif matches := sorted((Path(m) for m in glob.glob(source, recursive=True)), key=_natural):
            listed = [(match, match.absolute().parent, False) for match in matches if not match.is_dir()]
        else:
            raise UsageError(f"{source}: no such file or folder, and no file matches it as a pattern")
        for entry in listed:
            seen.setdefault(entry[0].absolute(), entry)
    return list(seen.values())


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """Sort key that puts rank2 before rank10."""
    return [(0, int(t)) if t.isdigit() else (1, t) for t in re.findall(r"\d+|\D+", str(path))]


def _search(folder: Path) -> Iterable[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if _looks_like_trace(name) and not name.startswith("."))


def _looks_like_trace(name: str) -> bool:
    return name.endswith(_SUFFIXES) or bool(_CSV.search(name))
