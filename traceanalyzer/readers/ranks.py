"""Ranks that are only said by a file's name or folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

# rank3, rank[3], rank-3, rank_3, rank=3; preceded by no letter, so that "frank3" does not count.
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[\[_\-/= ]*(\d{1,7})(?!\d)", re.IGNORECASE)
_TENSOR_PARALLEL: Final = re.compile(r"(?:^|[^a-z])TP-?(\d{1,7})(?!\d)", re.IGNORECASE)
_PARALLEL_AXES: Final = re.compile(r"(?:^|[^a-z])(?:dp|pp|cp|ep)-?\d+", re.IGNORECASE)


def rank_from_path(path: Path) -> tuple[int | None, str | None]:
    """Return (rank, where it was found): 'file name' or 'folder name', or (None, None).

    The last "rank<n>" of the name counts (`dp0_pp0_tp3_ep0_rank3`); a lone tensor-parallel index stands for the rank
    only when the name has no other parallel axis. Of the folders only the one holding the file is looked at.

    >>> rank_from_path(Path("primus-megatron-exp[m]-rank[7].123.pt.trace.json.gz"))
    (7, 'file name')
    """
    for text, where in ((path.name, "file name"), (path.parent.name, "folder name")):
        if found := _RANK.findall(text):
            return int(found[-1]), where
        tensor = _TENSOR_PARALLEL.findall(text)
        if len(tensor) == 1 and not _PARALLEL_AXES.search(text):
            return int(tensor[0]), where
    return None, None
