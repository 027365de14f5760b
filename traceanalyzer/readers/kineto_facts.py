"""What the top-level keys of a Kineto document say about the trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from traceanalyzer.readers.base import Facts

_END: Final = 64 << 10
_VERSIONS: Final = (
    "rocprofiler-sdk_version",
    "roctracer_version",
    "hip_runtime_version",
    "hip_driver_version",
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
)
_FLAGS: Final = ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops")
KEPT_KEYS: Final = frozenset(
    {
        "schemaVersion",
        "deviceProperties",
        "distributedInfo",
        "baseTimeNanoseconds",
        "displayTimeUnit",
        "traceName",
        "trace_id",
        "host_name",
        *_VERSIONS,
        *_FLAGS,
    }
)
"""Top-level keys that profilers write and the tool needs. Everything else (environment dumps!) is never kept."""


def fill_facts(facts: Facts, metadata: dict[str, Any]) -> None:
    """Fill `facts` from the known top-level keys; odd types are passed over, never guessed at."""
    info = metadata.get("distributedInfo")
    if isinstance(info, dict):
        facts.rank = integer(info.get("rank"), 0, 2**31)
        facts.rank_source = "distributedInfo"
        facts.world_size = integer(info.get("world_size"), 0, 2**31)
    base = integer(metadata.get("baseTimeNanoseconds"))
    if base is not None:
        facts.clock_base_ns = base
        facts.clock_domain = "epoch"
    facts.host = metadata["host_name"] if isinstance(metadata.get("host_name"), str) else None
    devices = metadata.get("deviceProperties")
    if isinstance(devices, list):
        names = [d["name"] for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str) and d["name"]]
        facts.device_name = names[0] if names else None
    words = [f"{key.removesuffix('_version')} {metadata[key]}" for key in _VERSIONS if key in metadata]
    words += [key for key in _FLAGS if metadata.get(key)]
    facts.profiler = ", ".join(words) or None


def integer(value: object, low: int = -(2**63), high: int = 2**63) -> int | None:
    """Return value as an integer in [low, high) where it is one, also as text ('3'), else None."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return number if number is not None and low <= number < high else None


def metadata_at_end(path: Path) -> dict[str, Any]:
    """Return `distributedInfo` from the last bytes of a plain file, where some writers put it.

    A compressed file has no cheap end; there the rank is learnt at the end of the reading instead.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END))
        tail = file.read()
    at = tail.rfind(b'"distributedInfo"')
    if at < 0:
        return {}
    text = tail[at:].decode("utf-8", "replace")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except ValueError:
        return {}
    return {"distributedInfo": value}
