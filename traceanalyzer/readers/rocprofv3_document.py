"""rocprofv3's JSON as a stream: what each process says about itself, and its records as blocks of text.

The document is `{"rocprofiler-sdk-tool":[process, ...]}`. A process has a head (metadata, agents, strings), the list
`kernel_symbols`, and its records in lists by kind, `{"callback_records":{list, ...},"buffer_records":{list, ...}}`.

The records of a list all begin with the same key, so a block can be cut at `},{"thatkey":`; and a list ends at a `]`
behind which another list, or the end of the group of lists, follows. Both stand outside any string in valid JSON (see
`document`), and that they are not nested is proven by parsing the record before the cut.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.readers.byte_search import holds
from traceanalyzer.readers.json_stream import WINDOW, Block, JsonStream

TOOL_KEY: Final = "rocprofiler-sdk-tool"
SYMBOLS: Final = "kernel_symbols"
CALLBACKS: Final = "callback_records"
BUFFERS: Final = "buffer_records"
HEAD_KEYS: Final = frozenset({"metadata", "agents", "strings"})
"""What a process says about itself; all else in its head is stepped over."""

_FIRST_KEY: Final = re.compile(rb'\{\s*("[^"\\]+")\s*:')
_ANY_KEY: Final = rb'"[A-Za-z_][^"\\]*"'
_LIST_END: Final = re.compile(rb'\](?=\s*(?:\}\s*)?(?:,\s*"([A-Za-z_]\w*)"\s*:\s*[\[{]|\}\s*[}\]]))')
_ANY_LIST_END: Final = r'\]\s*(?:\}\s*)?(?:,\s*"[A-Za-z_]\w*"\s*:\s*[\[{]|\}\s*[}\]])'
"""The same, for a first look."""
_END_OF_ALL: Final = re.compile(rb"\]\s*\}\s*\}\s*\]\s*\}\s*\Z")
"""The end of a list, of its group, of the process, of all processes, and of the document."""
_LONGEST_RECORD: Final = 64 << 20
"""Bytes in which a place to cut is looked for that is certain; behind that, one that is likely will do."""
_KNOWN_LISTS: Final = frozenset(
    b"kernel_dispatch hip_api hsa_api marker_api rccl_api memory_copy memory_allocation scratch_memory rocdecode_api"
    b" rocjpeg_api hipfile_api pc_sample_host_trap pc_sample_stochastic hip_graph rocshmem_api host_functions summary"
    b" callback_records buffer_records counter_collection spm_counter_collection".split()
)


class _State(Enum):
    START = auto()
    TOP = auto()
    PROCESSES = auto()
    HEAD = auto()
    GROUP = auto()
    LIST = auto()


@dataclass(frozen=True, eq=False)
class Records:
    """Some records in a row of one list."""

    group: str
    """'buffer_records', 'callback_records', or '' for the kernel symbols."""
    list_name: str
    block: Block
    first_key: bytes
    """The key, with its quotes, that the records of the list begin with."""


@dataclass
class Rocprofv3Document(JsonStream):
    """Cuts one JSON of rocprofv3 into blocks of records, process by process; see the module's text.

    `metadata` holds the head of the process that is being read.
    """

    processes: int = 0
    """How many processes were begun."""
    _state: _State = _State.START
    _in_records: bool = False
    """Whether a group of lists of this process was met."""
    _group: str = ""
    _list: str = ""
    _first_key: bytes = b""
    _boundary: re.Pattern[bytes] = field(default_factory=lambda: _boundary_before(_ANY_KEY))
    _separator: bytes = b""
    """What mostly stands between two records of the list, up to the colon of the first key."""
    _in_separator: int = 0
    """Bytes of it before the brace."""
    late: list[str] = field(default_factory=list)
    """Parts of a process's head that stand behind the records they explain."""

    def next_process(self) -> bool:
        """Go to the next process and read its head, up to its first list; False when there is none.

        The records of the process before must have been read. Raises InputError when the document is no JSON, or
        is not rocprofv3's.
        """
        before = self.processes
        while not self.is_over and (self.processes == before or self._state is _State.HEAD):
            self._step()
        return self.processes > before

    def next_block(self) -> Records | None:
        """Return the next block of records of this process; None behind its last."""
        process = self.processes
        while not self.is_over and self.processes == process and self._state is not _State.PROCESSES:
            if self._state is not _State.LIST:
                self._step()
            elif records := self._cut():
                return records
        return None

    # -- around the records --------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Go on by one key, or to the next process."""
        match self._state:
            case _State.START:
                self._begin()
            case _State.TOP:
                self._read_top_key()
            case _State.PROCESSES:
                self._read_process()
            case _State.HEAD:
                self._read_head_key()
            case _State.GROUP:
                self._read_list_key()
            case _State.LIST:
                self._cut()

    def _begin(self) -> None:
        self._skip_bom()
        if self._skip_space() != b"{":
            raise InputError("not JSON: it does not start with '{'")
        self._drop(1)
        self._state = _State.TOP

    def _read_top_key(self) -> None:
        key = self._take_key()
        if key is None:
            return
        if key == TOOL_KEY and self._skip_space() == b"[":
            self._drop(1)
            self._state = _State.PROCESSES
        else:
            self._skip_space()
            self._take_value(key)

    def _read_process(self) -> None:
        match self._skip_space(also=b","):
            case b"{":
                self._drop(1)
                self.processes += 1
                self.metadata = {}
                self._in_records = False
                self._state = _State.HEAD
            case b"]":
                self._drop(1)
                self._state = _State.TOP
            case b"":
                self._end_early("the list of processes is not closed")
            case other:
                self._malformed(f"{other.decode('latin-1')!r} where a process should be")

    def _read_head_key(self) -> None:
        key = self._take_key()
        if key is None:
            return
        first = self._skip_space()
        if self._in_records and (key in HEAD_KEYS or key == SYMBOLS):
            self.late.append(key)
        if key in (CALLBACKS, BUFFERS) and first == b"{":
            self._drop(1)
            self.has_events = self._in_records = True
            self._group = key
            self._state = _State.GROUP
        elif key == SYMBOLS and first == b"[":
            self._enter_list(key)
        else:
            self._take_value(key)

    def _read_list_key(self) -> None:
        key = self._take_key()
        if key is None:
            return
        if self._skip_space() == b"[":
            self._enter_list(key)
        else:
            self._take_value(key)

    def _enter_list(self, name: str) -> None:
        self._drop(1)
        self._skip_space()
        self._fill(WINDOW)
        key = _FIRST_KEY.match(self._buf)
        self._first_key = key.group(1) if key else b""
        self._boundary = _boundary_before(re.escape(self._first_key) if key else _ANY_KEY)
        self._list = name
        self._separator, self._in_separator = b"", 0
        self._state = _State.LIST

    def _leave_list(self) -> None:
        self._state = _State.GROUP if self._group else _State.HEAD

    def _object_ended(self) -> None:
        match self._state:
            case _State.GROUP:
                self._group = ""
                self._state = _State.HEAD
            case _State.HEAD:
                self._state = _State.PROCESSES
            case _:
                self._finish()

    # -- the records ---------------------------------------------------------------------------------------------

    def _cut(self) -> Records | None:
        """Cut the next block of the list; None when the list ended."""
        first = self._skip_space(also=b",")
        if first == b"]":
            self._drop(1)
            self._leave_list()
            return None
        if not first:
            self._end_early(f"the list {self._list} is not closed")
            return None
        wanted = self.block_size
        while True:
            is_all = not self._fill(wanted)
            if end := self._find_list_end(wanted):
                return self._take(end, end)
            if not is_all and (cut := self._find_cut(wanted)):
                return self._take(cut.start() + 1, cut.end())
            if is_all:
                return self._take(len(self._buf), len(self._buf), is_last=True)
            wanted *= 2  # one record is larger than a block

    def _take(self, end: int, resume: int, is_last: bool = False) -> Records:
        array = b"".join((b"[", memoryview(self._buf)[:end], b"]"))
        block = Block(array, self._offset, self._buf[end:resume], is_last)
        self._drop(resume)
        return Records(self._group, self._list, block, self._first_key)

    def _find_list_end(self, high: int) -> int | None:
        """Return where the last record of the list ends, if the list ends before `high`."""
        if not holds(memoryview(self._buf)[:high], _ANY_LIST_END):
            return None
        for match in _LIST_END.finditer(self._buf, 0, high):
            end = self._end_before(match.start())
            if self._buf[end - 1 : end] == b"}" and (
                match.group(1) in _KNOWN_LISTS
                or self._is_record_before(end)
                or (self._eof and _END_OF_ALL.match(self._buf, match.start()))
            ):
                return end
        return None

    def _end_before(self, at: int) -> int:
        """Return where the text before `at` ends, white space left out."""
        while at and self._buf[at - 1 : at].isspace():
            at -= 1
        return at

    def _is_record_before(self, end: int) -> bool:
        """Say whether a whole record ends at `end`, so that what follows is not inside of one."""
        if not self._separator and (found := self._boundary.search(self._buf, 0, end)):
            opening = _FIRST_KEY.match(self._buf, found.end())
            self._separator = found.group() + (opening.group() if opening else b"")
            self._in_separator = found.end() - found.start()
        start = self._buf.rfind(self._separator, 0, end) if self._separator else -1
        return _is_object(self._buf[start + self._in_separator if start >= 0 else 0 : end])

    def _find_cut(self, high: int) -> re.Match[bytes] | None:
        """Return the last boundary before `high` behind a record that parses on its own."""
        window = WINDOW
        while True:
            start = max(0, high - window)
            cuts = list(self._boundary.finditer(self._buf, start, high))
            for left, right in zip(reversed(cuts[:-1]), reversed(cuts[1:]), strict=True):
                if _is_object(self._buf[left.end() : right.start() + 1]):
                    return right
            if start == 0:
                is_first_whole = cuts and _is_object(self._buf[: cuts[0].start() + 1])
                return cuts[0] if is_first_whole else cuts[-1] if cuts and high > _LONGEST_RECORD else None
            window *= 4


def _boundary_before(key: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\}\s*,\s*(?=\{\s*" + key + rb"\s*:)")


def _is_object(text: bytes) -> bool:
    """Say whether a text is one JSON object, as far as its structure goes."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        pass
    try:  # with numbers that are not finite, control characters, bytes that are not UTF-8
        return isinstance(json.loads(text.decode("latin-1"), strict=False), dict)
    except (ValueError, RecursionError):
        return False
