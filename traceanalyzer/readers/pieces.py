"""Cuts a text into what are likely its events, and lets DuckDB find the pieces that are not sound.

That costs little more than parsing, and no Python object per event, so a damaged event slows down only itself. Where
the cuts are does not matter for what is found: a piece that is no event on its own is a suspect, which somebody looks
at byte by byte.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final

from traceanalyzer.readers.document import BOUNDARY
from traceanalyzer.readers.kineto_tables import suspects_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

_BOUNDARIES_TO_COUNT: Final = 64
_NO_CHARACTER: Final = 1
"""A byte that no sound event holds; stands for bytes that are not UTF-8, which DuckDB must not see."""


@dataclass(frozen=True)
class Pieces:
    """A text in pieces, one after the other without gaps, each with the comma and white space behind it."""

    starts: Sequence[int]
    """Where each piece begins; one more entry for the end of the text."""
    gap: int
    """Bytes between the end of a piece's event and the start of the next piece."""
    suspects: list[int]
    """Numbers of the pieces that are not one sound event, in order."""

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.starts) - 1

    def end(self, number: int) -> int:
        """Where the event of a piece ends, before the comma behind it."""
        return self.starts[number + 1] - (self.gap if number + 1 < self.count else 0)


def cut_in_pieces(text: bytes, connection: duckdb.DuckDBPyConnection, *, keys_once: bool) -> Pieces:
    """Cut a text and find the suspects; `keys_once` also suspects events that hold a key twice."""
    import pyarrow as pa

    separator = _usual_separator(text) or text
    gap = len(separator) - 2
    # A part lacks the braces that belong to the separators; the next piece starts at the separator's last byte.
    lengths = [len(part) + gap + 2 for part in text.split(separator)]
    starts = array("q", [0, *(behind - 1 for behind in accumulate(lengths[:-1])), len(text)])
    spaced = text.replace(separator, b"}%b{" % (b" " * gap))  # white space behind a value is valid JSON
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(_as_utf8(spaced))]
    texts = pa.Array.from_buffers(pa.large_string(), len(starts) - 1, buffers)
    connection.register("pieces", pa.table({"text": texts, "number": pa.arange(0, len(texts))}))
    try:
        rows = connection.execute(suspects_query(keys_once=keys_once)).fetchall()
    finally:
        connection.unregister("pieces")
    return Pieces(starts, gap, [number for (number,) in rows])


def _usual_separator(text: bytes) -> bytes | None:
    """Return `}`, the comma with the white space around it, and `{`, as they mostly stand between two events."""
    found = Counter(match.group() for match in islice(BOUNDARY.finditer(text), _BOUNDARIES_TO_COUNT))
    return found.most_common(1)[0][0] + b"{" if found else None


def _as_utf8(text: bytes) -> bytes | bytearray:
    """Return the text with every byte that is not UTF-8 replaced, so that all others keep their places."""
    try:
        text.decode()
        return text
    except UnicodeDecodeError as error:
        fixed, at = bytearray(text), error.start
    view = memoryview(text)
    while True:
        fixed[at] = _NO_CHARACTER
        try:
            str(view[at + 1 :], "utf-8")
            return fixed
        except UnicodeDecodeError as error:
            at += 1 + error.start
