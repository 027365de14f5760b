"""Hands byte strings to DuckDB as files, so that its JSON parser reads blocks straight from memory."""

from __future__ import annotations

import datetime
import io
from typing import Any

from fsspec import AbstractFileSystem


class BlockFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A read-only file system whose files are byte strings; registered with one DuckDB connection."""

    protocol = "block"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, bytes] = {}

    def put(self, name: str, content: bytes) -> str:
        """Make `content` readable under the returned URL."""
        self._files[name] = content
        return f"{self.protocol}://{name}"

    def clear(self) -> None:
        """Forget all files."""
        self._files.clear()

    # The methods DuckDB calls; `path` comes with or without the protocol.

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        return io.BytesIO(self._files[self._strip_protocol(path)])

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return {"name": name, "size": len(self._files[name]), "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        return self._strip_protocol(path) in self._files

    def glob(self, path: str, **_: Any) -> list[str]:
        return [self._strip_protocol(path)]

    def modified(self, path: str) -> datetime.datetime:
        return datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
