"""Takes a refused block of rocprofv3's records apart: keeps what is sound, repairs, rejects the rest one by one.

Simpler than `salvage`, which does the same for PyTorch's events: the records of a list all begin alike, so that a
damaged one ends where the next begins.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import orjson

from traceanalyzer.readers.repair import repaired
from traceanalyzer.readers.salvage import Salvaged

if TYPE_CHECKING:
    from traceanalyzer.readers.rocprofv3_document import Records

_MARKS_OF_A_RECORD: Final = frozenset(
    {"size", "kind", "correlation_id", "start_timestamp", "dispatch_data", "kernel_id", "record"}
)
_NO_TEXT: Final = re.compile(rb"[\s,]*")
_PIECES_OF_A_RECORD: Final = 16
"""So many neighbours are tried together, since a record may have been cut inside."""

_decoder: Final = json.JSONDecoder()


def sound_records(records: Records) -> Salvaged:
    """Return what is sound in a block, repairing what can be repaired and rejecting the rest one by one.

    The block is cut where records begin; neighbours that are no records on their own are tried together, since one
    may have been cut inside.
    """
    block, found = records.block, Salvaged()
    text = block.text()
    key = re.escape(records.first_key) if records.first_key else rb'"[A-Za-z_][^"\\]*"'
    starts = [m.start() + 1 for m in re.finditer(rb"(?<=\})\s*,(?=\s*\{\s*" + key + rb"\s*:)", text)]
    edges = [0, *starts, len(text)]
    at = 0
    while at < len(edges) - 1:
        piece, begin = _piece(text, edges[at], edges[at + 1])
        if _is_object(piece):
            found.keep(piece)
            at += 1
            continue
        if whole := _object_at_start(piece):
            found.keep(piece[:whole])
            rest = _NO_TEXT.match(piece, whole)
            assert rest is not None
            edges[at] = begin + rest.end()  # what stands behind it is looked at on its own
            at += edges[at] >= edges[at + 1]
            continue
        at += 1 if _repair(found, piece, block.offset + begin) else _join_or_reject(found, records, text, edges, at)
    return found


def _object_at_start(text: bytes) -> int | None:
    """Return where a sound object at the start of a text ends, when something else follows it."""
    try:
        value, end = _decoder.raw_decode(text.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return end if isinstance(value, dict) and end < len(text) and _is_object(text[:end]) else None


def _piece(text: bytes, start: int, end: int) -> tuple[bytes, int]:
    """Return the text between two places without the white space and commas around it, and where it begins."""
    begin = _NO_TEXT.match(text, start, end)
    assert begin is not None
    return text[begin.end() : end].rstrip(b" \t\r\n,"), begin.end()


def _is_object(text: bytes) -> bool:
    """Say whether a text is one JSON object, strictly."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _repair(found: Salvaged, piece: bytes, offset: int) -> bool:
    """Keep a record that can be mended; not one that may be made of two, the end of one being lost with the next."""
    fixed = None if b"\0" in piece else repaired(piece, _MARKS_OF_A_RECORD)
    if fixed is None or "duplicate key" in fixed[1]:
        return False
    text, kinds = fixed
    if kinds:
        found.repair(offset, kinds)
    found.keep(text)
    return True


def _join_or_reject(found: Salvaged, records: Records, text: bytes, edges: list[int], at: int) -> int:
    """Deal with a piece that is no record, alone or with the next ones; return how many pieces are dealt with."""
    block = records.block
    for count in range(2, min(_PIECES_OF_A_RECORD, len(edges) - 1 - at) + 1):
        joined, _ = _piece(text, edges[at], edges[at + count])
        if _is_object(joined):
            found.keep(joined)
            return count
    piece, begin = _piece(text, edges[at], edges[at + 1])
    if not piece:
        return 1
    cut = block.is_last and edges[at + 1] == len(text)
    reason = "cut off where the file ends" if cut else "not a record"
    found.reject(block.offset + begin, piece, reason)
    return 1
