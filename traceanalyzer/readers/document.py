"""A JSON trace as a stream: its top-level keys, and its events as blocks of text.

Nobody parses the document as a whole. Top-level keys are scanned one by one (known ones are kept, foreign ones are
skipped without being held), and the array of events is cut into blocks of a few megabytes between two events.

Where a cut may be: `}`, a comma and `{"word":` with nothing but white space between them. Valid JSON cannot hold
that inside a string: a quote followed at once by a letter cannot close a string, so it opens one, so the braces
before it stand outside any string. What such a cut can be is *nested* (a list of objects inside `args`), and the
end of the array looks the same as the end of such a list. Neither is decided here: a block cut in the wrong place
is never valid JSON on its own, so the parser refuses it; the caller then takes the block apart event by event
(`salvage`), gives back what belongs to no whole event (`give_back`), and the cutting goes on from there.

A document that ends early gives all it has, and `incomplete` says where it ends.
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

# Possessive (*+): without it the engine keeps a way back for every character of a long text.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
BOUNDARY: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"[A-Za-z_][^"\\]*"\s*:)')
_ARRAY_END: Final = re.compile(rb"\}\s*\]")
_TAIL_WINDOW: Final = 64 << 10
_ARRAY_END_TRIES: Final = 64
_BOM: Final = b"\xef\xbb\xbf"


class _State(Enum):
    START = auto()
    KEYS = auto()
    EVENTS = auto()
    DONE = auto()


@dataclass(frozen=True, eq=False)
class Block:
    """Some events in a row, as a JSON array of their own."""

    array: bytes
    """The events between `[` and `]`: what the parser gets (built so once, since every copy of it costs)."""
    offset: int
    """Where the first event starts in the decompressed document."""
    after: bytes
    """What was cut off behind it, as in the file: a comma with white space, or the array's `]`."""
    is_last: bool = False
    """The array, or the file, ends behind it; no further block must be asked for before this one is accepted."""

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
    problems: list[str] = field(default_factory=list)
    """What was wrong around the events and could be stepped over."""
    trust_end: bool = True
    """False once what looked like the end of the array turned out to stand inside an event."""
    incomplete: str | None = None
    """Says where the document ends when it ends early."""
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
        while (key := self._take_key()) is not None:
            if self._skip_space() == b"[" and key == EVENTS_KEY:
                self._drop(1)
                self.has_events = True
                self._state = _State.EVENTS
                return
            if not self._take_value(key):
                return

    def _take_key(self) -> str | None:
        """Return the next key and step over its colon; None when there is none (the state says what comes)."""
        match self._skip_space(also=b","):
            case b'"':
                key = self._take_string()
            case b"}":
                self._drop(1)
                self._finish()
                return None
            case b"":
                self._end_early("the closing '}' is missing")
                return None
            case other:
                self._malformed(f"{other.decode('latin-1')!r} where a key should be")
                return None
        if key is None:
            return None
        match self._skip_space():
            case b":":
                self._drop(1)
                return key
            case b"":
                self._end_early("inside a key")
            case _:
                self._malformed(f"no ':' after key {key!r}")
        return None

    def _finish(self) -> None:
        """Nothing but white space may follow."""
        if self._skip_space():
            raise InputError(
                f"something follows the end of the JSON document, at byte {self._offset:,}:"
                " several documents in one file? Split it, one trace per file"
            )
        self._state = _State.DONE

    def _end_early(self, where: str) -> None:
        """Note that the file ends before its document does.

        Raises InputError when there were no events: then it is not known that this is a trace at all.
        """
        self._give_up(f"the file ends early, at byte {self._offset + len(self._buf):,}: {where}")

    def _malformed(self, what: str) -> None:
        """Note that what stands around the events is not JSON; the events before it are kept."""
        self._give_up(f"malformed JSON at byte {self._offset:,}: {what}")

    def _give_up(self, text: str) -> None:
        if not self.has_events:
            raise InputError(text)
        while self._buf:  # to the end of the file, for its hash
            self._drop(len(self._buf))
            self._fill(1)
        self.incomplete = text
        self._state = _State.DONE

    def _take_string(self) -> str | None:
        """Return the string that starts here; None when the file ends inside it."""
        more = True
        while not (match := _STRING.match(self._buf)):
            if not more:
                self._end_early("inside a text")
                return None
            more = self._fill(2 * len(self._buf) + 1)
        try:
            text: str = orjson.loads(match.group())
        except orjson.JSONDecodeError:
            text = match.group()[1:-1].decode("utf-8", "replace")  # a foreign key or value: nothing depends on it
        self._drop(match.end())
        return text

    def _take_value(self, key: str) -> bool:
        """Step over a top-level value, and keep it when `key` is known; False when the file ends inside it."""
        start, keeping = self._offset, key in self.keep
        self.foreign_keys += not keeping
        text = self._take_nested(keeping) if self._buf[:1] in (b"{", b"[") else self._take_scalar()
        if text is not None and keeping:
            try:
                self.metadata[key] = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                self.problems.append(f"key {key!r} at byte {start:,} is malformed ({error}) and was left out")
        return text is not None

    def _take_scalar(self) -> bytes | None:
        if self._buf[:1] == b'"':
            string = self._take_string()
            return None if string is None else orjson.dumps(string)
        match = _SCALAR.match(self._buf)
        while match and match.end() == len(self._buf) and self._fill(2 * len(self._buf)):
            match = _SCALAR.match(self._buf)
        if not match:
            self._malformed("no value") if self._buf else self._end_early("inside a value")
            return None
        self._drop(match.end())
        return match.group()

    def _take_nested(self, keeping: bool) -> bytes | None:
        """Step over an object or list, in bounded memory unless it is kept; None when the file ends inside it."""
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
                self._end_early("inside a value")
                return None

    # -- the events ---------------------------------------------------------------------------------------------

    def _cut(self, longer_than: int) -> Block | None:
        """Cut the next block; None when the array ended (the state says what comes)."""
        first = self._skip_space(also=b",")
        if first == b"]":
            self._drop(1)
            self._end_array()
            return None
        if not first:
            self._end_early("the array of events is not closed")
            return None
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
        if self.trust_end and (end := self._find_array_end()):
            return self._take_block(end - 1, end, is_last=True)
        return self._take_block(len(self._buf), len(self._buf), is_last=True)

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

    def _take_block(self, end: int, resume: int, is_last: bool = False) -> Block:
        array = b"".join((b"[", memoryview(self._buf)[:end], b"]"))
        block = Block(array, self._offset, self._buf[end:resume], is_last)
        self._drop(resume)
        if is_last and resume > end:
            self._end_array()
        return block

    def _find_array_end(self) -> int | None:
        """With the document's end in the buffer, return the position behind the array's `]`.

        It is the first `]` behind an event after which the rest of the document is valid. None when there is none
        (a cut file) or too many to try (taking the block apart finds it then).
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
        cuts = list(BOUNDARY.finditer(buf, start, high))
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
