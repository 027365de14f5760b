"""Readers: bytes of a trace file to typed batches. A new format is a module here and an entry in `READERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceanalyzer.errors import InputError, TraceAnalyzerError, UsageError, did_you_mean
from traceanalyzer.readers.base import Form, Reader, Recognised
from traceanalyzer.readers.kineto import KinetoReader
from traceanalyzer.readers.rocpd import RocpdReader
from traceanalyzer.readers.rocprofv3 import Rocprofv3JsonReader
from traceanalyzer.readers.rocprofv3_csv import Rocprofv3CsvReader
from traceanalyzer.readers.rtl import RtlReader
from traceanalyzer.readers.rtl_converted import RtlConvertedReader
from traceanalyzer.readers.rtl_json import RtlJsonReader
from traceanalyzer.readers.source import ByteSource
from traceanalyzer.readers.sqlite_file import MAGIC as SQLITE
from traceanalyzer.readers.sqlite_file import SqliteFile, is_sqlite

READERS: Final[tuple[Reader, ...]] = (
    *(RtlConvertedReader(), Rocprofv3JsonReader(), RtlJsonReader(), KinetoReader()),
    *(RocpdReader(), RtlReader()),
    Rocprofv3CsvReader(),
)
"""In the order in which they are asked."""

_MAGIC: Final = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with 'git lfs pull'"),
)
_OTHER_FORMATS: Final = {
    ".pftrace": "a Perfetto trace (protobuf); this tool reads rocprofv3's JSON, CSV and rocpd: --output-format json",
    ".perfetto-trace": "a Perfetto trace (protobuf); this tool reads rocprofv3's JSON, CSV and rocpd",
    ".otf2": "an OTF2 archive; this tool reads rocprofv3's JSON, CSV and rocpd: --output-format json",
    ".xplane.pb": "a JAX/XLA profile; this tool reads traces of PyTorch and ROCm's collectors",
    ".nsys-rep": "a report of NVIDIA's Nsight Systems; this tool reads PyTorch's traces of NVIDIA GPUs",
    ".qdrep": "a report of NVIDIA's Nsight Systems; this tool reads PyTorch's traces of NVIDIA GPUs",
}
_OTHER_DATABASES: Final = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "a database of NVIDIA's Nsight Systems", "PyTorch's traces of NVIDIA GPUs are read"),
    ("rocpd_barrierop", "a database of rocmProfileData (RPD)", "record with PyTorch's profiler or rocprofv3"),
    ("rocpd_op", "a database of rocmProfileData (RPD)", "record with PyTorch's profiler or rocprofv3"),
)
_LONGEST_POINTER: Final = 300


def recognise(path: Path, collector: str = "auto") -> Recognised:
    """Say what the file at `path` is; `collector` other than 'auto' asks that collector's readers alone.

    Never raises for what the file holds: `Recognised.problem` is the error to report. Raises UsageError for an
    unknown collector.
    """
    readers = _readers_for(collector)
    try:
        with ByteSource(path) as source:
            head = source.read(_LONGEST_POINTER + 1)
            damage = source.damage
    except InputError as error:
        return Recognised("unreadable", problem=error)
    if not head:
        why = damage or "the file is empty: did the profiled process end before it wrote?"
        return Recognised("empty file", problem=InputError(f"{path}: {why}"))
    form = _form(path, head)
    if form is None:
        return _no_trace(path, head)
    for reader in readers:
        if reader.form is form and (found := reader.recognise(path)):
            return found
    if form is Form.SQLITE:
        return _other_database(path)
    what = {Form.JSON: "unknown JSON", Form.CSV: "a CSV file of another kind"}[form]
    return Recognised(what, problem=InputError(f"{path}: {what}: not a trace of a known format"), is_trace=False)


def _form(path: Path, head: bytes) -> Form | None:
    if head.startswith(SQLITE):
        return Form.SQLITE
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return Form.JSON
    return Form.CSV if path.name.endswith((".csv", ".csv.gz", ".csv.zst")) else None


def _no_trace(path: Path, head: bytes) -> Recognised:
    """Say what a file is that no reader can read."""
    for ending, what in _OTHER_FORMATS.items():
        if path.name.endswith(ending):
            return Recognised(what.split(";")[0], problem=InputError(f"{path}: {what}"), is_trace=False)
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return Recognised(what, problem=InputError(f"{path}: not a trace but {what}"), is_trace=False)
    if len(head) <= _LONGEST_POINTER and b"\n" not in head.strip() and b"/" in head:
        what = "a symbolic link stored as text, as a checkout without links leaves it"
        return Recognised(what, problem=InputError(f"{path}: not a trace but {what}"), is_trace=False)
    return Recognised("no JSON", problem=InputError(f"{path}: not a trace: no JSON"), is_trace=False)


def _other_database(path: Path) -> Recognised:
    """Say what a SQLite database is that no reader claimed."""
    if not is_sqlite(path):
        what = "a compressed SQLite database"
        return Recognised(what, problem=InputError(f"{path}: {what}: decompress it first"))
    try:
        with SqliteFile(path) as database:
            tables = set(database.tables)
    except TraceAnalyzerError as error:
        return Recognised("SQLite database", problem=error)
    for table, what, advice in _OTHER_DATABASES:
        if table in tables:
            return Recognised(what, problem=InputError(f"{path}: {what}: {advice}"))
    what = "a SQLite database without a trace"
    return Recognised(what, problem=InputError(f"{path}: {what}"), is_trace=False)


def _readers_for(collector: str) -> tuple[Reader, ...]:
    if collector == "auto":
        return READERS
    chosen = tuple(reader for reader in READERS if reader.collector == collector)
    if not chosen:
        known = ["auto", *dict.fromkeys(reader.collector for reader in READERS)]
        raise UsageError(f"unknown collector '{collector}'{did_you_mean(collector, known)}")
    return chosen
