"""Searches large bytes for patterns, without holding the interpreter and several times as fast as Python's `re`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def as_array(content: bytes | memoryview, kind: pa.DataType) -> pa.Array:
    """Return bytes as an Arrow array of one value of `kind` (large_string or large_binary), without copying them."""
    import pyarrow as pa

    ends = pa.py_buffer(struct.pack("qq", 0, len(content)))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(content)])


def holds(content: bytes | memoryview, pattern: str) -> bool:
    """Say whether a pattern (of RE2, on bytes) matches anywhere.

    Fast only for patterns that begin with one certain byte.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found: bool = pc.match_substring_regex(as_array(content, pa.large_binary()), pattern)[0].as_py()
    return found
