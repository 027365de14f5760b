"""The manifest of a stored trace: its presence makes the trace visible, its content says what the trace is."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.store.layout import MANIFEST


@dataclass(frozen=True)
class Identity:
    """Which trace a row comes from; see `schema.IDENTITY`."""

    run: str
    collector: str
    rank: int | None
    part: int
    trace_id: str

    def check(self) -> None:
        """Raise TypeError when a value has another type than it must have."""
        if not isinstance(self.rank, int | None) or not isinstance(self.part, int):
            raise TypeError(f"rank {self.rank!r}, part {self.part!r}")


@dataclass(frozen=True)
class Manifest:
    """Everything a store knows about one trace."""

    schema_version: int
    tool_version: str
    identity: Identity
    sequence: int
    """Commits of a store are numbered; a later one can replace an earlier one."""
    content_hash: str
    """XXH3 (128 bits) of the decompressed content: the same content is not stored twice for a run."""
    fingerprint: str
    """Hash of the file's size and pieces of it: tells a repeated ingest of the same file early."""
    trace: dict[str, Any]
    """The columns of `schema.TRACE_COLUMNS`."""
    rows: dict[str, int]
    """Rows per table."""
    replaces: list[str] = field(default_factory=list)
    """Folders (below the store's) of earlier traces that this one hides."""

    def write(self, folder: Path) -> None:
        """Put the manifest into `folder` in one step."""
        write_json(folder / MANIFEST, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Return the manifest at `path`. Raises InputError when it is damaged."""
        try:
            values = orjson.loads(path.read_bytes())
            manifest = cls(**{**values, "identity": Identity(**values["identity"])})
            manifest.identity.check()
            return manifest
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: damaged manifest ({error}): remove its folder and ingest again") from error


def write_json(path: Path, value: object) -> None:
    """Write JSON so that the file is never seen half-written, nor lost by a power failure once it is seen."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
