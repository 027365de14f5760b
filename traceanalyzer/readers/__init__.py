"""Readers: bytes of a trace file to typed batches. A new format is a module here and an entry in `READERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceanalyzer.errors import InputError, UsageError, did_you_mean
from traceanalyzer.readers.base import Reader, Recognised
from traceanalyzer.readers.kineto import KinetoReader
from traceanalyzer.readers.rocprofv3 import Rocprofv3JsonReader
from traceanalyzer.readers.source import ByteSource

READERS: Final[tuple[Reader, ...]] = (Rocprofv3JsonReader(), KinetoReader())

_MAGIC: Final = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with 'git lfs pull'"),
)
_SQLITE: Final = b"SQLite format 3\x00"


def recognise(path: Path, collector: str = "auto") -> Recognised:
    """Say what the file at `path` is; `collector` other than 'auto' asks that reader alone.

    Never raises for what the file holds: `Recognised.problem` is the error to report. Raises UsageError for an
    unknown collector.
    """
    readers = _readers_for(collector)
    try:
        with ByteSource(path) as source:
            head = source.read(64)
            damage = source.damage
    except InputError as error:
        return Recognised("unreadable", problem=error)
    if not head:
        why = damage or "the file is empty: did the profiled process end before it wrote?"
        return Recognised("empty file", problem=InputError(f"{path}: {why}"))
    if head.startswith(_SQLITE):
        what = "a SQLite database"
        return Recognised(what, problem=InputError(f"{path}: {what}: this version reads PyTorch profiler JSON"))
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return Recognised(what, problem=InputError(f"{path}: not a trace but {what}"), is_trace=False)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return Recognised("no JSON", problem=InputError(f"{path}: not a trace: no JSON"), is_trace=False)
    for reader in readers:
        if found := reader.recognise(path):
            return found
    return Recognised("unknown JSON", problem=InputError(f"{path}: not a trace of a known format"), is_trace=False)


def _readers_for(collector: str) -> tuple[Reader, ...]:
    if collector == "auto":
        return READERS
    chosen = tuple(reader for reader in READERS if reader.collector == collector)
    if not chosen:
        known = ["auto", *(reader.collector for reader in READERS)]
        raise UsageError(f"unknown collector '{collector}'{did_you_mean(collector, known)}")
    return chosen
