"""What every reader hands over, whatever the format: batches of typed rows, and facts about the trace."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from traceanalyzer.errors import TraceAnalyzerError

BLOCK_SIZE: Final = 6_500_000
"""Bytes of JSON parsed at once: smaller costs calls, larger falls out of the processor's caches (measured)."""

BLOCKS_AT_ONCE: Final = 2
"""Blocks typed together: a query's planning costs as much as typing thousands of rows (measured)."""


@dataclass(frozen=True)
class Reject:
    """An event that could not be stored."""

    event_id: int
    byte_offset: int | None
    """Where it begins in the decompressed file, where that is known."""
    reason: str
    sample: str
    """Its beginning, with what looks like a secret masked."""


@dataclass(frozen=True)
class Batch:
    """Rows of consecutive events: table name -> rows with the columns of `schema.TABLES`."""

    events: int
    """Events read, stored or rejected."""
    tables: dict[str, pa.Table]
    rejects: list[Reject] = field(default_factory=list)


@dataclass
class Facts:
    """What is known about a trace besides its events; complete when its reader has ended."""

    rank: int | None = None
    """As recorded."""
    rank_source: str | None = None
    """Where it was recorded, such as 'distributedInfo'."""
    guessed_rank: int | None = None
    """What the rank may be, by something that is usually the same; used where no name says better."""
    guess_source: str | None = None
    only_gpu_location: int | None = None
    """Of a process that was shown a single GPU, where on the PCI bus that is; such a GPU is always number 0."""
    pids: list[int] = field(default_factory=list)
    """The processes whose work a file is known to hold."""
    has_gpu_work: bool | None = None
    """Whether there is GPU work, where that is known before reading."""
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    device_name: str | None = None
    profiler: str | None = None
    clock_base_ns: int = 0
    clock_domain: str = "relative"
    complete: bool = True
    """False when the file ends early: what it holds was read, but it does not hold all."""
    repairs: Counter[str] = field(default_factory=Counter)
    """What was repaired in how many places, by kind."""
    first_repair: int | None = None
    """Byte of the decompressed file where the first repair was made."""
    warnings: list[str] = field(default_factory=list)
    is_helper: bool = False
    """A process beside the training that happened to be recorded, should it have no GPU work."""


@dataclass(frozen=True)
class Recognised:
    """What a file is, told from its beginning: readable when `reader` is set, else `problem` says why not."""

    what: str
    reader: Reader | None = None
    facts: Facts = field(default_factory=Facts)
    problem: TraceAnalyzerError | None = None
    is_trace: bool = True
    """False for files that merely lie beside traces: they are listed and do not count as failures in a folder."""
    process: str | None = None
    """How the collector calls the process, when other files beside this one may be of the same."""
    richness: int = 0
    """Of several files of one process, that with the most is read."""
    is_export: bool = False
    """Made from a database, which says more: not read where one lies beside it."""


class TraceReading(Protocol):
    """One trace being read: iterate over its batches, then `facts` is complete."""

    facts: Facts

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class HowToRead:
    """What of the machine a reading may take, and who watches it."""

    pool: Executor
    """Parses blocks."""
    lookahead: int
    """Groups of blocks in memory at once."""
    block_size: int
    """Bytes per block, about."""
    watch: Callable[[], None]
    """Called after each piece that was read; may raise to stop the reading."""


class TraceFile(Protocol):
    """One file being read: go through its traces, each to its end, then `digest` is known."""

    @property
    def position(self) -> int:
        """Bytes of the file (as it is, compressed or not) read so far."""
        ...

    @property
    def digest(self) -> str:
        """Hash of the content, as `source.content_hash` gives it."""
        ...

    def traces(self) -> Iterator[TraceReading]:
        """Yield what is to be read as one trace each."""
        ...

    def __enter__(self) -> TraceFile: ...

    def __exit__(self, *_: object) -> None: ...


class Form(Enum):
    """What a file looks like before anything is known of its format; a reader is asked about files of its form."""

    JSON = auto()
    SQLITE = auto()
    CSV = auto()


class Reader(Protocol):
    """A format: recognises a file by its content and reads it."""

    collector: str
    form: Form

    def recognise(self, path: Path) -> Recognised | None:
        """Return what the file is when this format claims it, else None; reads only its beginning (and end)."""
        ...

    def files(self, path: Path) -> list[Path]:
        """Return all files that are read with `path`, which is one of them."""
        ...

    def open(self, path: Path, how: HowToRead) -> TraceFile:
        """Open a file that was recognised. Raises InputError when it cannot be read."""
        ...
