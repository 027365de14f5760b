"""Steps through a JSON document that is too large to hold: its keys, its small values, and over everything else.

Nobody parses the document as a whole. Known values are kept, foreign ones are skipped in bounded memory. The readers'
documents (`document`, `rocprofv3_document`) walk on this to their arrays of events, which they cut into blocks.

A document that ends early, or is no JSON around its events, gives all it has before that place, and `incomplete` says
where.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from traceanalyzer.errors import InputError
from traceanalyzer.readers.source import Readable

# Possessive (*+): without it the engine keeps a way back for every character of a long text.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
WINDOW: Final = 64 << 10
"""Bytes that are looked at or read at once where a few are needed."""
_BOM: Final = b"\xef\xbb\xbf"


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
class JsonStream:
    """A document and the place in it up to which it was read.

    `keep` names the keys whose values are collected in `metadata`; all others are skipped.
    """

    source: Readable
    block_size: int
    keep: Container[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    foreign_keys: int = 0
    has_events: bool = False
    """True once the document's events were met."""
    problems: list[str] = field(default_factory=list)
    """What was wrong around the events and could be stepped over."""
    incomplete: str | None = None
    """Says where the document ends when it ends early."""
    is_over: bool = False
    _buf: bytes = b""
    _offset: int = 0
    _eof: bool = False

    @property
    def offset(self) -> int:
        """Where in the decompressed document the next unread byte stands."""
        return self._offset

    # -- the buffer ---------------------------------------------------------------------------------------------

    def _fill(self, size: int) -> bool:
        """Have at least `size` bytes in the buffer; False when the document ends before."""
        while len(self._buf) < size and not self._eof:
            data = self.source.read(max(size - len(self._buf), WINDOW))
            self._eof = not data
            self._buf += data
        return len(self._buf) >= size

    def _drop(self, count: int) -> None:
        self._buf = self._buf[count:]
        self._offset += count

    def _skip_space(self, also: bytes = b"") -> bytes:
        """Drop white space and the bytes in `also`; return the next byte, empty at the end."""
        while True:
            rest = self._buf[:WINDOW].lstrip(b" \t\r\n" + also)
            if dropped := min(len(self._buf), WINDOW) - len(rest):
                self._drop(dropped)
            if rest:
                return rest[:1]
            if not self._fill(1):
                return b""

    # -- keys and values ---------------------------------------------------------------------------------------

    def _object_ended(self) -> None:
        """Called behind the `}` of an object whose keys are read."""
        raise NotImplementedError

    def _skip_bom(self) -> None:
        self._fill(len(_BOM))
        if self._buf.startswith(_BOM):
            self._drop(len(_BOM))

    def _take_key(self) -> str | None:
        """Return the next key and step over its colon; None when the object or the document is over."""
        match self._skip_space(also=b","):
            case b'"':
                key = self._take_string()
            case b"}":
                self._drop(1)
                self._object_ended()
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
        self.is_over = True

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
        self.is_over = True

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
