"""Bytes of a trace file: compression told by content, hashed on the way, position known."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import xxhash

from traceanalyzer.errors import InputError

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PIECE: Final = 64 << 10
_PIECES: Final = 32
_HASH_CHUNK: Final = 4 << 20


class Readable(Protocol):
    """Anything with `read(n)` that returns fewer bytes than asked only at the end."""

    def read(self, size: int, /) -> bytes: ...


class ByteSource:
    """The decompressed bytes of one trace file.

    Compression is told by the first bytes, never by the name. `digest` is the content's hash so far, `raw_position`
    how much of the file itself was read (for progress). Use as a context manager.
    """

    def __init__(self, path: Path, watch: Callable[[], None] | None = None) -> None:
        """Open `path`; `watch` is called after each read (progress, interruption).

        Raises InputError when the file cannot be opened.
        """
        self.path = path
        self._watch = watch
        self._hash = xxhash.xxh3_128()
        self.position = 0
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        magic = self._file.read(4)
        self._file.seek(0)
        self._stream = _decompressed(self._file, magic)

    def read(self, size: int) -> bytes:
        """Return the next `size` decompressed bytes, fewer only at the end.

        Raises InputError when the compressed data is damaged or ends early.
        """
        parts: list[bytes] = []
        wanted = size
        try:
            while wanted and (part := self._stream.read(wanted)):
                parts.append(part)
                wanted -= len(part)
        except (EOFError, OSError, ValueError, zlib.error, _zstd_error()) as error:
            raise InputError(
                f"{self.path}: compressed data is damaged or ends early after byte {self.position + size - wanted:,}"
                f" of its content: {error}"
            ) from error
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._hash.update(data)
        self.position += len(data)
        if self._watch:
            self._watch()
        return data

    @property
    def raw_position(self) -> int:
        """Bytes of the file itself read so far."""
        return self._file.tell()

    @property
    def digest(self) -> str:
        """Hash (XXH3, 128 bits, hex) of the decompressed bytes read so far."""
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _zstd_error() -> type[Exception]:
    import zstandard

    error: type[Exception] = zstandard.ZstdError
    return error


def _decompressed(file: BinaryIO, magic: bytes) -> Readable:
    if magic.startswith(GZIP):
        from isal import igzip

        stream: Readable = igzip.open(file, "rb")  # type: ignore[no-untyped-call]
        return stream
    if magic.startswith(ZSTD):
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return file


def fingerprint(path: Path) -> str:
    """Return a hash (XXH3, 128 bits, hex) of the file's size, its ends and pieces spread evenly over it.

    It names a trace before anything was parsed, at no cost; that two traces which share it are the same is not
    assumed but checked by their content's hash. Raises InputError when the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            digest.update(str(size).encode())
            for number in range(_PIECES + 1):
                file.seek(max(0, (size - _PIECE) * number // _PIECES))
                digest.update(file.read(_PIECE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def content_hash(path: Path, watch: Callable[[], None] | None = None) -> str:
    """Return the hash of a file's decompressed content, as `ByteSource.digest` gives it after the last byte."""
    with ByteSource(path, watch) as source:
        while source.read(_HASH_CHUNK):
            pass
        return source.digest
