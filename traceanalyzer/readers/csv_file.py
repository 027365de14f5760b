"""CSV files as batches of texts, whatever is in them: rows of another length are rejected, and so is one cut off."""

from __future__ import annotations

import codecs
import csv as csv_module
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer.errors import InputError
from traceanalyzer.readers.base import Reject
from traceanalyzer.readers.repair import masked
from traceanalyzer.readers.source import ByteSource

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD: Final = 64 << 10
_SAMPLE: Final = 200


class _Stream:
    """The bytes of a CSV as pyarrow reads them; remembers their end, which tells a cut file."""

    closed = False

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.end = b""

    def read(self, size: int = _HEAD) -> bytes:
        """Return about the next `size` bytes, those that are not UTF-8 replaced; none at the end only."""
        while raw := self._source.read(size):
            if data := self._decoder.decode(raw).encode():
                break
        else:
            data = self._decoder.decode(b"", final=True).encode()
        self.end = (self.end + data)[-_HEAD:]
        return data

    @property
    def last_line(self) -> str | None:
        """The last line, when the file ends without a line end behind it."""
        if not self.end or self.end.endswith(b"\n"):
            return None
        return self.end.splitlines()[-1].decode("utf-8", "replace")


def batches_of(
    file: Path, source: ByteSource, block_size: int, reject: Callable[[Reject, Path, bool], None]
) -> Iterator[pa.RecordBatch]:
    """Yield a CSV's rows as texts; rows with another number of columns are rejected, and one the file ends in."""
    import pyarrow as pa
    from pyarrow import csv

    invalid: list[str] = []

    def skip(row: csv.InvalidRow) -> str:
        invalid.append(row.text)
        why = f"a row of {row.actual_columns} columns where {row.expected_columns} should be"
        reject(Reject(0, None, why, masked(row.text.encode()[:_SAMPLE])), file, row.text == stream.last_line)
        return "skip"

    stream = _Stream(source)
    held: pa.RecordBatch | None = None
    try:
        reader = csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            read_options=csv.ReadOptions(use_threads=False, block_size=block_size),
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=csv.ConvertOptions(column_types={name: pa.string() for name in header_of(file)}),
        )
        for batch in reader:
            if held is not None and held.num_rows:
                yield held
            held = batch
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise InputError(f"{file.name}: not a table: {str(error).splitlines()[0][:_SAMPLE]}") from error
    if held is None or not held.num_rows:
        return
    cut = stream.last_line
    # All fields are quoted: a line is whole where it ends in a quote that closes a field.
    is_whole = cut is None or (cut.endswith('"') and cut.count('"') % 2 == 0)
    if cut is not None and not is_whole and (not invalid or invalid[-1] != cut):
        held = held.slice(0, held.num_rows - 1)
        reject(Reject(0, None, "cut off where the file ends", masked(cut.encode()[:_SAMPLE])), file, True)
    yield held


def header_of(file: Path) -> list[str]:
    """Return the names of a CSV's columns; none when its first line is no row. Raises InputError as `ByteSource`."""
    with ByteSource(file) as source:
        line = re.split(rb"[\r\n]", source.read(_HEAD))[0].decode("utf-8", "replace").lstrip("\ufeff").strip()
    try:
        return next(csv_module.reader([line]), [])
    except csv_module.Error:
        return []
