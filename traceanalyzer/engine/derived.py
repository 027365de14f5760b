"""Derived tables: computed from a trace's raw tables by the SQL of `sql/derived`, once, and kept beside the trace.

A file's name holds a hash of all that made it (its SQL, that of the derived tables it uses, macros, rules, schema), so
that a changed rule or a newer version finds no file and makes its own. A file appears by one rename: two processes that
make the same one do the work twice, and either's result stands. A trace never changes, so nothing else can be stale.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import tempfile
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceanalyzer import schema
from traceanalyzer.engine import kernel_key, library, nesting
from traceanalyzer.engine.rules import Rules, quoted
from traceanalyzer.errors import InputError, MachineError
from traceanalyzer.machine import cores
from traceanalyzer.store.layout import DERIVED
from traceanalyzer.store.store import StoredTrace

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_USES_RAW: Final = re.compile(r"\braw\.(\w+)")
_USES_DERIVED: Final = re.compile(r"\bderived\.(\w+)")
_MODULES: Final = {"kernel_keys": kernel_key, "nesting": nesting, "tracelens_nesting": nesting}
"""Tables that SQL may use, and the modules that make them: what SQL would do badly."""
_MEMORY: Final = "300MB"
"""What each connection may hold while it makes tables; beyond that it spills to disk."""
_PIECE: Final = 65_536
"""Rows that are nested at a time."""
_KEPT_S: Final = 24 * 3600
"""Files that other rules or versions made are kept this long, since somebody may be reading them."""


def used(body: str) -> list[str]:
    """Return the derived tables that an SQL text names, in order."""
    return sorted(set(_USES_DERIVED.findall(body)))


def uses(body: str, word: str) -> bool:
    """Say whether an SQL text uses a table of that name."""
    return re.search(rf"\b{word}\b", body) is not None


def _nested(cursor: duckdb.DuckDBPyConnection, ranges: str, table: str) -> pa.RecordBatchReader:
    """Return the nesting of the ranges that a query gives, read and computed piece by piece."""
    import pyarrow as pa

    reader: pa.RecordBatchReader = cursor.sql(ranges).to_arrow_reader(_PIECE)
    found = nesting.nested(reader, as_tracelens=table == "tracelens_nesting")
    return pa.RecordBatchReader.from_batches(nesting.schema(), found)


@dataclass
class DerivedTables:
    """Makes and finds the derived tables of traces, under one set of rules."""

    rules: Rules
    writable: bool
    """Whether the store takes files; if not, they are made in a temporary folder for this session."""
    _temporary: Path | None = None
    _keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, traces: list[StoredTrace], rules: Rules) -> DerivedTables:
        """Return the derived tables for these traces, in a temporary folder where the store cannot be written."""
        writable = all(_is_writable(trace.folder) for trace in traces)
        tables = cls(rules, writable)
        if not writable:
            tables._temporary = Path(tempfile.mkdtemp(prefix="traceanalyzer-"))
            weakref.finalize(tables, shutil.rmtree, tables._temporary, ignore_errors=True)
        return tables

    @property
    def folder(self) -> Path | None:
        """The folder outside the store that files are in, None when they are in the store."""
        return self._temporary

    def files(self, name: str, traces: list[StoredTrace]) -> list[Path]:
        """Return the Parquet files of a derived table, one per trace, making those that are not there.

        Raises InputError when the trace's own files are damaged, MachineError when there is no room for the result.
        """
        missing = [trace for trace in traces if not self._path(name, trace).exists()]
        if missing:
            for needed in used(library.load("derived")[name].body):
                self.files(needed, missing)
            self._make(name, missing)
        return [self._path(name, trace) for trace in traces]

    def drop(self, name: str, traces: list[StoredTrace]) -> None:
        """Remove the files of a derived table, and of those that it uses, so that they are made anew."""
        for needed in used(library.load("derived")[name].body):
            self.drop(needed, traces)
        for trace in traces:
            with suppress(OSError):
                self._path(name, trace).unlink()

    def _path(self, name: str, trace: StoredTrace) -> Path:
        folder = self._temporary / trace.folder.parent.name / trace.folder.name if self._temporary else trace.folder
        return folder / DERIVED / f"{name}-{self._key(name)}.parquet"

    def _key(self, name: str) -> str:
        """Return the hash of everything that decides what is in the table."""
        import xxhash

        if name not in self._keys:
            body = library.load("derived")[name].body
            parts = [str(schema.VERSION), body, *library.scalar_macros()]
            parts += [self._key(needed) for needed in used(body)]
            if uses(body, "kernel_rules"):
                parts.append(self.rules.digest)
            parts += [inspect.getsource(module) for word, module in _MODULES.items() if uses(body, word)]
            self._keys[name] = xxhash.xxh3_64_hexdigest("\0".join(parts).encode())
        return self._keys[name]

    def _make(self, name: str, traces: list[StoredTrace]) -> None:
        """Make a table of several traces, one trace per processor at a time: most of one is not for several threads."""
        workers = min(len(traces), cores())
        with ThreadPoolExecutor(workers, "derive") as pool:
            shares = [traces[n::workers] for n in range(workers)]
            for done in [pool.submit(self._make_share, name, share, workers) for share in shares]:
                done.result()

    def _make_share(self, name: str, traces: list[StoredTrace], workers: int) -> None:
        import duckdb

        body = library.load("derived")[name].body
        threads = max(cores() // workers, 1)
        spill = str(spill_folder())
        with duckdb.connect(
            config={"memory_limit": _MEMORY, "temp_directory": spill, "threads": threads}
        ) as connection:
            for statement in self._preparation(body):
                connection.execute(statement)
            for trace in traces:
                self._make_one(connection, name, body, trace)

    def _preparation(self, body: str) -> list[str]:
        rules = self.rules.statements() if uses(body, "kernel_rules") else []
        return ["CREATE SCHEMA raw", "CREATE SCHEMA derived", *library.scalar_macros(), *rules]

    def _make_one(self, connection: duckdb.DuckDBPyConnection, name: str, body: str, trace: StoredTrace) -> None:
        import duckdb

        sources = {f"raw.{table}": trace.file(table) for table in _USES_RAW.findall(body)}
        sources |= {f"derived.{table}": self._path(table, trace) for table in used(body)}
        path = self._path(name, trace)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            for table, file in sources.items():
                connection.execute(f"CREATE OR REPLACE VIEW {table} AS {reading([file])}")
            if uses(body, "kernel_keys"):
                names = connection.execute("SELECT DISTINCT name FROM raw.gpu_events").fetchall()
                connection.register("kernel_keys", kernel_key.table(name for (name,) in names))
            for table in ("nesting", "tracelens_nesting"):
                if uses(body, table):  # the first statement says of what
                    ranges, _, body = body.partition(";")
                    connection.register(table, _nested(connection.cursor(), ranges, table))
            path.parent.mkdir(parents=True, exist_ok=True)
            connection.execute(f"COPY ({body}) TO {quoted(str(temporary))} (FORMAT parquet, COMPRESSION zstd)")
            with temporary.open("rb") as written:  # on the disk before it is seen
                os.fsync(written.fileno())
            os.replace(temporary, path)
            self._drop_old(name, path)
        except duckdb.OutOfMemoryException as error:
            raise MachineError(f"making {name} needs more memory or disk than there is: {error}") from error
        except (duckdb.IOException, duckdb.InvalidInputException, OSError) as error:
            raise _cause(error, name, trace, list(sources.values())) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _drop_old(self, name: str, made: Path) -> None:
        """Remove what other rules or versions made of this table some time ago."""
        for path in made.parent.glob(f"{name}-*.parquet*"):
            try:
                if path != made and time.time() - path.stat().st_mtime > _KEPT_S:
                    path.unlink()
            except FileNotFoundError:  # another process was faster
                continue


def spill_folder() -> Path:
    """Return a folder for what a connection cannot hold in memory; DuckDB makes it only when it needs it."""
    return Path(tempfile.gettempdir()) / f"traceanalyzer-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _is_writable(folder: Path) -> bool:
    """Say whether derived tables can be put into a trace's folder: another user may have made theirs there."""
    derived = folder / DERIVED
    return os.access(derived if derived.exists() else folder, os.W_OK)


def reading(files: list[Path]) -> str:
    """Return the SELECT that reads Parquet files as they are."""
    return f"SELECT * FROM read_parquet([{', '.join(quoted(str(f)) for f in files)}], hive_partitioning = false)"


def _cause(error: Exception, name: str, trace: StoredTrace, sources: list[Path]) -> InputError | MachineError:
    """Return why a table could not be made: the trace is gone or damaged, or the disk does not take it."""
    text = " ".join(str(error).partition("\nLINE ")[0].split())
    if not all(source.exists() for source in sources):
        return InputError(f"{trace.folder}: the trace was removed or replaced meanwhile; ask again")
    if isinstance(error, OSError) or re.search("write|space|denied", text, re.IGNORECASE):
        return MachineError(f"{trace.folder}: the table {name} cannot be written: {text}")
    return InputError(f"the store is damaged: {text}; ingest the trace again")
