"""What the machine gives this process."""

from __future__ import annotations

import os
from collections.abc import Callable


def cores() -> int:
    """Return the number of processors this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1
