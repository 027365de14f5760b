"""Where things lie in a store: paths, and run names made safe for them."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

from traceanalyzer.errors import UsageError

MANIFEST: Final = "manifest.json"
STORE_FILE: Final = "store.json"
STAGING: Final = ".staging"
_LONGEST_NAME: Final = 240
"""Bytes that every file system takes for a folder, with `run=` before it."""
DERIVED: Final = "derived"
"""Folder in a trace's own, for what was computed from it."""
LOCK: Final = ".lock"


def escape(name: str) -> str:
    """Return a run name as one path component: letters, digits and `._-` as they are, the rest percent-encoded.

    >>> escape("8 GPUs/bf16"), escape("..")
    ('8%20GPUs%2Fbf16', '%2E.')
    """
    text = quote(name, safe="")
    return "%2E" + text[1:] if text.startswith(".") else text


def check_run_name(name: str) -> None:
    """Raise UsageError when a run's name is empty, or too long to be a folder's."""
    if not name:
        raise UsageError("a run needs a name")
    if len(escape(name)) > _LONGEST_NAME:
        raise UsageError(f"the run name '{name[:20]}...' is too long for a folder's")


def trace_folder(root: Path, run: str, collector: str, rank: int | None, trace_id: str) -> Path:
    """Return the folder of one trace, `root/run=.../collector=.../rank=.../<trace_id>`."""
    rank_text = "unknown" if rank is None else str(rank)
    return root / f"run={escape(run)}" / f"collector={collector}" / f"rank={rank_text}" / trace_id
