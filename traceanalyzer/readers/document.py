"""A Kineto trace as a stream: its top-level keys, and its events as blocks of text.

Top-level keys are scanned one by one, and the array of events is cut into blocks of a few megabytes between two
events.

Where a cut may be: `}`, a comma and `{"word":` with nothing but white space between them. Valid JSON cannot hold
that inside a string: a quote followed at once by a letter cannot close a string, so it opens one, so the braces
before it stand outside any string. What such a cut can be is *nested* (a list of objects inside `args`), and the
end of the array looks the same as the end of such a list. Neither is decided here: a block cut in the wrong place
is never valid JSON on its own, so the parser refuses it; the caller then takes the block apart event by event
(`salvage`), gives back what belongs to no whole event (`give_back`), and the cutting goes on from there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.readers.json_stream import WINDOW, Block, JsonStream

EVENTS_KEY: Final = "traceEvents"

BOUNDARY: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"[A-Za-z_][^"\\]*"\s*:)')
_ARRAY_END: Final = re.compile(rb"\}\s*\]")
_ARRAY_END_TRIES: Final = 64


class _State(Enum):
    START = auto()
    KEYS = auto()
    EVENTS = auto()


@dataclass
class Document(JsonStream):
    """Cuts one JSON trace into blocks of events; see the module's text for the rules."""

    is_list: bool = False
    trust_end: bool = True
    """False once what looked like the end of the array turned out to stand inside an event."""
    _state: _State = _State.START

    def next_block(self, longer_than: int = 0) -> Block | None:
        """Return the next block of events, None when the document is over.

        `longer_than` asks for a block of more bytes than that (where the document has them): the way on when a
        block turned out to end inside an event. Raises InputError when what stands around the events is not JSON.
        """
        while not self.is_over:
            match self._state:
                case _State.START:
                    self._begin()
                case _State.KEYS:
                    self._read_keys()
                case _State.EVENTS:
                    if block := self._cut(longer_than):
                        return block
        return None

    def give_back(self, text: bytes, *, array_ended: bool) -> None:
        """Put text in front of what is still to come; `array_ended`: it starts behind the array's `]`.

        `text` must start where an event (or, after the end, the rest of the document) starts.
        """
        self._buf = text + self._buf
        self._offset -= len(text)
        self._state = _State.EVENTS
        self.is_over = False
        if array_ended:
            self._end_array()

    def _begin(self) -> None:
        self._skip_bom()
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

    def _object_ended(self) -> None:
        self._finish()

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
    window = WINDOW
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
