"""A JSON trace as a stream: its top-level keys, and its events as blocks of text.

Nobody parses the document as a whole. Top-level keys are scanned one by one (known ones are kept, foreign ones are
skipped without being held), and the array of events is cut into blocks of a few megabytes between two events.

Where a cut may be: `}`, a comma and `{"word":` with nothing but white space between them. Valid JSON cannot hold
that inside a string: a quote followed at once by a letter cannot close a string, so it opens one, so the braces
before it stand outside any string. What such a cut can be is *nested* (a list of objects inside `args`), and the
end of the array looks the same as the end of such a list. Neither is decided here: a block cut in the wrong place
is never valid JSON on its own, so the parser refuses it; the caller then carves the block event by event
(`carve`), gives back what belongs to no complete event (`give_back`), and the cutting goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Any, Final

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.readers.source import Readable

EVENTS_KEY: Final = "traceEvents"

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|["\[\]{}]', re.DOTALL)
_BOUNDARY: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"[A-Za-z_][^"\\]*"\s*:)')
_ARRAY_END: Final = re.compile(rb"\}\s*\]")
_TAIL_WINDOW: Final = 64 << 10
_ARRAY_END_TRIES: Final = 64
_BOM: Final = b"\xef\xbb\xbf"


class _State(Enum):
    START = auto()
    KEYS = auto()
    EVENTS = auto()
    DONE = auto()


@dataclass(frozen=True)
class Block:
    """Some events in a row, as a JSON array of their own."""

    array: bytes
    """The events between `[` and `]`: what the parser gets (built so once, since every copy of it costs)."""
    offset: int
    """Where the first event starts in the decompressed document."""
    after: bytes
    """What was cut off behind it, as in the file: a comma with white space, or the array's `]`."""
    closes_array: bool = False
    """No further block must be asked for before this one is accepted."""

    @property
    def size(self) -> int:
        """Bytes of the document that the events take."""
        return len(self.array) - 2

    def text(self, start: int = 0) -> bytes:
        """The events as in the document, from byte `start` on."""
        return self.array[1 + start : -1]


