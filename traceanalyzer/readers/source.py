"""Bytes of a trace file: compression told by content, hashed on the way, position known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import xxhash

from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from traceanalyzer.readers.base import HowToRead, TraceReading

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PIECE: Final = 64 << 10
_PIECES: Final = 32
_HASH_CHUNK: Final = 4 << 20
_INFLATE_CHUNK: Final = 64 << 10


class Readable(Protocol):
    """Anything with `read(n)` that returns fewer bytes than asked only at the end."""

    def read(self, size: int, /) -> bytes: ...


class ByteSource:
    """The decompressed bytes of one trace file.

    Compression is told by the first bytes, never by the name. `digest` is the content's hash so far, `raw_position`
    how much of the file itself was read (for progress). Compressed data that is damaged or ends early gives all that
    was decompressed before, and `damage` says what happened. Use as a context manager.
    """

    def __init__(self, path: Path, watch: Callable[[], None] | None = None) -> None:
        """Open `path`; `watch` is called after each read (progress, interruption).

        Raises InputError when the file cannot be opened.
        """
        self.path = path
        self.damage: str | None = None
        self.position = 0
        self._watch = watch
        self._hash = xxhash.xxh3_128()
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        magic = self._file.read(4)
        self._file.seek(0)
        self._inflater = _inflater(self._file, magic)

    def read(self, size: int) -> bytes:
        """Return the next `size` decompressed bytes, fewer only at the end.

        Raises InputError when the file cannot be read from its disk.
        """
        try:
            data = self._inflater.read(size) if self._inflater else self._file.read(size)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if self._inflater:
            self.damage = self._inflater.damage
        self._hash.update(data)
        self.position += len(data)
        if self._watch:
            self._watch()
        return data

    @property
    def members(self) -> int:
        """How many compressed streams the file has in a row; 1 for a plain file."""
        return self._inflater.members if self._inflater else 1

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


class _Decompressor(Protocol):
    """What zlib's and zstd's decompression objects have in common."""

    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _Inflater:
    """Decompresses a file stream by stream, and gives all there is when the data is damaged or ends early."""

    def __init__(self, file: BinaryIO, magic: bytes, make: Callable[[], _Decompressor], error: type[Exception]) -> None:
        self._file = file
        self._magic = magic
        self._make = make
        self._error = error
        self._current: _Decompressor | None = make()
        self._ready = b""
        self.members = 1
        self.damage: str | None = None

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        parts = [self._ready]
        have = len(self._ready)
        while have < size and (part := self._next()) is not None:
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        self._ready = data[size:]
        return data[:size]

    def _next(self) -> bytes | None:
        """Return what the next piece of the file gives, None at the end."""
        if self._current is None:
            return None
        raw = self._file.read(_INFLATE_CHUNK)
        if not raw:
            self.damage = None if self._current.eof else "the compressed data ends early"
            self._current = None
            return None
        parts = []
        while raw:
            if self._current.eof:
                raw = raw.lstrip(b"\0")  # padding between members is legal
                if not raw:
                    break
                if not raw.startswith(self._magic[: len(raw)]):  # what follows is no further stream, and no loss
                    self._current = None
                    break
                self._current = self._make()
                self.members += 1
            try:
                parts.append(self._current.decompress(raw))
            except self._error as error:
                self.damage = f"the compressed data is damaged ({error})"
                self._current = None
                break
            raw = self._current.unused_data if self._current.eof else b""
        return b"".join(parts)


def _inflater(file: BinaryIO, magic: bytes) -> _Inflater | None:
    if magic.startswith(GZIP):
        from isal import isal_zlib

        zlib_error: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub has an instance
        return _Inflater(file, GZIP, lambda: isal_zlib.decompressobj(wbits=31), zlib_error)
    if magic.startswith(ZSTD):
        import zstandard

        return _Inflater(file, ZSTD, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)
    return None


class JsonFile:
    """A JSON file as a `base.TraceFile`: `read` makes readings out of its bytes."""

    def __init__(self, path: Path, how: HowToRead, read: Callable[[ByteSource], Iterator[TraceReading]]) -> None:
        """Open the file. Raises InputError when it cannot be read."""
        self._source = ByteSource(path, how.watch)
        self._read = read

    @property
    def position(self) -> int:
        return self._source.raw_position

    @property
    def digest(self) -> str:
        return self._source.digest

    def traces(self) -> Iterator[TraceReading]:
        return self._read(self._source)

    def __enter__(self) -> JsonFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()


def fingerprint(paths: Sequence[Path]) -> str:
    """Return a hash (XXH3, 128 bits, hex) of the files' sizes, their ends and pieces spread evenly over them.

    It names a trace before anything was parsed, at no cost; that two traces which share it are the same is not
    assumed but checked by their content's hash. Raises InputError when a file cannot be read.
    """
    digest = xxhash.xxh3_128()
    for path in paths:
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


def content_hash(paths: Sequence[Path], watch: Callable[[], None] | None = None) -> str:
    """Return the hash of the files' decompressed content: of one file, as `ByteSource.digest` has it at its end."""
    digests = []
    for path in paths:
        with ByteSource(path, watch) as source:
            while source.read(_HASH_CHUNK):
                pass
            digests.append(source.digest)
    return digests[0] if len(digests) == 1 else xxhash.xxh3_128("".join(digests).encode()).hexdigest()


def numbered(digest: str, number: int, *, hashed: bool = False) -> str:
    """Return the hash of the n-th trace of a file with the hash `digest`; `hashed`: as hex digits again."""
    if not number:
        return digest
    name = f"{digest}#{number}"
    return xxhash.xxh3_128(name.encode()).hexdigest() if hashed else name