@dataclass
class Document:
    """Cuts one JSON trace into blocks of events; see the module's text for the rules.

    `keep` names the top-level keys whose values are collected in `metadata`; all others are skipped.
    """

    source: Readable
    block_size: int
    keep: Container[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    foreign_keys: int = 0
    has_events: bool = False
    """True once a `traceEvents` array (or a top-level list) was met."""
    is_list: bool = False
    _buf: bytes = b""
    _offset: int = 0
    _eof: bool = False
    _state: _State = _State.START

    def next_block(self, longer_than: int = 0) -> Block | None:
        """Return the next block of events, None when the document is over.

        `longer_than` asks for a block of more bytes than that (where the document has them): the way on when a
        block turned out to end inside an event. Raises InputError when what stands around the events is not JSON.
        """
        while True:
            match self._state:
                case _State.START:
                    self._begin()
                case _State.KEYS:
                    self._read_keys()
                case _State.EVENTS:
                    if block := self._cut(longer_than):
                        return block
                case _State.DONE:
                    return None

    def give_back(self, text: bytes, *, array_ended: bool) -> None:
        """Put text in front of what is still to come; `array_ended`: it starts behind the array's `]`.

        `text` must start where an event (or, after the end, the rest of the document) starts.
        """
        self._buf = text + self._buf
        self._offset -= len(text)
        self._state = _State.EVENTS
        if array_ended:
            self._end_array()

    @property
    def offset(self) -> int:
        """Where in the decompressed document the next unread byte stands."""
        return self._offset

    # -- the buffer ---------------------------------------------------------------------------------------------

    def _fill(self, size: int) -> bool:
        """Have at least `size` bytes in the buffer; False when the document ends before."""
        while len(self._buf) < size and not self._eof:
            data = self.source.read(max(size - len(self._buf), _TAIL_WINDOW))
            self._eof = not data
            self._buf += data
        return len(self._buf) >= size

    def _drop(self, count: int) -> None:
        self._buf = self._buf[count:]
        self._offset += count

    def _skip_space(self, also: bytes = b"") -> bytes:
        """Drop white space and the bytes in `also`; return the next byte, empty at the end."""
        while True:
            rest = self._buf[:_TAIL_WINDOW].lstrip(b" \t\r\n" + also)
            if dropped := min(len(self._buf), _TAIL_WINDOW) - len(rest):
                self._drop(dropped)
            if rest:
                return rest[:1]
            if not self._fill(1):
                return b""

    # -- around the events --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._fill(len(_BOM))
        if self._buf.startswith(_BOM):
            self._drop(len(_BOM))
        match self._skip_space():
            case b"{":
                self._drop(1)
                self._state = _State.KEYS
            case b"[":
                self._drop(1)
                self.has_events = self.is_list = True
                self._state = _State.EVENTS
            case _:
                raise InputError("not JSON: it starts with neither '{' nor '['")

    def _read_keys(self) -> None:
        """Read `"key": value` pairs up to the array of events or the end of the document."""
        while True:
            match self._skip_space(also=b","):
                case b'"':
                    key = self._take_string()
                case b"}":
                    self._drop(1)
                    self._finish()
                    return
                case b"":
                    raise InputError(f"the file ends early, at byte {self._offset:,}: the closing '}}' is missing")
                case other:
                    raise InputError(f"malformed JSON at byte {self._offset:,}: {other!r} where a key should be")
            if self._skip_space() != b":":
                raise InputError(f"malformed JSON at byte {self._offset:,}: no ':' after key {key!r}")
            self._drop(1)
            if self._skip_space() == b"[" and key == EVENTS_KEY:
                self._drop(1)
                self.has_events = True
                self._state = _State.EVENTS
                return
            self._take_value(key)

    def _finish(self) -> None:
        """Nothing but white space may follow."""
        if self._skip_space():
            raise InputError(
                f"something follows the end of the JSON document, at byte {self._offset:,}:"
                " several documents in one file? Split it, one trace per file"
            )
        self._state = _State.DONE

    def _take_string(self) -> str:
        more = True
        while not (match := _STRING.match(self._buf)):
            if not more:
                raise InputError(f"the file ends early, inside a string that starts at byte {self._offset:,}")
            more = self._fill(2 * len(self._buf) + 1)
        try:
            text: str = orjson.loads(match.group())
        except orjson.JSONDecodeError as error:
            raise InputError(f"malformed JSON at byte {self._offset:,}: {error}") from error
        self._drop(match.end())
        return text

    def _take_value(self, key: str) -> None:
        """Step over a top-level value; keep it when `key` is known."""
        start, keeping = self._offset, key in self.keep
        self.foreign_keys += not keeping
        text = self._take_nested(keeping) if self._buf[:1] in (b"{", b"[") else self._take_scalar()
        if keeping:
            try:
                self.metadata[key] = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise InputError(f"malformed JSON in key {key!r} at byte {start:,}: {error}") from error

    def _take_scalar(self) -> bytes:
        if self._buf[:1] == b'"':
            return orjson.dumps(self._take_string())
        match = _SCALAR.match(self._buf)
        while match and match.end() == len(self._buf) and self._fill(2 * len(self._buf)):
            match = _SCALAR.match(self._buf)
        if not match:
            raise InputError(f"malformed JSON at byte {self._offset:,}: no value")
        self._drop(match.end())
        return match.group()

    def _take_nested(self, keeping: bool) -> bytes:
        """Step over an object or list, in bounded memory unless it is kept."""
        parts: list[bytes] = []
        depth = 0
        while True:
            done = 0
            for token in _TOKEN.finditer(self._buf):
                mark = token.group()
                if mark == b'"':  # a string whose end is not in the buffer yet
                    break
                done = token.end()
                depth += (mark in b"{[") - (mark in b"}]")
                if depth == 0:
                    parts.append(self._buf[:done])
                    self._drop(done)
                    return b"".join(parts)
            else:
                done = len(self._buf)
            if keeping:
                parts.append(self._buf[:done])
            self._drop(done)
            held = len(self._buf)
            self._fill(2 * held + 1)
            if len(self._buf) == held:
                raise InputError(f"the file ends early, at byte {self._offset + held:,}, inside a value")

    # -- the events ---------------------------------------------------------------------------------------------

    def _cut(self, longer_than: int) -> Block | None:
        """Cut the next block; None when the array ended (the state says what comes)."""
        first = self._skip_space(also=b",")
        if first == b"]":
            self._drop(1)
            self._end_array()
            return None
        if not first:
            raise InputError(f"the file ends early, at byte {self._offset:,}: the array of events is not closed")
        if not longer_than and len(self._buf) < self.block_size and not self._eof:
            data = self.source.read(self.block_size - len(self._buf))
            if block := self._cut_fresh(data):
                return block
            self._eof = not data
            self._buf += data
        wanted = max(self.block_size, 2 * longer_than)
        while self._fill(wanted):
            if cut := _last_boundary(self._buf, longer_than, wanted):
                return self._take_block(cut.start() + 1, cut.end())
            wanted *= 2  # one event is larger than a block
        if end := self._find_array_end():
            return self._take_block(end - 1, end, closes_array=True)
        return self._take_block(len(self._buf), len(self._buf))

    def _cut_fresh(self, data: bytes) -> Block | None:
        """Cut in the bytes just read, copying them once; None when that needs a closer look (end, huge event)."""
        if len(self._buf) + len(data) < self.block_size or not (
            cut := _last_boundary(data, 0, len(data), only_window=True)
        ):
            return None
        end, resume = cut.start() + 1, cut.end()
        array = b"".join((b"[", self._buf, memoryview(data)[:end], b"]"))
        block = Block(array, self._offset, data[end:resume])
        self._offset += len(self._buf) + resume
        self._buf = data[resume:]
        return block

    def _take_block(self, end: int, resume: int, closes_array: bool = False) -> Block:
        array = b"".join((b"[", memoryview(self._buf)[:end], b"]"))
        block = Block(array, self._offset, self._buf[end:resume], closes_array)
        self._drop(resume)
        if closes_array:
            self._end_array()
        return block

    def _find_array_end(self) -> int | None:
        """With the document's end in the buffer, return the position behind the array's `]`.

        It is the first `]` behind an event after which the rest of the document is valid. None when there is none
        (a cut file) or too many to try (the caller's carving finds it then).
        """
        for match in islice(_ARRAY_END.finditer(self._buf), _ARRAY_END_TRIES):
            rest = self._buf[match.end() :]
            if self.is_list:
                if not rest.strip():
                    return match.end()
                continue
            try:
                orjson.loads(b'{"":0' + rest)
            except orjson.JSONDecodeError:
                continue
            return match.end()
        return None

    def _end_array(self) -> None:
        if self.is_list:
            self._finish()
        else:
            self._state = _State.KEYS


def _last_boundary(buf: bytes, low: int, high: int, *, only_window: bool = False) -> re.Match[bytes] | None:
    """Return the last place between `low` and `high` where a cut is likely to be right.

    Likely: the object before it parses on its own and has a phase or a name, which objects nested in `args`
    practically never have. Wrong guesses cost time, not data (see the module's text). `only_window`: look no
    further back than is usual, and return None when nothing is there.
    """
    window = _TAIL_WINDOW
    while True:
        start = max(low, high - window)
        cuts = list(_BOUNDARY.finditer(buf, start, high))
        for left, right in zip(reversed(cuts[:-1]), reversed(cuts[1:]), strict=True):
            if _looks_like_event(buf[left.end() : right.start() + 1]):
                return right
        if only_window:
            return None
        if start == low:
            return cuts[-1] if cuts else None
        window *= 4


def _looks_like_event(text: bytes) -> bool:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and ("ph" in value or "name" in value)


@dataclass(frozen=True)
class Carved:
    """A block taken apart: whole events, and the text from `consumed` on that belongs to no whole event."""

    events: list[bytes]
    consumed: int
    array_ended: bool


def carve(block: Block) -> Carved:
    """Cut a block that the parser refused into its events, one by one, counting brackets outside strings.

    Stops at the array's `]` or at an event whose end is not in the block. Raises InputError, naming the byte, at
    the first event that is not valid JSON.
    """
    text, events, at = block.text(), list[bytes](), 0
    while True:
        at = _after_separators(text, at)
        if at == len(text):
            return Carved(events, at, array_ended=False)
        if text[at : at + 1] == b"]":
            return Carved(events, at + 1, array_ended=True)
        end = _event_end(text, at)
        if end is None:
            return Carved(events, at, array_ended=False)
        event = text[at:end]
        try:
            value = orjson.loads(event)
        except orjson.JSONDecodeError as error:
            raise InputError(f"malformed JSON in the event at byte {block.offset + at:,}: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"the element at byte {block.offset + at:,} is not an event: {event[:60]!r}")
        events.append(event)
        at = end


def _after_separators(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    at = match.end()
    if text[at : at + 1] == b",":
        match = _SPACE.match(text, at + 1)
        assert match is not None
        return match.end()
    return at


def _event_end(text: bytes, at: int) -> int | None:
    """Return where the value at `at` ends, None when that is not in the text."""
    if text[at : at + 1] not in (b"{", b"["):
        match = _STRING.match(text, at) or _SCALAR.match(text, at)
        return match.end() if match else len(text)
    depth = 0
    for token in _TOKEN.finditer(text, at):
        mark = token.group()
        if mark == b'"':
            return None
        depth += (mark in b"{[") - (mark in b"}]")
        if depth == 0:
            return token.end()
    return None
